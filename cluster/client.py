"""The blocking client: `connect` to a cluster, then lock by name from any thread."""

from __future__ import annotations

import atexit
from types import TracebackType
from typing import Self

from fencelock.actors.api.message import Contender, LockStatus, NodeStatus
from fencelock.actors.api.session_message import ListedLock
from fencelock.cluster.base_client import BaseClient
from fencelock.cluster.callback_executor import ThreadExecutor
from fencelock.cluster.connection import Connection
from fencelock.cluster.lock import Lock
from fencelock.cluster.operation import drive
from fencelock.cluster.settings import Read, Settings


class Client(BaseClient):
    """A connection to a cluster, for all threads of one process. From `connect`.

    It leaves nothing running after `close`, which ``with`` and the end of the process
    call. After a fork only the parent may use it.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        atexit.register(self.close)

    def lock(
        self,
        name: str,
        *,
        timeout: float | None = None,
        reentrant: bool = False,
        limit: int | None = None,
        owner: str | None = None,
        label: str = "",
        duration: float | None = None,
        grace: float | None = None,
    ) -> Lock:
        """Return the lock called ``name``; sends nothing yet.

        Args:
            name: 1 to 256 bytes of text with a visible character and no control characters.
            timeout: how long ``with``, and `Lock.acquire` without its own, wait (s): 0 to a
                week, or ``math.inf`` for the longest. None for the cluster's own limit: none,
                but on `bakery` 5 s, or what its config says.
            reentrant: whether an owner may acquire what it holds once more; it releases
                as often.
            limit: how often an owner may hold it at once, at least 1; None for without limit if
                ``reentrant``, else once.
            owner: who holds the lock, up to 256 bytes without control characters, for every thread
                that uses the returned object; None for each thread by itself.
            label: a word for people who look at the lock, up to 256 bytes.
            duration: where holds have deadlines (`bakery`), how long this one is held (s), up
                to a week; then `Lock.on_unlocking` is called. None for the cluster's own, 5 s.
            grace: how much later it is taken away unless it was renewed (s), likewise.

        Raises:
            InvalidRequestError: ``name``, ``owner``, ``limit``, ``label``, ``duration`` or
                ``grace`` is out of its limits.
            UnsupportedError: the cluster's protocol has no reentrant locks, or no deadlines;
                the text says which one does.
            ClosedError: the client is closed, or this process was forked from its own.
            ValueError: ``timeout`` is out of its range.

        """
        terms = self._connection.terms(
            name, timeout, reentrant, limit, owner, label, duration, grace
        )
        return Lock(self._connection.line, self._connection.hold_registry, terms)

    def status(self, name: str, read: Read = "linearizable", max_age: float = 1.0) -> LockStatus:
        """Return who holds ``name`` and who waits, in order; stale on arrival.

        Args:
            name: of the lock.
            read: ``"linearizable"``: true at one instant between question and answer,
                where the protocol promises that; ``"local"``: as one node knows it.
            max_age: how old a local answer may be (s), 0 to an hour.

        Raises:
            InvalidRequestError: ``name`` is out of its limits.
            UnsupportedError: the protocol has no local reads, since none of its nodes can
                prove how old its answer is; `paxos` has them.
            StaleError: the node's knowledge is older than ``max_age``.
            UnavailableError: no node answered for 10 s.
            ClosedError: the client is closed.
            ValueError: ``read`` or ``max_age`` is not one of these.

        """
        return drive(self._connection.line.inspecting(name, self._connection.age_ms(read, max_age)))

    def locks(
        self, prefix: str = "", read: Read = "linearizable", max_age: float = 1.0
    ) -> tuple[ListedLock, ...]:
        """Return the held locks whose names begin with ``prefix``, by name.

        They are read in pages of 1,000. Each page is true of one instant, not all of the same.

        Raises:
            UnsupportedError: the protocol keeps no table of locks.
            StaleError: see `status`, as for the others.

        """
        return drive(self._connection.listing(prefix, read, max_age))

    def evict(self, name: str, fence: int, operator: str | None = None) -> Contender:
        """Take the lock ``name`` from its holder under ``fence``; return that holder.

        The holder is notified, and may still act on what the lock protects: only a fence that
        is checked stops it. The cluster's log records the eviction and the operator's name.

        Args:
            name: of the lock.
            fence: of the hold, as `status` shows it: a later holder is not affected.
            operator: the name of the person who does it, up to 200 bytes; by default user and host.

        Raises:
            NotHeldError: it is not held under ``fence``.
            UnsupportedError: the protocol keeps no table of locks.
            InvalidRequestError: an argument is out of its limits.
            UnavailableError: no answer came for 10 s; repeating it does no harm.
            ClosedError: the client is closed.

        """
        return drive(self._connection.evicting(name, fence, operator))

    def describe(self, *, roles: bool = False) -> tuple[NodeStatus, ...]:
        """Return the status of each node of the address list, in that order.

        With ``roles`` a `NodeStatus` also describes the node's roles.

        A node that is silent for 2 s, or known to be down, is missing.

        Raises:
            UnavailableError: no node answered.
            ClosedError: the client is closed.

        """
        return drive(self._connection.surveying(roles=roles))

    def close(self) -> None:
        """Release what is held, cancel what waits, and leave nothing running.

        Waits up to 2 s until reachable nodes confirm. Threads that wait for a lock get
        `CancelledError`. Closing again, or in a forked process, does nothing.
        """
        drive(self._connection.closing(lambda: atexit.unregister(self.close)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
        self.close()

    def __repr__(self) -> str:
        return f"<Client {self._connection}>"


def connect(
    addresses: str,
    *,
    cluster: str = "fencelock",
    timeout: float = 10.0,
    ttl: float = 15.0,
    label: str | None = None,
) -> Client:
    """Connect to a cluster and return once a node answered.

    Args:
        addresses: one or more nodes, ``"tcp://10.0.0.1:4040,tcp://10.0.0.2:4040"``. Any
            will do; when one goes away, the client moves to another.
        cluster: the id of the cluster, as in its config.
        timeout: how long to wait for the first answer (s), above 0.
        ttl: how long the cluster keeps this client's locks after its last message (s), 1 to
            3600. With a short one, locks of dead clients are soon free; with a long one, the
            client survives longer pauses and cuts. Only where the protocol has sessions.
        label: what people see of this client, up to 256 bytes; by default host and process.

    Raises:
        ConfigError: an argument is not usable.
        WrongClusterError: what answers belongs to another cluster or version.
        UnavailableError: nobody answered in time.

    """
    settings = Settings(addresses, cluster, timeout, ttl, label)
    connection = Connection(settings, ThreadExecutor())
    try:
        drive(connection.greeting())
        return Client(connection)
    except BaseException:
        connection.stop()
        raise
