"""The common base of the blocking and the asyncio client; nothing in it waits."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from string import Formatter
from typing import Any, Generic, TypeVar

from fencelock.actors.session.holding import HoldState
from fencelock.actors.session.message import ClusterState
from fencelock.cluster.barrier import BaseBarrier
from fencelock.cluster.base_lock import BaseLock
from fencelock.cluster.callback_executor import ClusterCallback, check_callback
from fencelock.cluster.connection import Connection
from fencelock.cluster.election import BaseElection
from fencelock.cluster.hold_registry import Callback
from fencelock.cluster.latch import BaseLatch
from fencelock.cluster.lock_all import BaseLockAll
from fencelock.cluster.map import BaseMap
from fencelock.cluster.rwlock import BaseRWLock
from fencelock.cluster.semaphore import BaseSemaphore

L = TypeVar("L", bound=BaseLock[Any])
R = TypeVar("R", bound=BaseLock[Any])
S = TypeVar("S", bound=BaseSemaphore[Any])
W = TypeVar("W", bound=BaseRWLock[Any])
A = TypeVar("A", bound=BaseLockAll[Any])
E = TypeVar("E", bound=BaseElection[Any])
M = TypeVar("M", bound=BaseMap)
C = TypeVar("C", bound=BaseLatch)
B = TypeVar("B", bound=BaseBarrier)


class BaseClient(Generic[L, R, S, W, A, E, M, C, B]):
    """The operations of a client that return at once."""

    _lock_type: type[L]
    _rlock_type: type[R]
    _semaphore_type: type[S]
    _rwlock_type: type[W]
    _lock_all_type: type[A]
    _election_type: type[E]
    _map_type: type[M]
    _latch_type: type[C]
    _barrier_type: type[B]

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def lock(
        self,
        name: str,
        *,
        timeout: float | None = None,
        owner: str | None = None,
        label: str = "",
        duration: float | None = None,
        grace: float | None = None,
    ) -> L:
        """Return the lock called ``name``; sends nothing yet.

        Each successful acquire is a separate owner: any thread or task that has the object may
        release it, and acquiring it again waits, as with ``threading.Lock``.

        Args:
            name: 1 to 256 bytes of text with a visible character and no control characters.
            timeout: how long ``with``, and `Lock.acquire` without a timeout, wait (s): 0 to a week,
                or -1 for no limit. None for the default: no limit, but on `bakery` what its config
                says, usually 5 s.
            owner: a name for the holder of the lock, up to 256 bytes without control characters.
                All locks of that name and owner in this client are one lock. Use it for owners that
                outlive the object.
            label: a text for people who look at the lock, up to 256 bytes.
            duration: how long a hold lasts (s), up to a week, and at least 0.1 s on `paxos` or 3 s
                on `bakery` (``least`` in its config). Then `Lock.on_unlocking` is called. None for
                the default: on `paxos` as long as the session, on `bakery` what its config says,
                usually 5 s.
            grace: the time after the duration until the lock is taken away unless it was renewed
                (s), with the same limits. None for the default: 5 s, or what the config of `bakery`
                says. On `paxos` it needs a ``duration``.

        Raises:
            InvalidRequestError: ``name``, ``owner``, ``label``, ``duration`` or ``grace`` is out
                of its limits.
            UnsupportedError: the cluster's protocol has no deadlines; the text names those that
                have them.
            ClosedError: the client is closed, or this process was forked from its own.
            TypeError: ``name`` is not text, or another argument is of a wrong type.
            ValueError: ``timeout`` is out of its range.

        """
        connection = self._begin()
        options = connection.options(name, timeout, owner, label, duration, grace)
        return self._lock_type(connection.line, connection.hold_registry, options)

    def rlock(
        self,
        name: str,
        limit: int | None = None,
        *,
        timeout: float | None = None,
        owner: str | None = None,
        label: str = "",
        duration: float | None = None,
        grace: float | None = None,
    ) -> R:
        """Return the lock called ``name``, for an owner that may enter it again.

        The owner is the thread or the task, or ``owner``. It releases as often as it acquired, as
        with ``threading.RLock``. Arguments and errors are those of `lock`.

        Args:
            name: see `lock`.
            limit: how often an owner may hold it at once, at least 1; None for without limit.
            timeout: see `lock`.
            owner: see `lock`.
            label: see `lock`.
            duration: see `lock`.
            grace: see `lock`.

        Raises:
            InvalidRequestError: ``limit``, or what `lock` names, is out of its limits.
            UnsupportedError: the cluster's protocol has no reentrant locks; the text says which
                one does.

        """
        connection = self._begin()
        options = connection.options(
            name, timeout, owner, label, duration, grace, reentrant=True, limit=limit
        )
        return self._rlock_type(connection.line, connection.hold_registry, options)

    def semaphore(
        self, name: str, permits: int, *, timeout: float | None = None, label: str = ""
    ) -> S:
        """Return the semaphore called ``name``, which has ``permits``; sends nothing yet.

        A lock of the same name is another object.

        Args:
            name: see `lock`.
            permits: how many are held at most at a time, 1 to 2,147,483,647. A semaphore that
                nobody holds leaves no state; while it is held, an acquire that names another
                number is refused.
            timeout: see `lock`.
            label: see `lock`.

        Raises:
            InvalidRequestError: an argument is out of its limits.
            UnsupportedError: the cluster's protocol has no semaphores; the text says which one
                does.
            ClosedError: as for `lock`.
            TypeError: as for `lock`.
            ValueError: as for `lock`.

        """
        return self._semaphore_type(self._begin(), name, permits, timeout, label)

    def rwlock(
        self,
        name: str,
        *,
        timeout: float | None = None,
        owner: str | None = None,
        label: str = "",
        duration: float | None = None,
        grace: float | None = None,
    ) -> W:
        """Return the read/write lock called ``name``; sends nothing yet.

        A lock of the same name is another object.

        Args:
            name: see `lock`.
            timeout: see `lock`.
            owner: the owner; by default the thread or the task, as for `rlock`.
            label: see `lock`.
            duration: see `lock`; for reading and for writing (`bakery` only).
            grace: see `lock`.

        Raises:
            InvalidRequestError: an argument is out of its limits.
            UnsupportedError: the cluster's protocol has no read/write locks, or no deadlines; the
                text names those that have them.
            ClosedError: as for `lock`.
            TypeError: as for `lock`.
            ValueError: as for `lock`.

        """
        return self._rwlock_type(self._begin(), name, timeout, owner, label, duration, grace)

    def lock_all(self, *names: str, timeout: float | None = None, label: str = "") -> A:
        """Return several locks that are acquired in one step, or not at all; sends nothing yet.

        They are the locks that `lock` returns by these names, in their order of fences.

        Args:
            names: 1 to 64 different names; see `lock`.
            timeout: see `lock`.
            label: see `lock`.

        Raises:
            InvalidRequestError: an argument is out of its limits.
            UnsupportedError: the cluster's protocol grants one lock at a time; the text says which
                one grants several.
            ClosedError: as for `lock`.
            TypeError: as for `lock`.
            ValueError: as for `lock`.

        """
        return self._lock_all_type(self._begin(), names, timeout, label)

    def election(self, name: str, *, timeout: float | None = None, label: str = "") -> E:
        """Return the election called ``name``; sends nothing yet.

        A lock of the same name is another object.

        Args:
            name: see `lock`.
            timeout: the default timeout of candidates (s); see `lock`.
            label: see `lock`.

        Raises:
            InvalidRequestError: an argument is out of its limits.
            UnsupportedError: the cluster's protocol has no elections; the text names one that has.
            ClosedError: as for `lock`.
            TypeError: as for `lock`.
            ValueError: as for `lock`.

        """
        return self._election_type(self._begin(), name, timeout, label)

    def map(self, name: str) -> M:
        """Return the map called ``name``; sends nothing yet.

        A lock of the same name is another object.

        Args:
            name: see `lock`.

        Raises:
            InvalidRequestError: ``name`` is out of its limits.
            UnsupportedError: the cluster's protocol has no maps; the text names one that has.
            ClosedError: as for `lock`.
            TypeError: as for `lock`.

        """
        return self._map_type(self._begin(), name)

    def latch(self, name: str, count: int, *, keep_s: float = 60) -> C:
        """Return the count-down latch called ``name``; sends nothing yet.

        A lock of the same name is another object. The first request about a latch creates it.

        Args:
            name: see `lock`.
            count: the count with which the latch begins, 1 to 2,147,483,647. While the latch
                exists, a request with another count is refused.
            keep_s: how long the latch is kept after its count has reached 0 (s), 0 to a week.

        Raises:
            InvalidRequestError: an argument is out of its limits.
            UnsupportedError: the cluster's protocol has no latches; the text names one that has.
            ClosedError: as for `lock`.
            TypeError: as for `lock`.

        """
        return self._latch_type(self._begin(), name, count, keep_s)

    def barrier(self, name: str, parties: int, *, timeout: float | None = None) -> B:
        """Return the cyclic barrier called ``name``; sends nothing yet.

        A lock of the same name is another object.

        Args:
            name: see `lock`.
            parties: the number of parties that pass together, 1 to 10,000. While some of them wait,
                a party that names another number is refused.
            timeout: the default timeout of a party that waits for the others (s); see `lock`.

        Raises:
            InvalidRequestError: an argument is out of its limits.
            UnsupportedError: the cluster's protocol has no barriers; the text names one that has.
            ClosedError: as for `lock`.
            TypeError: as for `lock`.
            ValueError: as for `lock`.

        """
        return self._barrier_type(self._begin(), name, parties, timeout)

    def _begin(self) -> Connection:
        """Return the connection for a new object."""
        return self._connection

    @property
    def session(self) -> str:
        """The id of this client; `Lock.status` may show it with the number of its session."""
        return self._connection.session

    @property
    def protocol(self) -> str:
        """The protocol that the cluster runs."""
        return self._connection.protocol

    def on_lost(self, callback: Callback) -> None:
        """Call ``callback`` with a `Notice` when any lock of this client is lost.

        Callbacks run one after the other: those of `fencelock.Client` on a thread of their
        own, so they may block or use the client; those of `fencelock.aio.Client` on the loop.

        An exception from a callback is logged and counted by `callbacks_failed`, and the next
        callback is called. It is also reported as Python reports an exception that nobody catches:
        `fencelock.Client` calls `threading.excepthook`, and `fencelock.aio.Client` the exception
        handler of the loop. Both write a traceback by default.

        Raises:
            TypeError: ``callback`` is not callable, or is a coroutine function.

        """
        self._connection.hold_registry.listeners.add(HoldState.LOST, callback)

    def on_unlocking(self, callback: Callback) -> None:
        """Call ``callback`` with a `Notice` when the duration of any hold ends; see `on_lost`."""
        self._connection.hold_registry.listeners.add(HoldState.UNLOCKING, callback)

    def on_suspect(self, callback: Callback) -> None:
        """Call ``callback`` with a `Notice` when any lock becomes suspect; see `on_lost`."""
        self._connection.hold_registry.listeners.add(HoldState.SUSPECT, callback)

    @property
    def cluster(self) -> ClusterState:
        """The last known state of the cluster; see `on_cluster` for its meaning.

        The first use subscribes: from then on the client receives changes, and it keeps its
        session alive until it is closed. Until a node has reported, the state is not up.

        Raises:
            UnsupportedError: the protocol's nodes do not report it (`bakery` does).
            ClosedError: the client is closed, or this process was forked from its own.

        """
        return self._connection.watching().last()

    def on_cluster(self, callback: ClusterCallback) -> None:
        """Call ``callback`` when the cluster goes up or down, or becomes ready or not ready.

        The callback receives a `ClusterState`, as known to the node that the client uses: first
        the present one, then each that differs. States that passed while the client was slow are
        left out. When the client loses its node and no other node reports for a second, the
        callback receives an unknown state: not up, not ready. A broken connection is noticed at
        once, a silent node within some six seconds, sooner with a shorter ``ttl``. See `on_lost`
        for the thread that runs callbacks and for their exceptions.

        Raises:
            UnsupportedError: as for `cluster`.
            ClosedError: as for `cluster`.
            TypeError: ``callback`` is not callable, or is a coroutine function.

        """
        check_callback(callback, "ClusterState")
        self._connection.watching().add(callback)

    @property
    def callbacks_failed(self) -> int:
        """The number of callbacks that raised an exception; see `on_lost`."""
        return self._connection.executor.failed


AnyClient = BaseClient[Any, Any, Any, Any, Any, Any, Any, Any, Any]


def namer(template: str, function: Callable[..., Any]) -> Callable[..., str]:
    """Return a function that formats ``template`` with the arguments of a call of ``function``.

    Args:
        template: the name of a lock, with parameters of ``function`` in braces.
        function: the function that is decorated.

    Raises:
        TypeError: ``template`` names no parameter of ``function``, or the calls of ``function``
            return before its work is done, as those of generators do.

    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{function.__qualname__} is a generator: take the lock inside it")
    signature = inspect.signature(function)
    for _, field, _, _ in Formatter().parse(template):
        if field is None:
            continue
        parameter = field.partition(".")[0].partition("[")[0]
        if parameter not in signature.parameters:
            raise TypeError(f"{template!r}: {function.__qualname__} has no parameter {parameter!r}")

    def name(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return template.format(**bound.arguments)

    return name
