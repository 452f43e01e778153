"""Threads, tasks and asks behind one interface, and cables to nodes that can be cut."""

from __future__ import annotations

import asyncio
import inspect
import socket
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import fencelock
from fencelock import aio
from fencelock.actors.api.message import Acquire, Inspect, LockStatus, Release
from fencelock.actors.error import LockTimeoutError
from fencelock.cluster.client.hold import BaseHold
from fencelock.cluster.node.node import Node
from support.expect import PATIENCE_S

FACES = "faces"
"""The name of the cluster that the tests share."""

Connect = Callable[[], fencelock.Client]


class Asks:
    """A lock through ``ask`` of a node in this process: each ask is an owner of its own."""

    def __init__(self, node: Node, name: str) -> None:
        self._proxy = node.proxy
        self.name = name
        self.fence: int | None = None

    @property
    def held(self) -> bool:
        return self.fence is not None

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> int | None:
        wait_ms = None if timeout is None else int(timeout * 1000)
        asked = Acquire(lock=self.name, wait_ms=wait_ms if blocking else 0)
        try:
            self.fence = self._proxy.ask(asked, timeout=PATIENCE_S).fence
        except LockTimeoutError:
            return None
        return self.fence

    def release(self) -> None:
        shown = self.fence or 1
        self._proxy.ask(Release(lock=self.name, fence=shown), timeout=PATIENCE_S)
        self.fence = None

    def status(self) -> LockStatus:
        return self._proxy.ask(Inspect(lock=self.name), timeout=PATIENCE_S)


def plain(result: Any) -> Any:
    """Return the fence for a hold, as ``ask`` does, and anything else as it is."""
    return result.fence if isinstance(result, BaseHold) else result


class Thread:
    """A user whose every deed is one thread's."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._pool = ThreadPoolExecutor(1)

    def begin(self, deed: Callable[[Any], Any]) -> Future[Any]:
        return self._pool.submit(lambda: plain(deed(self._lock)))

    def leave(self) -> None:
        self._pool.shutdown(wait=False)


class Task:
    """A user whose every deed is one task's."""

    def __init__(self, lock: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._lock = lock
        self._loop = loop
        self._deeds: asyncio.Queue[tuple[Callable[[Any], Any], Future[Any]] | None]
        self._deeds = asyncio.Queue()
        asyncio.run_coroutine_threadsafe(self._live(), loop)

    def begin(self, deed: Callable[[Any], Any]) -> Future[Any]:
        done: Future[Any] = Future()
        self._loop.call_soon_threadsafe(self._deeds.put_nowait, (deed, done))
        return done

    def leave(self) -> None:
        self._loop.call_soon_threadsafe(self._deeds.put_nowait, None)

    async def _live(self) -> None:
        while (order := await self._deeds.get()) is not None:
            deed, done = order
            try:
                result = deed(self._lock)
                done.set_result(plain(await result if inspect.isawaitable(result) else result))
            except Exception as error:  # noqa: BLE001  # The test inspects it.
                done.set_exception(error)


class Face:
    """One way to the cluster, and users on it."""

    def __init__(self, kind: str, addresses: str, node: Node, ttl: float = 15.0) -> None:
        self.kind = kind
        self.node = node
        self.loop = asyncio.new_event_loop()
        self._runner = threading.Thread(target=self.loop.run_forever)
        self._runner.start()
        self._users: list[Thread | Task] = []
        self.client: Any = None
        if kind == "threads":
            self.client = fencelock.connect(
                addresses, cluster=FACES, connect_timeout=PATIENCE_S, ttl=ttl
            )
        elif kind == "tasks":
            self.client = self.on_loop(self._connect(addresses, ttl))

    async def _connect(self, addresses: str, ttl: float) -> aio.Client:
        return await aio.connect(addresses, cluster=FACES, connect_timeout=PATIENCE_S, ttl=ttl)

    def on_loop(self, work: Any) -> Any:
        if not inspect.isawaitable(work):
            return work
        return asyncio.run_coroutine_threadsafe(_awaited(work), self.loop).result(PATIENCE_S)

    def user(self, name: str, **terms: Any) -> Callable[[Callable[[Any], Any]], Any]:
        """Return a function by which a new user acts on the lock ``name``, and gets the result."""
        begin = self.slow_user(name, **terms)
        return lambda deed: begin(deed).result(PATIENCE_S)

    def slow_user(self, name: str, **terms: Any) -> Callable[[Callable[[Any], Any]], Future[Any]]:
        """Return how a new user begins something; with ``rlock`` its lock is the client's rlock."""
        kind = "rlock" if terms.pop("rlock", False) else "lock"
        if self.kind == "asks":
            user: Thread | Task = Thread(Asks(self.node, name))
        elif self.kind == "threads":
            user = Thread(getattr(self.client, kind)(name, **terms))
        else:
            user = Task(getattr(self.client, kind)(name, **terms), self.loop)
        self._users.append(user)
        return user.begin

    def close(self) -> None:
        for user in self._users:
            user.leave()
        if self.client is not None:
            self.on_loop(self.client.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._runner.join(PATIENCE_S)
        self.loop.close()


class Cable:
    """A way to a node that can be cut: then it drops all bytes, in both directions."""

    def __init__(self, target: str) -> None:
        self.whole = True
        host, _, port = target.removeprefix("tcp://").partition(":")
        self._target = host, int(port)
        self._proxy = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._proxy.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._proxy.accept()
                far = socket.create_connection(self._target)
                self._ends += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while bytes_read := source.recv(65_536):
                if not self.whole:
                    break  # A stream with a hole is of no use: it ends when the cable is mended.
                sink.sendall(bytes_read)
            while not self.whole and source.recv(65_536):
                pass
        self.drop()

    def cut(self) -> None:
        self.whole = False

    def mend(self) -> None:
        self.whole = True
        self.drop()

    def drop(self) -> None:
        """End every stream, as a mended network would make both sides do."""
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._proxy.close()
        self.drop()


async def _awaited(work: Any) -> Any:
    return await work


def cut(cables: Iterable[Cable]) -> None:
    for cable in cables:
        cable.cut()


def mend(cables: Iterable[Cable]) -> None:
    for cable in cables:
        cable.mend()


def over(cables: Iterable[Cable]) -> str:
    """Return the addresses of nodes at the near ends of ``cables``."""
    return ",".join(cable.address for cable in cables)
