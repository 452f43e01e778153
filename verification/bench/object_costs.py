"""The cost of one pair in a table with few other objects or waiters, and in one with many."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, cycle, islice
from typing import Any, NamedTuple

from fencelock.actors.api.lock_all import AcquireAll
from fencelock.actors.api.map import DeleteEntry, EntryChanged, PutEntry
from fencelock.actors.api.message import Acquire, AcquireRequest, Granted, Release
from fencelock.actors.api.rwlock import AcquireReadWrite
from fencelock.actors.api.semaphore import AcquirePermits
from fencelock.actors.api.session_message import Open
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import Result
from fencelock.verification.bench.report import BarFigure, lower_is_better

PAIRS = 4_000
"""Number of pairs in a round."""

FEW = 100
ENTRIES = 100_000
WAITERS = 10_000
SESSIONS = 10_000
MAP_ENTRIES = 99_000
"""Entries of the large map. All maps of a table may have 100,000 together."""

SLOWER_MAX = 1.2
"""Bar: the maximum cost with many, as a multiple of the cost with few."""

CLAIMS = 40_000
"""Objects that each session holds to fill a table. A session may have 100,000 claims."""

TTL_MS = 24 * 3_600_000

Request = Callable[..., AcquireRequest]
"""Makes the acquire of an object from its name and the owner's fields."""


def _lock(name: str, **of: Any) -> AcquireRequest:
    return Acquire(lock=name, limit=1, **of)


def _semaphore(name: str, **of: Any) -> AcquireRequest:
    return AcquirePermits(semaphore=name, permits=2, amount=2, **of)


def _rwlock(name: str, **of: Any) -> AcquireRequest:
    return AcquireReadWrite(rwlock=name, write=True, **of)


def _lock_all(name: str, **of: Any) -> AcquireRequest:
    return AcquireAll(locks=(name, f"{name}/2"), **of)


REQUESTS: dict[str, Request] = {
    "lock": _lock,
    "semaphore": _semaphore,
    "rwlock": _rwlock,
    "lock_all of 2": _lock_all,
}


class _Load:
    """A table, its sessions, and one kind of object."""

    def __init__(self, request: Request, sessions: int) -> None:
        self.table = LockTable()
        self.request = request
        self.numbers = count(1)
        self.sessions = [f"client-{i}.{i + 1}" for i in range(sessions)]
        for i in range(sessions):
            self.table.apply(0, Open(session=f"client-{i}", ttl_ms=TTL_MS, label=""))

    def acquire(self, name: str, owner: str = "", who: int = 0) -> list[Result]:
        """Let an owner acquire the object, or wait for it; return the outcomes."""
        of: dict[str, Any] = {"owner": owner, "request": next(self.numbers)}
        return self.table.apply(0, self.request(name, session=self.sessions[who], **of))

    def change(self, request: type[PutEntry | DeleteEntry], key: str, **what: Any) -> None:
        number = next(self.numbers)
        of: dict[str, Any] = {"session": self.sessions[0], "owner": "map 1", "request": number}
        (reply,) = self.table.apply(0, request(map="map", entry_key=key, **of, **what))
        assert isinstance(reply, EntryChanged)
        assert reply.changed

    def release(self, granted: Granted) -> list[Result]:
        release = Release(
            session=granted.session,
            owner=granted.owner,
            request=next(self.numbers),
            lock=granted.lock,
            fence=granted.fence,
        )
        return self.table.apply(0, release)


def _granted(outcomes: Sequence[Result]) -> Granted:
    return next(one for one in outcomes if isinstance(one, Granted))


def among_entries(request: Request, size: int) -> Callable[[], None]:
    """Return a round of pairs of uncontended objects, while ``size`` other objects are held."""
    load = _Load(request, size // CLAIMS + 2)
    for number in range(size):
        load.acquire(f"held/{number}", who=1 + number // CLAIMS)
    fresh = count()

    def run() -> None:
        for number in (next(fresh) for _ in range(PAIRS)):
            load.release(_granted(load.acquire(f"name/{number}")))

    return run


def among_waiters(request: Request, size: int) -> Callable[[], None]:
    """Return a round of pairs of one object with ``size`` waiters.

    Each owner that releases the object joins the end of the queue again.
    """
    load = _Load(request, 1)
    holder = _granted(load.acquire("one", "owner-0"))
    for number in range(size):
        load.acquire("one", f"owner-{number + 1}")

    def run() -> None:
        nonlocal holder
        for _ in range(PAIRS):
            following = _granted(load.release(holder))
            load.acquire("one", holder.owner)
            holder = following

    return run


def among_sessions(size: int) -> Callable[[], None]:
    """Return a round of pairs of ``size`` sessions in turn, each of a lock of its own."""
    load = _Load(_lock, size)
    turns = cycle(range(size))

    def run() -> None:
        for who in islice(turns, PAIRS):
            load.release(_granted(load.acquire(f"lock/{who}", who=who)))

    return run


def among_map_entries(size: int) -> Callable[[], None]:
    """Return a round of puts and deletes of a map that has ``size`` other entries."""
    load = _Load(_lock, 1)
    for number in range(size):
        load.change(PutEntry, f"kept/{number}", value=bytes(16))
    fresh = count()

    def run() -> None:
        for number in (next(fresh) for _ in range(PAIRS)):
            load.change(PutEntry, f"key/{number}", value=bytes(16))
            load.change(DeleteEntry, f"key/{number}")

    return run


class Crowd(NamedTuple):
    """A measurement that is made with few and with many objects or waiters."""

    name: str
    size: int
    load: Callable[[int], Callable[[], None]]


CROWDS = (
    *(Crowd(f"{kind}, held", ENTRIES, partial(among_entries, REQUESTS[kind])) for kind in REQUESTS),
    *(
        Crowd(f"{kind}, waiting", WAITERS, partial(among_waiters, REQUESTS[kind]))
        for kind in REQUESTS
    ),
    Crowd("lock, sessions", SESSIONS, among_sessions),
    Crowd("map, entries", MAP_ENTRIES, among_map_entries),
)


def costs(rounds: int, say: Callable[[str], None]) -> list[BarFigure]:
    """Measure each kind of object with few and with many others, in turns.

    The best rounds count, because other programs can only slow a round down.
    """
    figures: list[BarFigure] = []
    for crowd in CROWDS:
        what = f"{crowd.name}: {crowd.size:,}"
        say(f"{what}, beside {FEW}")
        runs = [crowd.load(size) for size in (FEW, crowd.size)]
        few, many = _best_us(runs, rounds)
        figures.append(lower_is_better(what, "us", [many], [few], SLOWER_MAX))
    return figures


def _best_us(runs: Sequence[Callable[[], None]], rounds: int) -> list[float]:
    """Return the processor time of a pair in the best round of each of ``runs`` (us)."""
    best = [float("inf")] * len(runs)
    gc.collect()
    gc.freeze()  # Nodes do the same.
    try:
        for _ in range(rounds):
            for place, run in enumerate(runs):
                began = time.process_time()
                run()
                best[place] = min(best[place], 1e6 * (time.process_time() - began) / PAIRS)
    finally:
        gc.unfreeze()
    return best
