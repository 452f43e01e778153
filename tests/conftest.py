"""Threads, tasks and asks behind one interface, on a real `paxos` cluster; set-up of all tests.

`test_blocking_and_async*.py` run each test with every kind of caller.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import itertools
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from support.central_scene import LoneClient
from support.lamport_scene import LoneProcess
from support.local_callers import LocalCallers
from support.lock_scene import Scene, ScriptedSession
from support.proxy_scene import proxy_of_n1
from support.real_nodes import loopback_addresses, running
from support.session_harness import SessionHarness, UnkeptSession

import fencelock
from fencelock import aio
from fencelock.actors.api.message import Acquire, Inspect, LockStatus, Release
from fencelock.actors.error import LockTimeoutError
from fencelock.actors.proxy.proxy import Proxy
from fencelock.cluster.client.callback_executor import ThreadExecutor
from fencelock.cluster.client.hold import BaseHold
from fencelock.cluster.node.config import parse, starting_config
from fencelock.cluster.node.node import Node

PATIENCE_S = 60
CLUSTER = "faces"

_names = itertools.count(1)


# Started in the background by a shell, the tests would ignore SIGINT, and so would all that they
# start; some of it they interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where Python is told to write no bytecode, each of the many processes that the tests start would
# compile all that it imports, for half a second of a core. They share a folder outside the tree.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    compiled = tempfile.mkdtemp(prefix="fencelock-tests-")
    atexit.register(shutil.rmtree, compiled, ignore_errors=True)
    os.environ["PYTHONPYCACHEPREFIX"] = compiled


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


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
                addresses, cluster=CLUSTER, connect_timeout=PATIENCE_S, ttl=ttl
            )
        elif kind == "tasks":
            self.client = self.on_loop(self._connect(addresses, ttl))

    async def _connect(self, addresses: str, ttl: float) -> aio.Client:
        return await aio.connect(addresses, cluster=CLUSTER, connect_timeout=PATIENCE_S, ttl=ttl)

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


@pytest.fixture(scope="module")
def paxos_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    text = starting_config(loopback_addresses(), cluster=CLUSTER, protocol="paxos")
    config = parse(text, Path(tmp_path_factory.mktemp("faces")))
    with running(config) as nodes:
        yield list(nodes.values())


@pytest.fixture
def paxos_addresses(paxos_nodes: list[Node]) -> str:
    """Return the addresses of the shared nodes."""
    return ",".join(node.address for node in paxos_nodes)


@pytest.fixture
def connect(paxos_addresses: str) -> Iterator[Callable[[], fencelock.Client]]:
    """Return a function that connects one more client to the shared nodes."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(fencelock.connect(paxos_addresses, cluster=CLUSTER))


@pytest.fixture
def name() -> str:
    """Return the name of an object that no other test has used."""
    return f"object-{next(_names)}"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Return threads that end with the test."""
    with ThreadPoolExecutor() as threads:
        yield threads


@pytest.fixture
def harness() -> SessionHarness:
    """Return a client session between two proxies."""
    return SessionHarness()


@pytest.fixture
def unkept() -> UnkeptSession:
    """Return a client session in a cluster that keeps no sessions."""
    return UnkeptSession()


@pytest.fixture
def proxy() -> Proxy:
    """Return a proxy over a backend that the test plays."""
    return proxy_of_n1()


@pytest.fixture
def inside() -> LocalCallers:
    """Return a proxy of `paxos` with callers in its process."""
    return LocalCallers()


@pytest.fixture
def script() -> ScriptedSession:
    """Return a session that the test plays."""
    return ScriptedSession()


@pytest.fixture
def scene(script: ScriptedSession) -> Iterator[Scene]:
    """Return locks over the session that the test plays."""
    executor = ThreadExecutor()
    yield Scene(script, executor)
    executor.stop(PATIENCE_S)


@pytest.fixture
def alone() -> LoneProcess:
    """Return a lock process of `lamport` that knows no other yet."""
    return LoneProcess()


@pytest.fixture
def joined(alone: LoneProcess) -> LoneProcess:
    """Return a lock process of `lamport` that both others have welcomed."""
    return alone.welcomed()


@pytest.fixture
def addresses() -> dict[str, str]:
    return loopback_addresses()


@pytest.fixture
def nodes() -> Iterator[dict[str, Node]]:
    """Return an empty dictionary; the nodes that a test adds to it are stopped afterwards."""
    nodes: dict[str, Node] = {}
    yield nodes
    for node in nodes.values():
        node.stop()


def started(kind: str, nodes: list[Node]) -> Iterator[Face]:
    face = Face(kind, ",".join(node.address for node in nodes), nodes[0])
    yield face
    face.close()


@pytest.fixture(params=["threads", "tasks", "asks"])
def face(request: pytest.FixtureRequest, paxos_nodes: list[Node]) -> Iterator[Face]:
    yield from started(str(request.param), paxos_nodes)


@pytest.fixture(params=["threads", "tasks"])
def client_face(request: pytest.FixtureRequest, paxos_nodes: list[Node]) -> Iterator[Face]:
    yield from started(str(request.param), paxos_nodes)


@pytest.fixture
def make_face(paxos_nodes: list[Node]) -> Callable[[str, str, float], Face]:
    """Return a function that connects a client of a kind to addresses, with a TTL (s); the caller
    must close the client."""
    return lambda kind, addresses, ttl: Face(kind, addresses, paxos_nodes[0], ttl)


@pytest.fixture
def cables(paxos_nodes: list[Node]) -> Iterator[list[Cable]]:
    cables = [Cable(node.address) for node in paxos_nodes]
    yield cables
    for cable in cables:
        cable.close()


@pytest.fixture
def lone_client() -> LoneClient:
    """A lock client of `central`, between its broker and its server."""
    return LoneClient()


@pytest.fixture
def held(lone_client: LoneClient) -> LoneClient:
    """The same: ticket 1 holds under 5, and no timer is on its way."""
    return lone_client.holding()
