"""Input that a leader cannot check: fences that were never granted, tables that leave much out."""

from __future__ import annotations

import pytest
from support.expect import only, present
from support.leader_trio import (
    ANN,
    FENCE,
    HOLD_MS,
    LIVES,
    NOW,
    LeaderTrio,
    lock_request,
    merge,
    put_hold,
    ticket_of,
)

from fencelock.actors.bakery import ticket_attempt
from fencelock.actors.bakery.bounds import PART, impossible_records
from fencelock.actors.bakery.config import election_of, leader_of
from fencelock.actors.bakery.event import Serve
from fencelock.actors.bakery.state_transfer import ENDED_OWNERS_MAX, Import
from fencelock.actors.bakery.table import TicketPhase, TicketTable
from fencelock.actors.bakery.ticket import Record, RequestKey, Turn, Who, pack_fence
from fencelock.actors.bakery.wire import (
    Chosen,
    DropTicket,
    Export,
    Extend,
    Extended,
    Lead,
    Locked,
    LockFailed,
    Seating,
    Unlocking,
)
from fencelock.actors.bakery.wire import Table as Handed
from fencelock.actors.deadline_queue import STALE_MAX
from fencelock.actors.message import Address, later

BOB = Who("c", "bob")
MEMBERS = tuple(one.node for one in LIVES)


def newcomer_after(*tables: TicketTable) -> TicketTable:
    """Return the table of a new leader that has merged these tables of n2 and others."""
    newcomer = TicketTable()
    merge(newcomer, *tables, own=False)
    return newcomer


def drop_many(table: TicketTable, count: int) -> None:
    for number in range(count):
        table.drop(f"y{number}", ANN, 1, 0)


def test_a_fence_that_a_client_made_up_counts_for_nothing_after_a_hand_over() -> None:
    trio = LeaderTrio()
    claimed = pack_fence(1 << 20, 5)
    trio.unlock("n2", claimed, who=BOB)
    trio.settle()
    newcomer = newcomer_after(*(trio.leaders[name].tickets for name in ("n2", "n3")))
    assert newcomer.counters_of("x").fence < pack_fence(2, 1)


def test_no_fence_is_granted_below_one_whose_end_a_full_table_has_no_room_to_report() -> None:
    """Only n2 voted for ann; n3 and another leader granted bob, who released; then much more
    happened."""
    stale, busy = TicketTable(), TicketTable()
    put_hold(stale, ticket_of(), FENCE)
    put_hold(busy, ticket_of(BOB, 8), FENCE + 1)
    busy.drop("x", BOB, 1, FENCE + 1)
    drop_many(busy, ENDED_OWNERS_MAX)
    newcomer = newcomer_after(stale, busy)
    (entry,) = newcomer.entries()
    assert (entry.phase, entry.fence) == (TicketPhase.HOLDING, FENCE)
    assert newcomer.is_outdone(entry.ticket, FENCE)


@pytest.mark.parametrize("both", [True, False])
def test_a_hold_that_no_full_table_may_have_outdone_is_taken_over(*, both: bool) -> None:
    stale, busy = TicketTable(), TicketTable()
    put_hold(stale, ticket_of(), FENCE)
    if both:
        put_hold(busy, ticket_of(), FENCE)
    drop_many(busy, ENDED_OWNERS_MAX if both else ENDED_OWNERS_MAX - 1)
    assert not newcomer_after(stale, busy).is_outdone(ticket_of(), FENCE)


def test_the_hold_that_ended_last_is_still_last_after_two_hand_overs() -> None:
    busy = TicketTable()
    drop_many(busy, 2 * PART)
    last = newcomer_after(busy, TicketTable()).tombstones.newest(PART)
    assert [end.lock for end in last] == [f"y{n}" for n in range(2 * PART - 1, PART - 1, -1)]


def test_a_refused_renewal_leaves_nothing_in_the_way_of_others() -> None:
    trio = LeaderTrio()
    tickets = trio.leaders["n2"].tickets
    put_hold(tickets, ticket_of(BOB, 8), FENCE + 1)
    message = Extend(epoch=1, ticket=ticket_of(), fence=FENCE, number=1)
    trio.deliver(leader_of("n1"), "n2", message)
    assert not only(Extended, (message for _, _, message in trio.under_way)).kept
    assert [entry.ticket.who for entry in tickets.entries()] == [BOB]


def test_a_repeated_request_for_a_table_gets_the_same_parts() -> None:
    """Requests that end between two replies would move the rest up, so that parts miss some."""
    trio = LeaderTrio()
    tickets = trio.leaders["n2"].tickets
    for number in range(2 * PART):
        put_hold(tickets, ticket_of(lock=f"x{number:03}"), FENCE)
    entry = present(tickets.get(RequestKey("x000", ANN, 1)))
    tickets.set_until(entry, later(NOW, 1))
    trio.deliver(leader_of("n3"), "n2", Export(epoch=2))
    first = [message for _, _, message in trio.under_way]
    trio.under_way.clear()
    trio.now = later(NOW, 2)
    trio.deliver(leader_of("n3"), "n2", Export(epoch=2))
    assert [message for _, _, message in trio.under_way] == first
    assert len(first) == 2


