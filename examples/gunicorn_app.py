"""gunicorn: worker processes that are forked from one that has loaded the application.

    FENCELOCK_CONNECT=tcp://10.0.0.1:4040 gunicorn -c gunicorn_conf.py gunicorn_app:application

A client belongs to the process that connected. `gunicorn_conf.py` has each worker connect after
the fork; a client of the parent would raise `ClosedError` in the workers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

import fencelock

clients: dict[int, fencelock.Client] = {}
"""The client of this process, by its id: the parent has none."""


def connect() -> None:
    """Connect this process."""
    clients[os.getpid()] = fencelock.connect()


def close() -> None:
    """Release what this process holds."""
    if client := clients.pop(os.getpid(), None):
        client.close()


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer with the process and the fence under which the request was served."""
    with clients[os.getpid()].lock(f"pages{environ['PATH_INFO']}", timeout=5) as hold:
        answer = {"process": os.getpid(), "fence": hold.fence}
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(answer).encode()]
