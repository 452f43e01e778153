"""A release that starts everywhere at once: python examples/latch.py tcp://127.0.0.1:4041

Three machines prepare a release. All of them switch over once the last one is ready. A machine that
comes late switches over at once.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import fencelock

MACHINES = 3
LONG_S = 30


def main(addresses: str, cluster: str) -> None:
    with (
        fencelock.connect(addresses, cluster=cluster) as client,
        ThreadPoolExecutor(MACHINES) as threads,
    ):
        ready = client.latch("release 7", count=MACHINES)

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
