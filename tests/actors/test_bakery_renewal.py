"""Renewals that one leader knows nothing of, while a quorum holds; losses that one clock claims."""

from __future__ import annotations

import pytest
from support.bakery_cluster_harness import GRACE_MS, HOLD_MS, ClusterHarness
from support.leader_trio import ANN, FENCE, LIVES, LeaderTrio
from support.session_harness import ANN as USER
from support.session_harness import WATCHER, A, SessionHarness, of, one

from fencelock.actors.api.message import Acquire, Granted, Reason, Refused
from fencelock.actors.api.session_message import HoldLost, Renew, Renewed
from fencelock.actors.bakery.config import later, leader_of
from fencelock.actors.bakery.message import Extend, Extended
from fencelock.actors.bakery.proxy_message import HoldRenewed, NotLeading, RenewHold
from fencelock.actors.message import Instant
from fencelock.actors.session.message import HoldsLost

TTL_MS = 600_000
LEASE_MS = HOLD_MS + GRACE_MS


def forget_at(harness: ClusterHarness, name: str, *, expired: bool) -> None:
    """Let a leader consider all its holds ended, by its clock; or make it forget its votes and
    holds."""
    leader = harness.leader(name)
    now = Instant(harness.world.nodes[name].now())
    for entry in list(leader.tickets.entries()):
        leader.attempts.timers.forget(entry)
        if expired:
            assert leader.tickets.forget(entry, later(now, LEASE_MS))
        else:
            leader.tickets.remove(entry)


def renew(harness: ClusterHarness, proxy: str, granted: Granted) -> int:
    harness.number += 1
    word = Renew(
        lock="x", fence=granted.fence, session="u", owner=granted.owner, request=harness.number
    )
    harness.say(proxy, word)
    return harness.number


@pytest.mark.parametrize("expired", [True, False])
@pytest.mark.parametrize("through", [0, 1, 2])
def test_a_hold_that_two_of_three_leaders_have_is_renewed_through_the_third(
    through: int, *, expired: bool
) -> None:
    """The first of them owned it, as the others still believe."""
    harness = ClusterHarness(3).start().ready()
    harness.until(lambda: len(harness.serving()) == 3)
    owner = harness.serving()[0]
    granted = harness.lock(owner)
    harness.run(100)
    forget_at(harness, harness.serving()[through], expired=expired)
    waiting = harness.acquire(owner, owner="ben")
    asked = renew(harness, harness.serving()[through], granted)
    harness.until(lambda: bool(harness.answers(Renewed, asked)), 1_000)
    harness.run(HOLD_MS)
    assert harness.answers(Refused) == harness.answers(Granted, waiting) == []
    assert harness.granted(waiting).fence > granted.fence


def test_a_hold_that_one_leader_has_alone_is_lost_once_all_were_asked() -> None:
    harness = ClusterHarness(3).start().ready()
    harness.until(lambda: len(harness.serving()) == 3)
    first, *others = harness.serving()
    granted = harness.lock(first)
    harness.run(100)
    harness.release(first, granted)
    harness.run(100)
    assert all(harness.leader(name).tickets.size == 0 for name in others)
    asked = renew(harness, first, granted)
    harness.until(lambda: bool(harness.answers(Refused, asked)), 1_000)
    assert harness.answers(Refused, asked)[0].reason is Reason.NOT_HELD


def prolong(*missed: str) -> RenewHold:
    return RenewHold(lock="x", who=ANN, fence=FENCE, hold_ms=0, number=9, missed=missed)


def three_connected(*voters: str) -> LeaderTrio:
    """Let ``voters`` hold a ticket that all of them attribute to n1."""
    trio = LeaderTrio()
    trio.hold(*voters)
    for leader in trio.leaders.values():
        leader.requests.connected = {one.node: one.life for one in LIVES}
    return trio


def test_a_renewal_is_left_to_its_owner_unless_that_does_not_have_it() -> None:
    trio = three_connected("n2", "n3")
    trio.ask("n2", prolong())
    assert [word.owner for word in trio.heard(NotLeading)] == ["n1"]
    trio.ask("n2", prolong("n3"))
    assert len(trio.heard(NotLeading)) == 2
    trio.ask("n2", prolong("n1"))
    trio.settle()
    assert [word.fence for word in trio.heard(HoldRenewed)] == [FENCE]


def test_who_holds_alone_says_so_once_both_others_refuse() -> None:
    """They know that it was dropped, and this one missed that."""
    trio = three_connected("n1")
    for name in ("n2", "n3"):
        trio.leaders[name].tickets.drop("x", ANN, 1, 0)
    trio.ask("n1", prolong())
    assert trio.heard(HoldRenewed) == []
    trio.settle()
    assert [word.fence for word in trio.heard(HoldRenewed)] == [0]
    assert trio.leaders["n1"].releases.by_number == {}


def test_one_refusal_of_two_decides_nothing() -> None:
    trio = three_connected("n1")
    trio.leaders["n2"].tickets.drop("x", ANN, 1, 0)
    trio.lost = {(Extend, "n1", "n3")}
    trio.ask("n1", prolong())
    trio.settle()
    assert trio.heard(HoldRenewed) == []
    trio.say(leader_of("n3"), "n1", Extended(epoch=1, number=1, kept=True))
    assert [word.fence for word in trio.heard(HoldRenewed)] == [FENCE]


def test_a_loss_that_is_told_before_a_client_stops_to_believe_in_its_hold_is_not_heeded() -> None:
    """One leader's clock took it for over; two of three hold it, and let nobody else in."""
    session_harness = SessionHarness(TTL_MS)
    asked = one(Acquire, session_harness.open(session_harness.acquire()), A)
    granted = Granted(
        lock="x",
        fence=7,
        session=asked.session,
        owner=asked.owner,
        request=asked.request,
        hold_ms=1_000,
        grace_ms=5_000,
    )
    assert one(Granted, session_harness.hear(A, granted), USER).fence == 7
    lost = HoldLost(lock="x", fence=7, session=asked.session, owner=asked.owner, detail="over")
    assert of(HoldsLost, session_harness.hear(A, lost)) == []
    assert session_harness.counted[-1] == "client.early_loss_dropped"
    assert of(HoldsLost, session_harness.run_kept(5_000, A)) == []
    assert one(HoldsLost, session_harness.run_kept(1_000, A), WATCHER).losses[0].lock == "x"
