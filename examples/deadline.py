"""A lock that a hanging job loses: python examples/deadline.py tcp://127.0.0.1:4041

The first job renews its hold while it makes progress. The second job hangs: the cluster takes the
lock away from it, and grants it to the next job under a higher fence.
"""

from __future__ import annotations

import sys
import threading
import time

import fencelock

DURATION_S, GRACE_S = 1.0, 0.5


def main(addresses: str, cluster: str) -> None:
    with fencelock.connect(addresses, cluster=cluster) as client:
        lock = client.lock("report", duration=DURATION_S, grace=GRACE_S)
        with lock as hold:
            for part in range(1, 4):
                time.sleep(DURATION_S / 2)  # This stands for the work.
                hold.renew()
                print(f"part {part} is done; the lock is held for {lock.remaining:.1f} s more")
        print(f"the report was written under fence {hold.fence}")

        hanging = client.lock("report", duration=DURATION_S, grace=GRACE_S)
        lost = threading.Event()
        hanging.on_unlocking(lambda _: print("the duration is over: release or renew"))
        hanging.on_lost(lambda _: lost.set())
        late = hanging.acquire()
        following = client.lock("report").acquire()  # This waits until the deadline.
        lost.wait()
        print(f"the hold under fence {late.fence} was lost; the next has fence {following.fence}")
        following.release()
        try:
            late.raise_if_lost()
        except fencelock.LockOwnershipLostError as error:
            print(error)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "fencelock")
