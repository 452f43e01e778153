"""Server processes of a peer: started, watched, killed, and surely ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

READY_S = 60.0
"""Time in which servers must serve (s): a Java one on a busy machine needs 10."""
STOP_S = 10.0
"""Time in which a process must end by itself (s)."""
SAID_MAX = 2000
"""Length of a failed server's log that is shown (characters): the logs are removed."""


class ServersFailedError(RuntimeError):
    """A server did not start or ended by itself; the text says which and why."""


class Servers:
    """Processes by index, each with a log in the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(
        self, index: int, command: list[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """Start ``command`` as server ``index``, in a process group of its own.

        So Ctrl-C reaches only who started it, and that one ends the servers in its order.
        """
        with self._log_of(index).open("ab") as log:
            self._processes[index] = subprocess.Popen(
                bound_to_us(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    def wait_until(self, serves: Callable[[], bool]) -> None:
        """Return once ``serves()``."""
        ends = time.monotonic() + READY_S
        while not serves():
            for index, process in self._processes.items():
                if process.poll() is not None or time.monotonic() > ends:
                    said = self._log_of(index).read_text(encoding="utf-8", errors="replace")
                    raise ServersFailedError(f"server {index} does not serve:\n{said[-SAID_MAX:]}")
            time.sleep(0.02)

    def kill(self, index: int) -> None:
        process = self._processes.pop(index)
        _signal_group(process, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Ask every server to end, and end those that do not listen."""
        for process in self._processes.values():
            _signal_group(process, signal.SIGTERM)
        ends = time.monotonic() + STOP_S
        try:
            for process in self._processes.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, ends - time.monotonic()))
        finally:
            for process in self._processes.values():
                _signal_group(process, signal.SIGKILL)
                process.wait()
            self._processes.clear()

    def _log_of(self, index: int) -> Path:
        return self.folder / f"server-{index}.log"


def bound_to_us(command: list[str]) -> list[str]:
    """Return ``command``, to be killed by the kernel should this process die of a SIGKILL."""
    setpriv = shutil.which("setpriv")  # Of util-linux; without it only that case is lost.
    return command if setpriv is None else [setpriv, "--pdeathsig", "KILL", *command]


def answers(port: int, question: bytes = b"", patience_s: float = 1.0) -> bytes | None:
    """Return the reply of a loopback port to ``question``, up to its first pause, or None.

    Without a question, ``b""`` if it takes connections.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), patience_s) as link:
            if not question:
                return b""
            link.sendall(question)
            return link.recv(65_536)
    except OSError:
        return None


def said_by(*command: str) -> str:
    """Return the first line that a program prints about itself, or ``""``."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        return (ended.stdout or ended.stderr).strip().partition("\n")[0]
    return ""


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
