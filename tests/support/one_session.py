"""A table with one session, and the requests and outcomes of its owners."""

from __future__ import annotations

from fencelock.actors.api import message as api
from fencelock.actors.api.session_message import Open
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import LogCommand, Queued, Result

DAY_MS = 24 * 3_600_000


def one_session() -> LockTable:
    """Return a table with one session, ``s.1``, that lives for a day."""
    fresh = LockTable()
    fresh.apply(0, Open(session="s", ttl_ms=DAY_MS))
    return fresh


def acquire(
    owner: str, request: int, wait_ms: int | None = None, *, lock: str = "L"
) -> api.Acquire:
    """Return an acquire of ``owner``."""
    return api.Acquire(
        session="s.1", owner=owner, request=request, lock=lock, wait_ms=wait_ms, limit=0
    )


def release(owner: str, request: int, fence: int) -> api.Release:
    """Return a release of what ``owner`` holds."""
    return api.Release(session="s.1", owner=owner, request=request, lock="L", fence=fence)


def cancel(owner: str, request: int) -> api.Cancel:
    """Return a cancel of an acquire of ``owner``."""
    return api.Cancel(session="s.1", owner=owner, request=request, lock="L")


def held(owner: str, request: int, fence: int, count: int = 1, *, lock: str = "L") -> api.Granted:
    """Return the grant of an acquire."""
    return api.Granted(
        session="s.1", owner=owner, request=request, lock=lock, fence=fence, count=count
    )


def freed(owner: str, request: int, count: int = 0) -> api.Released:
    """Return the reply to a release."""
    return api.Released(session="s.1", owner=owner, request=request, lock="L", count=count)


def queued(owner: str, request: int) -> Queued:
    """Return the outcome of an acquire that waits."""
    return Queued(session="s.1", owner=owner, request=request, lock="L")


def undone(owner: str, request: int) -> api.Cancelled:
    """Return the reply to a cancel."""
    return api.Cancelled(session="s.1", owner=owner, request=request, lock="L")


def reasons(outcomes: list[Result]) -> list[tuple[str, int, api.Reason]]:
    """Return the refused owners, and the reasons."""
    return [(o.owner, o.request, o.reason) for o in outcomes if isinstance(o, api.Refused)]


def applied(table: LockTable, *commands: LogCommand) -> list[Result]:
    """Apply all at the table's present time, and return the outcome of the last one."""
    outcomes: list[Result] = []
    for command in commands:
        outcomes = table.apply(table.time_ms, command)
    return outcomes
