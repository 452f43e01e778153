"""The replies to queries about locks and other objects. They change nothing in the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from fencelock.actors.api.changes import CHANGES_BYTES_MAX, Change, ChangesRead, ReadChanges
from fencelock.actors.api.lock_message import Contender, Inspect, LockStatus
from fencelock.actors.api.map import MAP
from fencelock.actors.api.name import kind_of, plain_name
from fencelock.actors.api.operator_message import ListedLock, ListedObject, ListLocks, LockList
from fencelock.actors.message import Local
from fencelock.actors.table.resource import TableHold, TableObject

if TYPE_CHECKING:
    from fencelock.actors.table.state import TableState

CONTENDERS_SHOWN_MAX = 1_000
"""Waiters of one lock in a status, and holders of permits."""

SHOWN_BYTES_MAX = 1 << 19
"""Size above which a status, or a description, takes no more of them (bytes): half of a frame."""

TABLE_LOCKS_SHOWN_MAX = 100
"""Locks and other objects in a description; `ListLocks` has all of them."""

LIST_PAGE_BYTES_MAX = 64 << 10
"""Size above which a page of a list takes no more lines (bytes): to make one takes some 3 ms, in
which others wait."""


class DescribeLocks(Local):
    """Query for the first locks and other objects by name. Answered by `LocksDescribed`."""


class LocksDescribed(Local):
    """Locks and other objects, as many as fit a description."""

    locks: tuple[LockStatus, ...]


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


def read_lock(table: TableState, query: Inspect) -> LockStatus:
    return _status(table, query.lock, SHOWN_BYTES_MAX)


def _status(table: TableState, name: str, bytes_max: int) -> LockStatus:
    resource, one, now_ms = table.resources.get(name), table.objects.get(name), table.time_ms
    holds = islice(() if resource is None else resource.holds, CONTENDERS_SHOWN_MAX)
    holders = _fitting((_holder(hold, name, now_ms) for hold in holds), bytes_max)
    bytes_max -= sum(map(size_of, holders))
    awaited = resource or one
    waits = islice(() if awaited is None else awaited.waits, CONTENDERS_SHOWN_MAX)
    waiters = _fitting((wait.seen(now_ms).shown() for wait in waits), bytes_max)
    if one is not None:
        left, total = one.progress()
        return LockStatus(
            lock=name, holder=None, waiters=waiters, waits_for=(), permits=total, left=left
        )
    first = None if resource is None else next(iter(resource.holds), None)
    ends_at_ms = None if first is None else first.ends_at_ms
    several = resource is not None and bool(kind_of(name))
    return LockStatus(
        lock=name,
        holder=holders[0] if holders else None,
        waiters=waiters,
        waits_for=(),
        permits=resource.capacity if resource is not None and several else 1,
        holders=holders if several else (),
        left_ms=None if ends_at_ms is None else ends_at_ms - now_ms,
        free=max(0, resource.free) if resource is not None and several else None,
    )


def _holder(hold: TableHold, name: str, now_ms: int) -> Contender:
    seen = hold.seen(hold.fence_of(name), now_ms)
    return seen._replace(span=hold.details.span).shown()


def _fitting(contenders: Iterable[Contender], bytes_max: int) -> tuple[Contender, ...]:
    return page_of(contenders, bytes_max, size_of)[0]


def size_of(contender: Contender) -> int:
    """Return a lower bound on the size of ``contender`` in a frame (bytes)."""
    texts = (contender.node, contender.session, contender.owner, contender.label)
    return sum(len(text.encode()) + 3 for text in texts) + 32


def describe_locks(table: TableState, query: DescribeLocks) -> LocksDescribed:
    names = merge(table.held_names.within("", ""), table.unheld_names.within("", ""))
    statuses: list[LockStatus] = []
    left = SHOWN_BYTES_MAX
    for name in islice(names, TABLE_LOCKS_SHOWN_MAX):
        if left <= 0:
            break
        status = _status(table, name, left)
        holder = () if status.holder is None else (status.holder,)
        left -= sum(map(size_of, (*holder, *status.holders, *status.waiters)))
        left -= len(name.encode()) + 32
        statuses.append(status)
    return LocksDescribed(locks=tuple(statuses))


def list_locks(table: TableState, query: ListLocks) -> LockList:
    if query.unheld:
        names = table.unheld_names.within(query.prefix, query.after)
        found = (_listed_object(table.objects[name]) for name in names)
        objects, more = page_of(
            found, LIST_PAGE_BYTES_MAX, lambda one: len(one.lock.encode()) + 16, query.most
        )
        return LockList(lines=(), objects=objects, more=more)
    held = table.key_session.names if query.clientless else table.held_names
    lines, more = page_of(
        (_listed_lock(table, name) for name in held.within(query.prefix, query.after)),
        LIST_PAGE_BYTES_MAX,
        lambda one: size_of(one.holder) + len(one.lock.encode()) + 16,
        query.most,
    )
    return LockList(lines=lines, more=more)


def _listed_object(one: TableObject) -> ListedObject:
    left, total = one.progress()
    return ListedObject(one.name, one.waiting, left, total)


def _listed_lock(table: TableState, name: str) -> ListedLock:
    resource = table.resources[name]
    holder = _holder(next(iter(resource.holds)), name, table.time_ms)
    return ListedLock(name, holder, resource.waiting)


def read_changes(table: TableState, query: ReadChanges) -> ChangesRead:
    lock, after, histories = query.lock, query.after, table.histories
    # A version up to `old` is from before the group lost everything; see versions-rise.
    old = histories.origin if histories.version else table.fence
    read = None if after is None or 0 < after <= old else histories.read(lock, after, query.prefix)
    if read is not None:
        return ChangesRead(lock=lock, version=read[0], changes=read[1])
    present = _present(table, lock, query.prefix)
    changes, more = page_of(present, CHANGES_BYTES_MAX, lambda change: change.size)
    return ChangesRead(
        lock=lock, version=histories.version, changes=changes, resync=True, more=more
    )


def _present(table: TableState, lock: str, prefix: str) -> Iterator[Change]:
    """Return the leader of an election, or the entries of a map by key."""
    resource, entries = table.resources.get(lock), table.maps.by_name.get(plain_name(lock))
    if kind_of(lock) == MAP and entries is not None:
        for entry in entries.page(prefix, ""):
            yield Change(entry.version, entry.key, entry.value, 0)
    elif resource is not None:
        for hold in resource.holds:
            value = hold.details.value or ""
            yield Change(table.histories.version, "", value.encode(), hold.fence)
