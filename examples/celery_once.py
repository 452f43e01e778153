"""Celery: a task that runs once at a time, however often it is sent.

    FENCELOCK_CONNECT=tcp://10.0.0.1:4040 celery -A celery_once worker

A task that finds the lock taken is skipped. Brokers deliver a task again when a worker dies or is
slow, so "once" needs both the lock, against two at a time, and a record of what is done.
"""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery

from fencelock.contrib.celery import current_hold, one_at_a_time
from fencelock.guard import FileGuard

app = Celery("celery_once", broker=os.environ.get("CELERY_BROKER", "memory://"))
app.conf.update(task_acks_late=True, result_backend="cache+memory://")


@app.task
@one_at_a_time("report/{day}")
def write_report(day: str, folder: str) -> str:
    """Write the report of ``day``, unless another worker does or has done it."""
    report = Path(folder) / f"report-{day}"
    if report.exists():
        return "done before"
    FileGuard(report).write(f"the report of {day}\n".encode(), current_hold().fence)
    return "written"
