"""Measures while a load runs, and the command lines and results of programs that measure."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from itertools import pairwise
from typing import Self

from rich.console import Console

import fencelock
from fencelock.verification.bench.machine import resident_bytes
from fencelock.verification.bench.members import BenchFailedError, NodeProcesses
from fencelock.verification.bench.report import BarFigure, table_of


def options_of(
    doc: str | None, *, has_json: bool = True, **numbers: tuple[float, str]
) -> Namespace:
    """Return ``--json`` and an option for each of ``numbers``, by its default and its help."""
    return parser_of(doc, has_json=has_json, **numbers).parse_args()


def parser_of(
    doc: str | None, *, has_json: bool = True, **numbers: tuple[float, str]
) -> ArgumentParser:
    """Return what `options_of` parses with, for a program that has further options."""
    parser = ArgumentParser(description=(doc or "").partition("\n")[0])
    if has_json:
        parser.add_argument("--json", action="store_true", help="print one JSON object")
    for name, (default, text) in numbers.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=type(default), default=default, help=text)
    return parser


def reported(
    title: str, ours: str, other: str, figures: Sequence[BarFigure], *, as_json: bool
) -> int:
    """Print figures as a table or as one JSON object; return 1 if a bar is missed, else 0."""
    ok = all(figure.met for figure in figures)
    if as_json:
        print(json.dumps({"ok": ok, "figures": [asdict(figure) for figure in figures]}))
    else:
        Console().print(table_of(title, ours, other, figures))
    return 0 if ok else 1


AGAIN_S = 0.01
"""Pause before a pair that failed is tried again (s)."""

PAIR_S = 30.0
"""Time for which a pair is tried again (s)."""


class Pairs:
    """Takes and releases a lock on a thread of its own, again and again, in a ``with`` statement.

    A pair that fails is tried again: it takes as long as all its attempts.
    """

    def __init__(self, lock: AbstractContextManager[object], pause_s: float = 0.0) -> None:
        self.spans: list[tuple[float, float]] = []
        """The begin and the end of each pair (s, of ``time.monotonic``)."""
        self.failures = 0
        self._lock = lock
        self._pause_s = pause_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def took(self) -> list[float]:
        """Return how long each pair took (s), shortest first."""
        return sorted(end - began for began, end in self.spans)

    def longest_gap(self, begins: float, ends: float) -> float:
        """Return the longest time without the end of a pair between these two times (s)."""
        between = [begins, *(end for _, end in self.spans if begins < end < ends), ends]
        return max(later - at for at, later in pairwise(between))

    def _run(self) -> None:
        while not self._over.wait(self._pause_s):
            began = time.monotonic()
            while not self._pair() and time.monotonic() < began + PAIR_S:
                time.sleep(AGAIN_S)
            self.spans.append((began, time.monotonic()))

    def _pair(self) -> bool:
        try:
            with self._lock:
                return True
        except fencelock.FencelockError:
            self.failures += 1
            return False


Look = Callable[[NodeProcesses], dict[str, float]]
"""Returns a figure of each node that has one now."""


def memory_of(members: NodeProcesses) -> dict[str, float]:
    """Return the resident memory of each node (MiB)."""
    found: dict[str, float] = {}
    for node, process in members.processes.items():
        with contextlib.suppress(BenchFailedError):
            found[node] = resident_bytes(process.pid) / (1 << 20)
    return found


def journal_bytes(members: NodeProcesses) -> dict[str, float]:
    """Return the size of each journal of which no segment is removed just now."""
    sizes: dict[str, float] = {}
    for node in members.names:
        files = (members.folder / "data" / node).rglob("*")
        with contextlib.suppress(FileNotFoundError):
            sizes[node] = sum(file.stat().st_size for file in files if file.is_file())
    return sizes


@contextlib.contextmanager
def peaks_of(members: NodeProcesses, look: Look = memory_of) -> Generator[dict[str, float]]:
    """Collect the largest figure of each node."""
    peaks, over = look(members), threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            for node, figure in look(members).items():
                peaks[node] = max(peaks.get(node, 0.0), figure)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peaks
    finally:
        over.set()
        watcher.join()
