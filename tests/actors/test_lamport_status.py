"""One lock process, by hand: its checks of messages, and its description of a lock."""

from __future__ import annotations

import pytest
from support.counting import count_contenders
from support.expect import present
from support.lamport_scene import LoneProcess, posts, release, to_proxy, welcome

from fencelock.actors.api.lock_message import Absence, Contender
from fencelock.actors.effect import Effects, Observe, Wake
from fencelock.actors.lamport import process as process_module
from fencelock.actors.lamport import wire as messages
from fencelock.actors.lamport.order import PEER_SILENCE_MS, pack_fence
from fencelock.actors.lamport.process import AHEAD_PROBE_MS, PROOF_MS
from fencelock.actors.proxy.event import WAITERS_SHOWN_MAX, LockDescription, QueryLock

# Judging others.


def test_a_release_of_another_request_removes_nothing(joined: LoneProcess) -> None:
    joined.receive("a", messages.Request(lock="x", stamp=4))

    effects = joined.receive("a", messages.Release(lock="x", request=3, stamp=5))
    assert effects == [Observe("lamport.release_unmatched")]
    joined.receive("c", messages.Release(lock="x", request=4, stamp=5))
    assert joined.look().holder is not None


def test_a_second_request_beside_the_first_is_dropped_unacknowledged(joined: LoneProcess) -> None:
    joined.receive("a", messages.Request(lock="x", stamp=4))
    effects = joined.receive("a", messages.Request(lock="x", stamp=6))

    assert effects == [Observe("lamport.second_request_dropped")]
    assert present(joined.look().holder).fence == pack_fence(4, 0)


def test_the_same_request_received_twice_is_one(joined: LoneProcess) -> None:
    joined.receive("a", messages.Request(lock="x", stamp=4))
    effects = joined.receive("a", welcome(2, messages.KnownRequest("x", 4), stamp=5))

    assert posts(effects) == [(("a",), messages.Acknowledge(lock="x"))]
    joined.receive("a", messages.Release(lock="x", request=4, stamp=6))
    assert joined.look().holder is None


# Telling.


def test_it_shows_the_holder_and_the_waiters_of_all_nodes_in_order(joined: LoneProcess) -> None:
    joined.receive("c", messages.Request(lock="x", stamp=4))
    joined.now = 10
    joined.requested(1, 6)
    joined.receive("a", messages.Request(lock="x", stamp=5))
    joined.want(2)
    joined.now = 30

    seen = joined.look()
    assert seen.holder == Contender("c", "", "", pack_fence(4, 2), 30)
    assert seen.waiters == (
        Contender("a", "", "", None, 20),
        Contender("b", "s1", "o", None, 20),
        Contender("b", "s2", "o", None, 20),
    )


@pytest.mark.parametrize(("waiters", "shown"), [(True, WAITERS_SHOWN_MAX), (False, 0)])
def test_a_look_builds_only_the_requests_and_the_waiters_that_it_shows(
    joined: LoneProcess, monkeypatch: pytest.MonkeyPatch, *, waiters: bool, shown: int
) -> None:
    joined.requested(1, 5)
    joined.acknowledged(6)
    for ticket in range(2, 1_000):
        joined.want(ticket)
    built = count_contenders(monkeypatch, process_module)

    (seen,) = to_proxy(joined.handle(QueryLock(lock="x", query=1, waiters=waiters)))

    assert isinstance(seen, LockDescription)
    assert present(seen.holder).session == "s1"
    assert [waiter.session for waiter in seen.waiters] == [f"s{2 + n}" for n in range(shown)]
    assert len(built) == 1 + shown


def test_our_own_first_request_holds_only_once_granted(joined: LoneProcess) -> None:
    joined.requested(1, 5)
    assert joined.look().holder is None
    joined.now = 7
    joined.acknowledged(6)
    joined.now = 10

    assert joined.look().holder == Contender("b", "s1", "o", pack_fence(5, 1), 3)


