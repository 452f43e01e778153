"""A store that refuses late writers: python examples/fenced_map.py tcp://127.0.0.1:4041

Two workers keep a counter in a map, under one lock. The first worker is slow: it loses the lock
while it works, and the second worker takes over. Then the first worker writes its result. Because
every write names a hold of the lock, the cluster refuses this write.
"""

from __future__ import annotations

import sys

import fencelock

LONG_S = 30


def main(addresses: str, cluster: str) -> None:
    with (
        fencelock.connect(addresses, cluster=cluster, label="first") as first,
        fencelock.connect(addresses, cluster=cluster, label="second") as second,
    ):
        counters = first.map("counters")
        counters.put("orders", b"41")

        slow = first.lock("orders").acquire(timeout=LONG_S)
        assert slow
        entry = counters.get("orders")
        assert entry is not None
        computed = int(entry.value) + 1  # While this runs, an operator takes the lock away.
        second.evict("orders", slow.fence, operator="example")

        with second.lock("orders", timeout=LONG_S) as hold:
            version = second.map("counters").put("orders", b"100", fence=hold)
            print(f"the second worker wrote 100 under fence {hold.fence}, version {version}")

            try:
                counters.put("orders", b"%d" % computed, fence=slow)
            except fencelock.NotHeldError as error:
                print(f"the first worker, under fence {slow.fence}, was refused: {error}")

        entry = counters.get("orders")
        assert entry is not None
        print(f"orders is {entry.value.decode()}, version {entry.version}")
        counters.delete("orders")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "fencelock")
