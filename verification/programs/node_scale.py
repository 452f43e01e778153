"""The cost of a request for a whole node, and whether it grows on a full or an old node.

    python verification/programs/node_scale.py  # a table, and status 1 if it is not flat
    python verification/programs/node_scale.py --only age --json     # one part; one JSON object
    python verification/programs/node_scale.py --most 900000 --age 1000000  # some minutes and 3 GB

All roles of a node that is its cluster's only member, as `serve` runs them: proxy, replica, leader,
acceptor, table; no sockets, and records are encoded but not written. A request goes in as a
message of a client's and comes out as its answer, one at a time. What is given is processor time.

Each size has a process of its own, since Python's collector walks over all that a process has.
Processes are measured in turns, several rounds each, and the best round counts. The largest of
a million names is 900,000: the table refuses more than a million holds and waits.
"""

from __future__ import annotations

import gc
import multiprocessing
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from multiprocessing.connection import Connection
from random import Random
from typing import TypeVar

from beside import parser_of, reported

from fencelock.actors.api.lock_message import Acquire, Granted, Release, Released
from fencelock.actors.api.session_message import Open, Opened
from fencelock.actors.bootstrap_message import Founding
from fencelock.actors.message import Address, Message, address_of
from fencelock.cluster.cli.serve import GC_THRESHOLDS
from fencelock.cluster.host.scheduler import Scheduler
from fencelock.cluster.node.topology import NodeContext, paxos
from fencelock.transport.codec import encode
from fencelock.transport.frame import EnvelopeItems
from fencelock.verification.bench.report import BarFigure, lower_is_better

SLOWER_MAX = 1.5
"""A full or old subject may be so many times slower than a nearly empty, young one."""

CLAIMS = 50_000
"""Locks that one session holds, to fill a table; it may have 100,000."""

Run = Callable[[], None]
"""Makes the requests of a round."""

PAIRS = 1_000
"""Acquires and releases of a round; as many before the first, unmeasured."""

TTL_MS = 3_600_000
LONG_S = 30.0
"""To find that it leads a node needs a second."""

M = TypeVar("M", bound=Message)


class NodeSubject:
    """A node without sockets and disk, and the clients that ask it."""

    def __init__(self, sessions: int) -> None:
        self.scheduler = Scheduler("n1", lambda _slot: None, Counter())
        self.proxy = address_of("n1", "proxy")
        self.numbers = count(1)
        self.sessions: list[str] = []
        self.scheduler.open(
            paxos(
                NodeContext(
                    node="n1", nodes=("n1",), boot=1, random=Random(1), founding=Founding.NEW
                )
            )
        )
        for number in range(sessions):
            client = f"client-{number}"
            opening = Open(session=client, ttl_ms=TTL_MS, request=next(self.numbers))
            self.sessions.append(self.ask(client, opening, Opened).assigned)

    def acquire(self, who: int, lock: str, owner: str = "") -> int:
        return self.ask(f"client-{who}", self._asking(who, lock, owner), Granted).fence

    def wait(self, who: int, lock: str, owner: str) -> None:
        """Let ``owner`` wait for ``lock``, which somebody holds."""
        self.say(f"client-{who}", self._asking(who, lock, owner))
        self.turn()

    def release(self, who: int, lock: str, fence: int, owner: str = "") -> None:
        release = Release(
            lock=lock, fence=fence, session=self.sessions[who], owner=owner,
            request=next(self.numbers),
        )  # fmt: skip
        self.ask(f"client-{who}", release, Released)

    def _asking(self, who: int, lock: str, owner: str) -> Acquire:
        number = next(self.numbers)
        return Acquire(lock=lock, session=self.sessions[who], owner=owner, request=number)

    def ask(self, client: str, message: Message, kind: type[M]) -> M:
        """Return the answer of this kind; the client hears nothing else that counts."""
        self.say(client, message)
        ends = time.monotonic() + LONG_S
        while True:
            for _, _, answer in self.turn().get(client, ()):
                if isinstance(answer, kind):
                    return answer
            assert time.monotonic() < ends, f"no {kind.__name__} to {message}"
            if idle_ms := self.scheduler.idle_ms():
                time.sleep(idle_ms / 1000)

    def say(self, client: str, message: Message) -> None:
        sender: Address = address_of(client, "session")
        self.scheduler.post(self.scheduler.roles[self.proxy], sender, message)

    def turn(self) -> Mapping[str, list[EnvelopeItems]]:
        """Run the steps of a dispatcher's turn; return the outgoing messages by client."""
        scheduler = self.scheduler
        scheduler.ring_alarms()
        while scheduler.ready or scheduler.records:
            scheduler.work(4_096)
            for _, record in scheduler.records:
                if isinstance(record, Message):
                    encode(record)
            scheduler.release_held()
        outgoing, scheduler.outgoing = scheduler.outgoing, defaultdict(list)
        return outgoing


