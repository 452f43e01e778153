"""Measurements of semaphores, read/write locks and other objects, in turns with locks.

`costs` compares a pair in a table with few other objects or waiters with one in a full table.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import count, cycle, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from fencelock.actors.api.lock_all import AcquireAll
from fencelock.actors.api.lock_message import Acquire, AcquireRequest, Granted, Release
from fencelock.actors.api.map import DeleteEntry, EntryChanged, PutEntry
from fencelock.actors.api.rwlock import AcquireReadWrite
from fencelock.actors.api.semaphore import AcquirePermits
from fencelock.actors.api.session_message import Open
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import Result
from fencelock.cluster.client.client import connect
from fencelock.verification.bench.job import ELECTION, Job, JobKind, Use
from fencelock.verification.bench.load import CONNECT_S
from fencelock.verification.bench.machine import MachineInfo, this_machine
from fencelock.verification.bench.members import BenchFailedError, NodeProcesses
from fencelock.verification.bench.report import BarFigure, alone, higher_is_better, lower_is_better
from fencelock.verification.bench.workers import measured, per_s

COST_PAIRS = 4_000
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
        for number in (next(fresh) for _ in range(COST_PAIRS)):
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
        for _ in range(COST_PAIRS):
            following = _granted(load.release(holder))
            load.acquire("one", holder.owner)
            holder = following

    return run


def among_sessions(size: int) -> Callable[[], None]:
    """Return a round of pairs of ``size`` sessions in turn, each of a lock of its own."""
    load = _Load(_lock, size)
    turns = cycle(range(size))

    def run() -> None:
        for who in islice(turns, COST_PAIRS):
            load.release(_granted(load.acquire(f"lock/{who}", who=who)))

    return run


def among_map_entries(size: int) -> Callable[[], None]:
    """Return a round of puts and deletes of a map that has ``size`` other entries."""
    load = _Load(_lock, 1)
    for number in range(size):
        load.change(PutEntry, f"kept/{number}", value=bytes(16))
    fresh = count()

    def run() -> None:
        for number in (next(fresh) for _ in range(COST_PAIRS)):
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
                best[place] = min(best[place], 1e6 * (time.process_time() - began) / COST_PAIRS)
    finally:
        gc.unfreeze()
    return best


PROCESSES = 2
THREADS = 50
"""Number of threads of each process, each with an object of its own. The threads of both processes
are also the 100 readers of one lock."""

RATIO_MIN = 0.9
"""Bar: the minimum number of pairs, as a share of the pairs of the reference."""

NODES = 3


class ObjectPart(StrEnum):
    """A group of measurements, which can be run alone."""

    PAIRS = "pairs"
    WATCHES = "watches"
    BARRIER = "barrier"
    COST = "cost"


class Comparison(NamedTuple):
    """A use, and perhaps a reference, which are measured in turns."""

    name: str
    unit: str
    use: Use
    beside: Use | None = None
    at_least: float | None = None


PAIRS = (
    Comparison("semaphore", "pairs/s", Use.SEMAPHORE, Use.LOCK, RATIO_MIN),
    Comparison("rwlock, read", "pairs/s", Use.READ, Use.LOCK, RATIO_MIN),
    Comparison("rwlock, write", "pairs/s", Use.WRITE, Use.LOCK, RATIO_MIN),
    Comparison("lock_all of 2", "pairs/s", Use.LOCK_ALL, Use.TWO_LOCKS, RATIO_MIN),
    Comparison("100 readers of one", "grants/s", Use.READ_ONE, Use.READ),
)

WATCHERS = ((1_000, 0, 3.0), (10_000, 0, 10.0), (1_000, 9_000, 3.0))
"""Numbers of watchers, and of watchers of other elections, which do not change; and the time for
which changes are counted (s). Larger groups are measured for longer, because their changes arrive
in bursts."""

PARTIES = 64
"""Number of parties of the measured barrier."""

MEETINGS = 5
"""Number of generations of the barrier for each round of the run."""

WATCHED_MIN = 0.83
"""Bar: the minimum number of changes per second that many watchers receive, as a share of the
changes that fewer watchers receive."""


@dataclass(frozen=True, slots=True)
class ObjectBenchReport:
    """All results of a run, and the machine."""

    machine: MachineInfo
    figures: tuple[BarFigure, ...]

    @property
    def met(self) -> bool:
        return all(figure.met for figure in self.figures)

    def as_plain(self) -> dict[str, Any]:
        figures = [asdict(figure) for figure in self.figures]
        return {"machine": asdict(self.machine), "figures": figures, "met": self.met}


def measure(
    parts: Sequence[ObjectPart], rounds: int, seconds: float, say: Callable[[str], None]
) -> ObjectBenchReport:
    """Start three nodes, make the measurements of ``parts``, and leave nothing running.

    Each comparison has ``rounds`` (1 or more) of turns of ``seconds``, and their medians count.

    Raises:
        BenchFailedError: a process failed, or was not served at all; the text says which.

    """
    figures: list[BarFigure] = []
    with tempfile.TemporaryDirectory(prefix="fencelock-bench-") as name:
        machine = this_machine(Path(name))
        folder = Path(name)
        if ObjectPart.PAIRS in parts:
            figures += in_turns(folder, PAIRS, rounds, seconds, say)
        if ObjectPart.WATCHES in parts:
            figures += watches(folder, say)
        if ObjectPart.BARRIER in parts:
            figures += barrier_rounds(folder, rounds, say)
        if ObjectPart.COST in parts:
            figures += costs(rounds, say)
    return ObjectBenchReport(machine, tuple(figures))


@contextmanager
def _nodes(folder: Path, say: Callable[[str], None]) -> Generator[Job]:
    say(f"starting {NODES} nodes")
    with (
        tempfile.TemporaryDirectory(dir=folder) as own,
        NodeProcesses(Path(own), "paxos", NODES, durable=True) as members,
    ):
        members.ready_client().close()
        yield Job(kind=JobKind.TURNS, address=members.connect, cluster=members.cluster)


def in_turns(
    folder: Path,
    compared: Sequence[Comparison],
    rounds: int,
    seconds: float,
    say: Callable[[str], None],
) -> list[BarFigure]:
    """Measure each use and its reference, in turns of ``seconds``; see `measure`."""
    pairs = [(one.beside, one.use) for one in compared]
    uses = tuple(dict.fromkeys(use for pair in pairs for use in pair if use is not None))
    with _nodes(folder, say) as at:
        job = replace(at, seconds=seconds, rounds=rounds, uses=uses, at_once=THREADS)
        say(f"measuring {', '.join(uses)} in turns, {len(uses) * rounds * seconds:.0f} s")
        counted = measured(folder, [replace(job, lock=f"own-{n}") for n in range(PROCESSES)])
    rates = {use: [sum(turn) / seconds for turn in _turns(counted, use)] for use in uses}
    return [
        alone(one.name, one.unit, rates[one.use])
        if one.beside is None
        else higher_is_better(one.name, one.unit, rates[one.use], rates[one.beside], one.at_least)
        for one in compared
    ]


def watches(folder: Path, say: Callable[[str], None]) -> list[BarFigure]:
    """Measure how many changes of one election few and many watchers receive."""
    rates: list[float] = []
    with _nodes(folder, say) as job:
        for watchers, others, seconds in WATCHERS:
            say(f"measuring {watchers:,} watchers beside {others:,}")
            timed = replace(job, warm_s=seconds, seconds=seconds)
            follow = replace(
                timed,
                kind=JobKind.FOLLOW,
                lock=ELECTION,
                at_once=watchers // PROCESSES,
                locks=others // PROCESSES,
            )
            lead = replace(timed, uses=(Use.LEAD,), rounds=4)
            *followed, _ = measured(folder, [*[follow] * PROCESSES, lead])
            rates.append(per_s(followed))
    names = [
        f"{watchers:,} watchers of one election{f', beside {others:,}' if others else ''}"
        for watchers, others, _ in WATCHERS
    ]
    few, many, beside = ([rate] for rate in rates)
    return [
        alone(names[0], "events/s", few),
        higher_is_better(names[1], "events/s", many, few, WATCHED_MIN),
        higher_is_better(names[2], "events/s", beside, few, None),
    ]


def barrier_rounds(folder: Path, rounds: int, say: Callable[[str], None]) -> list[BarFigure]:
    with _nodes(folder, say) as job, ExitStack() as stack:
        clients = [
            stack.enter_context(connect(job.address, cluster=job.cluster)) for _ in range(PROCESSES)
        ]
        threads = stack.enter_context(ThreadPoolExecutor(PARTIES))
        barriers = [client.barrier("round", PARTIES) for client in clients]

        def meet(party: int) -> list[float]:
            barrier, times = barriers[party % len(barriers)], list[float]()
            for _ in range(MEETINGS * rounds):
                barrier.wait(CONNECT_S)
                times.append(time.monotonic())
            return times

        say(f"measuring {MEETINGS * rounds} rounds of a barrier")
        met = [max(times) for times in zip(*threads.map(meet, range(PARTIES)), strict=True)]
    took = [1_000 * (after - before) for before, after in pairwise(met)]
    return [alone(f"round of a barrier, {PARTIES} parties", "ms", took)]


def _turns(counted: Sequence[dict[str, Any]], use: Use) -> Iterable[tuple[int, ...]]:
    """Return the counts of all processes in each turn of ``use``."""
    turns = list(zip(*(one[use] for one in counted), strict=True))
    if not all(map(any, turns)):
        raise BenchFailedError(f"{use} was not served even once in a turn: use longer --seconds")
    return turns
