"""One lock process, by hand: how it judges what others say, and what it tells of a lock."""

from __future__ import annotations

import pytest
from support.lamport_scene import REQUEST, LoneProcess, got, posts, release, to_proxy, welcome

from fencelock.actors.api.message import Absence, Contender
from fencelock.actors.effect import Effects, Observe, Wake
from fencelock.actors.lamport.message import (
    Acknowledge,
    Congested,
    PeerJoined,
    Pending,
    Probe,
    ProbeDue,
    ProofDue,
    Release,
    Request,
)
from fencelock.actors.lamport.order import pack_fence
from fencelock.actors.lamport.peer_contact import SILENCE_MS
from fencelock.actors.lamport.process import PROBE_MS
from fencelock.actors.lamport.proof import PROOF_MS
from fencelock.actors.proxy.backend import Full, Seen


@pytest.fixture
def fresh() -> LoneProcess:
    return LoneProcess()


@pytest.fixture
def bench(fresh: LoneProcess) -> LoneProcess:
    return fresh.welcomed()


# Judging others.


def test_an_earlier_request_goes_first_and_its_release_lets_us_in(bench: LoneProcess) -> None:
    bench.hear("c", Request(lock="x", stamp=4))
    bench.requested(1, 5)
    assert to_proxy(bench.acknowledged(8)) == []

    assert to_proxy(bench.hear("c", Release(lock="x", request=4, stamp=9))) == [got(1, 5)]


def test_a_tie_goes_to_the_lesser_node(bench: LoneProcess) -> None:
    bench.requested(1, 5)
    bench.hear("a", Request(lock="x", stamp=5))
    assert to_proxy(bench.hear("c", Request(lock="x", stamp=5))) == []

    assert [waiter.node for waiter in bench.look().waiters] == ["b", "c"]
    let_in = bench.hear("a", Release(lock="x", request=5, stamp=7))
    assert to_proxy(let_in) == [got(1, 5)]  # And (5, "c") was later than (5, "b").


def test_a_release_of_another_request_removes_nothing(bench: LoneProcess) -> None:
    bench.hear("a", Request(lock="x", stamp=4))

    effects = bench.hear("a", Release(lock="x", request=3, stamp=5))
    assert effects == [Observe("lamport.release_unmatched")]
    bench.hear("c", Release(lock="x", request=4, stamp=5))
    assert bench.look().holder is not None


def test_a_second_request_beside_the_first_is_dropped_unacknowledged(bench: LoneProcess) -> None:
    bench.hear("a", Request(lock="x", stamp=4))
    effects = bench.hear("a", Request(lock="x", stamp=6))

    assert effects == [Observe("lamport.second_request_dropped")]
    holder = bench.look().holder
    assert holder is not None
    assert holder.fence == pack_fence(4, 0)


def test_the_same_request_told_twice_is_one(bench: LoneProcess) -> None:
    bench.hear("a", Request(lock="x", stamp=4))
    effects = bench.hear("a", welcome(2, Pending("x", 4), stamp=5))

    assert posts(effects) == [(("a",), Acknowledge(lock="x"))]
    bench.hear("a", Release(lock="x", request=4, stamp=6))
    assert bench.look().holder is None


# Telling.


def test_it_shows_the_holder_and_the_waiters_of_all_nodes_in_order(bench: LoneProcess) -> None:
    bench.hear("c", Request(lock="x", stamp=4))
    bench.now = 10
    bench.requested(1, 6)
    bench.hear("a", Request(lock="x", stamp=5))
    bench.want(2)
    bench.now = 30

    seen = bench.look()
    assert seen.holder == Contender("c", "", "", pack_fence(4, 2), 30)
    assert seen.waiters == (
        Contender("a", "", "", None, 20),
        Contender("b", "s1", "o", None, 20),
        Contender("b", "s2", "o", None, 20),
    )


def test_our_own_first_request_holds_only_once_granted(bench: LoneProcess) -> None:
    bench.requested(1, 5)
    assert bench.look().holder is None
    bench.now = 7
    bench.acknowledged(6)
    bench.now = 10

    assert bench.look().holder == Contender("b", "s1", "o", pack_fence(5, 1), 3)


