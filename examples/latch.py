"""A release that starts everywhere at once: python examples/latch.py tcp://127.0.0.1:4041

Three machines prepare a release. All of them switch over once the last one is ready. A machine that
comes late switches over at once.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import fencelock

MACHINES = 3
LONG_S = 30


def main(addresses: str, cluster: str) -> None:
    with (
        fencelock.connect(addresses, cluster=cluster) as client,
        ThreadPoolExecutor(MACHINES) as threads,
    ):
        release = f"release {uuid4()}"  # A latch opens once: each release has its own.
        ready = client.latch(release, count=MACHINES)

        def prepare(machine: int) -> str:
            left = ready.count_down()
            print(f"machine {machine} is ready; machines that are not ready: {left}")
            if not ready.wait(timeout=LONG_S):
                return f"machine {machine} gives up; machines that are not ready: {ready.count()}"
            return f"machine {machine} switches over"

        for result in threads.map(prepare, range(1, MACHINES + 1)):
            print(result)
        if ready.wait(timeout=0):
            print("a machine that comes late switches over at once")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "fencelock")
