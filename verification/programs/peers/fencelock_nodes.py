"""fencelock itself: three nodes of the replicated log with fsync, the blocking client."""

from __future__ import annotations

import contextlib
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import fencelock
from fencelock.cluster.node.config import starting_config
from fencelock.cluster.testing.ports import free_ports
from peers.peer import Handle, ReplicatedPeer, Spec

CONNECT_S = 30.0


class Fencelock(ReplicatedPeer):
    """Three ``fencelock serve`` processes with the default settings."""

    name = "fencelock"
    has_asyncio = True
    lock_options: ClassVar[dict[str, float]] = {}
    """The arguments of `Client.lock` besides the name."""

    def __init__(self) -> None:
        super().__init__()
        self._addresses: dict[str, str] = {}
        self._config = Path()

    def version(self) -> str:
        options = "".join(f", {name}={value:g}" for name, value in self.lock_options.items())
        return f"fencelock {fencelock.__version__}, protocol paxos{options}"

    def start(self, folder: Path) -> None:
        self._addresses = {
            f"n{number + 1}": f"tcp://127.0.0.1:{port}"
            for number, port in enumerate(free_ports(self.count))
        }
        self._config = folder / "cluster.toml"
        text = starting_config(self._addresses, cluster="compare", protocol="paxos")
        for node, port in self.doors().items():
            door = f'[nodes.{node}]\nredis = "tcp://127.0.0.1:{port}"'
            text = text.replace(f"[nodes.{node}]", door)
        self._config.write_text(text, encoding="utf-8")
        self.start_servers(folder)

    def doors(self) -> dict[str, int]:
        return {}

    def spec(self) -> Spec:
        return {"connect": ",".join(self._addresses.values()), "lock": self.lock_options}

    def leader(self) -> int | None:
        leaders = {status.leader for status in self._statuses()} - {""}
        return list(self._addresses).index(leaders.pop()) if len(leaders) == 1 else None

    def start_server(self, index: int) -> None:
        command = [sys.executable, "-m", "fencelock", "serve", "--found", "--id", f"n{index + 1}"]
        search = os.pathsep.join(entry for entry in sys.path if entry)
        self.servers.start(index, [*command, "--config", str(self._config)], {"PYTHONPATH": search})

    def serves(self) -> bool:
        return sum(status.ready for status in self._statuses()) == self.count

    def _statuses(self) -> tuple[fencelock.NodeStatus, ...]:
        connect = ",".join(self._addresses.values())
        with (
            contextlib.suppress(fencelock.FencelockError),
            fencelock.connect(connect, cluster="compare", connect_timeout=1.0) as client,
        ):
            return client.describe()
        return ()


class FencelockRetained(Fencelock):
    """The same nodes; each client keeps its locks for a second after their owners released them."""

    name = "fencelock-retained"
    lock_options: ClassVar[dict[str, float]] = {"retain": 1.0}


class FencelockCohort(Fencelock):
    """The same; up to 16 owners of a client have a lock one after the other before the others."""

    name = "fencelock-cohort"
    lock_options: ClassVar[dict[str, float]] = {"retain": 1.0, "cohort": 16}


class FencelockUnconfirmed(Fencelock):
    """The same nodes; a release returns before it is confirmed. Nothing is retained."""

    name = "fencelock-unconfirmed"
    lock_options: ClassVar[dict[str, float]] = {"confirm_release": False}


class FencelockDoor(Fencelock):
    """The same nodes; redis-py's own Lock, at the Redis door of the leader."""

    name = "fencelock-door"
    has_asyncio = False
    packages: tuple[str, ...] = ("redis", "hiredis")

    def version(self) -> str:
        return f"fencelock {fencelock.__version__}, redis-py {metadata.version('redis')}"

    def doors(self) -> dict[str, int]:
        self._doors = dict(zip(self._addresses, free_ports(self.count), strict=True))
        return self._doors

    def spec(self) -> Spec:
        return {"ports": [[*self._doors.values()][self.leader() or 0]]}


class FencelockDoorWaiting(FencelockDoor):
    """The same nodes and doors; python-redis-lock, which waits in the queue of the lock."""

    name = "fencelock-door-waiting"
    packages: tuple[str, ...] = ("redis", "hiredis", "redis_lock")


class FencelockConnection:
    """One client for all threads of a process."""

    def __init__(self, spec: Spec) -> None:
        self._client = fencelock.connect(
            spec["connect"], cluster="compare", connect_timeout=CONNECT_S
        )
        self._options: dict[str, Any] = spec["lock"]
        self._failover: bool = spec["failover"]

    def lock(self, name: str) -> Handle:
        lock = self._client.lock(name, **self._options)
        return FencelockHandle(lock) if self._failover else lock

    def close(self) -> None:
        self._client.close()


class FencelockHandle:
    """A `fencelock.Lock`; a lock that is still held after an error is released first."""

    def __init__(self, lock: fencelock.Lock) -> None:
        self._lock = lock

    def acquire(self) -> None:
        if self._lock.held:
            self._lock.release()
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()
