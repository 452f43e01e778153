"""The clients of threads and of asyncio: connect to a cluster, then lock by name.

`connect` and `async_connect` make them, and the module has the default client of each kind.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, Generic, Literal, ParamSpec, Self, TypeVar, overload

from fencelock.actors.api.latch import LATCH_KEEP_MS
from fencelock.cluster.client.administration import Administration
from fencelock.cluster.client.barrier import AsyncBarrier, Barrier, BaseBarrier
from fencelock.cluster.client.base_client import BaseClient, check_template, described, namer
from fencelock.cluster.client.base_lock import LockFactory
from fencelock.cluster.client.callback_executor import (
    LoopExecutor,
    ThreadExecutor,
    is_coroutine_function,
)
from fencelock.cluster.client.connection import Connection
from fencelock.cluster.client.counter import AsyncCounter, BaseCounter, Counter
from fencelock.cluster.client.election import AsyncElection, BaseElection, Election
from fencelock.cluster.client.latch import AsyncLatch, BaseLatch, Latch
from fencelock.cluster.client.lazy import LazyConnection, LoopConnection, defaults
from fencelock.cluster.client.lock import AsyncHold, AsyncLock, AsyncRLock, Hold, Lock, RLock
from fencelock.cluster.client.lock_all import AsyncLockAll, BaseLockAll, LockAll
from fencelock.cluster.client.map import AsyncMap, BaseMap, Map
from fencelock.cluster.client.operation import InTasks, InThreads, drive, drive_async
from fencelock.cluster.client.pool import AsyncPool, Pool
from fencelock.cluster.client.remote_ref import AsyncProxyRef, AsyncRemoteRef, RemoteRef
from fencelock.cluster.client.rwlock import AsyncRWLock, RWLock, RWLockFactory
from fencelock.cluster.client.semaphore import AsyncSemaphore, Semaphore, SemaphoreFactory
from fencelock.cluster.client.settings import CONNECT_S, Settings, Target
from fencelock.cluster.host.role_ref import RoleRef

P = ParamSpec("P")
T = TypeVar("T")


# help() shows these names as the types that the methods return.
LockAllT = TypeVar("LockAllT", bound=BaseLockAll[Any])
ElectionT = TypeVar("ElectionT", bound=BaseElection[Any])
MapT = TypeVar("MapT", bound=BaseMap)
LatchT = TypeVar("LatchT", bound=BaseLatch)
BarrierT = TypeVar("BarrierT", bound=BaseBarrier)
CounterT = TypeVar("CounterT", bound=BaseCounter)


class ObjectFactory(BaseClient, Generic[LockAllT, ElectionT, MapT, LatchT, BarrierT, CounterT]):
    """The part of a client that makes objects which need few arguments."""

    _lock_all_type: type[LockAllT]
    _election_type: type[ElectionT]
    _map_type: type[MapT]
    _latch_type: type[LatchT]
    _barrier_type: type[BarrierT]
    _counter_type: type[CounterT]

    def lock_all(self, *names: str, timeout: float | None = None, label: str = "") -> LockAllT:
        """Return several locks that are acquired in one step, or not at all; sends nothing yet.

        They are the locks that `lock` returns by these names, 1 to 64 different ones, in their
        order of fences. Other arguments and errors are those of `lock`.

        Raises:
            UnsupportedError: the cluster's protocol grants one lock at a time; the text says which
                one grants several.

        """
        return self._lock_all_type(self._given, names, timeout, label)

    def election(self, name: str, *, timeout: float | None = None, label: str = "") -> ElectionT:
        """Return the election called ``name``; sends nothing yet.

        A lock of the same name is another object. Arguments and errors are those of `lock`:
        ``timeout`` and ``label`` are those of candidates.

        Raises:
            UnsupportedError: the cluster's protocol has no elections; the text names one that has.

        """
        return self._election_type(self._given, name, timeout, label)

    def map(self, name: str) -> MapT:
        """Return the map called ``name``; sends nothing yet.

        A lock of the same name is another object. ``name`` is as for `lock`, and so are the errors.

        Raises:
            UnsupportedError: the cluster's protocol has no maps; the text names one that has.

        """
        return self._map_type(self._given, name)

    def latch(self, name: str, count: int, *, keep_s: float = LATCH_KEEP_MS / 1000) -> LatchT:
        """Return the count-down latch called ``name``; sends nothing yet.

        A lock of the same name is another object. The first request about a latch creates it. It
        opens once, so what it stands for, such as one release, should be in its name.

        Args:
            name: see `lock`.
            count: the count with which the latch begins, 1 to 2,147,483,647. While the latch
                exists, a request with another count is refused.
            keep_s: how long the latch is kept after its count has reached 0 (s), 0 to a week.
                Callers that come later begin a new latch, and wait.

        Raises:
            UnsupportedError: the cluster's protocol has no latches; the text names one that has.
            FencelockError, TypeError: as for `lock`.

        """
        return self._latch_type(self._given, name, count, keep_s)

    def barrier(self, name: str, parties: int, *, timeout: float | None = None) -> BarrierT:
        """Return the cyclic barrier called ``name``; sends nothing yet.

        A lock of the same name is another object.

        Args:
            name: see `lock`.
            parties: the number of parties that pass together, 1 to 10,000. While some of them wait,
                a party that names another number is refused.
            timeout: the default timeout of a party that waits for the others (s); see `lock`.

        Raises:
            UnsupportedError: the cluster's protocol has no barriers; the text names one that has.
            FencelockError, TypeError, ValueError: as for `lock`.

        """
        return self._barrier_type(self._given, name, parties, timeout)

    def counter(self, name: str) -> CounterT:
        """Return the counter called ``name``; sends nothing yet.

        A lock, or a map, of the same name is another object. ``name`` is as for `lock`, and so are
        the errors.

        Raises:
            UnsupportedError: the cluster's protocol has no counters; the text names one that has.

        """
        return self._counter_type(self._given, name)


class Client(
    LockFactory[Lock, RLock, Hold],
    SemaphoreFactory[Semaphore, Pool],
    RWLockFactory[RWLock],
    ObjectFactory[LockAll, Election, Map, Latch, Barrier, Counter],
    Administration,
    InThreads,
):
    """A connection to a cluster, for all threads of one process. From `connect`.

    It leaves nothing running after `close`, which ``with`` and the end of the process
    call. If it is dropped without that, with all its objects and holds, Python warns
    (`ResourceWarning`), and it is closed in the background. After a fork only the parent may use
    it, unless it is lazy: see `connect`.
    """

    _lock_type = Lock
    _rlock_type = RLock
    _semaphore_type = Semaphore
    _pool_type = Pool
    _rwlock_type = RWLock
    _lock_all_type = LockAll
    _election_type = Election
    _map_type = Map
    _latch_type = Latch
    _barrier_type = Barrier
    _counter_type = Counter

    def locked(
        self, template: str, *, timeout: float | None = None, **options: Any
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Return a decorator that holds a lock while a function runs.

        Args:
            template: the name of the lock. Parameters of the function in braces are replaced by
                the arguments of each call: ``"report/{day}"``. They are inserted as they are: with
                ``"{a}/{b}"`` two calls have one name if a part has a ``/``.
            timeout: how long a call waits for the lock (s), before it raises `LockTimeoutError`.
            options: further arguments of `lock`.

        Raises:
            TypeError: the function has no such parameter, or is a coroutine function, which needs
                the client of `fencelock.aio`, or a generator.

        """
        check_template(template)
        self.lock("any name", timeout=timeout, **options)  # It checks them, and sends nothing.

        def decorate(function: Callable[P, T]) -> Callable[P, T]:
            if is_coroutine_function(function):
                raise TypeError(
                    f"{described(function)} is a coroutine function: use fencelock.aio.locked, "
                    "or a client of fencelock.aio, which wait without blocking the loop"
                )
            name_of = namer(template, function)

            @functools.wraps(function)
            def locked(*args: P.args, **kwargs: P.kwargs) -> T:
                with self.lock(name_of(*args, **kwargs), timeout=timeout, **options):
                    return function(*args, **kwargs)

            return locked

        return decorate

    @property
    def protocol(self) -> str:
        """The protocol that the cluster runs. A lazy client connects to learn it, as `connect`."""
        connection = self._connection
        if not connection.protocol:
            drive(connection.greeting())
        return connection.protocol

    @property
    def proxy(self) -> RoleRef:
        """The reference of this client's session, for requests as Pykka messages.

        ``client.proxy.ask(Acquire(lock="orders/42"), timeout=5)`` returns a `Granted`, as
        ``node.proxy`` does in the process of a node. A request that names no owner is an owner of
        its own, and its `Release` must name the fence. What is held so has no `Hold`: callbacks are
        not called for it.

        Raises:
            ClosedError: the client is closed, or belongs to a process that was forked.

        """
        self._connection.line.check()
        return self._connection.session_ref

    def ref(self, address: str) -> RemoteRef:
        """Return a reference of a role of a node, such as ``"n2/clock"``; it sends nothing.

        ``client.ref("n2/clock").ask(ReadClock(), timeout=1).time`` is the logical time of ``n2``.
        The client must be connected to that node: it is, if the node's address was given to
        `connect`, or if the cluster names its members to clients (`paxos`, `bakery`). Where keys
        are used, the client's key needs the role operator for any role but ``proxy``.

        Raises:
            InvalidRequestError: ``address`` is not the name of a node, ``/``, and of a role.
            ClosedError: the client is closed, or belongs to a process that was forked.

        """
        return RemoteRef(self._connection, address)

    def __enter__(self) -> Self:
        self._given.check()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def connect(
    addresses: str | Sequence[str] | None = None,
    *,
    cluster: str | None = None,
    connect_timeout: float = CONNECT_S,
    ttl: float = 15.0,
    label: str | None = None,
    key: str | os.PathLike[str] | None = None,
    retain: float = 0.0,
    stay: bool = False,
    lazy: bool = False,
) -> Client:
    """Connect to a cluster and return once a node answered.

    Args:
        addresses: one or more nodes, ``"tcp://10.0.0.1:4040,tcp://10.0.0.2:4040"``, or a list of
            such texts. Any will do; when one goes away, the client moves to another. By default
            those in the
            environment variable ``FENCELOCK_CONNECT``, else those of ``./cluster.toml``, else
            ``tcp://127.0.0.1:4040``.
        cluster: the id of the cluster, as in its config. By default ``FENCELOCK_CLUSTER``, else
            that of ``./cluster.toml`` if it names the addresses, else ``fencelock``.
        connect_timeout: how long to wait for the first answer (s), above 0.
        ttl: how long the cluster keeps this client's locks after its last message (s), 1 to
            3600. With a short one, locks of dead clients are soon free; with a long one, the
            client survives longer pauses and cuts. Only where the protocol has sessions.
        label: what people see of this client, up to 256 bytes; by default host and process.
        key: the file of this client's key, for a cluster with keys; by default ``FENCELOCK_KEY``.
        retain: for how long this client keeps each of its locks after their owners released them
            (s), unless `Client.lock` says otherwise; see there. 0 for not at all.
        stay: send requests to the nodes of ``addresses`` only, and to one of them for as long as
            it works. By default the client learns the other members, and moves to the leader.
        lazy: return at once, and connect when something is first asked of the cluster; no node need
            run before that. A forked process connects anew at its first use, and objects made
            before the fork work in it; what was held before belongs to the parent.

    Raises:
        ConfigError: an argument is not usable.
        WrongClusterError: what answers belongs to another cluster or version.
        ForbiddenError: no node accepts the key, or a client without one.
        UnavailableError: nobody answered in time; it names the addresses and their source.

    """
    target = Target.find(addresses, cluster, key)
    settings = Settings(target, connect_timeout, ttl, label, retain, stay)
    if lazy:
        return Client(LazyConnection(lambda: settings, retain=retain))
    return Client(greeted(settings))


