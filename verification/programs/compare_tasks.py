"""fencelock's asyncio client: one process, one task or many, each with a lock of its own.

Told what to do and answers as compare_client.py does.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from importlib import import_module
from typing import Any


async def run(
    connect: str, tasks: int, warm_s: float, seconds: float, lock: dict[str, Any]
) -> list[int]:
    """Return the durations (ns) of the pairs of ``tasks`` tasks in ``seconds`` after the warm-up.

    ``lock`` has the arguments of `aio.Client.lock` besides the name.
    """
    aio: Any = import_module("fencelock.aio")
    async with aio.connect(connect, cluster="compare") as client:
        durations: list[int] = []
        counted_from = ends = 0

        async def contend(number: int) -> None:
            own = client.lock(f"task-{number}", **lock)
            while (began := time.monotonic_ns()) < ends:
                await own.acquire()
                await own.release()
                now = time.monotonic_ns()
                if began >= counted_from and now <= ends:
                    durations.append(now - began)

        print(json.dumps({"event": "ready"}), flush=True)
        if not await asyncio.to_thread(sys.stdin.readline):
            raise SystemExit("whoever started this client is gone")
        counted_from = time.monotonic_ns() + int(warm_s * 1e9)
        ends = counted_from + int(seconds * 1e9)
        async with asyncio.TaskGroup() as group:
            for number in range(tasks):
                group.create_task(contend(number))
    return durations


def main() -> None:
    """Run the task of the command line."""
    task = json.loads(sys.argv[1])
    durations = asyncio.run(run(**task))
    print(json.dumps({"event": "done", "durations": durations}), flush=True)


if __name__ == "__main__":
    main()
