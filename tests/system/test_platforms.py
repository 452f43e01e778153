"""Clients on systems without what POSIX has: a process in which those modules and calls are hidden.

It cannot show that libzmq works there, only that fencelock asks for nothing more.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.programs import run_to_end

from fencelock.testing import local

HIDE = """
import ctypes, importlib.abc, os, select, signal, socket, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in {"fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "syslog"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
for hidden in ("fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "syslog"):
    sys.modules.pop(hidden, None)
MISSING = {
    os: "eventfd EFD_CLOEXEC EFD_NONBLOCK register_at_fork sched_yield sched_getaffinity fork "
        "getuid geteuid getpgid setsid killpg O_CLOEXEC O_DIRECTORY O_NOFOLLOW pread pwrite",
    select: "poll epoll",
    signal: "SIGKILL SIGHUP SIGUSR1 pthread_sigmask set_wakeup_fd",
    socket: "TCP_INFO",
}
for module, names in MISSING.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
library = ctypes.CDLL
ctypes.CDLL = lambda name, *args, **kwargs: library(name, *args, **kwargs) if name else 1 / 0
"""

CLIENT = """
import asyncio, threading
import fencelock, fencelock.aio, fencelock.guard

with fencelock.connect() as client, fencelock.connect() as other:
    with client.lock("orders/42") as hold:
        assert other.lock("orders/42").acquire(blocking=False) is None
        waiting = other.lock("orders/42")
        waiter = threading.Thread(target=lambda: waiting.acquire(timeout=30).release())
        waiter.start()
    waiter.join()

async def main():
    async with fencelock.aio.connect() as client:
        async with client.lock("orders/43") as hold:
            print("held under", hold.fence)

asyncio.run(main())
"""

NODE = """
import fencelock

try:
    fencelock.Node.start("cluster.toml", "n1")
except fencelock.UnsupportedError as error:
    print(error)
"""


def run_hidden(program: str, cwd: Path | None = None) -> str:
    done = run_to_end([sys.executable, "-c", HIDE + program], cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_client_needs_nothing_that_windows_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    with local() as cluster:
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)
        assert "held under" in run_hidden(CLIENT)


def test_a_node_names_what_it_needs(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "fencelock", "init"], cwd=tmp_path, check=True)
    output = run_hidden(NODE, cwd=tmp_path)
    assert "a node needs a POSIX system such as Linux or macOS" in output
