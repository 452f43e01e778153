"""The blocking client: `connect` to a cluster, then lock by name from any thread."""

from __future__ import annotations

import atexit
from types import TracebackType
from typing import Self

from fencelock.actors.lock.message import Contender, LockStatus, NodeStatus
from fencelock.actors.lock.session_message import ListedLock
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
        """Return the lock called ``name``; asks nobody yet.

        Args:
            name: 1 to 256 bytes of text with a visible character and no control characters.
            timeout: how long ``with``, and `Lock.acquire` unless told otherwise, wait
                (s), 0 to a week, ``math.inf`` for the longest; None for what the cluster lets
                anybody wait: without limit, but on `bakery` 5 s, or what its config says.
            reentrant: whether an owner may acquire what it holds once more; it releases
                as often.
            limit: how often at once, at least 1; None for without limit if ``reentrant``,
                else once.
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
            StaleError: the node has not heard for ``max_age`` how things stand.
            UnavailableError: no node answered for 10 s.
            ClosedError: the client is closed.
            ValueError: ``read`` or ``max_age`` is none.

        """
        return drive(self._connection.line.inspecting(name, self._connection.age_ms(read, max_age)))

    def locks(
        self, prefix: str = "", read: Read = "linearizable", max_age: float = 1.0
    ) -> tuple[ListedLock, ...]:
        """Return the held locks whose names begin with ``prefix``, by name.

        They are asked for in pages of 1,000: each is true of one instant, not all of the same.

        Raises:
            UnsupportedError: the protocol keeps no table of locks.
            StaleError: see `status`, as for the others.

        """
        return drive(self._connection.listing(prefix, read, max_age))

    def evict(self, name: str, fence: int, operator: str | None = None) -> Contender:
        """Take the lock ``name`` from whoever holds it under ``fence``; return who did.

        It is told so, and may still act on what the lock protects: only a fence that is
        checked stops it. The deed is in the cluster's log with the name of the operator.

        Args:
            name: of the lock.
            fence: of the hold, as `status` shows it: a later holder is not hit.
            operator: who does it, up to 200 bytes; by default user and host.

        Raises:
            NotHeldError: it is not held under ``fence``.
            UnsupportedError: the protocol keeps no table of locks.
            InvalidRequestError: an argument is out of its limits.
            UnavailableError: no answer came for 10 s; to repeat it does no harm.
            ClosedError: the client is closed.

        """
        return drive(self._connection.evicting(name, fence, operator))

    def describe(self, *, roles: bool = False) -> tuple[NodeStatus, ...]:
        """Return what each node of the address list says of itself, in that order.

        With ``roles`` a `NodeStatus` also describes the node's roles.

        A node that is silent for 2 s, or known to be down, is missing.

        Raises:
            UnavailableError: all are.
            ClosedError: the client is closed.

        """
        return drive(self._connection.surveying(roles=roles))

    def close(self) -> None:
        """Release what is held, cancel what waits, and leave nothing running.

        Waits up to 2 s for nodes that can be heard to confirm. Threads that wait for a
        lock get `CancelledError`. To close again, or in a forked process, does nothing.
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
            will do; one that goes away is left for another.
        cluster: the id of the cluster, as in its config.
        timeout: how long to wait for the first answer (s), above 0.
        ttl: how long the cluster keeps what this client holds after the last sign of it
            (s), 1 to 3600. Short: locks of the dead are soon free; long: a longer pause or
            cut is survived. Only where the protocol has sessions.
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
