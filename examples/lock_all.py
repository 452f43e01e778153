"""Transfers between accounts, each under two locks: python examples/lock_all.py tcp://127.0.0.1:4041

Six threads move money in all directions between three accounts. Each transfer holds the locks of
two accounts, which are granted together. So no two transfers can wait for each other.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations

import fencelock

TRANSFERS = 5
LONG_S = 60


def main(addresses: str, cluster: str) -> None:
    balances = {"ann": 100, "ben": 100, "cat": 100}
    with fencelock.connect(addresses, cluster=cluster) as client, ThreadPoolExecutor() as threads:

        def transfer(pair: tuple[str, ...]) -> str:
            source, target = pair
            for _ in range(TRANSFERS):
                with client.lock_all(f"account/{source}", f"account/{target}") as holds:
                    assert len(holds.fences) == len(pair)  # A store would check them.
                    balances[source] -= 1
                    balances[target] += 1
            return f"{source} sent {TRANSFERS} to {target}"

        for line in threads.map(transfer, permutations(balances, 2), timeout=LONG_S):
            print(line)
    print(f"all together: {sum(balances.values())}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "fencelock")
