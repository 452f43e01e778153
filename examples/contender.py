"""One client process of examples/cluster.py: competes for locks and writes while it holds them.

With --objects it competes for objects of all kinds in turn (`contests.py`).

It begins to compete when it reads a line, and writes events as lines of JSON:
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
from contest import PATIENCE_S, Player, Turn
from contests import CONTESTS

import fencelock

HOLD_S = (0.0, 0.004)
"""Range of the protected work's duration, drawn anew each time (s)."""

CONNECT_S = 60.0
"""Time limit for the reply of a running node on a busy machine (s)."""


OVER = "over"
"""The name of a file that ends the contest before its time."""


def say(event: str, **details: Any) -> None:
    """Write one line for the parent."""
    print(json.dumps({"event": event, **details}), flush=True)


def contend(
    name: Annotated[str, typer.Option(help="The name of this client.")],
    connect: Annotated[str, typer.Option(help="Node addresses, separated by commas.")],
    cluster: Annotated[str, typer.Option(help="The cluster's id.")],
    locks: Annotated[int, typer.Option(help="Number of locks.")],
    seconds: Annotated[float, typer.Option(help="Time to compete (s).")],
    folder: Annotated[Path, typer.Option(help="Folder of the shared files.")],
    objects: Annotated[bool, typer.Option("--objects", help="Use objects of all kinds.")] = False,
    ttl: Annotated[float, typer.Option(help="TTL of the client's session (s).")] = 15,
) -> None:
    """Compete until the time is over."""
    chance = random.Random(name)
    names = [f"lock-{number + 1}" for number in range(locks)]
    files = {lock: CheckedFile(folder, lock) for lock in names}
    contests = [contest(folder) for contest in CONTESTS] if objects else []
    grants = 0
    with fencelock.connect(
        connect, cluster=cluster, connect_timeout=CONNECT_S, label=name, ttl=ttl
    ) as client:
        player = Player(name, client, chance)
        say("ready", client=name)
        if not sys.stdin.readline():  # The parent says when, so that all begin together.
            return  # It is gone.
        for contest in contests:
            contest.begin(player)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not (folder / OVER).exists():
            chosen = chance.choice(contests) if contests else None
            turn = chosen.play(player) if chosen else play(player, files)
            if turn is None:
                continue
            grants += 1
            kind = chosen.kind if chosen else ""
            say("granted", client=name, kind=kind, at_ms=turn.at_ms, waited_ms=turn.waited_ms)
    say(
        "done",
        client=name,
        grants=grants,
        overlaps=sum(file.findings.overlaps for file in files.values()),
        fence_regressions=sum(file.findings.fence_regressions for file in files.values()),
    )


def play(player: Player, files: dict[str, CheckedFile]) -> Turn | None:
    """Acquire one of the locks, and write to its file."""
    lock = player.client.lock(player.chance.choice(list(files)), owner=player.name)
    began = time.monotonic()
    hold = lock.acquire(timeout=PATIENCE_S)
    if hold is None:
        return None
    turn = Turn.since(began)
    with suppress(fencelock.StaleFenceError):  # The file counts these errors for the verdict.
        files[lock.name].append(player.name, hold.fence, player.chance.uniform(*HOLD_S))
    hold.release()
    return turn


if __name__ == "__main__":
    typer.run(contend)
