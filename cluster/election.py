"""Leader elections: the part that both clients share, and the blocking one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

from fencelock.actors.api.changes import Change, ChangesRead, ReadChanges
from fencelock.actors.api.election import ELECTION, Lead
from fencelock.actors.api.message import Contender, LockStatus
from fencelock.actors.api.name import object_name, plain_name
from fencelock.actors.message import copier
from fencelock.cluster.base_lock import BaseLock, H
from fencelock.cluster.connection import Connection
from fencelock.cluster.guarantee import Guarantee, demand
from fencelock.cluster.lock import Hold, Lock
from fencelock.cluster.lock_options import LockOptions, check_text_type
from fencelock.cluster.operation import Operation, drive
from fencelock.cluster.settings import Read
from fencelock.cluster.watch import BaseWatch, Waiting

C = TypeVar("C", bound=BaseLock[Any])


class Leader(NamedTuple):
    """The leader of an election."""

    value: str
    """The value that it gave, such as its address."""
    fence: int
    """The fence of its term, above that of every earlier leader."""


class BaseCandidate(BaseLock[H]):
    """A candidate of an election: a lock, of which the holder leads. Each acquire is an owner."""

    _copy = staticmethod(copier(Lead, "owner", "request", "wait_ms"))

    def __init__(self, connection: Connection, options: LockOptions, value: str) -> None:
        named = replace(options, name=object_name(ELECTION, options.name))
        super().__init__(connection.line, connection.hold_registry, named)
        check_text_type("value", value)
        self._value = value
        self._acquire = Lead(
            election=options.name, value=value, owner="", request=1, label=options.label
        )
        self._acquire.check()

    @property
    def value(self) -> str:
        """The value that others see while this candidate leads."""
        return self._value


class BaseElection(Generic[C]):
    """One election of the cluster."""

    _candidate_type: Callable[..., C]

    def __init__(
        self, connection: Connection, name: str, timeout: float | None, label: str
    ) -> None:
        connection.line.check()
        demand(connection.protocol, Guarantee.ELECTIONS)
        self._connection = connection
        self._options = connection.options(name, timeout, None, label, None, None)
        self._lock = object_name(ELECTION, name)

    @property
    def name(self) -> str:
        """The name under which all clients know it."""
        return plain_name(self._lock)

    def lead(self, value: str = "") -> C:
        """Return a candidate, which leads while it is held; sends nothing yet.

        ``with election.lead("10.0.0.7:80") as term:`` waits until all earlier candidates have led,
        and leads until the end of the block.

        Args:
            value: what others see of the leader, such as its address: up to 1,024 bytes without
                control characters.

        Raises:
            InvalidRequestError: ``value`` is out of its limits.
            ClosedError: the client is closed, or this process was forked from its own.
            TypeError: ``value`` is not text.

        """
        return self._candidate_type(self._connection, self._options, value)

    def _leader(self, read: Read, max_age: float) -> Operation[Leader | None]:
        """End with the present leader."""
        age_ms = self._connection.age_ms(read, max_age)
        answer = yield from self._connection.line.ask(
            ReadChanges(watched=self._lock, age_ms=age_ms)
        )
        assert isinstance(answer, ChangesRead)
        return leader_of(answer)

    def _status(self, read: Read, max_age: float) -> Operation[LockStatus]:
        age_ms = self._connection.age_ms(read, max_age)
        return self._connection.line.inspecting(self._lock, age_ms)

    def _evicting(self, fence: int, operator: str | None) -> Operation[Contender]:
        return self._connection.evicting(self._lock, fence, operator)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class BaseElectionWatch(BaseWatch["Leader | None"]):
    """The leaders of an election, one after the other: first the present one.

    It yields each leader, and None whenever a term ends.
    """

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
    """Return the leader after all changes of a reply."""
    return _leader_in(read.changes[-1]) if read.changes else None


def _leader_in(change: Change) -> Leader | None:
    return None if change.value is None else Leader(change.value.decode(), change.fence)


class Candidate(BaseCandidate[Hold], Lock):
    """A candidate of an `Election`: a lock like `fencelock.Lock`, whose holder leads.

    ``with candidate as term:`` leads. `Hold.fence` of the term is above that of every earlier
    leader. A term ends with the block, or when it is lost: see `Hold.lost` and `Hold.on_lost`.
    """


class ElectionWatch(BaseElectionWatch, Waiting["Leader | None"]):
    """The leaders of an election, from `Election.watch`: an iterator that waits for each change.

    It yields a `Leader`, or None when a term ends. It goes on while nodes crash and while no node
    answers. For one thread at a time.
    """


class Election(BaseElection[Candidate]):
    """One election of the cluster, from `Client.election`: candidates lead one after the other.

    A candidate leads from its grant until it releases, is evicted, or its client's session ends.
    The next one follows in the order of their requests.
    """

    _candidate_type = Candidate

    def leader(self, read: Read = "linearizable", max_age: float = 1.0) -> Leader | None:
        """Return the present leader, None if nobody leads. Arguments are those of `Client.status`.

        Raises:
            StaleError: the node's knowledge is older than ``max_age``.
            UnavailableError: no node answered for 10 s.
            ClosedError: the client is closed.
            ValueError: ``read`` or ``max_age`` is not one of these.

        """
        return drive(self._leader(read, max_age))

    def watch(self) -> ElectionWatch:
        """Return an iterator over the leaders; sends nothing yet.

        ``for leader in election.watch():`` yields the present leader, then each change: None when a
        term ends, and the next leader. No change is missing or comes twice, however often the
        client must use another node. After more than 1,000 changes that the watch did not ask for,
        it goes on with the leader of that time (`ElectionWatch.resyncs`).
        """
        return ElectionWatch(self._connection.line, self._lock)

    def status(self, read: Read = "linearizable", max_age: float = 1.0) -> LockStatus:
        """Return the leader as a holder, and the candidates that wait; see `Client.status`."""
        return drive(self._status(read, max_age))

    def evict(self, fence: int, operator: str | None = None) -> Contender:
        """End the term under ``fence``; see `Client.evict`."""
        return drive(self._evicting(fence, operator))
