"""A pool of three printers for all machines: python examples/semaphore.py tcp://127.0.0.1:4041

Five threads print at once. The semaphore lets three of them through; one takes all printers.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import fencelock

PRINTERS = 3


def main(addresses: str, cluster: str) -> None:
    with (
        fencelock.connect(addresses, cluster=cluster) as client,
        ThreadPoolExecutor() as threads,
    ):
        printers = client.semaphore("printers", permits=PRINTERS)

        def print_page(page: int) -> str:
            with printers as hold:
                busy = sum(holder.times for holder in printers.status().holders)
                assert 1 <= busy <= PRINTERS
                return f"page {page} under fence {hold.fence}"

        for printed in threads.map(print_page, range(1, 6)):
            print(printed)
        hold = printers.acquire(PRINTERS)
        print(f"all {PRINTERS} printers are mine under fence {hold.fence}")
        printers.release(2)  # Others may use two of them.
        hold.release()  # What is left.


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "fencelock")
