"""What ends at one time in the table: sessions, entries, holds, waits, a bounded number at a time.

`transcripts/table-steps.txt` shows what clients and operators see meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from support.table_scene import restored

from fencelock.actors.api.barrier import AwaitBarrier
from fencelock.actors.api.lock_message import Acquire
from fencelock.actors.api.map import PutEntry
from fencelock.actors.api.session_message import Open
from fencelock.actors.table import state
from fencelock.actors.table.state import ENDS_MAX
from fencelock.actors.table.table import LockTable

MANY = 3 * ENDS_MAX + 7
TTL_MS = 10_000


def table_of(sessions: int) -> LockTable:
    table = LockTable()
    for number in range(sessions):
        table.apply(0, Open(session=f"s{number}", ttl_ms=TTL_MS))
    return table


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
    return len(table.sessions.by_id) + table.maps.count + table.claims


def put(number: int, **fields: Any) -> PutEntry:
    return PutEntry(map="m", entry_key=f"k{number}", value=b"v", **fields)


ENDING: dict[str, tuple[int, Callable[[int], Any]]] = {
    "entries": (1_000, lambda n: put(n, ttl_ms=500)),
    "entries of a session": (TTL_MS, lambda n: put(n, ephemeral=True)),
    "holds": (1_000, lambda n: Acquire(lock=f"l{n}", hold_ms=100, grace_ms=100)),
    "holds of a session": (TTL_MS, lambda n: Acquire(lock=f"l{n}")),
    "barriers": (1_000, lambda n: AwaitBarrier(barrier=f"b{n}", parties=2, wait_ms=500)),
}
"""When many commands of one session are due (ms), and each of them by its number."""


def check_steps(done: list[int], wanted: int) -> None:
    assert sum(done) == wanted
    assert max(done) <= ENDS_MAX + 1
    assert len(done) <= MANY // (ENDS_MAX // 2) + 1


@pytest.mark.parametrize("ends", ENDING)
def test_deadlines_at_one_time_end_a_hundred_at_a_time(ends: str) -> None:
    due_ms, command = ENDING[ends]
    table = table_of(1)
    for number in range(MANY):
        by = {"session": "s0.1", "owner": "o", "request": number + 1}
        table.apply(0, replace(command(number), **by))
    check_steps(steps_until_idle(table, due_ms), MANY + (due_ms == TTL_MS))


def test_sessions_end_a_hundred_at_a_time() -> None:
    check_steps(steps_until_idle(table_of(MANY), TTL_MS), MANY)


def test_all_sessions_end_at_once_without_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencelock.actors.table.table.ENDS_MAX", 1 << 60)
    monkeypatch.setattr(state, "ENDS_MAX", 1 << 60)
    assert steps_until_idle(table_of(MANY), TTL_MS) == [MANY]
