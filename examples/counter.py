"""Order numbers without gaps or repetitions: python examples/counter.py tcp://127.0.0.1:4041

Four tills give each order the next number. A till that takes over the day's closing adds up under a
lock: the cluster refuses what it adds after it has lost the lock.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import fencelock

TILLS = 4
ORDERS = 20
LONG_S = 30


def main(addresses: str, cluster: str) -> None:
    with (
        fencelock.connect(addresses, cluster=cluster) as client,
        ThreadPoolExecutor(TILLS) as threads,
    ):
        orders = client.counter("orders")
        orders.set(0)
        numbers = sorted(threads.map(orders.add, [1] * ORDERS))
        print(f"order numbers {numbers[0]} to {numbers[-1]}, each of them once: {len(numbers)}")

        total = client.counter("total")
        total.set(0)
        slow = client.lock("closing").acquire(timeout=LONG_S)
        assert slow
        client.evict("closing", slow.fence, operator="example")
        with client.lock("closing", timeout=LONG_S) as hold:
            print(f"the second till closes: total is {total.add(orders.get(), fence=hold)}")
            try:
                total.add(orders.get(), fence=slow)
            except fencelock.NotHeldError as error:
                print(f"the first till was refused: {error}")
        print(f"total is {total.get()}")
        orders.set(0)  # A counter at 0 leaves no state.
        total.set(0)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "fencelock")
