"""gunicorn: worker processes that are forked from one that has loaded the application.

    FENCELOCK_CONNECT=tcp://10.0.0.1:4040 gunicorn -c gunicorn_conf.py gunicorn_app:application

Each worker connects when it first needs a lock, after the fork. What it holds is released when it
ends.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

import fencelock


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer with the process and the fence under which the request was served."""
    with fencelock.lock(f"pages{environ['PATH_INFO']}", timeout=5) as hold:
        answer = {"process": os.getpid(), "fence": hold.fence}
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(answer).encode()]
