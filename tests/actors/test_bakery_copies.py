"""Copies of holds at members of `bakery` that do not lead, and what they are for."""

from __future__ import annotations

from typing import Any

import pytest
from support.bakery_cluster_harness import ClusterHarness
from support.expect import only
from support.leader_trio import ANN, GRACE_MS, HOLD_MS, NOW, add_ticket, lock_leader, ticket_of
from support.role_harness import only_sent, sends, sent

from fencelock.actors.api.lock_message import Granted, Released
from fencelock.actors.bakery.config import COPY_AFTER_MS, election_of, leader_of
from fencelock.actors.bakery.event import Serve
from fencelock.actors.bakery.table import TicketPhase
from fencelock.actors.bakery.ticket import Who, pack_fence
from fencelock.actors.bakery.wire import (
    AddTicket,
    Chosen,
    Collected,
    DropTicket,
    Extend,
    Extended,
    Lead,
    Seating,
    TicketEnded,
    Yield,
)
from fencelock.actors.effect import Observe
from fencelock.actors.message import NS_PER_MS, Message, later
from fencelock.verification.simulation.network import Cut

LIVES = tuple(Chosen(f"n{number}", number) for number in range(1, 6))
BEN = Who("c", "ben")
LEASE_MS = HOLD_MS + GRACE_MS
LONG_MS = 60_000


def add(counter: int, who: Who = ANN, **fields: Any) -> AddTicket:
    fence = pack_fence(1, counter) if counter else 0
    return add_ticket(ticket_of(who, leader="n1"), fence, **fields)


class Copy:
    """The leader role of n4, which keeps copies in epoch 1; n1 to n3 lead."""

    def __init__(self) -> None:
        self.role = lock_leader("n4", life=4, members=tuple(one.node for one in LIVES))
        self.role.epoch_state.take(Seating(1, LIVES[:3], 10_000, LIVES[3:]))

    def receive(self, message: Any, sender: str = "n1") -> list[Message]:
        """Return the answers to ``message``."""
        effects = self.role.handle(leader_of(sender), message, NOW)
        assert {one.to for one in sends(effects)} <= {leader_of(sender)}
        return sent(effects, Message)

    def holds(self) -> dict[Who, int]:
        """Return the owners that hold in its table, with their fences."""
        entries = self.role.tickets.entries()
        held = [entry for entry in entries if entry.phase is TicketPhase.HOLDING]
        return {entry.ticket.who: entry.fence for entry in held}


def test_a_hold_is_kept_and_confirmed_and_nothing_else_is() -> None:
    copy = Copy()
    assert copy.receive(add(0)) == []  # It waits: its place is kept, without an answer.
    assert copy.holds() == {}
    assert only(Collected, copy.receive(add(1, round=2))).voted
    assert copy.holds() == {ANN: pack_fence(1, 1)}
    assert only(Collected, copy.receive(add(1, round=2))).voted


def test_a_hold_whose_lease_is_over_is_kept_anew_before_it_is_confirmed_again() -> None:
    copy = Copy()
    copy.receive(add(1))
    at = later(NOW, LEASE_MS)
    taken_over = add(1, round=2, taken=True)
    effects = copy.role.handle(leader_of("n2"), taken_over, at)
    assert only_sent(effects, Collected).voted
    (entry,) = copy.role.tickets.entries()
    assert entry.until == later(at, LEASE_MS)


def test_a_copy_follows_leaders_only() -> None:
    copy = Copy()
    assert copy.receive(add(1), "n5") == []
    assert copy.holds() == {}


def test_a_later_hold_replaces_one_that_leaders_have_ended_and_an_earlier_one_does_not() -> None:
    copy = Copy()
    copy.receive(add(1, ANN))
    copy.receive(add(2, BEN))
    assert copy.holds() == {BEN: pack_fence(1, 2)}
    assert not only(Collected, copy.receive(add(1, ANN))).voted
    assert copy.holds() == {BEN: pack_fence(1, 2)}


def test_a_dropped_ticket_is_not_kept_again() -> None:
    copy = Copy()
    copy.receive(add(1))
    dropped = DropTicket(epoch=1, lock="x", who=ANN, request=1, fence=0, number=5, mine=False)
    assert len(copy.receive(dropped)) == 1
    assert copy.holds() == {}
    assert [type(one) for one in copy.receive(add(1))] == [TicketEnded]


def test_a_round_that_its_owner_gave_up_is_kept_no_more() -> None:
    copy = Copy()
    copy.receive(add(1))
    copy.receive(Yield(epoch=1, lock="x", who=ANN, request=1, round=2))
    assert copy.holds() == {}


