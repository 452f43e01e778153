"""The configuration of gunicorn for gunicorn_app.py."""

from __future__ import annotations

from typing import Any

import gunicorn_app

preload_app = True
workers = 2


def post_fork(server: Any, worker: Any) -> None:
    """Connect in a new worker."""
    del server, worker
    gunicorn_app.connect()


def worker_exit(server: Any, worker: Any) -> None:
    """Release what a worker holds when it ends."""
    del server, worker
    gunicorn_app.close()
