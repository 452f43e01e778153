"""The processor time of each node while a member that missed much catches up.

Three members of `paxos` as processes. The last one is killed, misses a snapshot and many slots, and
comes back. It fetches from the leader first, and in a second cluster from the follower.
Run it as ``python verification/programs/catch_up.py``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from beside import options_of
from rich.console import Console
from rich.table import Table

import fencelock
from fencelock import aio
from fencelock.verification.bench.machine import processor_s
from fencelock.verification.bench.members import NodeProcesses, described, leader_among

LOG_MAX = 500
"""Decided slots that the members keep here; a member that lacks older ones gets a snapshot."""

PROGRAM = f"""
from functools import partial
from fencelock.actors.paxos.snapshots import CatchUp
from fencelock.cluster.node import topology
from fencelock.cluster.cli.start import main
topology.LogOptions = partial(topology.LogOptions, log_max={LOG_MAX})
if SOURCE == "leader":
    CatchUp._choose = lambda self, now: self.leading_node or self._others()[0]
main()
"""
"""A node whose catch-up asks the member SOURCE: the leader, or as in the product a follower."""

TASKS = 64
LONG_S = 60.0


class CatchUpProcesses(NodeProcesses):
    """A cluster whose nodes run `PROGRAM`."""

    def __init__(self, folder: Path, source: str) -> None:
        super().__init__(folder, "paxos", 3, durable=True)
        self.program = ("-c", PROGRAM.replace("SOURCE", repr(source)))


async def load(client: aio.Client, kept: int, slots: int) -> None:
    """Hold ``kept`` locks, and then let the log grow by ``slots`` slots or a few more."""

    async def keep(first: int) -> None:
        for number in range(first, kept, TASKS):
            await client.lock(f"kept-{number:06d}", owner="bench").acquire()

    async with asyncio.TaskGroup() as group:
        for first in range(min(TASKS, kept)):
            group.create_task(keep(first))
    lock = client.lock("often")
    end = (await client.status("often")).slot + slots
    while (await client.status("often")).slot < end:
        for _ in range(min(100, 1 + slots // 2)):
            async with lock:
                pass


def applied(status: fencelock.NodeStatus) -> int:
    """Return the first slot that a node has not applied; 0 if it does not know yet."""
    for role in status.roles:
        if role.name == "replica":
            return int(dict(role.summary)["next"])
    return 0


def wait_until_applied(members: NodeProcesses, node: str, target: int) -> None:
    ends = time.monotonic() + LONG_S
    address = members.addresses[node]
    with fencelock.connect(address, cluster=members.cluster, connect_timeout=LONG_S) as client:
        while not any(applied(status) >= target for status in client.describe(roles=True)):
            if time.monotonic() > ends:
                raise TimeoutError(f"{node} did not catch up")


async def measure(folder: Path, source: str, kept: int, slots: int) -> dict[str, float]:
    """Return the processor time of each node while the third one catches up (ms), and its time."""
    with (
        CatchUpProcesses(folder, source) as members,
        members.ready_client() as watcher,
    ):
        leader = leader_among(described(watcher))
        follower, late = sorted(set(members.names) - {leader})
        members.kill(late)
        async with aio.connect(members.connect, cluster=members.cluster, ttl=600) as client:
            await load(client, kept, slots)
            target = (await client.status("often")).slot
            before = [1e3 * processor_s(members.processes[node].pid) for node in (leader, follower)]
            began = time.monotonic()
            members.start(late)
            wait_until_applied(members, late, target)
            took = time.monotonic() - began
            used = {
                who: 1e3 * processor_s(members.processes[node].pid) - earlier
                for who, node, earlier in zip(
                    ("leader", "follower"), (leader, follower), before, strict=True
                )
            }
            used["late"] = 1e3 * processor_s(members.processes[late].pid)
            assert leader_among(described(watcher)) == leader, "another node leads now: repeat it"
    return {**used, "seconds": took}


def share(used: dict[str, float]) -> float:
    return used["leader"] / (used["leader"] + used["follower"])


def main() -> int:
    options = options_of(
        __doc__,
        kept=(20_000, "locks that are held meanwhile"),
        slots=(3_000, "slots that are missed"),
    )
    found: dict[str, dict[str, float]] = {}
    for source in ("leader", "follower"):
        with tempfile.TemporaryDirectory() as folder:
            measured = measure(Path(folder), source, options.kept, options.slots)
            found[source] = asyncio.run(measured)
    ok = share(found["follower"]) <= share(found["leader"])
    if options.json:
        print(json.dumps({"ok": ok, "ms": found}))
        return 0 if ok else 1
    title = f"Processor time while a member catches up: {options.kept} locks, {options.slots} slots"
    shown = Table("source", "leader", "follower", "late member", "leader's share", title=title)
    for source, used in found.items():
        cells = [f"{used[who]:.0f} ms" for who in ("leader", "follower", "late")]
        shown.add_row(source, *cells, f"{share(used):.0%}")
    Console().print(shown)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
