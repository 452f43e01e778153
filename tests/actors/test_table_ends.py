"""Ends that fall due together: at most some `ENDS_MAX` at one log time, the same on all members."""

from __future__ import annotations

import pytest
from support.table_scene import restored

from fencelock.actors.api.barrier import AwaitBarrier
from fencelock.actors.api.latch import AwaitLatch, CountDown, LatchPassed
from fencelock.actors.api.map import DeleteEntry, PutEntry
from fencelock.actors.api.message import Acquire, Granted, KeepAlive
from fencelock.actors.api.name import object_name
from fencelock.actors.api.session_message import End, Ended, Open
from fencelock.actors.table import state
from fencelock.actors.table.state import ENDS_MAX
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import ExtendSessions, Result

MANY = 3 * ENDS_MAX + 7
TTL_MS = 10_000


def table_of(sessions: int) -> LockTable:
    table = LockTable()
    for number in range(sessions):
        table.apply(0, Open(session=f"s{number}", ttl_ms=TTL_MS))
    return table


def put(
    table: LockTable, number: int, *, ttl_ms: int | None = None, ephemeral: bool = False
) -> None:
    table.apply(
        table.time_ms,
        PutEntry(
            session="s0.1",
            owner="o",
            request=number + 1,
            map="m",
            entry_key=f"k{number}",
            value=b"v",
            ttl_ms=ttl_ms,
            ephemeral=ephemeral,
        ),
    )


def steps_until_idle(table: LockTable, time_ms: int) -> list[int]:
    """Let log time pass while something is due; return the ends of each step.

    A member that is restored from a snapshot before each step does the same.
    """
    done: list[int] = []
    while (due := table.due_ms()) is not None and due <= time_ms:
        before, twin = remaining(table), restored(table)
        assert twin.advance(time_ms) == table.advance(time_ms)
        assert twin.numbers() == table.numbers()
        done.append(before - remaining(table))
        time_ms += 1
    return done


def remaining(table: LockTable) -> int:
    queues = sum(one.waiting for one in table.objects.values())
    return len(table.sessions.by_id) + table.maps.count + queues + table.claims - queues


def test_nothing_is_left_of_a_session_whose_last_entries_others_delete() -> None:
    table = table_of(2)
    for number in range(MANY):
        put(table, number, ephemeral=True)
    table.apply(1, End(session="s0.1"))
    assert table.departed
    for number in range(MANY):
        delete = DeleteEntry(session="s1.2", request=number + 1, map="m", entry_key=f"k{number}")
        table.apply(1, delete)
    twin = restored(table)
    assert twin.digest() == table.digest()
    assert twin.due_ms() == table.due_ms()
    assert not table.departed


@pytest.mark.parametrize(
    "ends", ["sessions", "entries", "entries of a session", "holds", "barriers"]
)
def test_what_falls_due_together_ends_a_thousand_at_a_time(ends: str) -> None:
    table = table_of(MANY if ends == "sessions" else 1)
    for number in range(MANY if ends != "sessions" else 0):
        if ends == "holds":
            table.apply(
                0,
                Acquire(
                    session="s0.1",
                    owner="o",
                    request=number + 1,
                    lock=f"l{number}",
                    wait_ms=None,
                    limit=0,
                    hold_ms=100,
                    grace_ms=100,
                ),
            )
        elif ends == "barriers":
            party = AwaitBarrier(
                session="s0.1",
                owner="o",
                request=number + 1,
                barrier=f"b{number}",
                parties=2,
                wait_ms=500,
            )
            table.apply(0, party)
        else:
            put(
                table,
                number,
                ttl_ms=500 if ends == "entries" else None,
                ephemeral=ends.endswith("session"),
            )
    due_ms = 1_000 if ends in ("entries", "holds", "barriers") else TTL_MS

    done = steps_until_idle(table, due_ms)

    assert sum(done) == MANY + (ends == "entries of a session")
    assert max(done) <= ENDS_MAX + 1
    assert len(done) <= MANY // (ENDS_MAX // 2) + 1


def test_a_session_that_is_due_may_still_be_kept_and_is_then_not_ended() -> None:
    table = table_of(MANY)
    table.advance(TTL_MS)
    last = f"s{MANY - 1}.{MANY}"
    assert last in table.sessions.by_id

    table.apply(TTL_MS, KeepAlive(session=last, request=1))
    steps_until_idle(table, TTL_MS + 1)

    assert list(table.sessions.by_id) == [last]


def test_the_entries_of_an_ended_session_end_with_it_whoever_leads() -> None:
    table = table_of(1)
    for number in range(MANY):
        put(table, number, ephemeral=True)
    (ended,) = table.apply(1, End(session="s0.1", request=MANY + 1))
    assert isinstance(ended, Ended)
    put_again = Open(session="s0", ttl_ms=TTL_MS)

    table.apply(2, put_again)
    table.apply(3, ExtendSessions(leader="n1", fence_floor=0))
    steps_until_idle(table, 4)

    assert table.maps.count == 0
    assert not table.departed
    assert len(table.sessions.by_id) == 1


def test_the_waiters_of_an_open_latch_pass_a_thousand_at_a_time_before_their_timeouts() -> None:
    table, passed = table_of(1), list[int]()
    name = object_name("latch", "l")

    def counted(outcomes: list[Result]) -> int:
        assert all(isinstance(one, LatchPassed) for one in outcomes[-1:])
        return sum(isinstance(one, LatchPassed) for one in outcomes)

    for number in range(MANY):
        wait = AwaitLatch(
            session="s0.1",
            owner=f"o{number}",
            request=number + 1,
            latch="l",
            count=1,
            keep_ms=1_000,
            wait_ms=5,
        )
        table.apply(0, wait)
    down = CountDown(
        session="s0.1", owner="d", request=MANY + 1, latch="l", count=1, keep_ms=1_000, amount=1
    )
    passed.append(counted(table.apply(4, down)))
    now_ms = 100
    while table.objects[name].waiting:
        twin = restored(table)
        outcomes = table.advance(now_ms)
        assert twin.advance(now_ms) == outcomes
        passed.append(counted(outcomes))
        now_ms += 1

    assert passed == [ENDS_MAX, ENDS_MAX, ENDS_MAX, 7]
    table.advance(10_000 - 1)
    assert name not in table.objects


def test_a_queue_behind_what_ends_is_served() -> None:
    table = table_of(2 * ENDS_MAX)
    for number in range(ENDS_MAX):
        for owner, wait_ms in ((number, None), (number + ENDS_MAX, None)):
            asked = Acquire(
                session=f"s{owner}.{owner + 1}",
                owner="o",
                request=1,
                lock=f"l{number}",
                wait_ms=wait_ms,
                limit=0,
            )
            table.apply(0, asked)
    for number in range(ENDS_MAX, 2 * ENDS_MAX):
        table.apply(TTL_MS - 1, KeepAlive(session=f"s{number}.{number + 1}", request=2))
    granted = 0
    for now_ms in range(TTL_MS, TTL_MS + 10):
        granted += sum(isinstance(one, Granted) for one in table.advance(now_ms))
    assert granted == ENDS_MAX


def test_without_the_bound_all_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencelock.actors.table.table.ENDS_MAX", 1 << 60)
    monkeypatch.setattr(state, "ENDS_MAX", 1 << 60)
    assert steps_until_idle(table_of(MANY), TTL_MS) == [MANY]
