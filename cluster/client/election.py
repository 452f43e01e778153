"""Leader elections: what both clients share, then the classes of each client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from fencelock.actors.api.changes import Change, ChangesRead, ReadChanges
from fencelock.actors.api.election import ELECTION, Lead
from fencelock.actors.api.lock_message import Contender
from fencelock.actors.api.name import object_name
from fencelock.cluster.client.base_lock import BaseLock, H
from fencelock.cluster.client.base_object import BaseObject
from fencelock.cluster.client.connection import Connection
from fencelock.cluster.client.lock import AsyncHold, AsyncLock, Hold, Lock
from fencelock.cluster.client.operation import InTasks, InThreads, Operation, operation
from fencelock.cluster.client.settings import LockOptions, Read, text_of
from fencelock.cluster.client.watch import AsyncWaiting, BaseWatch, Waiting
from fencelock.cluster.guarantee import Guarantee

C = TypeVar("C", bound=BaseLock[Any])


class Leader(NamedTuple):
    """The leader of an election."""

    value: str
    """The public value of the leader, such as its address."""
    fence: int
    """The fence of its term, above the fence of every earlier leader."""


class BaseCandidate(BaseLock[H]):
    """A candidate of an election: a lock whose holder leads. Each acquire is a separate owner."""

    def __init__(self, connection: Connection, options: LockOptions, value: str) -> None:
        named = replace(options, name=object_name(ELECTION, options.name))
        super().__init__(connection.line, named)
        value = text_of("value", value)
        self._value = value
        self._acquire = Lead(
            election=options.name, value=value, owner="", request=1, label=options.label
        )
        self._acquire.check()

    @property
    def value(self) -> str:
        """The value that other clients see while this candidate leads."""
        return self._value


class BaseElection(BaseObject, Generic[C]):
    """One election of the cluster."""

    _candidate_type: Callable[..., C]

    def __init__(
        self, connection: Connection, name: str, timeout: float | None, label: str
    ) -> None:
        super().__init__(connection, name, ELECTION, Guarantee.ELECTIONS)
        self._options = connection.options(name, timeout, label=label, retain=0.0, kind=ELECTION)

    @operation
    def leader(self, read: Read = "linearizable", max_age: float = 1.0) -> Operation[Leader | None]:
        """Return the present leader, or None if nobody leads.

        Arguments and errors are those of `Client.status`.
        """
        age_ms = self._connection.age_ms(read, max_age)
        asked = ReadChanges(lock=self._full_name, age_ms=age_ms)
        return leader_of((yield from self._channel.ask(asked)))

    @operation
    def evict(self, fence: int, operator: str | None = None) -> Operation[Contender]:
        """End the term under ``fence``; see `Client.evict`."""
        return self._connection.evicting(self._full_name, fence, operator)

    def lead(self, value: str = "") -> C:
        """Return a candidate, which leads while it is held like a lock; sends nothing yet.

        ``with election.lead("10.0.0.7:80") as term:`` waits until all earlier candidates have led
        or stopped waiting, and leads until the end of the block.

        Args:
            value: the public value of the leader, such as its address: up to 1,024 bytes without
                control characters.

        Raises:
            InvalidRequestError: ``value`` is out of its limits.
            ClosedError: the client is closed, or this process was forked from its own.
            TypeError: ``value`` is not text.

        """
        return self._candidate_type(self._given, self._options, value)


class BaseElectionWatch(BaseWatch["Leader | None"]):
    """The leaders of an election, one after the other, beginning with the present one."""

    _last: Leader | None = None

    def _items_of(self, read: ChangesRead) -> Operation[list[Leader | None]]:
        yield from ()
        if not read.resync:
            leaders = list(map(_leader_in, read.changes))
        else:
            leaders = [leader_of(read)]
            if self._version is not None and leaders == [self._last]:
                return []
        self._last = leaders[-1] if leaders else self._last
        return leaders


def leader_of(read: ChangesRead) -> Leader | None:
    """Return the leader after all changes of a reply, or None if nobody leads then."""
    return _leader_in(read.changes[-1]) if read.changes else None


def _leader_in(change: Change) -> Leader | None:
    return None if change.value is None else Leader(change.value.decode(), change.fence)


class Candidate(BaseCandidate[Hold], Lock):
    """A candidate of an `Election`: a lock like `fencelock.Lock`, whose holder leads.

    ``with candidate as term:`` leads until the end of the block. The term is a `Hold`; its fence is
    above that of every earlier leader. A term can also be lost: see `Hold.lost` and `Hold.on_lost`.
    """


class ElectionWatch(BaseElectionWatch, Waiting["Leader | None"]):
    """An iterator over the leaders of an election, from `Election.watch`.

    It waits for each change, and yields a `Leader`, or None when a term ends. It goes on while
    nodes crash and while no node answers. Only one thread at a time may wait for its
    items. Any thread may `close` it, which ends a loop over it.
    """


class Election(BaseElection[Candidate], InThreads):
    """One election of the cluster, from `Client.election`. Any thread may use it.

    Candidates lead one after the other, in the order of their requests. A candidate leads from its
    grant until it releases, an operator evicts it, or its client's session ends.
    """

    _candidate_type = Candidate

    def watch(self) -> ElectionWatch:
        """Return an iterator over the leaders; sends nothing yet.

        ``for leader in election.watch():`` yields the present leader, or None if nobody leads. Then
        it yields each change: None when a term ends, and the next leader. No change is missing or
        comes twice, even if the client has to use other nodes. The cluster keeps the last 1,000
        changes. A watch that is further behind goes on with the present leader, and counts that in
        ``resyncs``.
        """
        return ElectionWatch(self._channel, self._full_name)


class AsyncCandidate(BaseCandidate[AsyncHold], AsyncLock):
    """A candidate of an `Election`: a lock like `fencelock.aio.Lock`, whose holder leads."""


class AsyncElectionWatch(BaseElectionWatch, AsyncWaiting["Leader | None"]):
    """An iterator over the leaders, from `Election.watch`; see `fencelock.ElectionWatch`."""


class AsyncElection(BaseElection[AsyncCandidate], InTasks):
    """One election of the cluster, from `fencelock.aio.Client.election`.

    ``async with election.lead(value) as term:`` leads until the end of the block. Rules, arguments
    and errors are those of `fencelock.Election`.
    """

    _candidate_type = AsyncCandidate

    def watch(self) -> AsyncElectionWatch:
        """Return an iterator for ``async for`` over the leaders, beginning with the present one."""
        return AsyncElectionWatch(self._channel, self._full_name)
