"""The job of a client process, as one line of JSON, and the operations of a mixed load."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from importlib import import_module
from random import Random
from typing import Any

import msgspec

import fencelock
from fencelock.actors.error import ConfigError, FencelockError, LockTimeoutError, UnavailableError

OPERATION_S = 10.0
"""Timeout of an acquire (s). A longer one counts as an error."""

LOCK_S = 60.0
"""Timeout of a Redis lock (s): no pair of a run takes so long."""

FILL_TRIES = 5
"""Attempts to put an entry before the load begins, when many clients begin at once."""

SHARE_MAX = 1_000_000


class Operation(StrEnum):
    """An operation of a load."""

    LOCK = "lock"
    """Acquire a lock and release it."""
    GET = "get"
    """Read an entry of a map."""
    PUT = "put"
    DELETE = "delete"


MIXES: dict[str, dict[Operation, int]] = {
    **{one.value: {one: 1} for one in Operation},
    "thesis": {Operation.GET: 4, Operation.PUT: 1, Operation.DELETE: 1},
    "reads": {Operation.GET: 4, Operation.PUT: 1},
}
"""Mixes by name. ``thesis`` is the mixed load of the Warlock thesis (section 8.2.1), ``reads`` that
of its tests of concurrency and payload (8.2.3 and 8.2.4)."""


def mix_of(text: str) -> dict[Operation, int]:
    """Return the shares that ``text`` gives: a name of `MIXES`, or ``get=4,put=1``.

    Raises:
        ConfigError: it is neither.

    """
    if text in MIXES:
        return MIXES[text]
    shares: dict[Operation, int] = {}
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\w+)=(\d{1,7})\s*", part)
        if found is None or found[1] not in list(Operation) or int(found[2]) > SHARE_MAX:
            raise ConfigError(
                f"--mix is {text!r}: give {', '.join(MIXES)}, or shares of {', '.join(Operation)} "
                f"from 0 to {SHARE_MAX:,}, as in get=4,put=1"
            )
        shares[Operation(found[1])] = int(found[2])
    if not any(shares.values()):
        raise ConfigError(f"--mix is {text!r}: one share at least must be above 0")
    return {one: share for one, share in shares.items() if share}


class ClientTarget:
    """A client of fencelock, which makes operations of a load.

    Entries are ephemeral: nothing is left in the cluster when the client is closed.

    Args:
        entries: the name of the map.
        payload: the size of values (bytes).
        age_s: the greatest age of a read (s), or None for linearizable ones.

    """

    failures: tuple[type[Exception], ...] = (FencelockError,)
    """Errors that are counted; others end the run."""

    def __init__(
        self, client: fencelock.Client, entries: str, payload: int, age_s: float | None
    ) -> None:
        self._client = client
        self._prefix = entries
        self._entries = client.map(entries)
        self._value = bytes(payload)
        self._age_s = age_s

    def use(self, operation: Operation, name: str) -> Callable[[], object]:
        """Return a function that makes ``operation`` once with the lock or entry ``name``."""
        match operation:
            case Operation.LOCK:
                return self._pair(name)
            case Operation.GET:
                return self._get(name)
            case Operation.PUT:
                return partial(self._entries.put, name, self._value, ephemeral=True)
            case Operation.DELETE:
                return partial(self._entries.delete, name)

    def _get(self, name: str) -> Callable[[], object]:
        if self._age_s is None:
            return partial(self._entries.get, name)
        return partial(self._entries.get, name, read="local", max_age=self._age_s)

    def _pair(self, name: str) -> Callable[[], object]:
        lock = self._client.lock(f"{self._prefix}/{name}")

        def pair() -> None:
            if lock.acquire(timeout=OPERATION_S) is None:
                raise LockTimeoutError(f"not acquired in {OPERATION_S:g} s")
            lock.release()

        return pair

    def fill(self, names: list[str]) -> None:
        """Put an entry under each name, for reads."""
        for name in names:
            put = self.use(Operation.PUT, name)
            for _ in range(FILL_TRIES - 1):
                with suppress(UnavailableError):
                    put()
                    break
            else:
                put()

    def close(self) -> None:
        self._client.close()


class RedisTarget:
    """A connection to a Redis server, with redis-py's own ``Lock`` at its defaults."""

    def __init__(self, url: str, prefix: str) -> None:
        redis: Any = redis_module()
        self._client: Any = redis.Redis.from_url(url, single_connection_client=True)
        self._prefix = prefix
        self.failures: tuple[type[Exception], ...] = (redis.RedisError, LockTimeoutError)
        self._client.ping()

    def use(self, operation: Operation, name: str) -> Callable[[], object]:
        assert operation is Operation.LOCK
        lock: Any = self._client.lock(
            f"{self._prefix}/{name}", timeout=LOCK_S, blocking_timeout=OPERATION_S
        )

        def pair() -> None:
            if not lock.acquire():
                raise LockTimeoutError(f"not acquired in {OPERATION_S:g} s")
            lock.release()

        return pair

    def fill(self, names: list[str]) -> None:
        """Do nothing: locks need no entry."""

    def close(self) -> None:
        self._client.close()


