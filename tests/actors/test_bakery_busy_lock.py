"""One lock of `bakery` with many tickets: what a leader looks at, and how many it accepts."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from support.expect import present
from support.leader_trio import (
    FENCE,
    GRACE_MS,
    HOLD_MS,
    NAMES,
    NOW,
    LeaderTrio,
    lock_request,
    put_hold,
)

from fencelock.actors.api.name import object_name
from fencelock.actors.api.rwlock import RWLOCK
from fencelock.actors.bakery import leader_requests
from fencelock.actors.bakery.config import HOLDERS_SHOWN_MAX, proxy_of
from fencelock.actors.bakery.leader_requests import query_result
from fencelock.actors.bakery.table import TicketEntry, TicketTable
from fencelock.actors.bakery.ticket import Ticket, Turn, Who
from fencelock.actors.bakery.ticket_attempt import in_the_way
from fencelock.actors.bakery.wire import (
    Error,
    HoldRenewed,
    Lock,
    Locked,
    LockFailed,
    Query,
    QueryResult,
    RenewHold,
    Unlocked,
)
from fencelock.actors.deadline_queue import QUEUE_ENDS_MAX
from fencelock.actors.message import Instant, later, ms_between

NAME = object_name(RWLOCK, "x")
READERS = 10 * HOLDERS_SHOWN_MAX


class Looks(dict[TicketEntry, None]):
    """The tickets that hold a lock; it counts those that are listed."""

    count = 0

    def __iter__(self) -> Iterator[TicketEntry]:
        for entry in super().__iter__():
            self.count += 1
            yield entry


def who(owner: str) -> Who:
    return Who("c", owner)


def request(owner: str, *, shared: bool, wait_ms: int | None = None) -> Lock:
    return lock_request(who(owner), lock=NAME, shared=shared, wait_ms=wait_ms)


def ticket(number: int, *, shared: bool = True, hold_ms: int = HOLD_MS) -> Ticket:
    turn = Turn(number, "n2", -number if shared else number)
    return Ticket(NAME, who(f"o{number}"), 1, turn, proxy_of("n2"), hold_ms, GRACE_MS, "")


def held_by(readers: int, *, ended: int = 0) -> tuple[LeaderTrio, Looks]:
    """Let n1 know so many readers; the leases of ``ended`` of these have ended, unnoticed yet."""
    trio = LeaderTrio()
    leader = trio.leaders["n1"]
    trio.now = leader.epoch_state.trusted_at = later(NOW, HOLD_MS + GRACE_MS)
    for number in range(1, readers + 1):
        at = NOW if number <= ended else trio.now
        put_hold(leader.tickets, ticket(number), FENCE + number, at)
    mode = leader.tickets.queues[NAME].shared
    mode.holding = looks = Looks(mode.holding)
    return trio, looks


def ask(trio: LeaderTrio) -> QueryResult:
    trio.ask("n1", Query(lock=NAME, number=1))
    result: QueryResult = trio.received(QueryResult)[-1]
    return result


def test_queries_between_two_changes_of_a_lock_list_its_holders_once() -> None:
    trio, looks = held_by(READERS)
    for _ in range(20):
        assert len(ask(trio).holders) == HOLDERS_SHOWN_MAX
    assert looks.count <= READERS


def test_a_query_examines_no_more_holders_than_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    trio, _ = held_by(READERS)
    examined, is_over = list[TicketEntry](), TicketEntry.is_over

    def counted(entry: TicketEntry, now: Instant) -> bool:
        examined.append(entry)
        return is_over(entry, now)

    monkeypatch.setattr(TicketEntry, "is_over", counted)
    assert len(ask(trio).holders) == HOLDERS_SHOWN_MAX
    assert len(examined) <= HOLDERS_SHOWN_MAX + 1, "and the one with the highest fence"


def test_queries_remove_holds_that_ended_so_that_later_ones_do_not_pass_over_them() -> None:
    trio, _ = held_by(READERS, ended=READERS)
    table = trio.leaders["n1"].tickets
    left = len(table)
    while left:
        assert ask(trio).expired_ms == 0
        assert left - QUEUE_ENDS_MAX <= len(table) < left
        left = len(table)
    assert ask(trio).expired_ms == 0


def test_the_report_of_what_is_in_the_way_looks_at_one_holder() -> None:
    trio, looks = held_by(READERS)
    table = trio.leaders["n1"].tickets
    waits = present(table.put(ticket(READERS + 1, shared=False), "n1", trio.now, None))
    text = in_the_way(table, waits, None, 7, trio.now)
    assert text == (
        f"rwlock 'x': waited 7 ms; it is held by o1 through n2 under fence {FENCE + 1}, for 0 ms, "
        f"and by {READERS - 1} others"
    )
    assert looks.count <= 1


def changes(seed: int) -> Iterator[tuple[TicketTable, Instant]]:
    """Yield a table, again and again, of one lock whose holders come, are renewed, and end."""
    random, table, now = Random(seed), TicketTable(), NOW
    for number in range(1, 400):
        now = later(now, random.choice([0, 1, 50]))
        made = ticket(number, shared=random.random() < 0.7, hold_ms=random.choice([20, 2_000]))
        fence = FENCE + 1_000 * random.randrange(2 * number) + number  # No other has it.
        put_hold(table, made, fence, now)
        entry = random.choice(list(table.entries()))
        match random.randrange(8):
            case 0:
                table.extend_until(entry, later(now, entry.ticket.lease_ms))
            case 1:
                table.drop(NAME, entry.ticket.who, 1, 0)
            case 2:
                table.unvote(entry, later(now, 5))
            case 3 if entry.holds:
                table.raise_fence(entry, fence + 500)
            case 4 if number % 5 == 0:
                table.forget_old(now, 3)
            case _:
                table.forget(entry, now)
        yield table, now


@pytest.mark.parametrize("seed", range(5))
def test_a_report_of_a_lock_is_what_a_look_at_all_its_tickets_finds(seed: int) -> None:
    for table, now in changes(seed):
        holds = [entry for entry in table.entries() if entry.holds]
        votes = sorted((one for one in holds if not one.is_over(now)), key=lambda one: one.fence)
        if votes and not votes[-1].shared:
            votes = votes[-1:]
        ends = [one.until for one in holds if one.is_over(now)]
        ended = max(filter(None, (*ends, table.tombstones.expired_at(NAME))), default=None)
        result = query_result(table, Query(lock=NAME, number=1), 1, now)
        shown = votes[:HOLDERS_SHOWN_MAX]
        assert [one.fence for one in result.holders] == [one.fence for one in shown]
        assert result.expired_ms == (None if ended is None else ms_between(ended, now))
        if (queue := table.queues.get(NAME)) is not None:
            assert queue.tickets == len(table)


MOST = 4


def filled(monkeypatch: pytest.MonkeyPatch) -> LeaderTrio:
    """Return leaders where one lock has as many readers, and then writers, as it may have."""
    monkeypatch.setattr(leader_requests, "LOCK_TICKETS_MAX", MOST)
    trio = LeaderTrio()
    for number in range(MOST):
        trio.ask(NAMES[number % len(NAMES)], request(f"o{number}", shared=number < MOST // 2))
        trio.settle()
    return trio


@pytest.mark.parametrize("at", NAMES)
@pytest.mark.parametrize("shared", [True, False])
def test_a_lock_with_as_many_holds_and_waits_as_it_may_have_accepts_no_more(
    monkeypatch: pytest.MonkeyPatch, at: str, *, shared: bool
) -> None:
    trio = filled(monkeypatch)
    before = {name: list(one.tickets.by_key) for name, one in trio.leaders.items()}
    trio.ask(at, request("more", shared=shared))
    (refused,) = trio.received(LockFailed)
    assert (refused.error, refused.detail) == (
        Error.OVERFLOW,
        "rwlock 'x': it has 4 holds and waits, and 4 is the limit for one lock: try again when "
        "some have ended, or spread them over more locks",
    )
    assert not trio.under_way, "no other leader learns of it"
    assert {name: list(one.tickets.by_key) for name, one in trio.leaders.items()} == before


def test_a_full_lock_refuses_nothing_that_it_has_and_no_other_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trio = filled(monkeypatch)
    first, *_ = granted = trio.received(Locked)
    assert len(granted) == MOST // 2
    trio.ask("n1", request("o0", shared=True))
    assert trio.received(Locked)[-1] == first
    trio.ask("n2", lock_request(who("o"), lock="other"))
    trio.settle()
    assert trio.received(Locked)[-1].lock == "other"
    renewal = RenewHold(lock=NAME, who=first.who, fence=first.fence, hold_ms=0, number=7, missed=())
    trio.ask("n1", renewal)
    trio.settle()
    assert trio.received(HoldRenewed)[-1].fence == first.fence
    trio.unlock("n1", first.fence, lock=NAME, who=first.who)
    trio.settle()
    assert trio.received(Unlocked)[-1].found
    trio.ask("n3", request("more", shared=False))
    trio.settle()
    assert not trio.received(LockFailed)
    assert all(one.tickets.queues[NAME].tickets == MOST for one in trio.leaders.values())
