"""Print the modules that an acquire and release enter, in a client and three nodes, as JSON.

Run as a program of its own: the profile function must be set before any thread starts. Each module
is printed with the share of acquire-and-release pairs that entered it (0.0 to 1.0). Heartbeats are
rare here, and only the quickest pairs count: a pair that a busy machine draws out enters what the
roles do by the clock, too.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import fencelock
from fencelock.cluster.node.config import parse
from fencelock.cluster.testing.ports import free_ports
from support.paths import ROOT

WARM, PAIRS, QUICKEST = 40, 120, 20
"""By `WARM` pairs everything is connected and elected; of the next `PAIRS`, `QUICKEST` count."""

CONFIG = """
cluster = "fencelock"
protocol = "paxos"
data = "journals"
[paxos]
heartbeat_ms = 125
""" + "".join(f'[nodes.n{i}]\naddress = "tcp://127.0.0.1:{{}}"\n' for i in (1, 2, 3))

entered: set[str] = set()


def note(frame: FrameType, event: str, arg: object) -> None:
    if event == "call":
        entered.add(frame.f_code.co_filename)


def note_no_watcher(frame: FrameType, event: str, arg: object) -> None:
    """Turn the noting off in the thread that watches the memory of connections.

    It looks by the clock, so a slow machine would find it on the way of every lock.
    """
    if threading.current_thread().name == "fencelock-held-bytes":
        sys.setprofile(None)
    else:
        sys.setprofile(note)
        note(frame, event, arg)


def walk(folder: Path) -> Counter[str]:
    """Return the number of the quickest pairs that entered each file; 0 if only others did."""
    ports = free_ports(3)
    config = parse(CONFIG.format(*ports), folder)
    walked: list[tuple[float, frozenset[str]]] = []
    with ExitStack() as stack:
        for node in config.nodes:
            stack.enter_context(fencelock.Node.start(config, node, found=True))
        addresses = ",".join(f"tcp://127.0.0.1:{port}" for port in ports)
        lock = stack.enter_context(fencelock.connect(addresses)).lock("walk")
        for _ in range(WARM + PAIRS):
            entered.clear()
            began = time.perf_counter()
            lock.acquire()
            lock.release()
            walked.append((time.perf_counter() - began, frozenset(tuple(entered))))
    in_order = sorted(walked[WARM:], key=lambda pair: pair[0])
    counted = Counter[str]({file: 0 for _, files in in_order for file in files})
    counted.update(file for _, files in in_order[:QUICKEST] for file in files)
    return counted


if __name__ == "__main__":
    threading.setprofile(note_no_watcher)
    sys.setprofile(note)
    with TemporaryDirectory() as journals:
        counted = walk(Path(journals))
    sys.setprofile(None)
    ours = {
        str(path.relative_to(ROOT)): pairs / QUICKEST
        for file, pairs in counted.items()
        if (path := Path(file).resolve()).is_relative_to(ROOT)
        and path.relative_to(ROOT).parts[0] in ("actors", "transport", "cluster")
    }
    print(json.dumps(ours))
