"""The asyncio client: connect to a cluster, then lock by name from any task of one loop."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, Literal, ParamSpec, Self, TypeVar, overload

from fencelock.actors.api.account import AccountUsage, Amounts, ListedMap, Purge, Quota
from fencelock.actors.api.backup_message import BackupPart
from fencelock.actors.api.map import EntryList
from fencelock.actors.api.membership_message import ChangeMembers, MembersChanged, MembersRead
from fencelock.actors.api.message import Contender, LockStatus, NodeStatus
from fencelock.actors.api.session_message import (
    ListedEviction,
    ListedLock,
    ListedObject,
    ListedSession,
    Records,
    SessionClosed,
)
from fencelock.actors.session.message import Surveyed
from fencelock.cluster.client import accounts
from fencelock.cluster.client.barrier import AsyncBarrier, BarrierFactory
from fencelock.cluster.client.base_client import BaseClient, check_template, namer
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
from fencelock.cluster.client.pool import AsyncPool
from fencelock.cluster.client.remote_ref import AsyncProxyRef, AsyncRemoteRef
from fencelock.cluster.client.rwlock import AsyncRWLock, RWLockFactory
from fencelock.cluster.client.semaphore import AsyncSemaphore, SemaphoreFactory
from fencelock.cluster.client.settings import CONNECT_S, Read, Settings, Target

P = ParamSpec("P")
T = TypeVar("T")


class AsyncClient(
    LockFactory[AsyncLock, AsyncRLock],
    SemaphoreFactory[AsyncSemaphore, AsyncPool],
    RWLockFactory[AsyncRWLock],
    LockAllFactory[AsyncLockAll],
    ElectionFactory[AsyncElection],
    MapFactory[AsyncMap],
    LatchFactory[AsyncLatch],
    BarrierFactory[AsyncBarrier],
    CounterFactory[AsyncCounter],
    BaseClient,
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

    async def attach(
        self,
        token: str,
        *,
        label: str = "",
        duration: float | None = None,
        grace: float | None = None,
        confirm_release: bool = True,
    ) -> AsyncHold:
        """Take over a lock that another process has detached; see `fencelock.Client.attach`.

        Raises:
            asyncio.CancelledError: the task was cancelled; nothing is held, but the token may have
                been used.

        """
        options = {"duration": duration, "grace": grace, "confirm_release": confirm_release}
        hold: AsyncHold = await drive_async(self._attaching(token, label=label, **options))
        return hold

    async def status(
        self, name: str, read: Read = "linearizable", max_age: float = 1.0
    ) -> LockStatus:
        """Return the holder and the queue of ``name``; see `fencelock.Client.status`."""
        return await drive_async(
            self._connection.line.inspecting(name, self._connection.age_ms(read, max_age))
        )

    async def locks(
        self, prefix: str = "", read: Read = "linearizable", max_age: float = 1.0
    ) -> tuple[ListedLock, ...]:
        """Return the held locks by name; see `fencelock.Client.locks`."""
        return await drive_async(self._connection.listing(prefix, read, max_age))

    async def objects(
        self, prefix: str = "", read: Read = "linearizable", max_age: float = 1.0
    ) -> tuple[ListedObject, ...]:
        """Return the objects that nobody can hold; see `fencelock.Client.objects`."""
        return await drive_async(self._connection.listing_objects(prefix, read, max_age))

    async def sessions(self) -> tuple[ListedSession, ...]:
        """Return the open sessions; see `fencelock.Client.sessions`."""
        pages = await drive_async(self._connection.listing_records(Records.SESSIONS))
        return tuple(session for page in pages for session in page.sessions)

    async def evictions(self) -> tuple[ListedEviction, ...]:
        """Return the last forced releases; see `fencelock.Client.evictions`."""
        pages = await drive_async(self._connection.listing_records(Records.EVICTIONS))
        return tuple(eviction for page in pages for eviction in page.evictions)

    async def backup_part(self, node: str = "", slot: int = 0, chunk: int = 0) -> BackupPart:
        """Return a part of a backup; see `fencelock.Client.backup_part`."""
        return await drive_async(self._connection.reading_backup(node, slot, chunk))

    async def evict(self, name: str, fence: int, operator: str | None = None) -> Contender:
        """Take a lock from its holder; see `fencelock.Client.evict`."""
        return await drive_async(self._connection.evicting(name, fence, operator))

    async def close_session(self, handle: str, operator: str | None = None) -> SessionClosed:
        """Close a session; see `fencelock.Client.close_session`."""
        return await drive_async(self._connection.closing_session(handle, operator))

    async def usage(self) -> tuple[AccountUsage, ...]:
        """Return what each key has and may have; see `fencelock.Client.usage`."""
        return await drive_async(accounts.reading_usage(self._connection.line))

    async def set_quota(self, key: str, quota: Quota, operator: str | None = None) -> Amounts:
        """Set the quota of a key; see `fencelock.Client.set_quota`."""
        line = self._connection.line
        return await drive_async(accounts.setting_quota(line, key, quota, operator))

    async def maps(self, prefix: str = "") -> tuple[ListedMap, ...]:
        """Return the maps that have entries; see `fencelock.Client.maps`."""
        return await drive_async(accounts.listing_maps(self._connection.line, prefix))

    async def entry_page(self, name: str, prefix: str, after: str, most: int) -> EntryList:
        """Return one page of the entries of a map; see `fencelock.Client.entry_page`."""
        line = self._connection.line
        return await drive_async(accounts.listing_entries(line, name, prefix, after, most))

    async def purge(self, purge: Purge) -> int:
        """Delete what outlives its client; see `fencelock.Client.purge`."""
        return await drive_async(accounts.purging(self._connection.line, purge))

    async def members(self) -> MembersRead:
        """Return the nodes of the cluster; see `fencelock.Client.members`."""
        return await drive_async(self._connection.reading_members())

    async def survey(self, *, roles: bool = False) -> Surveyed:
        """Describe each node, and name the silent ones; see `fencelock.Client.survey`."""
        return await drive_async(self._connection.surveying(roles=roles))

    def reply_by(self, ends_at: float) -> None:
        """Let later requests fail at ``ends_at``; see `fencelock.Client.reply_by`."""
        self._connection.line.ends_at = ends_at

    async def change_members(self, change: ChangeMembers) -> MembersChanged:
        """Begin a change of the members; see `fencelock.Client.change_members`."""
        return await drive_async(self._connection.changing_members(change))

    @property
    def proxy(self) -> AsyncProxyRef:
        """The reference of this client's session; see `fencelock.Client.proxy`."""
        return AsyncProxyRef(self._connection)

    def ref(self, address: str) -> AsyncRemoteRef:
        """Return a reference of a role of a node; see `fencelock.Client.ref`."""
        return AsyncRemoteRef(self._connection, address)

    async def describe(self, *, roles: bool = False) -> tuple[NodeStatus, ...]:
        """Return the status of each node; see `fencelock.Client.describe`."""
        return (await self.survey(roles=roles)).statuses

    async def close(self) -> None:
        """Release all holds, cancel all waits, and leave nothing running.

        Waits up to 2 s until reachable nodes confirm, or until it is cancelled. Tasks that wait
        for a lock get `fencelock.AcquireCancelledError`.
        """
        await drive_async(self._given.closing())

    async def __aenter__(self) -> Self:
        self._given.check()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncClient {self._given}>"


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
