"""Requests that ended at one leader: by its clock, which may miss a renewal, or by a client.

A leader that missed a renewal ends a hold by time. Others have it still, and it is taken up again
when their tables, or their steps, say so. What a client dropped is never taken up again.
"""

from __future__ import annotations

import pytest
from support.bakery_cluster_harness import ClusterHarness
from support.expect import only, present
from support.leader_trio import ANN, FENCE, NOW, LeaderTrio, add_ticket, merge, put_hold, ticket_of

from fencelock.actors.api.lock_message import Renewed
from fencelock.actors.bakery.config import Terms, leader_of
from fencelock.actors.bakery.state_transfer import ENDED_OWNERS_MAX, parts_of
from fencelock.actors.bakery.table import TicketEntry, TicketPhase, TicketTable, Tombstones
from fencelock.actors.bakery.ticket import Who
from fencelock.actors.bakery.wire import Collected
from fencelock.actors.message import Instant, later
from fencelock.cluster.node.topology import ProtocolSettings
from fencelock.verification.simulation.violation import ViolationError

LEASE_MS = 1_000
AGES_MS = 600_000


def table_with_a_hold(now: Instant = NOW, request: int = 1, fence: int = FENCE) -> TicketTable:
    table = TicketTable()
    put_hold(table, ticket_of(request=request), fence, now)
    return table


def expired() -> TicketTable:
    """Return a table in which the time of a hold was over."""
    table = table_with_a_hold()
    assert table.forget_old(later(NOW, LEASE_MS)) == 1
    return table


def phases(table: TicketTable) -> list[TicketPhase]:
    return [entry.phase for entry in table.entries()]


def test_a_hold_that_was_over_here_is_taken_over_from_who_has_it_renewed() -> None:
    table, at = expired(), later(NOW, LEASE_MS)
    merge(table, table_with_a_hold(at), now=at)
    (entry,) = table.entries()
    assert (entry.phase, entry.fence) == (TicketPhase.HOLDING, FENCE)
    assert entry.until is not None
    assert entry.until >= later(at, LEASE_MS)


@pytest.mark.parametrize(("fence", "taken_up"), [(FENCE + 1, True), (FENCE - 1, False)])
def test_only_a_later_rounds_hold_of_a_request_that_ended_here_lives(
    fence: int, *, taken_up: bool
) -> None:
    table = expired()
    merge(table, table_with_a_hold(fence=fence))
    assert phases(table) == ([TicketPhase.HOLDING] if taken_up else [])


def test_a_leader_confirms_a_hold_to_who_takes_it_over_only_under_a_lease_that_lasts() -> None:
    """The lease is over, and no sweep has removed the hold yet."""
    trio = LeaderTrio()
    trio.deliver(leader_of("n2"), "n1", add_ticket(ticket_of()))
    trio.now = later(trio.now, LEASE_MS)
    trio.under_way.clear()
    trio.deliver(leader_of("n3"), "n1", add_ticket(ticket_of(), round=2, taken=True))
    assert only(Collected, (one for _, to, one in trio.under_way if to == "n3")).voted
    (entry,) = trio.leaders["n1"].tickets.entries()
    assert (entry.phase, entry.fence) == (TicketPhase.HOLDING, FENCE)
    assert entry.until == later(trio.now, LEASE_MS)


def test_a_request_that_was_over_here_does_not_wait_again() -> None:
    table = expired()
    assert table.put(ticket_of(), "n2", NOW, None) is None
    assert table.put(ticket_of(request=2), "n2", NOW, None) is not None


@pytest.mark.parametrize(("request_", "fence"), [(1, 0), (0, FENCE)])
def test_a_client_that_drops_what_was_over_here_ends_it_for_good(request_: int, fence: int) -> None:
    table = expired()
    table.drop("x", ANN, request_, fence)
    merge(table, table_with_a_hold())
    assert phases(table) == []


def test_a_drop_by_a_fence_that_is_unknown_here_is_remembered() -> None:
    table = TicketTable()
    assert not table.drop("x", ANN, 0, FENCE)
    merge(table, table_with_a_hold())
    assert phases(table) == []


def test_a_fence_names_its_own_request_and_no_earlier_one() -> None:
    table = table_with_a_hold(request=5)
    table.drop("x", ANN, 5, 0)
    assert table.tombstones.request_of("x", ANN, FENCE) == 5
    table.drop("x", ANN, 0, FENCE + 2)
    assert table.tombstones.request_of("x", ANN, FENCE + 2) == 0
    table.drop("x", ANN, 7, FENCE + 2)
    table.drop("x", ANN, 0, FENCE + 2)
    assert table.tombstones.request_of("x", ANN, FENCE + 2) == 7


def test_a_leader_that_missed_a_drop_learns_of_it_with_the_tables_and_revives_nothing() -> None:
    stale, knows = table_with_a_hold(), table_with_a_hold()
    knows.drop("x", ANN, 1, 0)
    newcomer = TicketTable()
    merge(newcomer, stale, knows)
    assert phases(newcomer) == []
    assert newcomer.tombstones.is_over(ticket_of(), FENCE)
    (dropped,) = merge(stale, knows)
    assert (dropped.ticket, phases(stale)) == (ticket_of(), [])


