"""Resources with their holds and queues, other objects, and timeouts."""

from __future__ import annotations

import heapq
from abc import ABCMeta, abstractmethod
from collections import OrderedDict
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

from msgspec import Struct, StructMeta
from msgspec.structs import replace

from fencelock.actors.api.election import ELECTION
from fencelock.actors.api.lock_message import Contender, Granted, Reason
from fencelock.actors.api.name import client_of
from fencelock.actors.api.refusal import Cause, Obstacle, Why
from fencelock.actors.api.rwlock import RWLOCK, RWLOCK_PERMITS
from fencelock.actors.api.semaphore import PERMITS_MAX, SEMAPHORE

if TYPE_CHECKING:
    from fencelock.actors.table.account import Account
    from fencelock.actors.table.retained import Spans
    from fencelock.actors.table.session import OwnerState
    from fencelock.actors.table.state import TableState
    from fencelock.actors.table.wire import KeyRecord, ObjectRecord, Result


CAPACITIES = {
    "": (1, 1),
    ELECTION: (1, 1),
    RWLOCK: (RWLOCK_PERMITS, RWLOCK_PERMITS),
    SEMAPHORE: (1, PERMITS_MAX),
}
"""The least and the greatest capacity of the objects that can be held, by kind."""

SLACK = 16
"""Number of dead entries that a heap may always contain."""


class Durations(NamedTuple):
    """The duration and the grace of a hold (ms)."""

    hold_ms: int
    grace_ms: int


class Awaited(Struct, eq=False, kw_only=True):
    """Something for which owners wait, in one queue.

    The queue is made with the first wait, since most objects never see one. It is an
    `OrderedDict`, since a dict that keeps losing its first key walks over all the lost ones each
    time.

    Attributes:
        queue: waits by ticket, which is the order of the log; see `waits`.

    """

    queue: OrderedDict[int, Wait] | None = None

    def enqueue(self, wait: Wait) -> None:
        if self.queue is None:
            self.queue = OrderedDict()
        self.queue[wait.ticket] = wait

    def withdraw(self, wait: Wait) -> None:
        assert self.queue is not None
        del self.queue[wait.ticket]

    @property
    def waits(self) -> Iterable[Wait]:
        return self.queue.values() if self.queue else ()

    @property
    def waiting(self) -> int:
        return len(self.queue) if self.queue else 0


class ClaimDetails(Struct, frozen=True):
    """The fields that only some claims have, besides their amount.

    ``label`` is a text for people. ``locks`` are the names of a claim for several locks, ``value``
    is that of a candidate in an election, and ``durations`` are those of a hold with a deadline.
    ``span`` is the number of fences of a hold that its session retains, else 0. ``key`` is of a
    hold that belongs to no client, or of the wait of a Redis door.
    """

    label: str = ""
    locks: tuple[str, ...] = ()
    value: str | None = None
    durations: Durations | None = None
    span: int = 0
    key: KeyRecord | None = None


_GRANTED = Granted(session="", owner="", request=0, lock="", fence=0)
"""Copied by each grant: a copy takes 90 ns, where Python 3.11 takes 310 ns to make an event."""

PLAIN = ClaimDetails()
"""The details of a claim that has none."""


class Claim(Struct, eq=False):
    """An owner's claim to an object of the table: a hold, or a wait."""

    owner_state: OwnerState
    details: ClaimDetails

    @property
    def objects(self) -> tuple[str, ...]:
        """The names of the objects that it holds together, or in whose queues it waits."""
        return self.details.locks or (self.owner_state.key[1],)

    @property
    def label(self) -> str:
        """The text for people: the labels of the session and of the claim, and its value."""
        details = self.details
        return ", ".join(
            filter(None, (self.owner_state.session.label, details.label, details.value))
        )

    def contender(self, owner: str, fence: int | None, since_ms: int, times: int) -> Contender:
        """Return it as the audit keeps it and a status shows it, with the id of its session."""
        session = self.owner_state.session.id
        node = client_of(session)
        return Contender(node, session, owner, fence, since_ms, self.label, times)


