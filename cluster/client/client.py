"""The blocking client: `connect` to a cluster, then lock by name from any thread."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, Self, TypeVar

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
from fencelock.cluster.client.barrier import Barrier, BarrierFactory
from fencelock.cluster.client.base_client import BaseClient, check_template, namer
from fencelock.cluster.client.base_lock import LockFactory
from fencelock.cluster.client.callback_executor import CallbackExecutor, ThreadExecutor
from fencelock.cluster.client.connection import Connection
from fencelock.cluster.client.counter import Counter, CounterFactory
from fencelock.cluster.client.election import Election, ElectionFactory
from fencelock.cluster.client.latch import Latch, LatchFactory
from fencelock.cluster.client.lazy import LazyConnection, defaults
from fencelock.cluster.client.lock import Hold, Lock, RLock
from fencelock.cluster.client.lock_all import LockAll, LockAllFactory
from fencelock.cluster.client.map import Map, MapFactory
from fencelock.cluster.client.operation import drive
from fencelock.cluster.client.pool import Pool
from fencelock.cluster.client.remote_ref import RemoteRef
from fencelock.cluster.client.rwlock import RWLock, RWLockFactory
from fencelock.cluster.client.semaphore import Semaphore, SemaphoreFactory
from fencelock.cluster.client.settings import CONNECT_S, Read, Settings, Target
from fencelock.cluster.host.role_ref import RoleRef

P = ParamSpec("P")
T = TypeVar("T")


class Client(
    LockFactory[Lock, RLock],
    SemaphoreFactory[Semaphore, Pool],
    RWLockFactory[RWLock],
    LockAllFactory[LockAll],
    ElectionFactory[Election],
    MapFactory[Map],
    LatchFactory[Latch],
    BarrierFactory[Barrier],
    CounterFactory[Counter],
    BaseClient,
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
                the arguments of each call: ``"report/{day}"``.
            timeout: how long a call waits for the lock (s), before it raises `LockTimeoutError`.
            options: further arguments of `lock`.

        Raises:
            TypeError: the function has no such parameter, or is a coroutine function, which needs
                the client of `fencelock.aio`, or a generator.

        """
        check_template(template)
        self.lock("any name", timeout=timeout, **options)  # It checks them, and sends nothing.

        def decorate(function: Callable[P, T]) -> Callable[P, T]:
            if inspect.iscoroutinefunction(function):
                raise TypeError(
                    f"{function.__qualname__} is a coroutine function: use a client of "
                    "fencelock.aio, which waits without blocking the loop"
                )
            name_of = namer(template, function)

            @functools.wraps(function)
            def locked(*args: P.args, **kwargs: P.kwargs) -> T:
                with self.lock(name_of(*args, **kwargs), timeout=timeout, **options):
                    return function(*args, **kwargs)

            return locked

        return decorate

    def attach(
        self,
        token: str,
        *,
        label: str = "",
        duration: float | None = None,
        grace: float | None = None,
        confirm_release: bool = True,
    ) -> Hold:
        """Take over a lock that another process has detached; see `Hold.detach`.

        It does not wait. The hold is one of this client from now on, as if it had acquired it, with
        a fence above all earlier ones. ``client.attach(token).release()`` releases the lock.

        Args:
            token: what `Hold.detach` returned. It can be used once; an interrupted call may have
                used it.
            label: see `lock`, as for the others.
            duration: see `lock`.
            grace: see `lock`.
            confirm_release: see `lock`.

        Raises:
            NotHeldError: the token was used, or its time is over, or the lock was taken by force.
            ValueError: ``token`` is no token, or was cut.
            UnsupportedError: the protocol cannot detach locks (`paxos` can).
            InvalidRequestError: another argument is out of its limits.
            OverloadedError: this client, or its key, holds as much as it may. The token can still
                be used.
            UnavailableError: no node answered within 10 s. If the lock was attached, it is released
                as soon as the client is connected again.
            ClosedError: the client is closed.
            TypeError: an argument is of a wrong type.

        """
        options = {"duration": duration, "grace": grace, "confirm_release": confirm_release}
        hold: Hold = drive(self._attaching(token, label=label, **options))
        return hold

    @property
    def protocol(self) -> str:
        """The protocol that the cluster runs. A lazy client connects to learn it, as `connect`."""
        connection = self._connection
        if not connection.protocol:
            drive(connection.greeting())
        return connection.protocol

    def status(self, name: str, read: Read = "linearizable", max_age: float = 1.0) -> LockStatus:
        """Return the holder and the queue of ``name``, in order; stale on arrival.

        Args:
            name: the name of the lock.
            read: ``"linearizable"``: the state at some instant between request and reply, if the
                protocol guarantees that; ``"local"``: the state as one node knows it.
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

    def objects(
        self, prefix: str = "", read: Read = "linearizable", max_age: float = 1.0
    ) -> tuple[ListedObject, ...]:
        """Return the objects that nobody can hold, such as latches; arguments as for `locks`."""
        return drive(self._connection.listing_objects(prefix, read, max_age))

    def sessions(self) -> tuple[ListedSession, ...]:
        """Return the open sessions of all clients, the oldest first.

        Raises:
            UnsupportedError: the protocol keeps no table of locks.
            UnavailableError: no node answered for 10 s.
            ClosedError: the client is closed.

        """
        pages = drive(self._connection.listing_records(Records.SESSIONS))
        return tuple(session for page in pages for session in page.sessions)

    def evictions(self) -> tuple[ListedEviction, ...]:
        """Return the last 1,000 forced releases, the oldest first: whose lock, and by whom.

        Raises:
            UnsupportedError: as for `sessions`, as are the others.

        """
        pages = drive(self._connection.listing_records(Records.EVICTIONS))
        return tuple(eviction for page in pages for eviction in page.evictions)

    def backup_part(self, node: str = "", slot: int = 0, chunk: int = 0) -> BackupPart:
        """Return part ``chunk`` of the snapshot of ``slot``; with ``slot`` 0, begin a snapshot.

        ``fencelock backup`` is made of this. See `BackupPart` for a snapshot that is being made.
        Name the ``node`` that made it; empty for any.

        Raises:
            UnavailableError: the node has no such snapshot, or none answered for 10 s.
            UnsupportedError: the protocol keeps no table of locks.
            ClosedError: the client is closed.

        """
        return drive(self._connection.reading_backup(node, slot, chunk))

    def evict(self, name: str, fence: int, operator: str | None = None) -> Contender:
        """Take the lock ``name`` from its holder under ``fence``; return that holder.

        The holder is notified, and may still act on the protected resource: only a fence that is
        checked stops it. The cluster's log records the eviction and the operator's name.

        Args:
            name: the name of the lock.
            fence: the fence of the hold, as `status` shows it: a later holder is not affected.
            operator: the name of the person who does it, up to 200 bytes; by default user and host.

        Raises:
            NotHeldError: it is not held under ``fence``.
            UnsupportedError: the protocol keeps no table of locks.
            InvalidRequestError: an argument is out of its limits.
            UnavailableError: no answer came for 10 s; repeating it does no harm.
            ClosedError: the client is closed.

        """
        return drive(self._connection.evicting(name, fence, operator))

    def close_session(self, handle: str, operator: str | None = None) -> SessionClosed:
        """Close the session with that ``handle``; return its label and the number of its claims.

        Its locks go to the next waiters at once. Its client is notified, opens a new session, and
        may still act on the protected resources: only fences that are checked stop it. `evictions`
        lists the closing.

        Args:
            handle: the ``id`` of the session in `sessions`.
            operator: the name of the person who does it, as for `evict`.

        Raises:
            NotHeldError: no session with that handle is open.
            UnsupportedError: the protocol keeps no sessions.
            InvalidRequestError: an argument is out of its limits.
            UnavailableError: no answer came for 10 s; repeating it does no harm.
            ClosedError: the client is closed.

        """
        return drive(self._connection.closing_session(handle, operator))

    def usage(self) -> tuple[AccountUsage, ...]:
        """Return what each key has in the cluster, and what it may have; see `set_quota`.

        The name ``""`` stands for all clients without a key, ``"*"`` for every key without a quota
        of its own.

        Raises:
            UnsupportedError: as for `sessions`, as are the others.

        """
        return drive(accounts.reading_usage(self._connection.line))

    def set_quota(self, key: str, quota: Quota, operator: str | None = None) -> Amounts:
        """Let ``quota`` be the whole quota of a key, or of the names of `usage`; return its limits.

        A limit that is None is the default: a quarter of what all may have together. What the key
        has beyond its quota stays. `evictions` lists the change.

        Args:
            key: the name of the key.
            quota: the limits.
            operator: the name of the person who does it, as for `evict`.

        Raises:
            ForbiddenError: the client's own key has not the role operator.
            InvalidRequestError: an argument is out of its limits.
            UnsupportedError: the protocol keeps nothing that could have a quota.
            UnavailableError: no answer came for 10 s; repeating it does no harm.

        """
        line = self._connection.line
        return drive(accounts.setting_quota(line, key, quota, operator))

    def maps(self, prefix: str = "") -> tuple[ListedMap, ...]:
        """Return the maps that have entries and whose names begin with ``prefix``, by name."""
        return drive(accounts.listing_maps(self._connection.line, prefix))

    def entry_page(self, name: str, prefix: str, after: str, most: int) -> EntryList:
        """Return one page of the entries of a map; `map` has a simpler method."""
        line = self._connection.line
        return drive(accounts.listing_entries(line, name, prefix, after, most))

    def purge(self, purge: Purge) -> int:
        """Delete entries of maps, or latches and the like, in small steps; return their number.

        Clients that wait for what is deleted are refused. Other requests are served between the
        steps. If an error ends the work, repeating it does no harm. `evictions` lists it, unless
        the client's key itself made all that was deleted.

        Raises:
            ForbiddenError: the client's key does not allow these names.
            InvalidRequestError: a field is out of its limits.
            UnsupportedError: the protocol has no such objects.
            UnavailableError: no answer came for 10 s.

        """
        return drive(accounts.purging(self._connection.line, purge))

    def members(self) -> MembersRead:
        """Return the nodes of the cluster: who leads, who votes, and how far each is behind.

        Raises:
            UnsupportedError: the members of the protocol never change; see `describe`.
            UnavailableError: no node answered for 10 s.
            ClosedError: the client is closed.

        """
        return drive(self._connection.reading_members())

    def change_members(self, change: ChangeMembers) -> MembersChanged:
        """Begin a change of the members, or return how far it is; repeat it until it is done.

        Raises:
            MembershipError: the members cannot change so; the text says what to do instead.
            InvalidRequestError: a field of ``change`` is out of its limits.
            UnsupportedError: as for `members`.
            UnavailableError: no node answered for 10 s; repeating it does no harm.
            ClosedError: the client is closed.

        """
        return drive(self._connection.changing_members(change))

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

    def describe(self, *, roles: bool = False) -> tuple[NodeStatus, ...]:
        """Return the status of each node of the address list, in that order.

        With ``roles`` a `NodeStatus` also describes the node's roles.

        A node that is silent for 2 s, or known to be down, is missing.

        Raises:
            UnavailableError: no node answered.
            ClosedError: the client is closed.

        """
        return self.survey(roles=roles).statuses

    def survey(self, *, roles: bool = False) -> Surveyed:
        """Return what `describe` does, and the addresses that did not answer, with the reasons.

        Raises:
            UnavailableError: no node answered.
            ClosedError: the client is closed.

        """
        return drive(self._connection.surveying(roles=roles))

    def reply_by(self, ends_at: float) -> None:
        """Let later requests fail at ``ends_at`` (s, of ``time.monotonic``); not those of locks.

        They raise `UnavailableError`.
        """
        self._connection.line.ends_at = ends_at

    def close(self) -> None:
        """Release all holds, cancel all waits, and leave nothing running.

        Waits up to 2 s until reachable nodes confirm. Threads that wait for a lock get
        `AcquireCancelledError`. Closing again, or in a forked process, does nothing.
        """
        drive(self._given.closing())

    def __enter__(self) -> Self:
        self._given.check()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client {self._given}>"


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
    return Client(greeted(settings, ThreadExecutor()))


def connect_to(target: Target, *, timeout: float, stay: bool = False) -> Client:
    """Connect to ``target``, with everything else as `connect` has it by default."""
    return Client(greeted(Settings(target, timeout, stay=stay), ThreadExecutor()))


def lazy_to(target: Target, label: str) -> Client:
    """Return a client that connects to ``target`` at its first use."""
    settings = Settings(target, label=label)
    return Client(LazyConnection(lambda: settings))


def greeted(settings: Settings, executor: CallbackExecutor) -> Connection:
    """Return a connection once a node answered; see `connect`."""
    connection = Connection(settings, executor)
    try:
        drive(connection.greeting())
    except BaseException:
        connection.stop()
        raise
    return connection


default_client = Client(defaults.add(LazyConnection(defaults.settings, reopens=True)))
"""The client whose methods `fencelock.lock` and the like are. It may be used after `close`."""
