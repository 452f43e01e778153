"""The interface of a compared peer: server processes, and locks for client processes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from fencelock.cluster.testing.ports import free_ports

READY_S = 60.0
"""Time in which servers must serve (s): a Java one on a busy machine needs 10."""
STOP_S = 10.0
"""Time in which a process must end by itself (s)."""
LOG_MAX = 2000
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
                    log = self._log_of(index).read_text(encoding="utf-8", errors="replace")
                    raise ServersFailedError(f"server {index} does not serve:\n{log[-LOG_MAX:]}")
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


def output_of(*command: str) -> str:
    """Return the first line that a program prints about itself, or ``""``."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        return (ended.stdout or ended.stderr).strip().partition("\n")[0]
    return ""


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


LOCK_S = 30
"""Lifetime of a lock after its holder is gone, where a peer asks for one (s): longer than a run."""

Spec = dict[str, Any]
"""The facts about the running servers that client processes need; plain JSON."""


class Handle(Protocol):
    """One lock as one thread of a client process sees it."""

    def acquire(self) -> object:
        """Wait until the lock is held. After an error it may be called again as it is."""

    def release(self) -> None:
        """Give the lock up; return once the peer confirmed it."""


class PeerConnection(Protocol):
    """A client process's connection to the servers."""

    def lock(self, name: str) -> Handle:
        """Return the calling thread's handle of the lock ``name``."""
        ...

    def close(self) -> None:
        """Leave nothing running in this process."""


class ComparedPeer(ABC):
    """The servers of one peer on this machine, processes by index.

    `start` is called before all else, `stop` in any case.
    """

    name: str
    """As on the command line."""
    count = 3
    """The number of its servers."""
    warm_s: float = 1.0
    """Load before the first measurement after a start (s)."""
    packages: tuple[str, ...] = ()
    """Python packages, as pip calls them, which are also the modules' names."""
    programs: tuple[tuple[str, str], ...] = ()
    """Programs on the path, each with the Debian package that has it."""

    has_asyncio = False
    """Whether its asyncio client is compared, too."""

    def __init__(self) -> None:
        self._servers: Servers | None = None
        self._ports: list[int] = []

    def missing(self) -> str | None:
        """Return the packages to install first, or None if none is missing."""
        programs = [deb for program, deb in self.programs if shutil.which(program) is None]
        packages = [name for name in self.packages if importlib.util.find_spec(name) is None]
        words = [f"apt-get install {' '.join(programs)}"] if programs else []
        words += [f"pip install {' '.join(packages)}"] if packages else []
        return " and ".join(words) or None

    @abstractmethod
    def version(self) -> str:
        """Return which servers and which client library run, in words."""

    def start(self, folder: Path) -> None:
        """Start the servers, each at one port, with their data in ``folder``."""
        self._ports = free_ports(self.count)
        self.start_servers(folder)

    @abstractmethod
    def start_server(self, index: int) -> None:
        """Start server ``index``, on its old data if it has any."""

    @abstractmethod
    def serves(self) -> bool:
        """Return whether all servers serve."""

    @property
    def servers(self) -> Servers:
        assert self._servers is not None
        return self._servers

    def start_servers(self, folder: Path) -> None:
        """Start the servers; return once they serve.

        Raises:
            ServersFailedError: a server ended, or does not serve in time.

        """
        self._servers = Servers(folder)
        for index in range(self.count):
            self.start_server(index)
        self._servers.wait_until(self.serves)

    def spec(self) -> Spec:
        """Return what client processes need to connect."""
        return {"ports": self._ports}

    def stop(self) -> None:
        """End every server process."""
        if self._servers is not None:
            self._servers.stop()


class ReplicatedPeer(ComparedPeer):
    """A peer with a leader. Its servers are killed and start again."""

    @abstractmethod
    def leader(self) -> int | None:
        """Return the index of the server that leads, None where none does."""

    def spec(self) -> Spec:
        """Return the ports, the leader's first: the others only pass requests on to it."""
        leader = self.leader() or 0
        return {"ports": self._ports[leader:] + self._ports[:leader]}

    def kill(self, index: int) -> None:
        self.servers.kill(index)

    def restart(self, index: int) -> None:
        """Start server ``index`` again on its old data; return once all servers serve."""
        self.start_server(index)
        self.servers.wait_until(self.serves)
