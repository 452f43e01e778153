"""What ends at one time in the table: sessions, and deadlines, a bounded number at a time.

`transcripts/table-sessions.txt` shows how sessions are opened, kept and ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import only
from support.table_scene import restored

from fencelock.actors.api import message as api
from fencelock.actors.api.account import NO_KEY
from fencelock.actors.api.barrier import AwaitBarrier
from fencelock.actors.api.latch import AwaitLatch, CountDown, LatchPassed
from fencelock.actors.api.map import DeleteEntry, PutEntry
from fencelock.actors.api.name import object_name
from fencelock.actors.api.session_message import End, Ended, Evict, Open
from fencelock.actors.table import state
from fencelock.actors.table.state import ENDS_MAX
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import ExtendSessions, Result


def acquire(
    session: str, request: int, lock: str = "L", *, owner: str = "o", **fields: Any
) -> api.Acquire:
    made = api.Acquire(session=session, owner=owner, request=request, lock=lock, limit=0)
    return replace(made, **fields)


def denials(outcomes: list[Result]) -> list[tuple[str, api.Reason]]:
    return [(one.session, one.reason) for one in outcomes if isinstance(one, api.Refused)]


MANY = 3 * ENDS_MAX + 7
LONG_TTL_MS = 10_000


def table_of(sessions: int) -> LockTable:
    table = LockTable()
    for number in range(sessions):
        table.apply(0, Open(session=f"s{number}", ttl_ms=LONG_TTL_MS))
    return table


def put(
    table: LockTable, number: int, *, ttl_ms: int | None = None, ephemeral: bool = False
) -> None:
    entry = PutEntry(
        map="m", entry_key=f"k{number}", value=b"v", ttl_ms=ttl_ms, ephemeral=ephemeral
    )
    table.apply(table.time_ms, replace(entry, session="s0.1", owner="o", request=number + 1))


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


def steps_due_now(table: LockTable) -> Iterator[list[Result]]:
    """Let log time pass while something is due already; yield the outcomes of each step.

    A member that is restored from a snapshot before each step does the same.
    """
    for _ in range(MANY):
        due_ms = table.due_ms()
        if due_ms is None or due_ms > table.time_ms:
            return
        twin, now_ms = restored(table), table.time_ms + 1
        outcomes = table.advance(now_ms)
        assert twin.advance(now_ms) == outcomes
        yield outcomes
    raise AssertionError("something stays due")


def test_nothing_is_left_of_a_session_whose_last_entries_others_delete() -> None:
    table = table_of(2)
    for number in range(MANY):
        put(table, number, ephemeral=True)
    table.apply(1, End(session="s0.1"))
    assert table.departed
    for number in range(MANY):
        delete = DeleteEntry(session="s1.2", request=number + 1, map="m", entry_key=f"k{number}")
        table.apply(1, delete)
    assert restored(table).due_ms() == table.due_ms()
    steps_until_idle(table, 2)
    assert not table.departed
    assert table.accounts.by_name[NO_KEY].sessions == 1


@pytest.mark.parametrize(
    "ends",
    ["sessions", "entries", "entries of a session", "holds", "holds of a session", "barriers"],
)
def test_deadlines_at_one_time_end_a_thousand_at_a_time(ends: str) -> None:
    table = table_of(MANY if ends == "sessions" else 1)
    for number in range(MANY if ends != "sessions" else 0):
        if ends == "holds of a session":
            table.apply(0, acquire("s0.1", number + 1, f"l{number}"))
        elif ends == "holds":
            table.apply(0, acquire("s0.1", number + 1, f"l{number}", hold_ms=100, grace_ms=100))
        elif ends == "barriers":
            party = AwaitBarrier(barrier=f"b{number}", parties=2, wait_ms=500)
            table.apply(0, replace(party, session="s0.1", owner="o", request=number + 1))
        else:
            put(
                table,
                number,
                ttl_ms=500 if ends == "entries" else None,
                ephemeral=ends.endswith("session"),
            )
    due_ms = 1_000 if ends in ("entries", "holds", "barriers") else LONG_TTL_MS

    done = steps_until_idle(table, due_ms)

    assert sum(done) == MANY + ends.endswith("of a session")
    assert max(done) <= ENDS_MAX + 1
    assert len(done) <= MANY // (ENDS_MAX // 2) + 1


def test_a_session_that_is_due_may_still_be_kept_and_is_then_not_ended() -> None:
    table = table_of(MANY)
    table.advance(LONG_TTL_MS)
    last = f"s{MANY - 1}.{MANY}"
    assert last in table.sessions.by_id

    table.apply(LONG_TTL_MS, api.KeepAlive(session=last, request=1))
    steps_until_idle(table, LONG_TTL_MS + 1)

    assert list(table.sessions.by_id) == [last]


def test_the_entries_of_an_ended_session_end_with_it_whichever_node_leads() -> None:
    table = table_of(1)
    for number in range(MANY):
        put(table, number, ephemeral=True)
    only(Ended, table.apply(1, End(session="s0.1", request=MANY + 1)))
    put_again = Open(session="s0", ttl_ms=LONG_TTL_MS)

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
        wait = AwaitLatch(latch="l", count=1, keep_ms=1_000, wait_ms=5)
        claimant = {"session": "s0.1", "owner": f"o{number}", "request": number + 1}
        table.apply(0, replace(wait, **claimant))
    down = CountDown(latch="l", count=1, keep_ms=1_000, session="s0.1", request=MANY + 1)
    passed.append(counted(table.apply(4, down)))
    passed += map(counted, steps_due_now(table))

    assert passed == [ENDS_MAX, ENDS_MAX, ENDS_MAX, 7]
    table.advance(10_000 - 1)
    assert name not in table.objects


def test_a_queue_behind_what_ends_is_served() -> None:
    table = table_of(2 * ENDS_MAX)
    for number in range(ENDS_MAX):
        for owner in (number, number + ENDS_MAX):
            table.apply(0, acquire(f"s{owner}.{owner + 1}", 1, f"l{number}"))
    for number in range(ENDS_MAX, 2 * ENDS_MAX):
        table.apply(LONG_TTL_MS - 1, api.KeepAlive(session=f"s{number}.{number + 1}", request=2))
    granted = 0
    for now_ms in range(LONG_TTL_MS, LONG_TTL_MS + 10):
        granted += sum(isinstance(one, api.Granted) for one in table.advance(now_ms))
    assert granted == ENDS_MAX


def test_all_sessions_end_at_once_without_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencelock.actors.table.table.ENDS_MAX", 1 << 60)
    monkeypatch.setattr(state, "ENDS_MAX", 1 << 60)
    assert steps_until_idle(table_of(MANY), LONG_TTL_MS) == [MANY]


def test_the_holds_of_an_ended_session_end_in_steps_and_are_its_own_no_more() -> None:
    """Rule close-ends-waits-first."""
    table, granted = table_of(2), list[api.Granted]()
    for number in range(MANY):
        table.apply(0, acquire("s0.1", number + 1, f"l{number}"))
    table.apply(0, acquire("s1.2", 1, f"l{MANY - 1}", owner="next"))

    only(Ended, table.apply(1, End(session="s0.1", request=MANY + 1)))

    assert table.claims == MANY - ENDS_MAX + 1
    late = api.Release(session="s0.1", owner="o", request=MANY + 2, lock="l200", fence=201)
    assert denials(table.apply(1, late)) == [("s0.1", api.Reason.SESSION_EXPIRED)]
    taken = Evict(operator="root", session="x", request=1, lock=f"l{MANY - 2}", fence=MANY - 1)
    table.apply(1, taken)
    assert (table.is_held(f"l{MANY - 2}", MANY - 1), table.claims) == (False, MANY - ENDS_MAX)
    for outcomes in steps_due_now(table):
        granted += [one for one in outcomes if isinstance(one, api.Granted)]
    assert [one.owner for one in granted] == ["next"]
    assert (table.claims, table.departed) == (1, {})
    assert table.accounts.by_name[NO_KEY].used[3:] == (1, 1)
