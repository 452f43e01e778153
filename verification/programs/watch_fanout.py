"""The cost of a change for its watchers.

Run it as ``python verification/programs/watch_fanout.py [--watchers 1000]``.

The program runs three nodes in memory, client processes that watch one election, and a client that
leads in this election again and again. An event is one change that one watcher has received. The
next term begins when all watchers have received the last change.

With ``--others`` as many further watches wait for elections that do not change. They must cost
nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import fencelock
import fencelock.aio
from fencelock.verification.bench.members import NodeProcesses

CLIENTS = 4
WATCHES_OF_CLIENT = 900
AT_ONCE = 100
"""Number of first reads in flight. A client may have 256 queries without a reply."""
LONG_S = 120.0


async def watch(addresses: str, count: int, others: int) -> None:
    """Run one client process, which prints a line whenever all its watches have seen a change."""
    clients: list[fencelock.aio.Client] = []
    for _ in range(-(-(count + others) // WATCHES_OF_CLIENT)):
        clients.append(await fencelock.aio.connect(addresses, cluster="bench"))
    elections = [client.election("s") for client in clients]
    watches = [elections[number % len(clients)].watch() for number in range(count)]
    idle = [
        clients[number % len(clients)].election(f"o{number}").watch() for number in range(others)
    ]
    every = [*idle, *watches]
    for group in range(0, len(every), AT_ONCE):
        await asyncio.gather(*map(anext, every[group : group + AT_ONCE]))
    waits = [asyncio.create_task(anext(one)) for one in idle]
    while not any(wait.done() for wait in waits):
        print(flush=True)
        await asyncio.gather(*map(anext, watches))


def measure(watchers: int, others: int, changes: int) -> float:
    """Return the events per second."""
    with (
        tempfile.TemporaryDirectory() as folder,
        NodeProcesses(Path(folder), "paxos", 3, durable=False) as nodes,
        nodes.ready_client() as client,
    ):
        arguments = [nodes.connect, str(watchers // CLIENTS), str(others // CLIENTS)]
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--watch", *arguments], stdout=subprocess.PIPE
            )
            for _ in range(CLIENTS)
        ]
        try:
            election = client.election("s")

            def follow() -> None:
                for process in processes:
                    assert process.stdout is not None
                    assert process.stdout.readline()

            follow()
            began = 0.0
            for turn in range(-1, changes // 2):  # The first turn warms up.
                began = began if turn else time.perf_counter()
                term = election.lead("me").acquire()
                assert term
                follow()
                term.release()
                follow()
            return changes * (watchers // CLIENTS) * CLIENTS / (time.perf_counter() - began)
        finally:
            for process in processes:
                process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the cost of a change for its watchers.")
    parser.add_argument("--watchers", type=int, default=1_000)
    parser.add_argument("--others", type=int, default=0)
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--watch", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.watch:
        addresses, count, others = given.watch
        asyncio.run(watch(addresses, int(count), int(others)))
        return
    events = measure(given.watchers, given.others, given.changes)
    print(
        f"{given.watchers} watchers, {given.others} others: {events:,.0f} events/s, "
        f"{1000 * given.watchers / events:.0f} ms a change"
    )


if __name__ == "__main__":
    main()