Target = ClientTarget | RedisTarget


def redis_module() -> Any:
    try:
        return import_module("redis")
    except ImportError:
        raise ConfigError("--redis needs redis-py: pip install redis") from None


def drawn(mix: Mapping[Operation, int], names: list[str], random: Random, times: int) -> Any:
    """Return ``times`` operations with names, drawn by their shares."""
    operations = random.choices(list(mix), weights=list(mix.values()), k=times)
    return list(zip(operations, random.choices(names, k=times), strict=True))


ELECTION = "one"
"""The election of `Use.LEAD`."""


class Use(StrEnum):
    """A use of an object, which a thread repeats."""

    LOCK = "lock"
    SEMAPHORE = "semaphore"
    READ = "read"
    """Acquire a read/write lock to read, and release it."""
    READ_ONE = "read_one"
    """Acquire the read/write lock that all threads share to read, and release it."""
    WRITE = "write"
    LOCK_ALL = "lock_all"
    """Acquire two locks in one step, and release them."""
    TWO_LOCKS = "two_locks"
    """Acquire two locks, one after the other, and release them."""
    LEAD = "lead"
    """Lead in the election that all threads share, and step down."""


class JobKind(StrEnum):
    """The kinds of measurements."""

    PAIR = "pair"
    """One thread takes and gives back one lock; measures each pair."""
    PROFILE = "profile"
    """The same, with marks of the client's steps."""
    RATE = "rate"
    """Threads take and give back locks; counts pairs in a time."""
    TURNS = "turns"
    """Threads use one kind of object after the other; the pairs of each turn are counted."""
    TASKS = "tasks"
    """The same with asyncio tasks."""
    WATCH = "watch"
    """The same with threads, until it receives the request to end; records the times of grants."""
    RETAIN = "retain"
    """Threads use locks once, and the client retains them; measures its memory for each."""
    HOLD = "hold"
    """Tasks take locks and keep them, some more for each line that is read."""
    FOLLOW = "follow"
    """Tasks watch one election; the changes that they receive are counted."""
    MIXED = "mixed"
    """Connections make operations of a mix; each interval is reported."""
    READ = "read"
    """Threads ask for the status of locks; counts answers in a time."""
    ECHO = "echo"
    """A bare ROUTER that sends back what it receives, until it receives the request to end."""
    PING = "ping"
    """A bare DEALER to such a ROUTER; measures round trips, one at a time and many at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One measurement of one client process.

    Attributes:
        address: the nodes to connect to, or the echo.
        seconds: how long to measure, above 0; not for kinds that run until they are ended.
        warm_s: how long to do the same before, unmeasured.
        at_once: threads, tasks or frames in flight, 1 or more.
        lock: the name of the lock, or the prefix of the locks' names.
        shared: whether all use the one lock, not each a lock of its own.
        fresh: whether each pair uses a lock of its own.
        confirm: whether a release waits until it is confirmed.
        retain: how long the client keeps a lock after its owner released it (s); 0 for not at all.
        cohort: the number of its owners that may have the lock before another client.
        age_ms: the greatest age of an answer to a read (ms); None for a linearizable read.
        marks: the file for marks.
        locks: the number of locks to retain, or to take for each line that is read; of watchers,
            how many watch elections that do not change.
        uses: the uses that threads make in turns, each for ``seconds``.
        rounds: the number of turns of each use, or of reported intervals.
        places: addresses of nodes at which connections stay, one after the other; empty if they
            may choose.
        first: the number of the first connection.
        in_flight: the number of threads of each connection.
        names: the number of locks or entries that a connection uses.
        payload: the size of values (bytes).
        period_s: the time between two operations of a thread (s); 0 if the next one begins when
            the last one ends.
        key: the file of the clients' key.

    """

    kind: JobKind
    address: str = ""
    cluster: str = ""
    seconds: float = 1.0
    warm_s: float = 0.0
    at_once: int = 1
    lock: str = "bench"
    shared: bool = False
    fresh: bool = False
    confirm: bool = True
    retain: float = 0.0
    cohort: int = 0
    age_ms: int | None = None
    marks: str = ""
    locks: int = 0
    uses: tuple[Use, ...] = ()
    rounds: int = 1
    mix: dict[Operation, int] = field(default_factory=dict[Operation, int])
    places: tuple[str, ...] = ()
    first: int = 0
    in_flight: int = 1
    names: int = 1
    payload: int = 0
    period_s: float = 0.0
    key: str = ""

    def lock_of(self, number: int) -> str:
        return self.lock if self.shared else f"{self.lock}-{number}"

    def line(self) -> str:
        return msgspec.json.encode(self).decode()


def read_job(line: str) -> Job:
    return msgspec.json.decode(line, type=Job)
