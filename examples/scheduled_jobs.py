"""APScheduler: several machines have the same jobs, and the leader's scheduler runs them.

    FENCELOCK_CONNECT=tcp://10.0.0.1:4040 python examples/scheduled_jobs.py /srv/reports

Start it on each machine. If the one that leads ends, the next goes on at once; if it dies, within
the `ttl` of its client, 15 s. SIGTERM and Ctrl-C end it in order, after its running jobs.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from apscheduler.schedulers.blocking import BlockingScheduler

import fencelock
from fencelock.contrib.apscheduler import LeaderOnly
from fencelock.guard import FileGuard

EVERY_S = 1.0


def write_report(leader: LeaderOnly, file: Path) -> None:
    """Append a line, unless a later leader has written: this machine may have been paused."""
    term = leader.term
    if term is None:
        return
    with FileGuard(file).writing(term.fence), file.open("a") as report:
        report.write(f"{term.fence} {time.time():.3f}\n")


def main(folder: Path, every_s: float = EVERY_S) -> None:
    scheduler = BlockingScheduler(timezone="UTC")
    with LeaderOnly(scheduler, fencelock.election("reports")) as leader:
        job = [leader, folder / "report"]
        scheduler.add_job(write_report, "interval", job, seconds=every_s, max_instances=1)
        scheduler.start()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    main(Path(sys.argv[1]), *map(float, sys.argv[2:]))
