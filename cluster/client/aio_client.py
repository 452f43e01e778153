"""The asyncio client: connect to a cluster, then lock by name from any task of one loop."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, Literal, ParamSpec, Self, TypeVar, overload

from fencelock.cluster.client.administration import Administration
from fencelock.cluster.client.barrier import AsyncBarrier, BarrierFactory
from fencelock.cluster.client.base_client import check_template, namer
from fencelock.cluster.client.base_lock import LockFactory
from fencelock.cluster.client.connection import Connection
from fencelock.cluster.client.counter import AsyncCounter, CounterFactory
from fencelock.cluster.client.election import AsyncElection, ElectionFactory
from fencelock.cluster.client.latch import AsyncLatch, LatchFactory
from fencelock.cluster.client.lazy import LoopConnection, defaults
from fencelock.cluster.client.lock import AsyncHold, AsyncLock, AsyncRLock
from fencelock.cluster.client.lock_all import AsyncLockAll, LockAllFactory
from fencelock.cluster.client.loop import LoopExecutor, drive_async
from fencelock.cluster.client.map import AsyncMap, MapFactory
from fencelock.cluster.client.operation import InTasks
from fencelock.cluster.client.pool import AsyncPool
from fencelock.cluster.client.remote_ref import AsyncProxyRef, AsyncRemoteRef
from fencelock.cluster.client.rwlock import AsyncRWLock, RWLockFactory
from fencelock.cluster.client.semaphore import AsyncSemaphore, SemaphoreFactory
from fencelock.cluster.client.settings import CONNECT_S, Settings, Target

P = ParamSpec("P")
T = TypeVar("T")


class AsyncClient(
    LockFactory[AsyncLock, AsyncRLock, AsyncHold],
    SemaphoreFactory[AsyncSemaphore, AsyncPool],
    RWLockFactory[AsyncRWLock],
    LockAllFactory[AsyncLockAll],
    ElectionFactory[AsyncElection],
    MapFactory[AsyncMap],
    LatchFactory[AsyncLatch],
    BarrierFactory[AsyncBarrier],
    CounterFactory[AsyncCounter],
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

        Arguments and errors are those of `fencelock.Client.locked`.

        Raises:
            TypeError: the function is not a coroutine function, or has no such parameter.

        """
        check_template(template)
        self.lock("any name", timeout=timeout, **options)  # It checks them, and sends nothing.

        def decorate(function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
            name_of = namer(template, function)
            if not inspect.iscoroutinefunction(function):
                raise TypeError(
                    f"{function.__qualname__} is not a coroutine function: use fencelock.locked, "
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
        """The reference of this client's session; see `fencelock.Client.proxy`."""
        return AsyncProxyRef(self._connection)

    def ref(self, address: str) -> AsyncRemoteRef:
        """Return a reference of a role of a node; see `fencelock.Client.ref`."""
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
        executor = LoopExecutor()
        executor.bind()
        connection = Connection(self._settings, executor)
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