def test_a_wait_names_whose_evidence_is_missing_and_for_how_long(joined: LoneProcess) -> None:
    joined.now = 60_000  # No process had a message to send for a minute: that is not silence.
    joined.requested(1, 5)
    joined.now += PEER_SILENCE_MS - 1
    assert joined.look().waits_for == ()
    joined.acknowledge("a", 6, "x")
    joined.now += 1

    assert joined.look().waits_for == (Absence("c", PEER_SILENCE_MS),)


def test_a_silence_lasts_over_waits(joined: LoneProcess) -> None:
    joined.requested(1, 5)
    joined.now = 400
    joined.give(1)
    joined.requested(2, 9)
    joined.acknowledge("a", 10, "x")
    joined.now = 500

    assert joined.look().waits_for == (Absence("c", 500),)


def test_a_wait_names_who_has_not_welcomed_the_process_before_it_is_ready(
    alone: LoneProcess,
) -> None:
    alone.handle(messages.PeerJoined(node="a", boot=1))
    alone.want(1)
    alone.now = 700

    assert alone.look().waits_for == (Absence("c", 700),)
    assert alone.look("unwanted").waits_for == ()


def test_a_dead_holder_is_found_by_a_probe_and_a_living_one_not_named(joined: LoneProcess) -> None:
    joined.receive("c", messages.Request(lock="x", stamp=4))
    effects = joined.want(1)
    assert Wake(AHEAD_PROBE_MS, messages.ProbeDue()) in effects
    joined.receive("b", messages.Request(lock="x", stamp=5))
    joined.acknowledged(6)
    joined.now = AHEAD_PROBE_MS
    probed = joined.handle(messages.ProbeDue())
    assert posts(probed) == [(("c",), messages.Probe())]
    assert Wake(AHEAD_PROBE_MS, messages.ProbeDue()) in probed

    joined.acknowledge("c", 8)
    joined.now = 2 * AHEAD_PROBE_MS
    assert joined.look().waits_for == ()
    joined.handle(messages.ProbeDue())
    joined.now += PEER_SILENCE_MS
    assert joined.look().waits_for == (Absence("c", PEER_SILENCE_MS),)
    assert posts(joined.handle(messages.ProbeDue())) == []  # It owes an answer already.


def test_a_probe_is_acknowledged(joined: LoneProcess) -> None:
    assert posts(joined.receive("a", messages.Probe(stamp=5))) == [
        (("a",), messages.Acknowledge(lock=""))
    ]


def test_no_process_is_probed_when_nothing_is_waited_for(joined: LoneProcess) -> None:
    joined.requested(1, 5)
    joined.acknowledged(6)

    assert joined.handle(messages.ProbeDue()) == ()
    assert not joined.process.probing


def test_a_lock_without_requests_is_free(joined: LoneProcess) -> None:
    assert joined.look() == LockDescription(
        lock="x", query=1, holder=None, waiters=(), waits_for=()
    )


def test_new_wants_wait_while_a_node_has_much_to_confirm_and_old_ones_go_on(
    joined: LoneProcess,
) -> None:
    joined.requested(1, 5)
    joined.handle(messages.Busy(node="c", busy=True))
    assert joined.want(2, "y") == []
    assert posts(joined.give(1)) == [release(5)]
    joined.now = PEER_SILENCE_MS
    assert [one.node for one in joined.look("y").waits_for] == ["c"]

    assert posts(joined.handle(messages.Busy(node="c", busy=False))) == [
        (("a", "b", "c"), messages.Request(lock="y"))
    ]


# Proving that a lock is free.

PROBE = (("a", "b", "c"), messages.Probe())


def free(query: int) -> LockDescription:
    return LockDescription(lock="x", query=query, holder=None, waiters=(), waits_for=())


def seen_of(effects: Effects) -> LockDescription:
    (seen,) = [event for event in to_proxy(effects) if isinstance(event, LockDescription)]
    return seen


