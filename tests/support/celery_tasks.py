"""Tasks for a real worker of Celery, which report when they run, and end on request."""

from __future__ import annotations

import os

from celery import Celery

import fencelock
from fencelock.contrib.celery import current_hold, once_a_period, one_at_a_time

TTL_S = 2.0

app = Celery("celery_tasks", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
app.conf.broker_connection_retry_on_startup = True
fencelock.configure(ttl=TTL_S)


def run(name: str) -> int:
    """Say which process runs ``name``; return its number when the latch ``end/name`` opens."""
    fencelock.map("processes").put(name, str(os.getpid()).encode())
    fencelock.latch(f"run/{name}", 1).count_down()
    fencelock.latch(f"end/{name}", 1).wait()
    return os.getpid()


@app.task
@one_at_a_time("report/{day}")
def report(day: str) -> int:
    """Return the fence under which it ran."""
    run(day)
    return current_hold().fence


@app.task(default_retry_delay=0.1, max_retries=None)
@one_at_a_time("report/{day}", otherwise="retry")
def report_later(day: str) -> int:
    return current_hold().fence


@app.task(max_retries=0)
@one_at_a_time("report/{day}", timeout=0.1, otherwise="retry")
def report_or_fail(day: str) -> int:
    return current_hold().fence


@app.task
@once_a_period("nightly/{name}", 3600)
def nightly(name: str, *, fails: bool = False) -> int:
    if fails:
        raise ValueError(name)
    return run(name)
