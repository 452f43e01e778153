"""The size of a member's journal under a steady load, and the duration of a restart.

Three members of `paxos` as processes. Many owners take and release locks, while others are held so
that snapshots are not empty. Then all members are killed, and started again.
Run it as ``python verification/programs/growth.py --commands 500000``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from beside import journal_bytes, options_of, peaks_of
from catch_up import load

from fencelock import aio
from fencelock.cluster.node.storage.journal import Journal
from fencelock.verification.bench.members import NodeProcesses

OWNERS = 256
"""Tasks that take and release locks at the same time, each a lock of its own."""


async def grow(members: NodeProcesses, commands: int, kept: int) -> float:
    """Have ``commands`` decided while ``kept`` locks are held; return the seconds."""
    async with aio.connect(members.connect, cluster=members.cluster, ttl=600) as client:
        await load(client, kept, 0)
        began = time.monotonic()

        async def work(number: int) -> None:
            lock = client.lock(f"lock-of-{number}")
            for _ in range(commands // (2 * OWNERS)):
                async with lock:
                    pass

        await asyncio.gather(*map(work, range(OWNERS)))
        return time.monotonic() - began


def reading_s(folder: Path) -> float:
    """Return how long the journal of a node that does not run takes to be read (s)."""
    began = time.monotonic()
    journal = Journal.open(folder)
    journal.take_records()
    read_s = time.monotonic() - began
    journal.close()
    return read_s


def measure(folder: Path, commands: int, most_bytes: int, kept: int) -> dict[str, float]:
    """Return the largest journal (bytes), and the seconds of the load, of reading the largest
    journal and of a restart of all members.
    """
    members = NodeProcesses(folder, "paxos", 3, durable=True)
    with (folder / "cluster.toml").open("a", encoding="utf-8") as file:
        file.write(f"journal_bytes = {most_bytes}\n")  # Of the last table, [paxos].
    with members:
        members.ready_client().close()
        with peaks_of(members, journal_bytes) as most:
            seconds = asyncio.run(grow(members, commands, kept))
        for node in members.names:
            members.kill(node)
        read_s = max(reading_s(folder / "data" / node) for node in members.names)
        began = time.monotonic()
        for node in members.names:
            members.start(node)
        members.ready_client().close()
        return {
            "commands": commands,
            "seconds": seconds,
            "bytes_max": max(most.values()),
            "read_s": read_s,
            "restart_s": time.monotonic() - began,
        }


def main() -> int:
    options = options_of(
        __doc__,
        commands=(500_000, "acquires and releases"),
        journal_bytes=(8 << 20, "written before a member compacts its journal"),
        kept=(1_000, "locks that are held meanwhile"),
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = (Path(folder), options.commands, options.journal_bytes, options.kept)
        found = measure(*arguments)
    if options.json:
        print(json.dumps(found))
    else:
        print(", ".join(f"{name} {value:,.4g}" for name, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
