"""The table as people and operators see it: queries that do not change it, and replies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import nsmallest
from itertools import chain, islice
from typing import NamedTuple, TypeVar

from fencelock.actors.api.changes import Change
from fencelock.actors.api.name import KIND_END, kind_of, plain_name
from fencelock.actors.api.request import TableQuery, TableReply
from fencelock.actors.api.session_message import ListedEviction, ListedSession, Records
from fencelock.actors.message import Local
from fencelock.actors.table.resource import Awaited, Resource, TableHold, TableObject

WAITERS_SHOWN_MAX = 1_000
"""Waiters of one lock in a report, and holders of permits; `LockReport.waiting` counts all."""


class HolderSeen(NamedTuple):
    """The holder of a lock."""

    session: str
    owner: str
    label: str
    """The labels of the session and of this hold."""
    fence: int
    times: int
    """Number of times it holds the lock at once, or of its permits."""
    since_ms: int
    """Log time of the grant."""
    held_ms: int
    """Duration of the hold so far (ms)."""
    left_ms: int | None = None
    """Time until the hold is taken away unless it is renewed (ms), or None for never."""
    span: int = 0
    """See `fencelock.actors.api.message.Contender.span`."""


class WaiterSeen(NamedTuple):
    """A waiter in a lock's queue."""

    session: str
    owner: str
    label: str
    request: int
    waited_ms: int
    left_ms: int | None
    """Time until it gives up (ms), or None for never."""
    amount: int = 1
    """Number of permits that it asks for."""


class LockReport(NamedTuple):
    """A lock or another object, held or free, with its holder and its waiters, in order."""

    lock: str
    holder: HolderSeen | None
    """The one that has held it for longest, where there can be several."""
    waiting: int
    waiters: tuple[WaiterSeen, ...]
    holders: tuple[HolderSeen, ...] = ()
    """All holders by fence, where there can be several."""
    permits: int = 1
    """Number of permits; 1 for a lock."""
    left: int | None = None
    """See `fencelock.actors.api.message.LockStatus.left`."""
    free: int | None = None
    """See `fencelock.actors.api.message.LockStatus.free`."""


class LockLine(NamedTuple):
    """A held lock in a list, or an object that nobody can hold; only the latter has ``left``."""

    lock: str
    holder: HolderSeen | None
    waiting: int
    permits: int = 1
    left: int | None = None


class LookUp(Local):
    """Query for the holder and the waiters of ``lock``. Answered by `Looked`."""

    lock: str


class Looked(Local):
    """The report of a lock, held or free."""

    report: LockReport


class Browse(Local):
    """Query for a page of locks, see `LockTable.listing`. Answered by `Browsed`."""

    prefix: str
    after: str
    most: int
    unheld: bool | None = None


class Browsed(Local):
    """A page of locks, sorted by name. If ``more`` is set, others follow."""

    lines: tuple[LockLine, ...]
    more: bool


class ReadRecords(Local):
    """Query for records, as `LockTable.records`. Answered by `RecordsRead`."""

    kind: Records
    skip: int
    most: int


class RecordsRead(Local):
    """A page of records; one of the two is empty."""

    sessions: tuple[ListedSession, ...]
    evictions: tuple[ListedEviction, ...]
    more: bool


class ReadHistory(Local):
    """Query for the changes of an object, see `LockTable.changes`. Answered by `Changed`."""

    lock: str
    after: int | None
    prefix: str = ""


class Changed(Local):
    """The changes of an object up to ``version``, or with ``resync`` the whole object instead.

    If ``more`` is set too, only the first part of the object is here.
    """

    version: int
    changes: tuple[Change, ...]
    resync: bool
    more: bool = False

    def __bool__(self) -> bool:
        """Return whether it has changes, or the object itself."""
        return self.resync or bool(self.changes)


class ReadTable(Local):
    """Query for the reply to a `TableQuery` of a client. Answered by `TableRead`."""

    query: TableQuery


class TableRead(Local):
    """The reply to a `TableQuery` of a client."""

    reply: TableReply


Item = TypeVar("Item")


def page_of(
    items: Iterable[Item], bytes_max: int, size: Callable[[Item], int], most: int | None = None
) -> tuple[tuple[Item, ...], bool]:
    """Return the first of ``items``, as many as a page has room for, and whether more follow.

    Args:
        items: they are read one by one, up to the first without room.
        bytes_max: the size above which the page takes no further item; it has one in any case.
        size: returns the size of an item (bytes).
        most: the maximum number of items, or None.

    """
    page: list[Item] = []
    for item in items:
        bytes_max -= size(item)
        if len(page) == most or (page and bytes_max < 0):
            return tuple(page), True
        page.append(item)
    return tuple(page), False


MachineQuery = LookUp | Browse | ReadRecords | ReadHistory | ReadTable


def report_lock(name: str, held: Awaited | None, time_ms: int) -> LockReport:
    """Return the report of a lock as of ``time_ms``; one that is not in the table is free."""
    if held is None:
        return LockReport(name, None, 0, ())
    waiters = tuple(
        WaiterSeen(
            session=wait.owner_state.session.id,
            owner=wait.owner_state.owner,
            label=wait.label,
            request=wait.owner_state.request,
            waited_ms=time_ms - wait.since_ms,
            left_ms=None if wait.due_ms is None else wait.due_ms - time_ms,
            amount=wait.amount,
        )
        for wait in islice(held.waits, WAITERS_SHOWN_MAX)
    )
    if isinstance(held, TableObject):
        left, total = held.progress()
        return LockReport(name, None, held.waiting, waiters, permits=total, left=left)
    assert isinstance(held, Resource)
    holders = tuple(_see(hold, name, time_ms) for hold in islice(held.holds, WAITERS_SHOWN_MAX))
    holder = holders[0] if holders else None
    if not kind_of(name):
        return LockReport(name, holder, held.waiting, waiters)
    return LockReport(
        name, holder, held.waiting, waiters, holders, held.capacity, free=max(0, held.free)
    )


def list_locks(
    resources: Mapping[str, Resource],
    objects: Mapping[str, TableObject],
    prefix: str,
    after: str,
    most: int,
    time_ms: int,
) -> tuple[LockLine, ...]:
    """Return the first ``most`` held or awaited names that begin with ``prefix`` after ``after``.

    A prefix without a kind is that of the plain names, so that it finds those of all kinds.
    """
    plain = str if KIND_END in prefix else plain_name
    held = (name for name, resource in resources.items() if resource.held is not None)
    found = (
        name for name in chain(held, objects) if name > after and plain(name).startswith(prefix)
    )
    lines: list[LockLine] = []
    for name in nsmallest(most, found):
        one = objects.get(name)
        if one is not None:
            left, total = one.progress()
            lines.append(LockLine(name, None, one.waiting, total, left))
        else:
            resource = resources[name]
            holder = _see(next(iter(resource.holds)), name, time_ms)
            lines.append(LockLine(name, holder, resource.waiting, resource.capacity))
    return tuple(lines)


def _see(hold: TableHold, name: str, time_ms: int) -> HolderSeen:
    return HolderSeen(
        session=hold.owner_state.session.id,
        owner=hold.holder,
        label=hold.label,
        fence=hold.fence_of(name),
        times=hold.times,
        since_ms=hold.since_ms,
        held_ms=time_ms - hold.since_ms,
        left_ms=None if hold.ends_at_ms is None else hold.ends_at_ms - time_ms,
        span=hold.details.span,
    )
