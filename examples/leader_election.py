"""One of several schedulers works at a time: python examples/leader_election.py tcp://127.0.0.1:4041

Three workers can schedule. Each of them leads once, under a fence of its own, and then steps down.
Meanwhile three followers watch the election, as any other program can.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import fencelock

WORKERS = 3
LONG_S = 30


def main(addresses: str, cluster: str) -> None:
    with (
        fencelock.connect(addresses, cluster=cluster) as client,
        ThreadPoolExecutor(2 * WORKERS) as threads,
    ):
        election = client.election("scheduler")
        ready = Barrier(2 * WORKERS)

        def work(worker: int) -> str:
            ready.wait(LONG_S)
            with election.lead(f"10.0.0.{worker}:8080") as term:
                leader = election.leader()
                assert leader is not None
                assert leader.fence == term.fence
                return f"worker {worker} leads under fence {term.fence}"

        def follow(_: int) -> list[str]:
            watch = election.watch()
            seen = [watch.get(LONG_S)]  # The present leader, which is None before anybody leads.
            ready.wait(LONG_S)
            while sum(leader is None for leader in seen[1:]) < WORKERS:
                seen.append(watch.get(LONG_S))
            return [leader.value for leader in seen if leader is not None]

        followers = threads.map(follow, range(WORKERS))
        for result in threads.map(work, range(1, WORKERS + 1)):
            print(result)
        views = list(followers)
        assert all(view == views[0] for view in views)
        print("all followers saw", ", then ".join(views[0]))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "fencelock")
