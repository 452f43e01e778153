"""A computation in rounds: python examples/barrier.py tcp://127.0.0.1:4041

Each of four workers does a part of the work. No worker begins a round before all workers have
finished the round before. The worker that arrives last at the barrier prints a line.
"""

from __future__ import annotations

import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import fencelock

WORKERS = 4
ROUNDS = 3
LONG_S = 30


def main(addresses: str, cluster: str) -> None:
    done = [0] * WORKERS
    with (
        fencelock.connect(addresses, cluster=cluster) as client,
        ThreadPoolExecutor(WORKERS) as threads,
    ):
        barrier = client.barrier("rounds", parties=WORKERS)

        def work(worker: int) -> None:
            for number in range(1, ROUNDS + 1):
                time.sleep(random.uniform(0, 0.05))
                done[worker] = number
                index = barrier.wait(LONG_S)
                if index == WORKERS - 1:
                    print(f"round {number}: worker {worker} was the last of {WORKERS}")
                barrier.wait(LONG_S)  # No worker changes the result before all have used it.
                assert min(done) >= number

        list(threads.map(work, range(WORKERS)))
        try:
            barrier.wait(timeout=0.2)
        except fencelock.BrokenBarrierError as error:
            print(f"no other worker came: {error}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "fencelock")
