"""Locks over Redis servers that keep everything in memory.

`RedisServers` is redis-py's own Lock over one server. Redlock is a lock over three, in two ways: as
libraries do it, and as fast as it goes.

Source: https://redis.io/docs/latest/develop/use/patterns/distributed-locks/ ("The Redlock
Algorithm"). The libraries are redlock-py and pottery; `SerialConnection` asks the servers as the
first does, one after the other through redis-py, but with the unlock script cached on the
servers and a shorter pause between tries, which both are slower without.
"""

from __future__ import annotations

import hashlib
import random
import secrets
import socket
import threading
import time
from importlib import import_module, metadata
from typing import Any

from peers.peer import LOCK_S, ComparedPeer, Handle, Spec, answers, output_of

POLL_S = 0.0005
"""Time for which a client sleeps between two tries (s).

Of 0.1 to 100 ms about the most hand-overs; with less, those who wait hinder the holder, with
more they come too late, and the last holder has the lock again and again.
"""


class RedisServers(ComparedPeer):
    """Independent servers, nothing on disk."""

    count = 1
    packages: tuple[str, ...] = ("redis", "hiredis")
    programs = (("redis-server", "redis-server"),)

    def version(self) -> str:
        server = output_of("redis-server", "--version").split(" sha=")[0]
        return f"{server}, redis-py {metadata.version('redis')} with hiredis"

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


class RedisConnection:
    """A process's clients of redis-py, one for each thread and server.

    Its pools, which threads would share, take a quarter of the time of a question.
    """

    def __init__(self, spec: Spec) -> None:
        self._ports: list[int] = spec["ports"]
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


class OneRedisConnection(RedisConnection):
    """redis-py's lock over a connection of each thread's own."""

    def lock(self, name: str) -> Handle:
        """Return redis-py's lock, which polls while somebody else holds it."""
        (client,) = self.mine()
        handle: Handle = client.lock(name, timeout=LOCK_S, sleep=POLL_S)
        return handle


class WaitingConnection(RedisConnection):
    """python-redis-lock over a connection of each thread's own."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._package: Any = import_module("redis_lock")

    def lock(self, name: str) -> Handle:
        (client,) = self.mine()
        handle: Handle = self._package.Lock(client, name, expire=LOCK_S)
        return handle


SERVERS = 3
QUORUM = SERVERS // 2 + 1
DRIFT_S = LOCK_S * 0.01 + 0.002
"""Allowance for clock differences over a lock's life, as in redlock-py (s)."""
UNLOCK = b"""if redis.call("get",KEYS[1]) == ARGV[1] then
return redis.call("del",KEYS[1]) else return 0 end"""
UNLOCK_SHA = hashlib.sha1(UNLOCK, usedforsecurity=False).hexdigest().encode()


class Redlock(RedisServers):
    """Three servers, asked one after the other, as the libraries do."""

    name = "redlock"
    count = SERVERS


class RawRedlock(Redlock):
    """Three servers, asked at once over bare sockets: no library does so."""

    name = "redlock-raw"

    def version(self) -> str:
        return super().version().partition(",")[0] + ", bare sockets, servers asked at once"


class RedlockHandle:
    """The algorithm: try a majority within the lock's life, release the rest if it was not
    enough.
    """

    def __init__(self, name: str) -> None:
        self._key = name.encode()
        self._token = b""

    def acquire(self) -> None:
        """Try until a majority of servers said yes in time."""
        self._token = secrets.token_hex(10).encode()
        while True:
            began = time.monotonic()
            votes = self._set()
            if votes >= QUORUM and time.monotonic() - began < LOCK_S - DRIFT_S:
                return
            self._unset()
            time.sleep(random.uniform(0, 2 * POLL_S))  # Else two that split the votes repeat it.

    def release(self) -> None:
        self._unset()

    def _set(self) -> int:
        raise NotImplementedError

    def _unset(self) -> None:
        raise NotImplementedError


class SerialHandle(RedlockHandle):
    """Asks one server after the other through redis-py."""

    def __init__(self, name: str, clients: list[Any]) -> None:
        super().__init__(name)
        self._clients = clients

    def _set(self) -> int:
        return sum(
            bool(client.set(self._key, self._token, nx=True, px=1000 * LOCK_S))
            for client in self._clients
        )

    def _unset(self) -> None:
        for client in self._clients:
            client.evalsha(UNLOCK_SHA.decode(), 1, self._key, self._token)


class SerialConnection(RedisConnection):
    """A redis-py client for each server and thread."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        for client in self.mine():
            client.script_load(UNLOCK)

    def lock(self, name: str) -> Handle:
        return SerialHandle(name, self.mine())


class RawHandle(RedlockHandle):
    """Asks all servers at once: a request to one is under way while others are sent."""

    def __init__(self, name: str, links: list[socket.socket]) -> None:
        super().__init__(name)
        self._links = links

    def _set(self) -> int:
        command = resp(b"SET", self._key, self._token, b"NX", b"PX", str(1000 * LOCK_S).encode())
        return sum(answer == b"+OK\r\n" for answer in self._ask(command))

    def _unset(self) -> None:
        self._ask(resp(b"EVALSHA", UNLOCK_SHA, b"1", self._key, self._token))

    def _ask(self, command: bytes) -> list[bytes]:
        for link in self._links:
            link.sendall(command)
        return [link.recv(64) for link in self._links]  # Each answer is a line of a few bytes.


class RawConnection:
    """Sockets of their own for each thread: nothing is shared, so nothing is waited for."""

    def __init__(self, spec: Spec) -> None:
        self._ports: list[int] = spec["ports"]
        self._local = threading.local()
        self._links: list[socket.socket] = []
        for link in self._connect():
            link.sendall(resp(b"SCRIPT", b"LOAD", UNLOCK))
            link.recv(64)

    def lock(self, name: str) -> Handle:
        if not hasattr(self._local, "links"):
            self._local.links = self._connect()
        return RawHandle(name, self._local.links)

    def close(self) -> None:
        for link in self._links:
            link.close()

    def _connect(self) -> list[socket.socket]:
        links = [socket.create_connection(("127.0.0.1", port)) for port in self._ports]
        for link in links:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._links += links
        return links


def resp(*words: bytes) -> bytes:
    """Return a command as Redis's protocol writes it: an array of bulk strings."""
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
    return b"".join(parts)