def test_a_wait_names_whose_evidence_is_missing_and_for_how_long(bench: LoneProcess) -> None:
    bench.now = 60_000  # Nobody had anything to say for a minute: that is not silence.
    bench.requested(1, 5)
    bench.now += SILENCE_MS - 1
    assert bench.look().waits_for == ()
    bench.hear("a", Acknowledge(lock="x", stamp=6))
    bench.now += 1

    assert bench.look().waits_for == (Absence("c", SILENCE_MS),)


def test_a_silence_lasts_over_waits(bench: LoneProcess) -> None:
    bench.requested(1, 5)
    bench.now = 400
    bench.give(1)
    bench.requested(2, 9)
    bench.hear("a", Acknowledge(lock="x", stamp=10))
    bench.now = 500

    assert bench.look().waits_for == (Absence("c", 500),)


def test_before_it_is_ready_a_wait_names_who_has_not_welcomed_it(fresh: LoneProcess) -> None:
    fresh.say(PeerJoined(node="a", boot=1))
    fresh.want(1)
    fresh.now = 700

    assert fresh.look().waits_for == (Absence("c", 700),)
    assert fresh.look("unwanted").waits_for == ()


def test_a_dead_holder_is_found_out_by_a_probe_and_a_living_one_is_not_named(
    bench: LoneProcess,
) -> None:
    bench.hear("c", Request(lock="x", stamp=4))
    effects = bench.want(1)
    assert Wake(PROBE_MS, ProbeDue()) in effects
    bench.hear("b", Request(lock="x", stamp=5))
    bench.acknowledged(6)
    bench.now = PROBE_MS
    probed = bench.say(ProbeDue())
    assert posts(probed) == [(("c",), Probe())]
    assert Wake(PROBE_MS, ProbeDue()) in probed

    bench.hear("c", Acknowledge(lock="", stamp=8))
    bench.now = 2 * PROBE_MS
    assert bench.look().waits_for == ()
    bench.say(ProbeDue())
    bench.now += SILENCE_MS
    assert bench.look().waits_for == (Absence("c", SILENCE_MS),)
    assert posts(bench.say(ProbeDue())) == []  # It owes an answer already.


def test_a_probe_is_acknowledged(bench: LoneProcess) -> None:
    assert posts(bench.hear("a", Probe(stamp=5))) == [(("a",), Acknowledge(lock=""))]


def test_nobody_is_probed_when_nothing_is_waited_for(bench: LoneProcess) -> None:
    bench.requested(1, 5)
    bench.acknowledged(6)

    assert bench.say(ProbeDue()) == ()
    assert not bench.process.probing


def test_a_lock_nobody_wants_is_free(bench: LoneProcess) -> None:
    assert bench.look() == Seen(lock="x", query=1, holder=None, waiters=(), waits_for=())


def test_while_a_backlog_is_too_long_new_wants_are_refused_and_old_ones_go_on(
    bench: LoneProcess,
) -> None:
    bench.requested(1, 5)
    bench.say(Congested(node="c", congested=True))
    (full,) = to_proxy(bench.want(2))
    assert isinstance(full, Full)
    assert full.ticket == 2
    assert "c" in full.detail
    assert posts(bench.give(1)) == [release(5)]

    bench.say(Congested(node="c", congested=False))
    assert posts(bench.want(3)) == [REQUEST]


# Proving that nobody holds.

PROBE = (("a", "b", "c"), Probe())


def free(query: int) -> Seen:
    return Seen(lock="x", query=query, holder=None, waiters=(), waits_for=())


def seen_of(effects: Effects) -> Seen:
    (seen,) = [event for event in to_proxy(effects) if isinstance(event, Seen)]
    return seen


