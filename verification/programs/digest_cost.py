"""The cost of comparing tables: a pair in the table, with and without its digest.

    python verification/programs/digest_cost.py  # a table, and status 1 above 1 % of a pair
    python verification/programs/digest_cost.py --json     # one JSON object

A pair is one acquire and one release, encoded as the log carries them and applied by a
`LockMachine`. The table without a digest is the same source less the lines that keep the sums.
Both are measured in turns, in processor time, and the best round of each counts.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import count
from typing import Any

from beside import options_of, reported

from fencelock.actors.api.lock_message import Acquire, Release
from fencelock.actors.api.name import SESSION_TTL_MS_MAX
from fencelock.actors.api.session_message import Open
from fencelock.actors.paxos.config import LogConfig, View
from fencelock.actors.paxos.divergence import AGREED_SLOTS, STEPS, Digests
from fencelock.actors.table import state
from fencelock.actors.table.state import TableState
from fencelock.cluster.node import lock_machine
from fencelock.cluster.node.lock_machine import LockMachine
from fencelock.transport.codec import encode
from fencelock.verification.bench.report import BarFigure, below, lower_is_better

PAIR_US = 150.0
"""Processor time of a whole pair on one node under load (us); `docs/performance.md`."""

SHARE_MAX = 0.01
"""The comparison may cost so much of a pair."""

PAIRS = 5_000
"""Of a round."""

SUMS = ("self.holds_checksum", "self.waits_checksum", "self.grants_checksum", "weight")


def without_sums(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``method`` compiled without the lines that keep the sums of a digest."""
    lines = textwrap.dedent(inspect.getsource(method)).splitlines()
    kept = [line for line in lines if not any(word in line for word in SUMS)]
    names: dict[str, Any] = {}
    exec("from __future__ import annotations\n" + "\n".join(kept), dict(vars(state)), names)
    made: Callable[..., Any] = names[method.__name__]
    return made


def _keeps_sums(method: object) -> bool:
    return inspect.isfunction(method) and any(word in inspect.getsource(method) for word in SUMS)


METHODS = [name for name, method in vars(TableState).items() if _keeps_sums(method)]
METHODS.remove("__init__")
PLAIN = {name: without_sums(getattr(TableState, name)) for name in METHODS}


@contextmanager
def no_digest() -> Generator[None]:
    """Let no table keep its sums, and no machine weigh its outcomes."""
    sound = {name: getattr(TableState, name) for name in METHODS}
    weight = lock_machine._weight  # pyright: ignore[reportPrivateUsage]
    for name, plain in PLAIN.items():
        setattr(TableState, name, plain)
    lock_machine._weight = lambda outcomes: 0  # pyright: ignore[reportPrivateUsage]
    try:
        yield
    finally:
        for name, method in sound.items():
            setattr(TableState, name, method)
        lock_machine._weight = weight  # pyright: ignore[reportPrivateUsage]


def commands(fresh: bool) -> list[bytes]:
    """Return the commands of a round: of one lock again and again, or each of a lock of its own."""
    numbers = count(1)
    made: list[bytes] = []
    for pair in range(PAIRS):
        about: dict[str, Any] = {"session": "client.1", "owner": "host:123:thread-1"}
        about["lock"] = f"orders/{pair if fresh else 1}"
        made.append(encode(Acquire(**about, request=next(numbers))))
        made.append(encode(Release(**about, request=next(numbers), fence=pair + 1)))
    return made


def pair_us(written: list[bytes]) -> float:
    """Return how long a pair takes (us of processor time)."""
    machine = LockMachine()
    machine.apply(0, [encode(Open(session="client", ttl_ms=SESSION_TTL_MS_MAX))])
    began = time.thread_time()
    for time_ms, command in enumerate(written, 1):
        machine.apply(time_ms, [command])
    return (time.thread_time() - began) / PAIRS * 1e6


def slot_us() -> float:
    """Return the cost per slot of noting digests (us); one is noted every so many slots."""
    machine, digests = LockMachine(), Digests("a", LogConfig(View(0, ("a", "b", "c"))))
    digests.begin(machine.fingerprint())
    began = time.thread_time()
    for number in range(1, 5_001):
        digests.note(number * digests.step, machine.fingerprint())
    return (time.thread_time() - began) / 5_000 * 1e6 / (AGREED_SLOTS // STEPS)


def measure(rounds: int) -> dict[str, float]:
    best: dict[str, float] = {}
    for _ in range(rounds):
        for name, fresh in (("one lock", False), ("a new lock each", True)):
            written = commands(fresh)
            with no_digest():
                plain = pair_us(written)
            kept = pair_us(written)
            best[f"{name}, without"] = min(plain, best.get(f"{name}, without", plain))
            best[f"{name}, with"] = min(kept, best.get(f"{name}, with", kept))
    best["a slot's share of a digest"] = min(slot_us() for _ in range(rounds))
    return best


def main() -> int:
    options = options_of(
        __doc__,
        rounds=(15, "of each kind (default: 15)"),
        pair_us=(PAIR_US, "a whole pair on a node"),
    )
    times = measure(options.rounds)
    slot = 2 * times["a slot's share of a digest"]  # At worst each command has its own slot.
    figures: list[BarFigure] = []
    for name in ("one lock", "a new lock each"):
        kept, plain = times[f"{name}, with"], times[f"{name}, without"]
        cost_us, most_us = kept - plain + slot, SHARE_MAX * options.pair_us
        figures.append(lower_is_better(f"a pair of {name}", "us", [kept], [plain], None))
        figures.append(below(f"its digest, of {options.pair_us:g} us", "us", cost_us, most_us))
    return reported("Digests", "with", "without", figures, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