def test_a_table_for_the_present_epoch_has_no_votes_and_ends_of_that_epoch() -> None:
    """Two leaders of an epoch may vote while the third still waits for their tables (seed 534)."""
    trio = LeaderTrio()
    trio.hold("n2")
    tickets = trio.leaders["n2"].tickets
    put_hold(tickets, ticket_of(BOB, 8, lock="y"), FENCE)
    tickets.drop("y", BOB, 1, FENCE)
    trio.deliver(leader_of("n3"), "n2", Export(epoch=1))
    ((_, _, part),) = trio.under_way
    assert isinstance(part, Handed)
    assert impossible_records(part, 0) == 0
    assert [record.ticket.lock for record in part.records] == ["x"]
    assert [end.lock for end in part.ended] == ["y"]


def test_a_request_that_others_hold_under_a_fence_that_was_dropped_here_is_not_taken_over() -> None:
    """A late copy of it comes to who dropped that fence, and knew of no request (seed 41069)."""
    trio = LeaderTrio()
    trio.hold("n1", "n3")
    for other in ("n1", "n3"):
        trio.lose_between("n2", other, DropTicket)
    trio.unlock("n2")
    trio.lock("n2")
    trio.settle()
    assert trio.entries("n2") == []
    assert len(trio.received(LockFailed)) == 1


def test_days_for_which_nothing_is_held_any_more_leave_nothing_behind() -> None:
    table = TicketTable()
    for second in range(5 * STALE_MAX):
        held = ticket_of(lock=f"x{second}")
        entry = present(table.put(held, "n1", NOW, later(NOW, 1_000 * second)))
        if second % STALE_MAX:
            table.remove(entry)
    assert len(table.ends.heap) <= STALE_MAX + 2 * 5
    assert table.forget_old(later(NOW, 5_000 * STALE_MAX)) == 5
    assert (table.ends.at, table.ends.heap) == ({}, [])


def test_a_leader_that_serves_before_its_tables_came_does_not_serve_with_one_of_long_ago() -> None:
    """n3 led in epoch 1, was replaced in 2, and is chosen again for 3."""
    trio = LeaderTrio()
    trio.hold("n3")
    former = Seating(2, (*LIVES[:2], Chosen("n4", 4)), 10_000)
    lead = Lead(seating=Seating(3, LIVES, 0), former=former, empty=False)
    trio.deliver(election_of("n1"), "n3", lead)
    leader = trio.leaders["n3"]
    leader.handle(election_of("n3"), Serve(seating=Seating(3, LIVES, 10_000)), NOW)
    assert leader.epoch_state.serving
    assert trio.entries("n3") == []


def test_a_hold_that_is_handed_over_to_who_only_knew_that_the_request_enters_has_its_number() -> (
    None
):
    """Its proxy had come to both; without a number no leader takes the hold over (seed 1100960)."""
    lead = Lead(seating=Seating(2, LIVES, 0), former=Seating(1, LIVES, 10_000), empty=False)
    arriving = Import(lead, Address("n1/election"), own=True)
    record = Record(ticket_of(), "n2", FENCE, 500)
    part = Handed(epoch=2, life=LIVES[1].life, part=0, parts=1, records=(record,), ended=())
    assert arriving.on_table(LIVES[1].node, part)
    table = TicketTable()
    entering = ticket_of()._replace(turn=Turn(0, LIVES[2].node, 3))
    assert table.put(entering, LIVES[2].node, NOW, None) is not None

    arriving.merge(table, NOW)

    entry = present(table.get(RequestKey("x", ANN, 1)))
    assert (entry.phase, entry.fence, entry.ticket.turn) == (
        TicketPhase.HOLDING,
        FENCE,
        ticket_of().turn,
    )


def test_holds_whose_durations_end_together_are_handled_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ticket_attempt, "QUEUE_ENDS_MAX", 3)
    trio = LeaderTrio()
    for number in range(10):
        trio.ask("n1", lock_request(lock=f"x{number}"))
        trio.settle()
    assert len(trio.received(Locked)) == 10
    warned: list[int] = []
    for ms in (HOLD_MS, 0, 0, 0, 0):
        trio.pass_time(ms)
        warned.append(len(trio.received(Unlocking)))
    assert warned == [3, 6, 9, 10, 10]


def test_holds_that_ended_together_are_forgotten_in_steps() -> None:
    table = TicketTable()
    for number in range(10):
        put_hold(table, ticket_of(lock=f"x{number}"))
    over = later(NOW, 10_000)
    assert [table.forget_old(over, 4) for _ in range(3)] == [4, 4, 2]
    assert not table.ends.is_due(over)
    assert list(table.entries()) == []