def test_nobody_is_told_of_a_free_lock_before_every_process_was_heard_later(
    bench: LoneProcess,
) -> None:
    effects = bench.prove()
    assert to_proxy(effects) == []
    assert posts(effects) == [PROBE]
    assert Wake(PROOF_MS, ProofDue(query=1)) in effects
    bench.hear("b", Probe(stamp=5))
    assert to_proxy(bench.hear("a", Acknowledge(lock="", stamp=6))) == []
    assert to_proxy(bench.hear("c", Acknowledge(lock="y", stamp=4))) == []  # Sent before, perhaps.
    assert to_proxy(bench.hear("c", Acknowledge(lock="", stamp=7))) == [free(1)]
    assert to_proxy(bench.say(ProofDue(query=1))) == []


def test_a_holder_whose_request_was_on_its_way_is_told(bench: LoneProcess) -> None:
    """Any later message of ours let c in, before its request came here."""
    bench.prove()
    bench.hear("b", Probe(stamp=9))
    bench.hear("a", Acknowledge(lock="", stamp=10))
    bench.hear("c", Request(lock="x", stamp=4))
    holder = seen_of(bench.hear("c", Acknowledge(lock="", stamp=11))).holder
    assert holder is not None
    assert holder.fence == pack_fence(4, 2)


def test_a_known_holder_is_told_at_once(bench: LoneProcess) -> None:
    bench.hear("c", Request(lock="x", stamp=4))
    effects = bench.prove()
    assert posts(effects) == []
    assert seen_of(effects).holder is not None


def test_each_look_has_a_probe_of_its_own(bench: LoneProcess) -> None:
    assert [*posts(bench.prove(1)), *posts(bench.prove(2))] == [PROBE, PROBE]
    bench.hear("b", Probe(stamp=5))
    bench.hear("a", Acknowledge(lock="", stamp=8))
    assert to_proxy(bench.hear("c", Acknowledge(lock="", stamp=6))) == [free(1)]
    bench.hear("b", Probe(stamp=7))
    assert to_proxy(bench.hear("c", Acknowledge(lock="", stamp=8))) == [free(2)]


def test_a_process_that_is_joining_does_not_call_a_lock_free(fresh: LoneProcess) -> None:
    fresh.say(PeerJoined(node="a", boot=1))
    assert posts(fresh.prove()) == []
    late = seen_of(fresh.say(ProofDue(query=1)))
    assert (late.holder, late.unknown) == (None, "not heard in the last 2000 ms: c")


def test_a_look_of_a_process_that_becomes_ready_is_answered(fresh: LoneProcess) -> None:
    fresh.prove()
    for node in ("a", "c"):
        fresh.say(PeerJoined(node=node, boot=1))
    fresh.hear("a", welcome(2, stamp=1))
    assert PROBE in posts(fresh.hear("c", welcome(2, Pending("x", 1), stamp=3)))
    fresh.hear("b", Probe(stamp=5))
    fresh.hear("a", Acknowledge(lock="", stamp=6))
    holder = seen_of(fresh.hear("c", Acknowledge(lock="", stamp=7))).holder
    assert holder is not None
    assert holder.node == "c"


def test_without_a_word_of_a_process_it_is_not_known_who_holds(bench: LoneProcess) -> None:
    bench.prove()
    assert to_proxy(bench.say(ProofDue(query=1))) == []  # The own probe has yet to come back.
    bench.hear("b", Probe(stamp=5))
    bench.hear("a", Acknowledge(lock="", stamp=6))
    assert seen_of(bench.say(ProofDue(query=1))).unknown == "not heard in the last 2000 ms: c"
    assert to_proxy(bench.hear("c", Acknowledge(lock="", stamp=7))) == []


def test_a_process_that_restarts_meanwhile_is_asked_again(bench: LoneProcess) -> None:
    bench.prove()
    bench.hear("b", Probe(stamp=5))
    bench.hear("c", Acknowledge(lock="", stamp=6))
    assert posts(bench.say(PeerJoined(node="c", boot=2))) == [(("c",), Probe())]
    assert to_proxy(bench.hear("a", Acknowledge(lock="", stamp=6))) == []
    assert to_proxy(bench.hear("c", Acknowledge(lock="", stamp=9))) == [free(1)]
