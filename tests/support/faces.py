"""Threads, tasks and asks behind one interface, and cables to nodes that can be cut.

A test of an object is written for threads. With `Bridged`, it runs with the client for tasks too.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Self

import pytest

import fencelock
from fencelock import aio
from fencelock.actors.api.lock_message import Acquire, Inspect, LockStatus, Release
from fencelock.actors.error import LockTimeoutError
from fencelock.cluster.client.hold import BaseHold
from fencelock.cluster.client.operation import InTasks
from fencelock.cluster.client.watch import AsyncWaiting, BaseWatch
from fencelock.cluster.node.node import Node
from fencelock.verification.bench.failover import RelayedLink, Relays
from support.expect import PATIENCE_S

FACES = "faces"
"""The name of the cluster that the tests share."""

Connect = Callable[[], fencelock.Client]

CLIENT_KINDS = ("threads", "tasks")
"""The clients that `connecting` knows."""


@pytest.fixture(params=CLIENT_KINDS)
def both_kinds(request: pytest.FixtureRequest) -> str:
    """Return each kind of client in turn: the `client_kind` of modules that test both."""
    return str(request.param)


threads_only = pytest.mark.parametrize("client_kind", CLIENT_KINDS[:1])
"""A mark for tests of what only the client for threads has, and for long ones."""


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


class Task:
    """A task that does what it is given, one after the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._deeds: asyncio.Queue[tuple[Callable[[], Any], Future[Any]] | None] = asyncio.Queue()
        self._life = asyncio.run_coroutine_threadsafe(self._live(), loop)

    def begin(self, deed: Callable[[], Any]) -> Future[Any]:
        done: Future[Any] = Future()
        self._loop.call_soon_threadsafe(self._deeds.put_nowait, (deed, done))
        return done

    def leave(self) -> None:
        self._loop.call_soon_threadsafe(self._deeds.put_nowait, None)
        self._life.result(PATIENCE_S)

    async def _live(self) -> None:
        while (order := await self._deeds.get()) is not None:
            deed, done = order
            try:
                result = deed()
                done.set_result(await result if inspect.isawaitable(result) else result)
            except Exception as error:  # noqa: BLE001  # The test inspects it.
                done.set_exception(error)


