"""Loads on something that has many locks, sessions or waiters: for node_scale and table_scale."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Protocol

from rich.console import Console
from rich.table import Table

SLOWER_MAX = 1.5
"""A full or old subject may be so many times slower than a nearly empty, young one."""

CLAIMS = 50_000
"""Locks that one session holds, to fill a table; it may have 100,000."""

Run = Callable[[], None]
"""Makes the requests of a round."""


class LoadSubject(Protocol):
    """Something with sessions, which acquire and release locks."""

    def acquire(self, who: int, lock: str, owner: str = "") -> int:
        """Let session ``who`` take ``lock``; return the fence."""
        ...

    def wait(self, who: int, lock: str, owner: str) -> None:
        """Let ``owner`` wait for ``lock``, which somebody holds."""
        ...

    def release(self, who: int, lock: str, fence: int, owner: str = "") -> None:
        """Let session ``who`` give ``lock`` back."""
        ...


@dataclass(frozen=True, slots=True)
class Loads:
    """Loads of ``pairs`` acquires and releases a round.

    Attributes:
        subject: makes the measured object, with so many sessions.
        pairs: of a round.

    """

    subject: Callable[[int], LoadSubject]
    pairs: int

    def names(self, size: int) -> Run:
        """Hold ``size`` locks; then take and free one lock after another, each of a new name."""
        subject = self.subject(size // CLAIMS + 2)
        for i in range(size):
            subject.acquire(1 + i // CLAIMS, f"held/{i}")
        fresh = count()

        def run() -> None:
            for i in (next(fresh) for _ in range(self.pairs)):
                subject.release(0, f"name/{i}", subject.acquire(0, f"name/{i}"))

        return run

    def sessions(self, size: int) -> Run:
        """Let ``size`` sessions take and free a lock of their own, in turns."""
        subject = self.subject(size)
        turns: Iterator[int] = (i % size for i in count())

        def run() -> None:
            for i in (next(turns) for _ in range(self.pairs)):
                subject.release(i, f"lock/{i}", subject.acquire(i, f"lock/{i}"))

        return run

    def waiters(self, size: int) -> Run:
        """Pass one lock along a queue of ``size``, at the end of which each stands again."""
        subject = self.subject(1)
        fences = count(subject.acquire(0, "lock", "thread-0"))
        for i in range(1, size + 1):
            subject.wait(0, "lock", f"thread-{i}")
        turns: Iterator[int] = (i % (size + 1) for i in count())

        def run() -> None:
            for i in (next(turns) for _ in range(self.pairs)):
                subject.release(0, "lock", next(fences), f"thread-{i}")
                subject.wait(0, "lock", f"thread-{i}")

        return run

    def age(self, size: int) -> Run:
        """Be ``size`` commands old, with a hundred names that come again and again."""
        subject = self.subject(1)
        turns: Iterator[int] = (i % 100 for i in count())

        def pairs(times: int) -> None:
            for i in (next(turns) for _ in range(times)):
                subject.release(0, f"lock/{i}", subject.acquire(0, f"lock/{i}"))

        pairs(size // 2)
        return lambda: pairs(self.pairs)


@dataclass(frozen=True, slots=True)
class SizeCost:
    """The cost at one size.

    Attributes:
        what: what there is so many of.
        size: how many.
        us: time of a request (us), the best round.
        slower: how many times more than with the fewest.

    """

    what: str
    size: int
    us: float
    slower: float


def costs(what: str, sizes: Sequence[int], best_us: Sequence[float]) -> list[SizeCost]:
    """Return the cost at each size, the smallest first."""
    found = zip(sizes, best_us, strict=True)
    return [SizeCost(what, size, us, us / best_us[0]) for size, us in found]


def report(title: str, lines: Sequence[SizeCost], *, as_json: bool) -> int:
    """Print the report, and return the exit status: 0 only if no size is slower than allowed."""
    ok = all(line.slower <= SLOWER_MAX for line in lines)
    if as_json:
        print(json.dumps({"ok": ok, "lines": [asdict(line) for line in lines]}))
    else:
        Console().print(_table(title, lines))
    return 0 if ok else 1


def _table(title: str, lines: Sequence[SizeCost]) -> Table:
    table = Table("there are", "so many", title=title)
    for column in ("a request takes", "requests a second", "slower", "at most"):
        table.add_column(column, justify="right")
    table.add_column("")
    for line in lines:
        met = line.slower <= SLOWER_MAX
        table.add_row(
            line.what,
            f"{line.size:,}",
            f"{line.us:.1f} us",
            f"{1e6 / line.us:,.0f}",
            f"{line.slower:.2f}x",
            f"{SLOWER_MAX}x",
            "[green]flat[/]" if met else "[red]NOT FLAT[/]",
        )
    return table
