"""Measure a well-behaved client while a stranger attacks three real nodes on loopback.

Each attack (`attackers.py`) is a separate process, bounded in time, bytes and connections. It runs
at the lowest priority, as if it had its own processors: the run measures how the nodes handle its
frames. Before each attack the client is measured undisturbed, in the same run.

On few processors, the attacker and the work of the attacked nodes take time from every process of
the machine. The control shows how much: a client of a second cluster, which is not attacked, takes
and releases a lock in the same seconds. Both clients pause between pairs, so that they do not
disturb each other.

The program prints a table and exits 1 if a bar is missed: p99 of the client at most `RATIO_MAX`
times its undisturbed p99 or the control's, no pair longer than `GAP_MAX_MS` and the control's
longest, no node exits, no hold is lost, and the resident memory of each node stays below
`MEMORY_MAX_MIB`.

Usage::

    python verification/programs/attacks.py [--seconds 5] [--only nested --only idle] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from attackers import ATTACKS
from beside import Pairs, peaks_of

import fencelock
from fencelock.verification.bench.members import NodeProcesses
from fencelock.verification.bench.report import p50_p99

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from support.real_nodes import KeyedProcesses

RATIO_MAX = 3.0
"""Maximum factor of the p99 of a pair under attack."""

MEMORY_MAX_MIB = 640.0
"""Resident memory of each node, during and after every attack."""

GAP_MAX_MS = 200.0
"""Maximum of the longest pair under attack (ms), or that of the control in the same seconds."""

PAUSE_S = 0.004
"""Pause between two pairs (s)."""

DESCRIPTORS = 1024
"""The limit of open files of each node: attacks with connections go beyond it."""

ATTACKERS = Path(__file__).with_name("attackers.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackOutcome:
    """The effects of one attack on the client and the nodes."""

    attack: str
    quiet_p50_ms: float
    quiet_p99_ms: float
    quiet_longest_ms: float
    p50_ms: float
    p99_ms: float
    ratio: float
    pairs: int
    longest_ms: float
    control_p99_ms: float
    control_longest_ms: float
    load: float
    exits: int
    hold_kept: bool
    memory_mib: float

    @property
    def met(self) -> bool:
        safe = self.exits == 0 and self.hold_kept and self.pairs > 0
        prompt = self.longest_ms <= max(GAP_MAX_MS, self.control_longest_ms)
        quick = self.p99_ms <= RATIO_MAX * max(self.quiet_p99_ms, self.control_p99_ms)
        return safe and prompt and quick and self.memory_mib <= MEMORY_MAX_MIB


def both(
    lock: fencelock.Lock, control: fencelock.Lock, work: Callable[[], object]
) -> tuple[list[float], list[float]]:
    """Do ``work``; return how long pairs of both locks took meanwhile, shortest first (ms)."""
    with Pairs(lock, PAUSE_S) as pairs, Pairs(control, PAUSE_S) as beside:
        work()
    return [1_000 * took for took in pairs.took()], [1_000 * took for took in beside.took()]


def measure(attack: str, seconds: float) -> AttackOutcome:
    """Start a cluster, measure a client undisturbed and then under ``attack``."""
    with tempfile.TemporaryDirectory(prefix="attack-") as folder, contextlib.ExitStack() as stack:
        kind = KeyedProcesses if attack.startswith("keyed-") else NodeProcesses
        members = stack.enter_context(kind(Path(folder), "paxos", 3, durable=True))
        for process in members.processes.values():
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        client = stack.enter_context(members.ready_client())
        others = stack.enter_context(tempfile.TemporaryDirectory(prefix="control-"))
        beside = stack.enter_context(NodeProcesses(Path(others), "paxos", 3, durable=True))
        control = stack.enter_context(beside.ready_client())
        held, lock, other = client.lock("held"), client.lock("pairs"), control.lock("pairs")
        stack.enter_context(contextlib.suppress(fencelock.FencelockError))
        held.acquire()
        both(lock, other, lambda: time.sleep(seconds / 3))
        quiet, _ = both(lock, other, lambda: time.sleep(seconds))
        command = [sys.executable, str(ATTACKERS), attack, str(seconds), members.cluster]
        peaks = stack.enter_context(peaks_of(members))
        environment = {**os.environ, "FENCELOCK_KEY": str(Path(folder) / "keys" / "shop.key")}
        command += members.addresses.values()

        def attacked() -> None:
            subprocess.run(command, env=environment, check=False)
            time.sleep(1.0)  # What is queued still has to be worked off.

        loud, calm = both(lock, other, attacked)
        exits = sum(one.poll() is not None for one in members.processes.values())
        (quiet_p50, quiet_p99), (p50, p99) = p50_p99(quiet), p50_p99(loud)
        return AttackOutcome(
            attack=attack,
            quiet_p50_ms=quiet_p50,
            quiet_p99_ms=quiet_p99,
            quiet_longest_ms=quiet[-1],
            p50_ms=p50,
            p99_ms=p99,
            ratio=p99 / quiet_p99,
            pairs=len(loud),
            longest_ms=loud[-1],
            control_p99_ms=p50_p99(calm)[1],
            control_longest_ms=calm[-1],
            load=os.getloadavg()[0],
            exits=exits,
            hold_kept=held.held,
            memory_mib=max(peaks.values()),
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each phase (s)")
    parser.add_argument("--only", action="append", choices=ATTACKS)
    parser.add_argument("--json", action="store_true", help="end with one JSON array")
    given = parser.parse_args()
    outcomes: list[AttackOutcome] = []
    heads = (
        "attack",
        "p50",
        "p99",
        "longest",
        "p50 att.",
        "p99 att.",
        "ratio",
        "longest",
        "p99 control",
        "longest",
        "load",
        "exits",
        "MiB",
    )
    print("".join(f"{head:>13}" for head in heads), "(ms)")
    for attack in given.only or ATTACKS:
        one = measure(attack, given.seconds)
        outcomes.append(one)
        quiet = one.quiet_p50_ms, one.quiet_p99_ms, one.quiet_longest_ms
        figures = (*quiet, one.p50_ms, one.p99_ms, one.ratio)
        row = "".join(f"{figure:>13.1f}" for figure in (*figures, one.longest_ms))
        machine = one.control_p99_ms, one.control_longest_ms, one.load
        beside = "".join(f"{figure:>13.1f}" for figure in machine)
        kept = "" if one.hold_kept else "  HOLD LOST"
        verdict = "ok" if one.met else "MISSED"
        print(f"{attack:>13}{row}{beside}{one.exits:>13}{one.memory_mib:>13.0f}  {verdict}{kept}")
    if given.json:
        print(json.dumps([asdict(one) for one in outcomes]))
    return 0 if all(one.met for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
