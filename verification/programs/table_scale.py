"""The speed of the table of locks by itself, and whether it depends on its size.

    python verification/programs/table_scale.py            # a table, and status 1 if it is not flat
    python verification/programs/table_scale.py --json     # one JSON object

Sizes of one kind are measured in turns, several rounds each, and the best round counts:
what disturbs a round is other programs, never the table. The largest takes 800 MB.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from itertools import count

from options import options_of
from scale_loads import Loads, Run, SizeCost, costs, report

from fencelock.actors.api.message import Acquire, Granted, Release
from fencelock.actors.api.session_message import Open
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import Result

COMMANDS = 20_000
"""Commands of a round."""

TTL_MS = 24 * 3_600_000


class TableSubject:
    """Sessions of one table, which ask with numbers that rise."""

    def __init__(self, sessions: int) -> None:
        self.table = LockTable()
        self.numbers = count(1)
        self.now_ms = 0
        self.names = [f"client-{i}.{i + 1}" for i in range(sessions)]
        for i in range(sessions):
            opening = Open(session=f"client-{i}", ttl_ms=TTL_MS, label=f"host:{i}")
            self.table.apply(0, opening)

    def acquire(self, who: int, lock: str, owner: str = "thread-1") -> int:
        """Let session ``who`` take ``lock``, a millisecond later; return the fence."""
        return next(one.fence for one in self._ask(who, lock, owner) if isinstance(one, Granted))

    def wait(self, who: int, lock: str, owner: str) -> None:
        """Let ``owner`` wait for ``lock``, a millisecond later."""
        self._ask(who, lock, owner)

    def release(self, who: int, lock: str, fence: int, owner: str = "thread-1") -> None:
        """Let session ``who`` give ``lock`` back."""
        command = Release(
            session=self.names[who], owner=owner, request=next(self.numbers), lock=lock, fence=fence
        )
        self.table.apply(self.now_ms, command)

    def _ask(self, who: int, lock: str, owner: str) -> list[Result]:
        self.now_ms += 1
        command = Acquire(
            session=self.names[who], owner=owner, request=next(self.numbers), lock=lock, limit=0
        )
        return self.table.apply(self.now_ms, command)


LOADS = Loads(TableSubject, COMMANDS // 2)
KINDS: dict[str, tuple[Callable[[int], Run], tuple[int, ...]]] = {
    "names held": (LOADS.names, (1_000, 100_000, 900_000)),
    "sessions": (LOADS.sessions, (10, 10_000)),
    "waiters": (LOADS.waiters, (10, 10_000)),
}
"""The measurements and their sizes; a table may have a million claims in all."""


def measure(what: str, rounds: int) -> list[SizeCost]:
    """Return the costs of one kind, the smallest size first."""
    kind, sizes = KINDS[what]
    runs = [kind(size) for size in sizes]
    for run in runs:
        run()
    gc.collect()
    best = [float("inf")] * len(runs)
    for _ in range(rounds):
        for i, run in enumerate(runs):
            began = time.perf_counter()
            run()
            best[i] = min(best[i], 1e6 * (time.perf_counter() - began) / COMMANDS)
    return costs(what, sizes, best)


def main() -> int:
    options = options_of(__doc__, rounds=(7, "of each size (default: 7)"))
    lines = [line for what in KINDS for line in measure(what, options.rounds)]
    return report("The table of locks by itself", lines, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
