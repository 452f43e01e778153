"""Measure a client beside five floods of a stranger, with three real nodes on loopback.

The floods (`attackers.py`, `FLOODS`) come one at a time, each to a cluster of its own: many
connections, many frames, readers that do not read, many sessions, many locks of one client. They
go to the node that leads, which also serves the client. A flood runs at the lowest priority: it
would come from another machine, and shall not take the processors of the nodes on this one.

The client takes and releases one lock, undisturbed and then beside the flood. p50 and p99 are
medians over slices of `SLICE_S`, so that a burst of other work on the machine counts little. The
program prints them, and the resident memory of each node before and at its peak. It exits
with 1 if p99 beside a flood is more than `RATIO_MAX` times as high as undisturbed, a node grows
beyond `MEMORY_MAX_MIB`, a node exits, or the client loses a hold.

Usage::

    python verification/programs/flood.py [--seconds 10] [--only sessions --only locks] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from attackers import FLOODS
from attacks import ATTACKERS
from beside import Pairs, memory_of, peaks_of

import fencelock
from fencelock.verification.bench.members import NodeProcesses, described, leader_among
from fencelock.verification.bench.report import p50_p99

RATIO_MAX = 2.0
"""Maximum factor of the p99 of a pair beside a flood."""

MEMORY_MAX_MIB = 384.0
"""Maximum resident memory of a node at any time: libzmq takes some 29 KiB for a connection."""

WARM_UP_S = 2.0

SLICE_S = 2.0
"""Length of a slice (s)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FloodOutcome:
    """The effects of one flood on the client and the nodes."""

    flood: str
    did: dict[str, object]
    quiet_p50_ms: float
    quiet_p99_ms: float
    p50_ms: float
    p99_ms: float
    ratio: float
    longest_ms: float
    mib_before: dict[str, float]
    mib_peak: dict[str, float]
    exits: int
    hold_kept: bool

    @property
    def met(self) -> bool:
        safe = self.exits == 0 and self.hold_kept
        return safe and self.ratio <= RATIO_MAX and max(self.mib_peak.values()) <= MEMORY_MAX_MIB


def pairs_ms(lock: fencelock.Lock, seconds: float) -> list[float]:
    """Return how long the pairs of ``lock`` take in the next ``seconds``, shortest first (ms)."""
    with Pairs(lock) as pairs:
        time.sleep(seconds)
    return [1_000 * took for took in pairs.took()]


def sliced(lock: fencelock.Lock, seconds: float) -> tuple[float, float, float]:
    """Return the medians over slices of p50 and p99, and the longest pair (ms)."""
    each = [pairs_ms(lock, SLICE_S) for _ in range(max(1, round(seconds / SLICE_S)))]
    p50, p99 = map(statistics.median, zip(*map(p50_p99, each), strict=True))
    return p50, p99, max(one[-1] for one in each)


def measure(flood: str, seconds: float) -> FloodOutcome:
    """Start a cluster, measure a client undisturbed and then beside ``flood``."""
    with tempfile.TemporaryDirectory(prefix="flood-") as folder, contextlib.ExitStack() as stack:
        members = stack.enter_context(NodeProcesses(Path(folder), "paxos", 3, durable=True))
        client = stack.enter_context(members.ready_client())
        leads = leader_among(described(client))
        addresses = [members.addresses[leads], *members.addresses.values()]
        held, lock = client.lock("held"), client.lock("pairs")
        stack.enter_context(contextlib.suppress(fencelock.FencelockError))
        held.acquire()
        pairs_ms(lock, WARM_UP_S)
        before = memory_of(members)
        quiet_p50, quiet_p99, _ = sliced(lock, seconds)
        peaks = stack.enter_context(peaks_of(members))
        command = [sys.executable, str(ATTACKERS), flood, str(seconds), members.cluster]
        with subprocess.Popen([*command, *addresses], stdout=subprocess.PIPE) as attacking:
            p50, p99, longest = sliced(lock, seconds)
            did = json.loads(attacking.communicate()[0] or "{}")
        return FloodOutcome(
            flood=flood,
            did=did,
            quiet_p50_ms=quiet_p50,
            quiet_p99_ms=quiet_p99,
            p50_ms=p50,
            p99_ms=p99,
            ratio=p99 / quiet_p99,
            longest_ms=longest,
            mib_before=before,
            mib_peak=dict(peaks),
            exits=sum(one.poll() is not None for one in members.processes.values()),
            hold_kept=held.held,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each phase (s)")
    parser.add_argument("--only", action="append", choices=FLOODS)
    parser.add_argument("--json", action="store_true", help="end with one JSON array")
    given = parser.parse_args()
    print("Floods run with nice 19: they stand for a stranger on another machine. Times in ms.")
    heads = "flood", "p50", "p99", "p50 beside", "p99 beside", "ratio", "longest"
    print("".join(f"{head:>12}" for head in heads), "  MiB of each node before > peak")
    outcomes: list[FloodOutcome] = []
    for flood in given.only or FLOODS:
        one = measure(flood, given.seconds)
        outcomes.append(one)
        figures = one.quiet_p50_ms, one.quiet_p99_ms, one.p50_ms, one.p99_ms, one.ratio
        row = "".join(f"{figure:>12.2f}" for figure in (*figures, one.longest_ms))
        grown = (f"{mib:.0f}>{one.mib_peak[node]:.0f}" for node, mib in one.mib_before.items())
        verdict = "ok" if one.met else "MISSED"
        lost = "" if one.hold_kept else "  HOLD LOST"
        ended = f"  {one.exits} NODES ENDED" if one.exits else ""
        print(f"{flood:>12}{row}   {' '.join(grown)}  {verdict}{lost}{ended}")
        print(f"{'':>12}  {', '.join(f'{what}: {value}' for what, value in one.did.items())}")
    if given.json:
        print(json.dumps([asdict(one) for one in outcomes]))
    return 0 if all(one.met for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
