"""A lone client that marks its steps, and the pairs that its thread makes meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from fencelock.cluster.client import connection as connecting
from fencelock.cluster.client.callback_executor import ThreadExecutor
from fencelock.cluster.client.client import Client
from fencelock.cluster.client.operation import drive
from fencelock.cluster.client.settings import Settings, Target
from fencelock.verification.bench.job import Job
from fencelock.verification.bench.load import CONNECT_S, WARM_PAIRS
from fencelock.verification.bench.profile_marks import ProfileMarks, now_ns

TTL_S = 15.0

PAIRS_MAX = 10_000
"""Limit of pairs: more are not worth the memory of their marks."""


def marked_pairs(job: Job, begin: Callable[[], None]) -> dict[str, int]:
    """Take and give back one lock, alone; write the marks, and return the number of pairs.

    The file has ``session`` (the nodes' name of the client's link), ``pairs`` (for each the times
    of the call of acquire, of the call of release, and of its return) and ``marks``. All times
    are ns of the monotonic clock.
    """
    marks = ProfileMarks()
    marks.watch_dispatchers_of(connecting)
    settings = Settings(
        Target.find(job.address, job.cluster), timeout=CONNECT_S, ttl=TTL_S, label=None
    )
    connection = connecting.Connection(settings, ThreadExecutor())
    pairs: list[tuple[int, int, int]] = []
    with Client(connection) as client:
        drive(connection.greeting())
        begin()
        lock = client.lock(job.lock)
        for _ in range(WARM_PAIRS):
            lock.acquire()
            lock.release()
        ends = now_ns() + int(job.seconds * 1e9)
        while (called := now_ns()) < ends and len(pairs) < PAIRS_MAX:
            lock.acquire()
            held = now_ns()
            lock.release()
            pairs.append((called, held, now_ns()))
        session = client.session
    seen = {"session": session, "pairs": pairs, "marks": list(marks.marks)}
    Path(job.marks).write_text(json.dumps(seen), encoding="utf-8")
    return {"times": len(pairs)}
