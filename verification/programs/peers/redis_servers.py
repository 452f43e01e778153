"""Redis servers that keep everything in memory, and redis-py's own Lock over one server."""

from __future__ import annotations

import threading
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from fencelock.cluster.testing.ports import free_ports
from peers.peer import LOCK_S, ComparedPeer, Handle, Spec
from peers.servers import answers, said_by

POLL_S = 0.0005
"""Time for which a client sleeps between two tries (s).

Of 0.1 to 100 ms about the most hand-overs; with less, those who wait hinder the holder, with
more they come too late, and the last holder has the lock again and again.
"""


class RedisServers(ComparedPeer):
    """``count`` independent servers, nothing on disk."""

    count = 1
    packages: tuple[str, ...] = ("redis", "hiredis")
    programs = (("redis-server", "redis-server"),)

    def version(self) -> str:
        server = said_by("redis-server", "--version").split(" sha=")[0]
        return f"{server}, redis-py {metadata.version('redis')} with hiredis"

    def start(self, folder: Path) -> None:
        self._ports = free_ports(self.count)
        self.start_servers(folder, self.count)

    def start_server(self, index: int) -> None:
        command = ["redis-server", "--port", str(self._ports[index]), "--bind", "127.0.0.1"]
        command += ["--save", "", "--appendonly", "no", "--dir", str(self.servers.folder)]
        self.servers.start(index, command)

    def serves(self) -> bool:
        return all(answers(port, b"PING\r\n") == b"+PONG\r\n" for port in self._ports)


class OneRedis(RedisServers):
    """The lock that redis-py brings along, over one server."""

    name = "redis"


class OneRedisWaiting(RedisServers):
    """python-redis-lock over one server: it waits by BLPOP, and then tries again."""

    name = "redis-waiting"
    packages: tuple[str, ...] = ("redis", "hiredis", "redis_lock")


class OneRedisConnection:
    """redis-py's lock over a connection of each thread's own."""

    def __init__(self, spec: Spec) -> None:
        self._clients = ThreadClients(spec["ports"])

    def lock(self, name: str) -> Handle:
        """Return redis-py's lock, which polls while somebody else holds it."""
        (client,) = self._clients.mine()
        handle: Handle = client.lock(name, timeout=LOCK_S, sleep=POLL_S)
        return handle

    def close(self) -> None:
        self._clients.close()


class WaitingConnection:
    """python-redis-lock over a connection of each thread's own."""

    def __init__(self, spec: Spec) -> None:
        self._clients = ThreadClients(spec["ports"])
        self._package: Any = import_module("redis_lock")

    def lock(self, name: str) -> Handle:
        (client,) = self._clients.mine()
        handle: Handle = self._package.Lock(client, name, expire=LOCK_S)
        return handle

    def close(self) -> None:
        self._clients.close()


class ThreadClients:
    """redis-py's clients, one connection for each thread and server.

    Its pools, which threads would share, take a quarter of the time of a question.
    """

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._local = threading.local()
        self._all: list[Any] = []

    def mine(self) -> list[Any]:
        """Return the calling thread's clients, in the order of the ports."""
        if not hasattr(self._local, "clients"):
            redis: Any = import_module("redis")
            self._local.clients = [
                redis.Redis(host="127.0.0.1", port=port, single_connection_client=True)
                for port in self._ports
            ]
            self._all += self._local.clients
        clients: list[Any] = self._local.clients
        return clients

    def close(self) -> None:
        for client in self._all:
            client.close()