class TaskLoop:
    """A loop on a thread of its own, with a task for each thread that uses it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._runner = threading.Thread(target=self.loop.run_forever)
        self._runner.start()
        self._mine = threading.local()
        self._tasks: list[Task] = []

    def run(self, deed: Callable[[], Any]) -> Any:
        """Do something in the task of the calling thread; return its result, awaited if need be."""
        task: Task | None = getattr(self._mine, "task", None)
        if task is None:
            task = self._mine.task = Task(self.loop)
            self._tasks.append(task)
        return task.begin(deed).result(2 * PATIENCE_S)

    def close(self) -> None:
        for task in self._tasks:
            task.leave()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._runner.join(PATIENCE_S)
        self.loop.close()


class Bridged:
    """An object of `aio`, used as its twin for threads is: what a thread does, its task does."""

    def __init__(self, made: Any, tasks: TaskLoop) -> None:
        self._made = made
        self._tasks = tasks

    def __getattr__(self, name: str) -> Any:
        found = self._tasks.run(lambda: getattr(self._made, name))
        return partial(self._call, found) if inspect.ismethod(found) else self._bridge(found)

    def get(self, *args: Any, **named: Any) -> Any:
        """Call `get`; that of a watch has a timeout here, as for threads."""
        if not isinstance(self._made, BaseWatch):
            return self._call(self._made.get, *args, **named)

        async def get(timeout: float | None = None) -> Any:
            async with asyncio.timeout(timeout):
                return await self._made.get()

        return self._call(get, *args, **named)

    def __iter__(self) -> Bridged:
        return self

    def __next__(self) -> Any:
        try:
            return self._call(self._made.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Any:
        return self._call(self._made.__aenter__)

    def __exit__(self, *error: object) -> Any:
        return self._call(self._made.__aexit__, *error)

    def __repr__(self) -> str:
        return repr(self._made).replace("<Async", "<")

    def _call(self, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        bare = [one._made if isinstance(one, Bridged) else one for one in args]
        by_name = {n: one._made if isinstance(one, Bridged) else one for n, one in named.items()}
        return self._bridge(self._tasks.run(lambda: method(*bare, **by_name)))

    def _bridge(self, found: Any) -> Any:
        return Bridged(found, self._tasks) if isinstance(found, BRIDGED) else found


BRIDGED = (InTasks, AsyncWaiting)
"""The classes of `aio` whose methods are awaited."""


@contextmanager
def connecting(kind: str, addresses: str, ttl: float = 15.0) -> Generator[Connect]:
    """Yield a function that connects one more client, for "threads", or for "tasks" but used as
    one for threads; all are closed at the end."""
    options: dict[str, Any] = {"cluster": FACES, "connect_timeout": PATIENCE_S, "ttl": ttl}
    with ExitStack() as stack:
        if kind == "threads":
            yield lambda: stack.enter_context(fencelock.connect(addresses, **options))
            return
        tasks = TaskLoop()
        stack.callback(tasks.close)

        def connect() -> Any:
            client = Bridged(tasks.run(partial(aio.connect, addresses, **options)), tasks)
            stack.callback(client.close)
            return client

        yield connect


class Face:
    """One way to the cluster, and users on it, each with a thread of its own.

    Attributes:
        client: the client for threads or tasks; None if users ask a node.

    """

    def __init__(self, kind: str, addresses: str, node: Node, ttl: float = 15.0) -> None:
        self._node = node
        self._stack = ExitStack()
        self.client: Any = None
        if kind != "asks":
            self.client = self._stack.enter_context(connecting(kind, addresses, ttl))()

    def user(self, name: str, **terms: Any) -> Callable[[Callable[[Any], Any]], Any]:
        """Return a function by which a new user acts on the lock ``name``, and gets the result."""
        begin = self.slow_user(name, **terms)
        return lambda deed: begin(deed).result(PATIENCE_S)

    def slow_user(
        self, name: str, *, rlock: bool = False, **terms: Any
    ) -> Callable[[Callable[[Any], Any]], Future[Any]]:
        """Return how a new user begins something; with ``rlock`` its lock is the client's rlock.

        The result of an acquire is a fence, as ``ask`` returns it.
        """
        if self.client is None:
            lock: Any = Asks(self._node, name)
        else:
            lock = (self.client.rlock if rlock else self.client.lock)(name, **terms)
        thread = ThreadPoolExecutor(1)
        self._stack.callback(thread.shutdown, wait=False)

        def act(deed: Callable[[Any], Any]) -> Any:
            result = deed(lock)
            return result.fence if isinstance(result, BaseHold | Bridged) else result

        return lambda deed: thread.submit(act, deed)

    def close(self) -> None:
        self._stack.close()


class Cables:
    """Ways to nodes that can be cut: then they carry nothing, in both directions.

    Its methods take the addresses of some of the nodes; without any they are about all.
    """

    def __init__(self, nodes: Iterable[str]) -> None:
        ports = {RelayedLink("a test", node): int(node.rpartition(":")[2]) for node in nodes}
        self._relays = Relays(ports)
        self.addresses = ",".join(f"tcp://127.0.0.1:{at}" for at in self._relays.ports.values())
        """The near ends, for a client to connect to."""

    def __enter__(self) -> Self:
        self._relays.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._relays.__exit__(*error)

    def cut(self, *nodes: str) -> None:
        self._relays.silence(self._to(nodes))

    def drop(self, *nodes: str) -> None:
        """End every stream, with what it carries."""
        self._relays.drop(self._to(nodes))

    def heal(self, *nodes: str) -> None:
        """End the cut; the streams from before go on, with what was sent meanwhile."""
        self._relays.heal(self._to(nodes))

    def mend(self, *nodes: str) -> None:
        """End the cut, and every stream, as both sides do after a long one."""
        self.drop(*nodes)
        self.heal(*nodes)

    def _to(self, nodes: Sequence[str]) -> list[RelayedLink]:
        return [link for link in self._relays.ports if not nodes or link.target in nodes]
