"""The interface of a compared peer: servers to start, and locks for client processes."""

from __future__ import annotations

import importlib.util
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Protocol

from peers.servers import Servers

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

    @abstractmethod
    def start(self, folder: Path) -> None:
        """Start the servers with their data in ``folder``; return once they serve.

        Raises:
            ServersFailedError: a server ended, or does not serve in time.

        """

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

    def start_servers(self, folder: Path, count: int) -> None:
        self._servers = Servers(folder)
        for index in range(count):
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
