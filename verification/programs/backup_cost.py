"""The latency of a pair while backups are made, beside that without, in one run.

Three members of `paxos` as processes. Slices without and with ``fencelock backup`` alternate. The
command runs in a process that was started before, and that gets only the processor time that nobody
else wants (``SCHED_IDLE``): an operator's machine is another one. With equal shares on two cores,
even ``fencelock status`` in its place makes p99 more than twice as high.
p50 and p99 are medians over the slices, so that a burst of other work on the machine counts little.
Run it as ``python verification/programs/backup_cost.py``; it exits with 1 if p99 during backups is
more than 1.5 times as high.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from beside import Pairs, options_of, reported
from catch_up import load

from fencelock import aio
from fencelock.verification.bench.members import NodeProcesses
from fencelock.verification.bench.report import BarFigure, compared_times

SLOWER_MAX = 1.5
"""The bar: p99 during backups, as a multiple of that without."""

QUIET_S = 1.0

OPERATOR = """
import os, sys
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
from fencelock.cluster.cli.main import app
import fencelock.cluster.cli.backup
import fencelock.cluster.client.client
import fencelock.cluster.node.storage.backup
for line in sys.stdin:
    app(["backup", *line.split()], standalone_mode=False)
    print("done", flush=True)
"""
"""An operator's process: makes a backup for each line, which has the arguments."""


def measure(folder: Path, kept: int, threads: int, rounds: int) -> tuple[int, list[BarFigure]]:
    """Return the size of a backup, and pairs while backups are made beside those without."""
    slices: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
    with (
        NodeProcesses(folder, "paxos", 3, durable=True) as members,
        members.ready_client(ttl=600) as client,
    ):
        loads = [Pairs(client.lock(f"measured-{number}")) for number in range(threads)]
        asyncio.run(_keep(members, kept, lambda: _measure(members, folder, loads, rounds, slices)))
        size = max(file.stat().st_size for file in folder.glob("*.backup"))
    each = {
        what: [[took for one in loads for took in one.took(*span)] for span in spans]
        for what, spans in slices.items()
    }
    return size, compared_times("pair", each["with"], each["without"], None, SLOWER_MAX)


async def _keep(members: NodeProcesses, kept: int, then: Callable[[], object]) -> None:
    """Hold ``kept`` locks while ``then`` runs."""
    async with aio.connect(members.connect, cluster=members.cluster, ttl=600) as client:
        await load(client, kept, 0)
        await asyncio.to_thread(then)


def _measure(
    members: NodeProcesses,
    folder: Path,
    loads: list[Pairs],
    rounds: int,
    slices: dict[str, list[tuple[float, float]]],
) -> None:
    where = f"--connect {members.connect} --cluster {members.cluster}"
    with (
        ExitStack() as stack,
        subprocess.Popen(
            [sys.executable, "-c", OPERATOR],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as operator,
    ):
        for one in loads:
            stack.enter_context(one)
        assert operator.stdin is not None
        assert operator.stdout is not None
        for number in range(-1, rounds):  # The first one imports missing modules.
            began = time.monotonic()
            time.sleep(QUIET_S)
            between = time.monotonic()
            print(f"{folder / str(number)}.backup {where}", file=operator.stdin, flush=True)
            while "done" not in (line := operator.stdout.readline()):
                assert line, "the backup failed"
            if number >= 0:
                slices["without"].append((began, between))
                slices["with"].append((between, time.monotonic()))
        operator.stdin.close()


def main() -> int:
    options = options_of(
        __doc__,
        kept=(20_000, "locks that are held meanwhile"),
        threads=(4, "clients' threads"),
        rounds=(10, "backups"),
    )
    with tempfile.TemporaryDirectory() as folder:
        size, figures = measure(Path(folder), options.kept, options.threads, options.rounds)
    title = f"A pair while backups of {size / 1e6:.1f} MB are made"
    return reported(title, "with", "without", figures, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