class TableHold(Claim, eq=False):
    """One ownership of an object, or of some of its permits.

    A hold of several locks has a fence for each of them: ``fence`` and those after it. A hold with
    a span has as many fences, which its session gives to its own owners. To the table, its fence is
    the first: the others neither release nor evict it.

    Attributes:
        fence: the token of this ownership; it does not change when the owner acquires again.
        since_ms: log time of the grant.
        request: the last acquire that added to ``count``, or 0 if that was undone.
        amount: the part of the capacity that it has, of each of its objects; at least 1.
        granted_count: the count in the reply to that acquire, so that a repetition gets the same.
        count: number of times the owner holds the object at once; at least 1.

    """

    fence: int
    since_ms: int
    request: int
    amount: int = 1
    granted_count: int = 1
    count: int = 1

    @property
    def times(self) -> int:
        """Number of times that it is held, or of its permits, for people."""
        return max(self.count, self.amount)

    @property
    def holder(self) -> str:
        return self.owner_state.owner

    @property
    def account(self) -> Account:
        return self.owner_state.session.account

    @property
    def ends_at_ms(self) -> int | None:
        return None

    def seen(self, fence: int, now_ms: int) -> Contender:
        """Return it under the ``fence`` that it has for one object."""
        return self.contender(self.holder, fence, now_ms - self.since_ms, self.times)

    def fence_of(self, name: str) -> int:
        locks = self.details.locks
        return self.fence + locks.index(name) if locks else self.fence

    def acquire_again(self, request: int) -> None:
        self.count += 1
        self.granted_count = self.count
        self.request = request

    def answer(self) -> Granted:
        owner_state = self.owner_state
        owner, lock = owner_state.key
        return replace(
            _GRANTED,
            session=owner_state.session.id,
            owner=owner,
            request=self.request,
            lock=lock,
            fence=self.fence,
            count=self.granted_count,
        )


class Wait(Claim, eq=False):
    """An owner's last request in the queue of its object: an acquire, or an update that waits.

    Attributes:
        ticket: its place among all waits that ever existed; queues are in this order.
        since_ms: log time at which it was queued.
        due_ms: log time at which it times out, or None for never.
        amount: the part of the capacity that it requests, of each of its objects.
        granted_count: the count in the reply that grants it.
        charged: the account that is charged for it if that is not its session's.

    """

    ticket: int
    since_ms: int
    due_ms: int | None
    amount: int = 1
    granted_count: int = 1
    charged: Account | None = None

    def seen(self, now_ms: int) -> Contender:
        owner = self.owner_state.owner
        return self.contender(owner, None, now_ms - self.since_ms, self.amount)

    def fall_due(self, table: TableState, out: list[Result]) -> None:
        wait = self.owner_state.wait
        assert wait is not None
        assert self.due_ms is not None
        obstacle = table.obstacle(self.owner_state.lock, wait.details)
        why = Why(Cause.TIMED_OUT, (self.due_ms - self.since_ms,), obstacle=obstacle)
        table.end_wait(wait, Reason.TIMED_OUT, out, why)


class Resource(Awaited, eq=False):
    """An object that owners can hold: a capacity, its holds, and one queue.

    A lock is the case of capacity 1. Each claim names the capacity, and all must agree, since a
    free object leaves no state: a resource exists while it is held or awaited.

    Invariants:
        capacity-kept   The amounts of the holds and ``free`` are ``capacity`` together. No grant
            makes ``free`` negative; a smaller size may, until enough is given back.
        no-overtaking   A wait is granted only as the head of the queue, when its amount is free. So
            a large one keeps smaller ones behind it waiting, and none is overtaken forever.

    Attributes:
        held: the hold while there is one, or the holds by fence, which is the order of their
            grants. Most objects have one hold, and a dictionary would double their memory.
        spans: those of the holds that have a span, or None if there are none.

    """

    capacity: int
    free: int
    held: TableHold | dict[int, TableHold] | None = None
    spans: Spans | None = None

    @property
    def holds(self) -> Iterable[TableHold]:
        held = self.held
        if isinstance(held, dict):
            return held.values()
        return () if held is None else (held,)

    @property
    def holding(self) -> int:
        held = self.held
        if isinstance(held, dict):
            return len(held)
        return 0 if held is None else 1

    def find(self, name: str, fence: int) -> TableHold | None:
        held = self.held
        if isinstance(held, dict):
            return held.get(fence)
        return held if held is not None and held.fence_of(name) == fence else None

    def covers(self, name: str, fence: int) -> bool:
        """Return whether this object is held under ``fence``, or under a span that contains it."""
        if self.find(name, fence) is not None:
            return True
        return self.spans is not None and self.spans.contain(fence)

    def admits(self, amount: int) -> bool:
        """Return whether a new claim of ``amount`` is granted at once."""
        return not self.queue and amount <= self.free

    def grant(self, hold: TableHold, fence: int) -> None:
        assert hold.amount <= self.free  # capacity-kept
        self.add(hold, fence)

    def add(self, hold: TableHold, fence: int) -> None:
        self.free -= hold.amount
        held = self.held
        if held is None:
            self.held = hold
        elif isinstance(held, dict):
            held[fence] = hold
        else:  # Only one of several locks has another fence here, and such a lock has one holder.
            self.held = {held.fence: held, fence: hold}

    def remove(self, hold: TableHold, fence: int) -> None:
        held = self.held
        if isinstance(held, dict):
            del held[fence]
            if not held:
                self.held = None
        else:
            assert held is hold  # one-holder
            self.held = None
        self.free += hold.amount

    def resize(self, capacity: int) -> None:
        """Let it have another capacity. What is held stays held."""
        self.free += capacity - self.capacity
        self.capacity = capacity

    @contextmanager
    def kept(self) -> Generator[None]:
        """Let the end of a lock's hold serve nobody in the queue, before the next grant."""
        self.free -= 1
        yield
        self.free += 1

    def next_wait(self) -> Wait | None:
        """Return the head of the queue, if its amount is free (no-overtaking)."""
        queue = self.queue
        if not queue:
            return None
        head = next(iter(queue.values()))
        return None if head.amount > self.free else head

    def obstacle(self, name: str) -> Obstacle:
        """Return what keeps a claim for this object, which has that name, waiting."""
        first = next(iter(self.holds), None)
        if first is None:
            return Obstacle(name, waiting=self.waiting)
        return Obstacle(
            name,
            self.holding,
            self.free,
            self.capacity,
            self.waiting,
            first.fence_of(name),
            first.owner_state.session.id,
            first.holder,
            first.label,
        )


