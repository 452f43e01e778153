"""Attack three real nodes with one client's key: fill maps and latches up to the default quotas.

The hostile key is limited to a prefix. It puts empty entries, then values of 64 KiB, then makes
latches, each until `TRIES` requests were sent or the quota refuses. After each, and after the
hostile session has ended, a client with another key must be served. Then an operator deletes it all
while the other key's client measures its locks. The program prints what it saw, and exits 1 if the
other client was ever refused, or waited longer than `GAP_MAX_S` while the operator deleted.

Usage::

    python verification/programs/quotas.py [--tries 100000] [--large 5000]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from beside import Pairs, options_of

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from support.expect import PATIENCE_S
from support.real_nodes import KeyedProcesses

import fencelock
from fencelock import aio
from fencelock.actors.api.account import Purge
from fencelock.actors.proxy.access import CLIENT, Rights
from fencelock.cluster.keys import add_key

TRIES = 100_000
LARGE = 5_000
AT_ONCE = 128
GAP_MAX_S = 0.5
"""Maximum time of a lock's acquire and release while an operator deletes (s). The machine also runs
the deletion, so this is above the cluster's own share."""


async def send(
    count: int, at_once: int, act: Callable[[int], Awaitable[object]]
) -> tuple[int, int, str]:
    """Send requests, some at once; return the numbers done and refused, and a refusal's text."""
    numbers = iter(range(count))
    done = refused = 0
    text = ""

    async def worker() -> None:
        nonlocal done, refused, text
        for number in numbers:
            try:
                await act(number)
                done += 1
            except fencelock.OverloadedError as error:
                refused += 1
                text = str(error)
            except fencelock.UnavailableError:
                pass  # It took too long on a busy machine: its outcome is unknown.

    await asyncio.gather(*(worker() for _ in range(at_once)))
    return done, refused, text


async def attack(processes: KeyedProcesses, tries: int, large: int) -> None:
    key = processes.folder / "keys" / "shop.key"
    async with aio.connect(
        processes.connect, cluster=processes.cluster, key=key, connect_timeout=PATIENCE_S
    ) as client:
        entries = client.map("orders/m")
        values = client.map("orders/large")
        plans: dict[str, tuple[int, Callable[[int], Awaitable[object]]]] = {
            "64 KiB values": (large, lambda n: values.put(f"v{n}", bytes(65_536))),
            "empty entries": (tries, lambda n: entries.put(f"k{n}", b"")),
            "latches": (tries, lambda n: client.latch(f"orders/{n}", count=2).count_down()),
        }
        for what, (count, act) in plans.items():
            began = time.monotonic()
            done, refused, text = await send(count, 16 if count == large else AT_ONCE, act)
            print(f"{what}: {done:,} done, {refused:,} refused, {time.monotonic() - began:.1f} s")
            print(f"  {text or 'nothing was refused'}", flush=True)
            check_served(processes, what)
            if what == "64 KiB values":  # Else the entries would be refused for their bytes.
                delete_all(processes, "map")


def check_served(processes: KeyedProcesses, when: str) -> None:
    """Let a client with another key put an entry, make a latch and take a lock."""
    with processes.client("till") as other:
        name = f"tills/{when}"
        other.map(name).put("k", b"value")
        other.latch(name, count=2).count_down()
        with other.lock(name):
            pass


def delete_all(processes: KeyedProcesses, *kinds: str) -> float:
    """Delete what the hostile key left; return the longest pair of another client (s)."""
    began = time.monotonic()
    with (
        processes.client("till") as other,
        processes.client("alice") as operator,
        Pairs(other.lock("tills/probe")) as pairs,
    ):
        for kind in kinds:
            purge = Purge(kind=kind, prefix="", operator="bench", account="shop")
            print(f"deleted {operator.purge(purge):,} of kind {kind}")
    longest = pairs.took()[-1]
    print(
        f"{time.monotonic() - began:.1f} s, longest pair of another client {longest:.3f} s, "
        f"{GAP_MAX_S} s are allowed",
        flush=True,
    )
    return longest


def started(folder: Path) -> KeyedProcesses:
    """Return nodes with keys for the hostile client, for another one and for an operator."""
    processes = KeyedProcesses(folder, "paxos", 3, durable=True)
    add_key(folder / "keys", Rights("till", CLIENT, ("tills/",)))
    return processes


def main() -> int:
    numbers = {"tries": (TRIES, "entries, and latches"), "large": (LARGE, "values of 64 KiB")}
    options = options_of(__doc__, has_json=False, **numbers)
    with tempfile.TemporaryDirectory() as folder, started(Path(folder)) as processes:
        asyncio.run(attack(processes, options.tries, options.large))
        check_served(processes, "after the session ended")
        longest = delete_all(processes, "map", "latch")
    return 0 if longest <= GAP_MAX_S else 1


if __name__ == "__main__":
    sys.exit(main())
