"""The table of locks as people and operators see it: queries that do not change it, and replies."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple

from fencelock.actors.message import Local, local
from fencelock.actors.table.holding import Hold

WAITERS_SHOWN_MAX = 1_000
"""Waiters of one lock in a report; `LockReport.waiting` counts all."""


class HolderSeen(NamedTuple):
    """The holder of a lock."""

    session: str
    owner: str
    label: str
    """The labels of the session and of this hold."""
    fence: int
    times: int
    """Number of times it holds the lock at once."""
    since_ms: int
    """Log time of the grant."""
    held_ms: int
    """Duration of the hold so far (ms)."""


class WaiterSeen(NamedTuple):
    """A waiter in a lock's queue."""

    session: str
    owner: str
    label: str
    request: int
    waited_ms: int
    left_ms: int | None
    """Time until it gives up (ms), None for never."""


class LockReport(NamedTuple):
    """A lock, held or free, with its holder and its waiters, in order."""

    lock: str
    holder: HolderSeen | None
    waiting: int
    waiters: tuple[WaiterSeen, ...]


class LockLine(NamedTuple):
    """A held lock in a list."""

    lock: str
    holder: HolderSeen
    waiting: int


@local
class LookUp(Local):
    """Query for the holder and the waiters of ``lock``. Answered by `Looked`."""

    lock: str


@local
class Looked(Local):
    """The report of a lock, held or free."""

    report: LockReport


@local
class Browse(Local):
    """Query for held locks, as `LockTable.listing`. Answered by `Browsed`."""

    prefix: str
    after: str
    most: int


@local
class Browsed(Local):
    """A page of held locks, sorted by name; ``more`` come after it."""

    lines: tuple[LockLine, ...]
    more: bool


Question = LookUp | Browse
Reading = Looked | Browsed


def report_lock(name: str, hold: Hold | None, time_ms: int) -> LockReport:
    """Return the report of a lock as of ``time_ms``; one that is not in the table is free."""
    if hold is None:
        return LockReport(name, None, 0, ())
    waiters = tuple(
        WaiterSeen(
            session=wait.owner_state.session.id,
            owner=wait.owner_state.owner,
            label=wait.owner_state.labelled(wait.label),
            request=wait.owner_state.request,
            waited_ms=time_ms - wait.since_ms,
            left_ms=None if wait.due_ms is None else wait.due_ms - time_ms,
        )
        for wait in islice(hold.waits, WAITERS_SHOWN_MAX)
    )
    return LockReport(name, _see(hold, time_ms), hold.waiting, waiters)


def list_locks(
    locks: Mapping[str, Hold], prefix: str, after: str, most: int, time_ms: int
) -> tuple[LockLine, ...]:
    """Return the first ``most`` locks, by name, that begin with ``prefix`` and follow ``after``."""
    found = (name for name in locks if name.startswith(prefix) and name > after)
    return tuple(
        LockLine(name, _see(locks[name], time_ms), locks[name].waiting)
        for name in nsmallest(most, found)
    )


def _see(hold: Hold, time_ms: int) -> HolderSeen:
    return HolderSeen(
        session=hold.owner_state.session.id,
        owner=hold.owner_state.owner,
        label=hold.owner_state.labelled(hold.label),
        fence=hold.fence,
        times=hold.count,
        since_ms=hold.since_ms,
        held_ms=time_ms - hold.since_ms,
    )