def names(size: int) -> Run:
    """Hold ``size`` locks; then take and free one lock after another, each of a new name."""
    subject = NodeSubject(size // CLAIMS + 2)
    for i in range(size):
        subject.acquire(1 + i // CLAIMS, f"held/{i}")
    fresh = count()

    def run() -> None:
        for i in (next(fresh) for _ in range(PAIRS)):
            subject.release(0, f"name/{i}", subject.acquire(0, f"name/{i}"))

    return run


def sessions(size: int) -> Run:
    """Let ``size`` sessions take and free a lock of their own, in turns."""
    subject = NodeSubject(size)
    turns: Iterator[int] = (i % size for i in count())

    def run() -> None:
        for i in (next(turns) for _ in range(PAIRS)):
            subject.release(i, f"lock/{i}", subject.acquire(i, f"lock/{i}"))

    return run


def waiters(size: int) -> Run:
    """Pass one lock along a queue of ``size``, at the end of which each stands again."""
    subject = NodeSubject(1)
    fences = count(subject.acquire(0, "lock", "thread-0"))
    for i in range(1, size + 1):
        subject.wait(0, "lock", f"thread-{i}")
    turns: Iterator[int] = (i % (size + 1) for i in count())

    def run() -> None:
        for i in (next(turns) for _ in range(PAIRS)):
            subject.release(0, "lock", next(fences), f"thread-{i}")
            subject.wait(0, "lock", f"thread-{i}")

    return run


def age(size: int) -> Run:
    """Be ``size`` commands old, with a hundred names that come again and again."""
    subject = NodeSubject(1)
    turns: Iterator[int] = (i % 100 for i in count())

    def pairs(times: int) -> None:
        for i in (next(turns) for _ in range(times)):
            subject.release(0, f"lock/{i}", subject.acquire(0, f"lock/{i}"))

    pairs(size // 2)
    return lambda: pairs(PAIRS)


KINDS = {"names held": names, "sessions": sessions, "waiters": waiters, "commands before": age}


def measure(what: str, sizes: tuple[int, ...], rounds: int) -> list[BarFigure]:
    """Return the time of a request at each size but the smallest, beside that at the smallest."""
    spawning = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    for size in sizes:
        mine, its = spawning.Pipe()
        spawning.Process(target=_serve, args=(its, what, size), daemon=True).start()
        pipes.append(mine)
    for pipe in pipes:
        pipe.recv()
    best = [float("inf")] * len(sizes)
    for _ in range(rounds):
        for i, pipe in enumerate(pipes):
            pipe.send(True)
            best[i] = min(best[i], pipe.recv())
    for pipe in pipes:
        pipe.send(False)
    return [
        lower_is_better(f"{what}: {size:,}", "us", [us], best[:1], SLOWER_MAX)
        for size, us in zip(sizes[1:], best[1:], strict=True)
    ]


def _serve(pipe: Connection, what: str, size: int) -> None:
    """Fill a node, then measure a round at each request (in a separate process)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    run = KINDS[what](size)
    run()
    pipe.send(True)
    while pipe.recv():
        began = time.process_time()
        run()
        pipe.send(1e6 * (time.process_time() - began) / (2 * PAIRS))


def main() -> int:
    parser = parser_of(
        __doc__,
        rounds=(7, "of each size (default: 7)"),
        most=(100_000, "names (default: 100,000)"),
        age=(100_000, "commands (default: 100,000)"),
    )
    parser.add_argument("--only", choices=("names", "sessions", "waiters", "age"), action="append")
    given = parser.parse_args()
    parts = {
        "names": ("names held", (*(n for n in (1_000, 100_000) if n < given.most), given.most)),
        "sessions": ("sessions", (10, 10_000)),
        "waiters": ("waiters", (10, 10_000)),
        "age": ("commands before", (1_000, given.age)),
    }
    figures = [
        figure
        for part, (what, sizes) in parts.items()
        if not given.only or part in given.only
        for figure in measure(what, sizes, given.rounds)
    ]
    title = "A request to a whole node, without sockets and disk"
    return reported(title, "many", "few", figures, as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
