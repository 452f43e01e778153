"""Programs and servers that tests run, and without which they are skipped, but never in CI."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from support.paths import PROGRAMS


def package(name: str, where: str = "it is in the extra 'examples' or 'redis'") -> None:
    """Skip the test if the package ``name`` is missing; in CI, fail. ``where`` names its source."""
    if importlib.util.find_spec(name) is None:
        _without(f"{name} is not installed: {where}")


def program(name: str, *places: str) -> str:
    """Return the path of a program, also from folders like ``usr/lib/*/bin``; else as above."""
    found = shutil.which(name)
    for place in places:
        found = found or next(map(str, sorted(Path("/").glob(f"{place}/{name}"))), None)
    if found is None:
        _without(f"{name} is not installed: .ci/run installs it with apt as root")
    assert found is not None
    return found


def _without(reason: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


LONG_S = 120.0


def run_to_end(
    command: Sequence[str], *, timeout: float = LONG_S, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command; return its status, and what it printed.

    Args:
        command: the program and its arguments.
        timeout: how long it may take (s).
        check: whether a status other than 0 is an error.
        options: of `subprocess.run`.

    """
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=check, **options
    )


class Child(subprocess.Popen[str]):
    """A process of Python with which a test talks through pipes, line by line."""

    def __init__(self, *arguments: str, **options: Any) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **options}
        super().__init__([sys.executable, *arguments], text=True, **pipes)

    @property
    def lines(self) -> IO[str]:
        """What it prints."""
        assert self.stdout is not None
        return self.stdout

    def line(self) -> str:
        """Return the next line that it prints."""
        return self.lines.readline().strip()

    def send(self, *lines: str) -> None:
        assert self.stdin is not None
        self.stdin.write("".join(f"{line}\n" for line in lines))
        self.stdin.flush()


forks = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
"""A mark for tests that fork, which Python warns of where there are threads."""


def in_child(work: Callable[[], bool]) -> None:
    """Check that ``work`` returns True in a forked process."""
    child = os.fork()
    if child == 0:  # No assertion and no cleanup of pytest's may run here.
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def refusal(error: type[Exception] | tuple[type[Exception], ...], use: Callable[[], object]) -> str:
    """Return the text of the ``error`` that ``use`` raises, or nothing if it raises none."""
    try:
        use()
    except error as refused:
        return str(refused)
    return ""


def run_program(program: str, *options: str) -> tuple[dict[str, Any], int]:
    """Run ``program`` with ``--json``; return what it prints, and its exit status."""
    ended = run_to_end([sys.executable, str(PROGRAMS / program), "--json", *options])
    assert ended.stderr == ""
    found: dict[str, Any] = json.loads(ended.stdout)
    return found, ended.returncode


START_S = 60.0
"""Time within which a server must answer (s)."""


@contextmanager
def folder_of(user: str | None) -> Generator[Path]:
    """Make a temporary folder that belongs to ``user``, None for the present one."""
    with tempfile.TemporaryDirectory(prefix="fl-", dir="/tmp") as name:  # Sockets: short paths.
        if user is not None:
            shutil.chown(name, user)
        yield Path(name)


def until_answered(ask: Callable[[], Any], server: subprocess.Popen[bytes], errors: Any) -> None:
    """Return when ``ask`` raises none of ``errors``."""
    ends = time.monotonic() + START_S
    while True:
        try:
            ask()
        except errors:
            if server.poll() is not None or time.monotonic() > ends:
                raise
            time.sleep(0.02)  # A server's start cannot be waited for in another way.
        else:
            return


@contextmanager
def running(
    command: list[str], cwd: Path, user: str | None = None
) -> Generator[subprocess.Popen[bytes]]:
    """Run a server; stop it afterwards."""
    with ExitStack() as last, (cwd / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=cwd, user=user, stdout=log, stderr=log)
        last.callback(server.wait, START_S)
        last.callback(server.send_signal, signal.SIGINT)
        yield server


@contextmanager
def redis_server() -> Generator[Any]:
    """Run a Redis server; return a client of it."""
    import redis  # noqa: PLC0415

    redis_program = program("redis-server")
    with folder_of(None) as folder:
        socket = str(folder / "redis.sock")
        command = [redis_program, "--port", "0", "--unixsocket", socket, "--save", ""]
        with running(command, folder) as server:
            client: Any = redis.Redis(unix_socket_path=socket)
            until_answered(client.ping, server, redis.ConnectionError)
            yield client
            client.close()


@contextmanager
def postgres_server() -> Generator[str]:
    """Run a PostgreSQL server; return the connection string of its database."""
    import psycopg  # noqa: PLC0415

    places = "usr/lib/postgresql/*/bin", "usr/local/bin"
    initdb, postgres = (program(name, *places) for name in ("initdb", "postgres"))
    user = "nobody" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root.
    with folder_of(user) as folder:
        data = str(folder / "data")
        make = [
            initdb,
            "-D",
            data,
            "-U",
            "test",
            "-A",
            "trust",
            "--no-sync",
            "--no-locale",
            "-E",
            "UTF8",
        ]
        subprocess.run(make, cwd=folder, user=user, check=True, capture_output=True)
        quick = ["-c", "fsync=off", "-c", "listen_addresses=", "-k", str(folder)]
        where = f"host={folder} user=test dbname=postgres"
        with running([postgres, "-D", data, *quick], folder, user) as server:
            until_answered(lambda: psycopg.connect(where).close(), server, psycopg.OperationalError)
            yield where