def test_a_fence_that_ended_at_one_leader_is_known_to_who_takes_its_table_over() -> None:
    newcomer = TicketTable()
    merge(newcomer, expired())
    assert newcomer.counters_of("x").fence == FENCE
    assert newcomer.is_outdone(ticket_of(), FENCE - 1)


def test_a_table_reports_what_ended_last_and_not_all_that_ever_did() -> None:
    table = TicketTable()
    for number in range(ENDED_OWNERS_MAX + 50):
        table.drop(f"x{number}", ANN, 1, 0)
    parts = parts_of(table, 2, 1, NOW)
    locks = [end.lock for part in parts for end in part.ended]
    assert len(locks) == ENDED_OWNERS_MAX
    assert f"x{ENDED_OWNERS_MAX + 49}" in locks
    assert "x0" not in locks


CUT_MS = 800
"""Leaders that do not reach each other for longer are replaced."""


def over_at_its_owner(harness: ClusterHarness) -> str:
    """Renew a hold while its owner is cut off, then lose another leader."""
    harness.judged(frozenset({"merged-tables-complete"})).led()
    owner, renewer = [name for name in harness.serving() if name != "n1"][:2]
    third = next(name for name in harness.serving() if name not in (owner, renewer))
    granted = harness.lock(owner)
    harness.run(2_300)
    harness.cut_between((owner, renewer), ms=CUT_MS)
    harness.run(100)
    harness.renew(renewer, granted)
    harness.answer(Renewed)
    harness.until(lambda: not harness.leader(owner).tickets)
    epoch = harness.epoch()
    harness.world.crash(third)
    harness.until(lambda: harness.epoch() > epoch and owner in harness.serving())
    return owner


def five_members(seed: int = 1) -> ClusterHarness:
    return ClusterHarness(
        5,
        ProtocolSettings(bakery_terms=Terms(hold_ms=2_000, grace_ms=1_000, least_ms=1)),
        seed=seed,
    )


def test_a_hold_renewed_without_its_owner_outlives_a_hand_over() -> None:
    harness = five_members()
    owner = over_at_its_owner(harness)
    assert phases(harness.leader(owner).tickets) == [TicketPhase.HOLDING]


def test_a_ticket_that_expired_by_one_clock_and_is_taken_for_dropped_is_seen_by_the_judge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def for_good(past: Tombstones, lock: str, who: Who, request: int, fence: int) -> None:
        past.drop(lock, who, request)

    monkeypatch.setattr(Tombstones, "expire", for_good)
    with pytest.raises(ViolationError, match="merged-tables-complete"):
        over_at_its_owner(five_members())


def visits(monkeypatch: pytest.MonkeyPatch, others: int) -> int:
    """Return at how many entries a leader looks that ends ten, among so many others."""
    table = TicketTable()
    for number in range(others + 10):
        asked = ticket_of(Who(f"c{number % (others // 10)}", "ann"), lock=f"x{number}")
        entry = present(table.put(asked, "n2", NOW, None))
        table.set_until(entry, later(NOW, LEASE_MS if number >= others else AGES_MS))
    looked_at: list[TicketEntry] = []
    is_over = TicketEntry.is_over

    def counted(entry: TicketEntry, now: Instant) -> bool:
        looked_at.append(entry)
        return is_over(entry, now)

    monkeypatch.setattr(TicketEntry, "is_over", counted)
    assert table.forget_old(later(NOW, LEASE_MS)) == 10
    return len(looked_at)


def test_a_sweep_looks_at_what_is_over_and_not_at_all_that_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = visits(monkeypatch, 100)
    monkeypatch.undo()
    assert few == visits(monkeypatch, 10_000) <= 30


def test_a_released_hold_leaves_nothing_to_look_at_later() -> None:
    table = TicketTable()
    for number in range(1_000):
        put_hold(table, ticket_of(request=number + 1), FENCE + number)
        table.drop("x", ANN, number + 1, 0)
    assert (table.ends.at, table.sessions, len(table)) == ({}, {}, 0)


def test_time_that_is_changed_moves_what_is_over_then() -> None:
    table = table_with_a_hold()
    (entry,) = table.entries()
    table.extend_until(entry, later(NOW, 5_000))
    assert table.forget_old(later(NOW, 4_999)) == 0
    table.extend_until(entry, later(NOW, 4_000))
    assert entry.until == later(NOW, 5_000)
    table.unvote(entry, later(NOW, 2_000))
    assert table.forget_old(later(NOW, 2_000)) == 1


def test_a_late_copy_of_an_earlier_release_does_not_replace_the_record_of_a_later_one() -> None:
    table = table_with_a_hold(request=5, fence=FENCE + 2)
    assert table.drop("x", ANN, 0, FENCE + 2)

    table.drop("x", ANN, 3, FENCE)

    assert table.drop("x", ANN, 0, FENCE + 2)  # The release is sent again, and is known.
    assert table.tombstones.request_of("x", ANN, FENCE + 2) == 5


@pytest.mark.parametrize("first", [0, 1])
def test_the_table_with_the_later_release_counts(first: int) -> None:
    later_, earlier, here = TicketTable(), TicketTable(), TicketTable()
    earlier.drop("x", ANN, 3, FENCE)
    later_.drop("x", ANN, 5, FENCE + 2)

    merge(here, *([later_, earlier] if first else [earlier, later_]))

    assert here.drop("x", ANN, 0, FENCE + 2)
