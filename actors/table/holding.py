"""Holds of locks, pools of permits, other objects, queues of waits, and timeouts."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from fencelock.actors.api.message import Granted, Reason
from fencelock.actors.api.name import quoted
from fencelock.actors.api.rwlock import RWLOCK_PERMITS
from fencelock.actors.api.semaphore import SEMAPHORE
from fencelock.actors.message import maker

if TYPE_CHECKING:
    from fencelock.actors.table.account import Account
    from fencelock.actors.table.message import ObjectRecord, Result
    from fencelock.actors.table.session import OwnerState
    from fencelock.actors.table.table_state import TableState


_granted = maker(Granted)

SLACK = 16
"""Number of dead entries that a heap may always contain."""


@dataclass(slots=True, eq=False)
class Awaited:
    """Something for which owners wait, in one queue.

    The queue is made with the first wait, since most objects never see one. It is an
    `OrderedDict`, since a dict that keeps losing its first key walks over all the lost ones each
    time.

    Attributes:
        queue: waits by ticket, which is the order of the log; see `waits`.

    """

    queue: OrderedDict[int, Wait] | None = field(default=None, kw_only=True)

    def enqueue(self, wait: Wait) -> None:
        """Append ``wait`` to the queue."""
        if self.queue is None:
            self.queue = OrderedDict()
        self.queue[wait.ticket] = wait

    def withdraw(self, wait: Wait) -> None:
        """Remove ``wait`` from anywhere in the queue."""
        assert self.queue is not None
        del self.queue[wait.ticket]

    @property
    def waits(self) -> Iterable[Wait]:
        """The waits, in order."""
        return self.queue.values() if self.queue else ()

    @property
    def waiting(self) -> int:
        """Number of waits."""
        return len(self.queue) if self.queue else 0


@dataclass(slots=True, eq=False)
class Hold(Awaited):
    """One ownership of a lock, and the queue of those who wait for its end.

    A free lock has none. The queue moves from each ownership to the next. A hold of permits has no
    queue: its `Pool` has one.

    Attributes:
        fence: the token of this ownership; it does not change when the owner acquires again.
        count: number of times the owner holds the object at once; at least 1.
        request: the last acquire that added to ``count``, or 0 if that was undone.
        level: the number in the reply to that acquire, so that a repetition gets the same.
        amount: number of permits of its `Pool`; 0 without a pool.
        since_ms: log time of the grant.

    """

    owner_state: OwnerState
    label: str
    fence: int
    since_ms: int
    request: int
    count: int = 1
    level: int = 1
    amount: int = 0

    @property
    def times(self) -> int:
        """Number of times that it is held, or of its permits, for people."""
        return max(self.count, self.amount)

    def acquire_again(self, request: int) -> None:
        """Count one more acquire, which has the number ``request``."""
        self.count += 1
        self.level = self.count
        self.request = request

    def answer(self) -> Granted:
        """Return the outcome of the last acquire."""
        owner_state = self.owner_state
        return _granted(
            session=owner_state.session.id,
            owner=owner_state.owner,
            request=self.request,
            lock=owner_state.lock,
            fence=self.fence,
            count=self.level,
        )

    def wording(self, fence: int = 0) -> str:
        """Describe the holder, by ``fence`` if it has several."""
        owner, session = self.owner_state.owner, self.owner_state.session.id
        label = self.owner_state.labelled(self.label)
        who = f"{quoted(owner)} of {quoted(session)}"
        who = f"{who} ({label})" if label else who
        writes = ", for writing" if self.amount == RWLOCK_PERMITS else ""
        return f"held by {who} under fence {fence or self.fence}{writes}"


@dataclass(slots=True, eq=False)
class Wait:
    """An owner's last request in the queue of its object: an acquire, or an update that waits.

    Attributes:
        ticket: its place among all waits that ever existed; queues are in this order.
        since_ms: log time at which it was queued.
        due_ms: log time at which it times out, or None for never.
        amount: number of permits that it requests.

    """

    owner_state: OwnerState
    ticket: int
    label: str
    since_ms: int
    due_ms: int | None
    amount: int = 1

    def fall_due(self, table: TableState, out: list[Result]) -> None:
        """End the wait, which has timed out."""
        wait = self.owner_state.wait
        assert wait is not None
        assert self.due_ms is not None
        obstacle = table.obstacle(self.owner_state)
        text = f"waited {self.due_ms - self.since_ms} ms; {obstacle}"
        table.end_wait(wait, Reason.TIMED_OUT, out, text)


@dataclass(slots=True, eq=False)
class Pool(Awaited):
    """The permits of one object, which several owners may hold at once, and one queue for all.

    A lock is the case of one permit: its `Hold` is all that it needs. It has a pool from the time
    at which some owner claims it together with other locks. A pool exists while permits of it are
    held or awaited.

    Invariants:
        L8  The permits that are held and ``free`` are ``capacity`` together, and ``free`` is not
            negative.
        L9  A wait is granted only as the head of the queue, when its amount is free. So a large
            one keeps smaller ones behind it waiting, and none is overtaken for ever.

    Attributes:
        capacity: number of permits; each claim names it, and all must agree.
        holds: the holds by fence, which is the order of their grants. A hold of several locks has a
            fence in the pool of each.

    """

    capacity: int
    free: int
    holds: dict[int, Hold]

    def admits(self, amount: int) -> bool:
        """Return whether a new claim of ``amount`` permits is granted at once."""
        return not self.queue and amount <= self.free

    def add(self, hold: Hold, fence: int) -> None:
        """Take the permits of a new hold."""
        self.free -= hold.amount
        assert self.free >= 0  # L8
        self.holds[fence] = hold

    def remove(self, hold: Hold, fence: int) -> None:
        """Take back all permits of a hold."""
        del self.holds[fence]
        self.free += hold.amount

    def next_wait(self) -> Wait | None:
        """Return the head of the queue, if its permits are free (L9)."""
        head = next(iter(self.waits), None)
        return None if head is None or head.amount > self.free else head

    def wording(self, kind: str) -> str:
        """Describe what keeps a claim for an object of that kind waiting."""
        fence, first = next(iter(self.holds.items()), (0, None))
        if first is None:
            held = "nobody holds it"
        elif kind == SEMAPHORE:
            held = f"{self.capacity - self.free} of {self.capacity} permits are held"
        elif self.free:
            held = f"{len(self.holds)} owners read"
        else:
            held = first.wording(fence)
        return f"{held}, {self.waiting} claims wait" if self.queue else held


@dataclass(slots=True, eq=False)
class TableObject(Awaited, ABC):
    """An object without permits, whose kind defines its state and its rules.

    Attributes:
        name: its name in the table.
        account: the account that is charged for it.

    """

    name: str
    account: Account

    REMOVED: ClassVar = Reason.CANCELLED
    """The reason by which its waits are refused when it is removed."""

    @abstractmethod
    def mark(self) -> int:
        """Return a checksum of the state that snapshots keep, without the waits."""

    @abstractmethod
    def progress(self) -> tuple[int, int]:
        """Return the number that is missing before its waiters pass, and the number at first."""

    @abstractmethod
    def wording(self) -> str:
        """Describe why a request for it has to wait."""

    @abstractmethod
    def record(self) -> ObjectRecord:
        """Return its record for a snapshot, without the waits."""

    @classmethod
    @abstractmethod
    def restore(cls, table: Any, record: Any) -> None:
        """Put the object of ``record`` into the `TableState`, which has none of that name.

        Raises:
            ValueError: the record contradicts itself.

        """

    def check_restored(self, table: TableState) -> None:
        """Check it after all waits of a snapshot are in the table.

        Raises:
            ValueError: it cannot have these waits.

        """

    def remove(self, table: Any, why: str, out: list[Result]) -> None:
        """Refuse all its waits, and remove it from the `TableState`."""
        for wait in [*self.waits]:
            table.answer_wait(wait, wait.owner_state.denied(self.REMOVED, why), out)
        table.drop(self)

    def note_end(self, table: Any, wait: Wait, out: list[Result]) -> None:
        """Act upon the end of ``wait``, which left the queue without passing."""
        del table, wait, out


class Due(Protocol):
    """Something that falls due at a log time.

    Attributes:
        ticket: a number of its own, from `TableState.next_ticket`. It orders items that fall due at
            the same time.
        due_ms: that log time, or None for never. It must not change while `Timeouts` has the item.

    """

    ticket: int
    due_ms: int | None

    def fall_due(self, table: TableState, out: list[Result]) -> None:
        """Do what is due. Then remove the item from ``table.timeouts``, or add it again."""
        ...


class Attached(Protocol):
    """Something that ends with a session; see `Session.attached`."""

    def end_with_session(self, table: Any, out: list[Result]) -> None:
        """Remove it from the `TableState`. The session's waits and holds have ended already."""
        ...


class Timeouts:
    """All items that fall due, the soonest first; ties are ordered by ticket.

    An item that was dropped stays in the heap until it reaches the top or the dead are
    the majority, so that each change costs O(log n), amortized.
    """

    def __init__(self) -> None:
        self.items: dict[int, Due] = {}
        self.heap: list[tuple[int, int]] = []

    def add(self, item: Due) -> None:
        """Watch ``item``, unless it never falls due."""
        if item.due_ms is not None:
            self.items[item.ticket] = item
            heapq.heappush(self.heap, (item.due_ms, item.ticket))

    def drop(self, item: Due) -> None:
        """Stop watching ``item``, if it was watched."""
        if item.due_ms is None:
            return
        del self.items[item.ticket]
        if len(self.heap) > 2 * len(self.items) + SLACK:  # Amortized over as many drops.
            self.heap = [(one.due_ms or 0, ticket) for ticket, one in self.items.items()]
            heapq.heapify(self.heap)

    def first(self) -> Due | None:
        """Return the item that falls due first."""
        while self.heap:
            due_ms, ticket = self.heap[0]
            item = self.items.get(ticket)
            if item is not None and item.due_ms == due_ms:
                return item
            heapq.heappop(self.heap)  # It was dropped, or added again with a later time.
        return None
