"""fencelock's asyncio client: one process, many tasks, each with a lock of its own.

Told what to do and answers as compare_client.py does.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from importlib import import_module
from typing import Any


async def run(connect: str, tasks: int, warm_s: float, seconds: float) -> int:
    """Return the pairs that ``tasks`` tasks made in ``seconds`` after the warm-up."""
    aio: Any = import_module("fencelock.aio")
    async with aio.connect(connect, cluster="compare") as client:
        pairs = 0
        counted_from = ends = 0.0

        async def contend(number: int) -> None:
            nonlocal pairs
            lock = client.lock(f"task-{number}")
            while (began := time.monotonic()) < ends:
                await lock.acquire()
                await lock.release()
                if began >= counted_from and time.monotonic() <= ends:
                    pairs += 1

        print(json.dumps({"event": "ready"}), flush=True)
        if not await asyncio.to_thread(sys.stdin.readline):
            raise SystemExit("whoever started this client is gone")
        counted_from = time.monotonic() + warm_s
        ends = counted_from + seconds
        async with asyncio.TaskGroup() as group:
            for number in range(tasks):
                group.create_task(contend(number))
    return pairs


def main() -> None:
    """Run the task of the command line."""
    task = json.loads(sys.argv[1])
    pairs = asyncio.run(run(**task))
    print(json.dumps({"event": "done", "pairs": pairs}), flush=True)


if __name__ == "__main__":
    main()