class AbstractStruct(StructMeta, ABCMeta):
    """The class of structs that have abstract methods."""


class TableObject(Awaited, metaclass=AbstractStruct, eq=False):
    """An object without permits, whose kind defines its state and its rules.

    Attributes:
        name: its name in the table.
        account: the account that is charged for it.

    """

    name: str
    account: Account

    KIND: ClassVar[str]
    """The beginning of its name in the table."""
    RECORD: ClassVar[type[Any]]
    """The type of its record: the name, the fields of the kind, and the name of the account."""
    SIZE: ClassVar[str] = ""
    """The sentence part that names its size, which is a number; empty if it has none."""
    STATE: ClassVar[str] = ""
    """The sentence about its `Obstacle`, whose fields it names; empty if nobody waits for it."""
    REMOVED: ClassVar = Reason.CANCELLED
    """The reason by which its waits are refused when it is removed."""

    @classmethod
    def find(cls, table: TableState, name: str) -> Self | None:
        one = table.objects.get(name)
        assert one is None or isinstance(one, cls)
        return one

    @abstractmethod
    def mark(self) -> int:
        """Return a checksum of the state that snapshots keep, without the waits."""

    @abstractmethod
    def progress(self) -> tuple[int, int]:
        """Return its count, and the whole of which that is what is left; 0 if there is none."""

    @abstractmethod
    def obstacle(self) -> Obstacle:
        """Return what keeps a request for it waiting."""

    @property
    def due_ticket(self) -> int:
        """Its ticket among what falls due, or 0 if it never does."""
        return 0

    def record(self) -> ObjectRecord:
        own: list[Any] = [getattr(self, field) for field in self.__struct_fields__[2:-1]]
        made: ObjectRecord = self.RECORD(self.name, *own, self.account.name)
        return made

    @classmethod
    def restore(cls, table: Any, record: Any) -> None:
        """Put the object of ``record`` into the `TableState`, which has none of that name."""
        name, *own, charged = record
        table.put(cls(name, table.accounts.of(charged), *own))

    def serve(self, table: Any, out: list[Result]) -> None:
        """Serve the first waits, if the kind has something that they wait to get."""
        del table, out

    @abstractmethod
    def check_restored(self, table: TableState) -> None:
        """Check it after all waits of a snapshot are in the table.

        Raises:
            ValueError: its record contradicts itself, or it cannot have these waits.

        """

    def remove(self, table: Any, why: Why, out: list[Result]) -> None:
        """Refuse all its waits, and remove it from the `TableState`."""
        for wait in [*self.waits]:
            table.reply_to_wait(wait, wait.owner_state.denied(self.REMOVED, why), out)
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


class Timeouts:
    """All items that fall due, the soonest first; ties are ordered by ticket.

    An item that was dropped stays in the heap until it reaches the top or the dead are
    the majority, so that each change costs O(log n), amortized.
    """

    def __init__(self) -> None:
        self.items: dict[int, Due] = {}
        self.heap: list[tuple[int, int]] = []

    def add(self, item: Due) -> None:
        if item.due_ms is not None:
            self.items[item.ticket] = item
            heapq.heappush(self.heap, (item.due_ms, item.ticket))

    def drop(self, item: Due) -> None:
        if item.due_ms is None:
            return
        del self.items[item.ticket]
        if len(self.heap) > 2 * len(self.items) + SLACK:  # Amortized over as many drops.
            self.heap = [(one.due_ms or 0, ticket) for ticket, one in self.items.items()]
            heapq.heapify(self.heap)

    def first(self) -> Due | None:
        while self.heap:
            due_ms, ticket = self.heap[0]
            item = self.items.get(ticket)
            if item is not None and item.due_ms == due_ms:
                return item
            heapq.heappop(self.heap)  # It was dropped, or added again with a later time.
        return None
