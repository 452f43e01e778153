"""PySyncObj: its replicated lock manager over three processes, clients as observers of them.

Run as a program it is one member: ``pysyncobj_members.py PORT OTHER-PORT OTHER-PORT``.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from peers.peer import LOCK_S, ComparedPeer, Handle, Spec, answers

POLL_S = 0.003
ASK_S = 2.0
"""Time after which a request without a reply is sent again (s)."""
SETTINGS = {"appendEntriesUseBatch": False, "autoTickPeriod": 0.01, "appendEntriesPeriod": 0.02}
"""Commands leave at once instead of every 100 ms: the fastest of the tried settings."""


class PySyncObj(ComparedPeer):
    """Three members that keep the log in memory: its journal is a mapped file, never synced."""

    name = "pysyncobj"
    packages = ("pysyncobj",)

    def version(self) -> str:
        return f"PySyncObj {metadata.version('pysyncobj')} ReplLockManager, log in memory"

    def start_server(self, index: int) -> None:
        port = self._ports[index]
        others = [str(other) for other in self._ports if other != port]
        command = [sys.executable, str(Path(__file__)), str(port), *others]
        search = str(Path(__file__).resolve().parent.parent)
        self.servers.start(index, command, {"PYTHONPATH": f"{search}:{':'.join(sys.path)}"})

    def serves(self) -> bool:
        return all(answers(port) is not None for port in self._ports)


def _member(address: str | None, others: list[str]) -> tuple[Any, Any]:
    """Return the object that is a member, or without an address an observer, and its locks."""
    pysyncobj: Any = import_module("pysyncobj")
    batteries: Any = import_module("pysyncobj.batteries")
    locks = batteries.ReplLockManager(autoUnlockTime=LOCK_S)
    settings = pysyncobj.SyncObjConf(**SETTINGS)
    return pysyncobj.SyncObj(address, others, conf=settings, consumers=[locks]), locks


class PySyncObjConnection:
    """An observer of the members: it has the log, may propose, and has no vote."""

    def __init__(self, spec: Spec) -> None:
        self._member, self._locks = _member(None, [f"127.0.0.1:{port}" for port in spec["ports"]])
        self._inside: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()
        while not self._member.isReady():
            time.sleep(0.02)

    def lock(self, name: str) -> Handle:
        """Return a handle; threads of a process are one owner, so they share a local lock."""
        with self._guard:
            inside = self._inside.setdefault(name, threading.Lock())
        return PySyncObjHandle(self._locks, name, inside)

    def close(self) -> None:
        self._locks.destroy()
        self._member.destroy()


class PySyncObjHandle:
    """Polls: the lock manager has no waiting. What failed is asked again, as one owner may."""

    def __init__(self, locks: Any, name: str, inside: threading.Lock) -> None:
        pysyncobj: Any = import_module("pysyncobj")
        self._error: type[Exception] = pysyncobj.SyncObjException
        self._locks = locks
        self._name = name
        self._inside = inside

    def acquire(self) -> None:
        self._inside.acquire()
        while not self._ask(self._locks.tryAcquire):
            time.sleep(POLL_S)

    def release(self) -> None:
        """Release, and let the next thread of this process try."""
        self._ask(self._locks.release)
        self._inside.release()

    def _ask(self, question: Callable[..., Any]) -> Any:
        while True:
            try:
                return question(self._name, sync=True, timeout=ASK_S)
            except self._error:  # The leader changed, or the link to it broke.
                time.sleep(POLL_S)


def main() -> None:
    own, *others = (f"127.0.0.1:{port}" for port in sys.argv[1:])
    member, locks = _member(own, others)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    locks.destroy()
    with contextlib.suppress(OSError):
        member.destroy()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main()
