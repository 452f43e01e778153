"""A process of clients that retain one lock: threads hold it in turns, and report each hold.

Arguments: the addresses, the folder of the guarded file, and the TTL (s).

It writes ``+ FENCE TIME RETAINED`` when a thread has the lock. When that is about to release it, it
writes ``- FENCE TIME UPDATED``, unless the hold was lost by then. TIME is of the monotonic clock,
which all processes of a machine share. A line on its standard input ends it.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path

import fencelock
from fencelock.guard import FileGuard, StaleFenceError

THREADS = 3


def main() -> None:
    addresses, folder, ttl = sys.argv[1:]
    ledger = Path(folder, "ledger")
    over, guard, writing = threading.Event(), FileGuard(ledger), threading.Lock()

    def say(*words: object) -> None:
        with writing:
            print(*words, flush=True)

    def work(chance: random.Random, client: fencelock.Client) -> None:
        lock = client.lock("a", retain=1.0, cohort=chance.choice([0, 4]))
        while not over.is_set():
            try:
                hold = lock.acquire(timeout=1)
                if hold is None:
                    continue
                say("+", hold.fence, time.monotonic(), int(hold.own.retained is not None))
                updated = update(guard, ledger, hold.fence, chance.uniform(0, 0.003))
                left = time.monotonic()
                if hold.held:
                    say("-", hold.fence, left, int(updated))
                hold.release()
            except (fencelock.LockOwnershipLostError, fencelock.UnavailableError):
                pass  # It was stopped, or its node was busy.

    with fencelock.connect(addresses, ttl=float(ttl), connect_timeout=60) as client:
        threads = [
            threading.Thread(target=work, args=(random.Random(number), client))
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        sys.stdin.readline()
        over.set()
        for thread in threads:
            thread.join()


def update(guard: FileGuard, ledger: Path, fence: int, pause_s: float) -> bool:
    """Count one more update under ``fence``; return whether the file accepts it."""
    before = int(ledger.read_text(encoding="ascii") or 0) if ledger.exists() else 0
    time.sleep(pause_s)  # The work that the lock protects takes its time.
    try:
        guard.write(str(before + 1).encode(), fence)
    except StaleFenceError:
        return False
    return True


if __name__ == "__main__":
    main()