def connect_to(target: Target, *, timeout: float, stay: bool = False) -> Client:
    """Connect to ``target``, with everything else as `connect` has it by default."""
    return Client(greeted(Settings(target, timeout, stay=stay)))


def lazy_to(target: Target, label: str) -> Client:
    """Return a client that connects to ``target`` at its first use."""
    settings = Settings(target, label=label)
    return Client(LazyConnection(lambda: settings))


def greeted(settings: Settings) -> Connection:
    """Return a connection once a node answered; see `connect`."""
    connection = Connection(settings, ThreadExecutor())
    try:
        drive(connection.greeting())
    except BaseException:
        connection.stop()
        raise
    return connection


default_client = Client(defaults.add(LazyConnection(defaults.settings, reopens=True)))
"""The client whose methods `fencelock.lock` and the like are. It may be used after `close`."""


class AsyncClient(
    LockFactory[AsyncLock, AsyncRLock, AsyncHold],
    SemaphoreFactory[AsyncSemaphore, AsyncPool],
    RWLockFactory[AsyncRWLock],
    ObjectFactory[AsyncLockAll, AsyncElection, AsyncMap, AsyncLatch, AsyncBarrier, AsyncCounter],
    Administration,
    InTasks,
):
    """A connection to a cluster, for all tasks of one loop. From `fencelock.aio.connect`.

    A separate thread keeps the session alive, however busy the loop is. `close` leaves nothing
    running; ``async with`` and the end of the process call it. Arguments, values and errors are as
    in `fencelock.Client`. A lazy client has a connection for each loop that uses it.
    """

    _lock_type = AsyncLock
    _rlock_type = AsyncRLock
    _semaphore_type = AsyncSemaphore
    _pool_type = AsyncPool
    _rwlock_type = AsyncRWLock
    _lock_all_type = AsyncLockAll
    _election_type = AsyncElection
    _map_type = AsyncMap
    _latch_type = AsyncLatch
    _barrier_type = AsyncBarrier
    _counter_type = AsyncCounter

    def locked(
        self, template: str, *, timeout: float | None = None, **options: Any
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]:
        """Return a decorator that holds a lock while a coroutine function runs.

        Args:
            template: the name of the lock, with parameters of the function in braces:
                ``"report/{day}"`` has the argument of each call in its place, inserted as it is:
                with ``"{a}/{b}"`` two calls have one name if a part has a ``/``.
            timeout: how long a call waits for the lock (s), before it raises `LockTimeoutError`.
            options: further arguments of `lock`.

        Raises:
            TypeError: the function is not a coroutine function, or has no such parameter.

        """
        check_template(template)
        self.lock("any name", timeout=timeout, **options)  # It checks them, and sends nothing.

        def decorate(function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
            name_of = namer(template, function)
            if not is_coroutine_function(function):
                raise TypeError(
                    f"{described(function)} is not a coroutine function: use fencelock.locked, "
                    "or a client of fencelock.connect"
                )

            @functools.wraps(function)
            async def locked(*args: P.args, **kwargs: P.kwargs) -> T:
                async with self.lock(name_of(*args, **kwargs), timeout=timeout, **options):
                    return await function(*args, **kwargs)

            return locked

        return decorate

    @property
    def proxy(self) -> AsyncProxyRef:
        """The reference of this client's session, for requests as Pykka messages.

        ``await client.proxy.ask(Acquire(lock="orders/42"), timeout=5)`` returns a `Granted`. What
        is held so has no `Hold`, and its `Release` must name the fence.
        """
        return AsyncProxyRef(self._connection)

    def ref(self, address: str) -> AsyncRemoteRef:
        """Return a reference of a role of a node, such as ``"n2/clock"``; it sends nothing.

        The client must be connected to that node: it is, if the node's address was given to
        `connect`, or if the cluster names its members to clients (`paxos`, `bakery`). Where keys
        are used, the client's key needs the role operator for any role but ``proxy``.

        Raises:
            InvalidRequestError: ``address`` is not the name of a node, ``/``, and of a role.
            ClosedError: the client is closed, or belongs to a process that was forked.

        """
        return AsyncRemoteRef(self._connection, address)

    async def __aenter__(self) -> Self:
        self._given.check()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class Connecting:
    """A pending connection: await it, or enter it with ``async with``. Nothing runs before that."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: AsyncClient | None = None

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        """Connect, and return the client once a node answered."""
        return self._connect().__await__()

    async def __aenter__(self) -> AsyncClient:
        self._client = await self._connect()
        return self._client

    async def __aexit__(self, *error: object) -> None:
        assert self._client is not None
        await self._client.close()

    async def _connect(self) -> AsyncClient:
        connection = Connection(self._settings, LoopExecutor())
        try:
            await drive_async(connection.greeting())
            return AsyncClient(connection)
        except BaseException:
            connection.stop()
            raise


@overload
def async_connect(
    addresses: str | Sequence[str] | None = None,
    *,
    cluster: str | None = None,
    connect_timeout: float = CONNECT_S,
    ttl: float = 15.0,
    label: str | None = None,
    key: str | os.PathLike[str] | None = None,
    retain: float = 0.0,
    stay: bool = False,
    lazy: Literal[False] = False,
) -> Connecting: ...


@overload
def async_connect(
    addresses: str | Sequence[str] | None = None,
    *,
    cluster: str | None = None,
    connect_timeout: float = CONNECT_S,
    ttl: float = 15.0,
    label: str | None = None,
    key: str | os.PathLike[str] | None = None,
    retain: float = 0.0,
    stay: bool = False,
    lazy: Literal[True],
) -> AsyncClient: ...


def async_connect(
    addresses: str | Sequence[str] | None = None,
    *,
    cluster: str | None = None,
    connect_timeout: float = CONNECT_S,
    ttl: float = 15.0,
    label: str | None = None,
    key: str | os.PathLike[str] | None = None,
    retain: float = 0.0,
    stay: bool = False,
    lazy: bool = False,
) -> Connecting | AsyncClient:
    """Return a connection to be awaited, or entered with ``async with``.

    Arguments and errors are those of `fencelock.connect`. If it is cancelled, nothing is
    left running. With ``lazy`` it returns the client itself, also where no loop runs yet. That
    client connects at its first use in each loop, and its connection ends with the loop.

    Raises:
        ConfigError: an argument is not usable; at once.

    """
    target = Target.find(addresses, cluster, key)
    settings = Settings(target, connect_timeout, ttl, label, retain, stay)
    if lazy:
        return AsyncClient(LoopConnection(lambda: settings, retain=retain))
    return Connecting(settings)


default_async_client = AsyncClient(defaults.add(LoopConnection(defaults.settings, reopens=True)))
"""The client whose methods `fencelock.aio.lock` and the like are. It may be used after `close`."""