def test_a_lock_is_not_reported_as_free_before_a_later_message_of_every_process(
    joined: LoneProcess,
) -> None:
    effects = joined.prove()
    assert to_proxy(effects) == []
    assert posts(effects) == [PROBE]
    assert Wake(PROOF_MS, messages.ProofDue(query=1)) in effects
    joined.receive("b", messages.Probe(stamp=5))
    assert to_proxy(joined.acknowledge("a", 6)) == []
    assert to_proxy(joined.acknowledge("c", 4, "y")) == []  # Sent before, perhaps.
    assert to_proxy(joined.acknowledge("c", 7)) == [free(1)]
    assert to_proxy(joined.handle(messages.ProofDue(query=1))) == []


def test_a_holder_whose_request_was_on_its_way_is_reported(joined: LoneProcess) -> None:
    """Any later message of ours let c in, before its request came here."""
    joined.prove()
    joined.receive("b", messages.Probe(stamp=9))
    joined.acknowledge("a", 10)
    joined.receive("c", messages.Request(lock="x", stamp=4))
    holder = present(seen_of(joined.acknowledge("c", 11)).holder)
    assert holder.fence == pack_fence(4, 2)


def test_a_known_holder_is_reported_at_once(joined: LoneProcess) -> None:
    joined.receive("c", messages.Request(lock="x", stamp=4))
    effects = joined.prove()
    assert posts(effects) == []
    assert seen_of(effects).holder is not None


def test_each_look_has_a_probe_of_its_own(joined: LoneProcess) -> None:
    assert [*posts(joined.prove(1)), *posts(joined.prove(2))] == [PROBE, PROBE]
    joined.receive("b", messages.Probe(stamp=5))
    joined.acknowledge("a", 8)
    assert to_proxy(joined.acknowledge("c", 6)) == [free(1)]
    joined.receive("b", messages.Probe(stamp=7))
    assert to_proxy(joined.acknowledge("c", 8)) == [free(2)]


def test_a_process_that_is_joining_does_not_call_a_lock_free(alone: LoneProcess) -> None:
    alone.handle(messages.PeerJoined(node="a", boot=1))
    assert posts(alone.prove()) == []
    late = seen_of(alone.handle(messages.ProofDue(query=1)))
    assert (late.holder, late.unknown) == (None, "nothing received for 2000 ms from c")


def test_a_look_of_a_process_that_becomes_ready_is_answered(alone: LoneProcess) -> None:
    alone.prove()
    for node in ("a", "c"):
        alone.handle(messages.PeerJoined(node=node, boot=1))
    alone.receive("a", welcome(2, stamp=1))
    assert PROBE in posts(alone.receive("c", welcome(2, messages.KnownRequest("x", 1), stamp=3)))
    alone.receive("b", messages.Probe(stamp=5))
    alone.acknowledge("a", 6)
    holder = present(seen_of(alone.acknowledge("c", 7)).holder)
    assert holder.node == "c"


def test_the_holder_is_unknown_without_a_message_of_every_process(joined: LoneProcess) -> None:
    joined.prove()
    assert (
        to_proxy(joined.handle(messages.ProofDue(query=1))) == []
    )  # The own probe has yet to come back.
    joined.receive("b", messages.Probe(stamp=5))
    joined.acknowledge("a", 6)
    assert (
        seen_of(joined.handle(messages.ProofDue(query=1))).unknown
        == "nothing received for 2000 ms from c"
    )
    assert to_proxy(joined.acknowledge("c", 7)) == []


def test_a_process_that_restarts_meanwhile_is_asked_again(joined: LoneProcess) -> None:
    joined.prove()
    joined.receive("b", messages.Probe(stamp=5))
    joined.acknowledge("c", 6)
    assert posts(joined.handle(messages.PeerJoined(node="c", boot=2))) == [
        (("c",), messages.Probe())
    ]
    assert to_proxy(joined.acknowledge("a", 6)) == []
    assert to_proxy(joined.acknowledge("c", 9)) == [free(1)]
