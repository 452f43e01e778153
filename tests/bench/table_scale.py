"""How fast the table of locks is by itself, and whether that depends on how full it is.

    python tests/bench/table_scale.py            # a table, and status 1 if it is not flat
    python tests/bench/table_scale.py --json     # one JSON object

Sizes of one kind are measured in turns, several rounds each, and the best round counts:
what disturbs a round is other programs, never the table. The largest takes 800 MB.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count

from rich.console import Console
from rich.table import Table

from fencelock.actors.api.message import Acquire, Granted, Release
from fencelock.actors.api.session_message import Open
from fencelock.actors.table.message import Result
from fencelock.actors.table.table import LockTable

SLOWER_MAX = 1.5
"""A full table may be so many times slower than a nearly empty one: caches are finite."""

COMMANDS = 20_000
"""Commands of a round."""

CLAIMS = 50_000
"""Locks that one session holds, to fill a table."""

TTL_MS = 24 * 3_600_000

Round = Callable[[], int]
"""Runs some commands, and returns how many."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the report.

    Attributes:
        what: what there is so many of.
        size: how many.
        rate: commands a second, the best round.
        slower: how many times slower than with the fewest.

    """

    what: str
    size: int
    rate: float
    slower: float


class Clients:
    """Sessions of one table, which ask with numbers that rise."""

    def __init__(self, sessions: int) -> None:
        self.table = LockTable()
        self.numbers = count(1)
        self.now_ms = 0
        self.names = [f"client-{i}.{i + 1}" for i in range(sessions)]
        for i in range(sessions):
            opening = Open(session=f"client-{i}", ttl_ms=TTL_MS, label=f"host:{i}")
            self.table.apply(0, opening)

    def acquire(self, who: int, lock: str, owner: str = "thread-1") -> list[Result]:
        """Let session ``who`` ask for ``lock``, a millisecond later."""
        self.now_ms += 1
        command = Acquire(
            session=self.names[who], owner=owner, request=next(self.numbers), lock=lock, limit=0
        )
        return self.table.apply(self.now_ms, command)

    def release(self, who: int, lock: str, fence: int, owner: str = "thread-1") -> list[Result]:
        """Let session ``who`` give ``lock`` back."""
        command = Release(
            session=self.names[who], owner=owner, request=next(self.numbers), lock=lock, fence=fence
        )
        return self.table.apply(self.now_ms, command)


def fence_of(outcomes: Sequence[Result]) -> int:
    """Return the fence of the grant among ``outcomes``."""
    return next(one.fence for one in outcomes if isinstance(one, Granted))


def names(size: int) -> Round:
    """Hold ``size`` locks; then take and free one lock after another, each under a new name."""
    clients = Clients(size // CLAIMS + 2)
    for i in range(size):
        clients.acquire(1 + i // CLAIMS, f"held/{i}")
    fresh = count()

    def run() -> int:
        for i in (next(fresh) for _ in range(COMMANDS // 2)):
            clients.release(0, f"name/{i}", fence_of(clients.acquire(0, f"name/{i}")))
        return COMMANDS

    return run


def sessions(size: int) -> Round:
    """Let ``size`` sessions take and free a lock of their own, in turns."""
    clients = Clients(size)
    for i in range(size):
        clients.release(i, f"lock/{i}", fence_of(clients.acquire(i, f"lock/{i}")))
    turns: Iterator[int] = (i % size for i in count())

    def run() -> int:
        for i in (next(turns) for _ in range(COMMANDS // 2)):
            clients.release(i, f"lock/{i}", fence_of(clients.acquire(i, f"lock/{i}")))
        return COMMANDS

    return run


def waiters(size: int) -> Round:
    """Pass one lock along a queue of ``size``, at the end of which each stands again."""
    clients = Clients(1)
    fences = count(1)
    clients.acquire(0, "lock", "thread-0")
    for i in range(1, size + 1):
        clients.acquire(0, "lock", f"thread-{i}")
    turns: Iterator[int] = (i % (size + 1) for i in count())

    def run() -> int:
        for i in (next(turns) for _ in range(COMMANDS // 2)):
            clients.release(0, "lock", next(fences), f"thread-{i}")
            clients.acquire(0, "lock", f"thread-{i}")
        return COMMANDS

    return run


KINDS: dict[str, tuple[Callable[[int], Round], tuple[int, ...]]] = {
    "names held": (names, (1_000, 100_000, 900_000)),
    "sessions": (sessions, (10, 10_000)),
    "waiters": (waiters, (10, 10_000)),
}
"""What is measured, and at which sizes; a table may have a million claims in all."""


def measure(what: str, rounds: int) -> list[Line]:
    """Return the lines of one kind, the smallest size first."""
    kind, sizes = KINDS[what]
    runs = [kind(size) for size in sizes]
    gc.collect()
    rates = [0.0 for _ in runs]
    for _ in range(rounds):
        for i, run in enumerate(runs):
            began = time.perf_counter()
            done = run()
            rates[i] = max(rates[i], done / (time.perf_counter() - began))
    return [
        Line(what, size, rate, rates[0] / rate) for size, rate in zip(sizes, rates, strict=True)
    ]


def show(lines: Sequence[Line]) -> Table:
    """Return the report for people."""
    table = Table("there are", "so many", title="The table of locks by itself")
    for column in ("commands a second", "a pair takes", "slower"):
        table.add_column(column, justify="right")
    for line in lines:
        colour = "red" if line.slower > SLOWER_MAX else "green"
        table.add_row(
            line.what,
            f"{line.size:,}",
            f"{line.rate:,.0f}",
            f"{2e6 / line.rate:.1f} us",
            f"[{colour}]{line.slower:.2f}x[/]",
        )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=7, help="of each size (default: 7)")
    options = parser.parse_args()
    lines = [line for what in KINDS for line in measure(what, options.rounds)]
    ok = all(line.slower <= SLOWER_MAX for line in lines)
    if options.json:
        print(json.dumps({"ok": ok, "lines": [asdict(line) for line in lines]}))
    else:
        Console().print(show(lines))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