def test_a_renewal_is_kept_by_a_copy_that_missed_the_grant() -> None:
    copy = Copy()
    renewal = Extend(epoch=1, ticket=ticket_of(leader="n1"), fence=pack_fence(1, 3), number=8)
    assert copy.receive(renewal) == [Extended(epoch=1, number=8, kept=True)]
    assert copy.holds() == {ANN: pack_fence(1, 3)}
    late = Extend(epoch=1, ticket=ticket_of(BEN, leader="n1"), fence=pack_fence(1, 2), number=9)
    assert copy.receive(late) == [Extended(epoch=1, number=9, kept=False)]


def test_a_late_request_for_an_installed_epoch_is_not_confirmed_by_a_copy_that_merged_nothing() -> (
    None
):
    """Found by seed 2612 of `run_copies_seed`."""
    copy = Copy()
    seating = Seating(2, LIVES[:3], 1_000, LIVES[3:])
    copy.role.handle(election_of("n4"), Serve(seating=seating), NOW)
    former = Seating(1, LIVES[:3], 1_000, LIVES[3:])
    late = Lead(seating=seating, former=former, empty=False)
    assert copy.role.handle(election_of("n1"), late, NOW) == [Observe("bakery.lead_ignored")]


def whole(nodes: int) -> ClusterHarness:
    """Return a cluster in which all members keep what the leaders agree on."""
    harness = ClusterHarness(nodes).start()
    harness.until(lambda: keepers(harness) == set(harness.names))
    return harness


def keepers(harness: ClusterHarness) -> set[str]:
    """Return the members that keep what the leaders of the present epoch agree on."""
    up = [name for name in harness.names if harness.world.nodes[name].up]
    states = {name: harness.leader(name).epoch_state for name in up}
    return {name for name, one in states.items() if one.epoch and one.epoch == harness.epoch()}


@pytest.mark.parametrize(("nodes", "lost"), [(5, 2), (7, 3)])
def test_leaders_lost_at_once_leave_every_hold_and_no_client_waits(nodes: int, lost: int) -> None:
    harness = whole(nodes)
    leaders, proxy = harness.serving(), harness.others()[0]
    held = harness.lock(proxy, hold_ms=LONG_MS)
    waiting = harness.acquire(proxy, owner="ben")
    harness.run(50)
    for name in leaders[:lost]:
        harness.world.crash(name)
    assert harness.lock(proxy, "free").lock == "free"
    assert harness.answers(Granted, waiting) == []
    harness.release(proxy, held)
    assert harness.granted(waiting).fence > held.fence
    assert len(harness.answers(Released)) == 1


def test_a_member_that_returns_keeps_copies_from_one_epoch_on_and_the_leaders_stay() -> None:
    harness = whole(5)
    epoch, leaders = harness.epoch(), harness.serving()
    lost = harness.others()[0]
    held = harness.lock(leaders[0], hold_ms=LONG_MS)
    harness.world.crash(lost)
    harness.run(2_000)
    assert harness.epoch() == epoch  # Its place is kept.
    harness.world.power_on(lost)
    harness.until(lambda: lost in keepers(harness))
    assert (harness.epoch(), harness.serving()) == (epoch + 1, leaders)
    kept = harness.leader(lost).tickets.queues["x"].holders()
    assert [entry.fence for entry in kept] == [held.fence]
    harness.cut([lost], 2_000)
    harness.run(4_000)
    assert harness.epoch() == epoch + 1  # It was not connected, and lost nothing.


def test_a_leader_that_does_not_answer_is_replaced_by_copies_within_a_moment() -> None:
    harness = whole(5)
    leaders = harness.serving()
    harness.cut([leaders[-1]])
    asked = harness.acquire(leaders[0])
    took_ms = harness.until(lambda: bool(harness.answers(Granted, asked)))
    assert COPY_AFTER_MS <= took_ms < 10 * COPY_AFTER_MS
    copied = [name for name in harness.others() if len(harness.leader(name).tickets)]
    assert copied


def test_a_release_is_sent_again_to_copies_that_missed_it() -> None:
    harness = whole(5)
    leader, _, silent = harness.serving()
    copies, timing = harness.others(), harness.leader(leader).epoch_state.timing
    held = harness.lock(leader, hold_ms=LONG_MS)
    harness.run(timing.resend_ms)  # The requests of the acquire are over.

    def cut(name: str, ms: int) -> None:
        ends = harness.world.time + ms * NS_PER_MS
        harness.world.network.cut([(leader, name)], Cut(ends, holds=False))

    for copy in copies:  # So it loses what is sent to them at first, and once more.
        cut(copy, 3 * timing.resend_ms + timing.resend_ms // 2)
    cut(silent, 100 * timing.resend_ms)
    harness.release(leader, held)
    took_ms = harness.until(lambda: bool(harness.answers(Released)))
    assert 3 * timing.resend_ms < took_ms < 6 * timing.resend_ms


def test_three_members_or_four_have_no_copies() -> None:
    for nodes in (3, 4):
        harness = ClusterHarness(nodes).start().ready()
        assert harness.leader(harness.serving()[0]).epoch_state.copies == ()
