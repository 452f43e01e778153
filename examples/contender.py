"""One client process of examples/cluster.py: competes for locks and writes while it holds them.

It begins when it reads a line, and writes events as lines of JSON:
{"event": "ready" | "granted" | "done", ...}.
"""

from __future__ import annotations

import json
import random
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from checked_file import CheckedFile

import fencelock

HOLD_S = (0.0, 0.004)
"""Range of the protected work's duration, drawn anew each time (s)."""

CONNECT_S = 60.0
"""Time limit for the reply of a running node on a busy machine (s)."""

PATIENCE_S = 5.0
"""Timeout of one acquire, after which the contender checks the time (s)."""


OVER = "over"
"""The name of a file that ends the contest before its time."""


def say(event: str, **details: Any) -> None:
    """Write one line for the parent."""
    print(json.dumps({"event": event, **details}), flush=True)


def contend(
    name: Annotated[str, typer.Option(help="What to call this client.")],
    connect: Annotated[str, typer.Option(help="Node addresses, separated by commas.")],
    cluster: Annotated[str, typer.Option(help="The cluster's id.")],
    locks: Annotated[int, typer.Option(help="How many locks there are.")],
    seconds: Annotated[float, typer.Option(help="How long to fight (s).")],
    folder: Annotated[Path, typer.Option(help="Where the shared files lie.")],
) -> None:
    """Compete for locks until the time is over."""
    chance = random.Random(name)
    names = [f"lock-{number + 1}" for number in range(locks)]
    files = {lock: CheckedFile(folder, lock) for lock in names}
    grants = 0
    with fencelock.connect(connect, cluster=cluster, connect_timeout=CONNECT_S) as client:
        say("ready", client=name)
        if not sys.stdin.readline():  # The parent says when, so that all begin together.
            return  # It is gone.
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not (folder / OVER).exists():
            lock = client.lock(chance.choice(names), owner=name)
            began = time.monotonic()
            hold = lock.acquire(timeout=PATIENCE_S)
            if hold is None:
                continue
            at = time.monotonic()
            with suppress(fencelock.StaleFenceError):  # The file counts it, for the verdict.
                files[lock.name].append(name, hold.fence, chance.uniform(*HOLD_S))
            grants += 1
            hold.release()
            say(
                "granted",
                client=name,
                lock=lock.name,
                fence=hold.fence,
                at_ms=int(1000 * at),
                waited_ms=1000 * (at - began),
            )
    say(
        "done",
        client=name,
        grants=grants,
        overlaps=sum(file.findings.overlaps for file in files.values()),
        fence_regressions=sum(file.findings.fence_regressions for file in files.values()),
    )


if __name__ == "__main__":
    typer.run(contend)
