"""Lazy clients and the default one: first use, threads, loops, forks; clients that are dropped."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.expect import PATIENCE_S, present
from support.programs import forks, in_child, refusal, run_to_end
from support.real_nodes import until

import fencelock
from fencelock import ClosedError, ConfigError, LockOwnershipLostError, UnavailableError, aio
from fencelock.actors.api.role_request import ReadClock
from fencelock.cluster.client.client import default_client
from fencelock.cluster.client.connection import Connection
from fencelock.cluster.client.lazy import LazyConnection
from fencelock.cluster.client.settings import Settings, Target
from fencelock.cluster.node.config import Config
from fencelock.cluster.node.topology import ProtocolSettings
from fencelock.cluster.testing.ports import free_ports
from fencelock.testing import LocalCluster


@fencelock.locked("report/{day}")
def report(day: str) -> str:
    return day


@aio.locked("report/{day}")
async def report_async(day: str) -> str:
    return day


lock = fencelock.lock("module")
lock_async = aio.lock("module")


def clients() -> int:
    """Return the number of clients of this process, each of which has a thread."""
    return sum(thread.name.startswith("fencelock-client-") for thread in threading.enumerate())


@pytest.mark.usefixtures("fencelock_cluster")
def test_objects_of_a_module_connect_at_their_first_use() -> None:
    assert (clients(), lock.held, lock.name, repr(lock)) == (
        0,
        False,
        "module",
        "<Lock 'module', not held here>",
    )
    with pytest.raises(fencelock.NotHeldError):
        lock.raise_if_lost()
    with lock as hold:
        assert report("monday") == "monday"
        assert (lock.fence, lock.locked(), clients()) == (hold.fence, True, 1)
    with fencelock.rlock("r"), fencelock.semaphore("s", 2), fencelock.rwlock("w").write():
        assert fencelock.counter("c").add(2) == 2
        fencelock.map("m").put("key", b"value")
        assert fencelock.lock_all("a", "b").acquire(timeout=1)
    with fencelock.election("e").lead("me"):
        assert present(fencelock.election("e").leader()).value == "me"
    assert fencelock.latch("l", 1).count_down() == 0
    assert fencelock.barrier("b", 1).wait() == 0
    assert clients() == 1
    fencelock.close()
    assert clients() == 0
    with lock:
        assert clients() == 1


@pytest.mark.usefixtures("fencelock_cluster")
def test_threads_that_use_the_default_client_first_make_one() -> None:
    begin = threading.Barrier(8)

    def use(number: int) -> None:
        begin.wait(PATIENCE_S)
        with fencelock.lock(f"thread-{number}"):
            assert clients() == 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(8)))


def test_a_hold_stays_when_another_thread_used_the_object_first_and_was_slow(
    fencelock_cluster: LocalCluster,
) -> None:
    with fencelock.connect(fencelock_cluster.addresses, lazy=True) as client:
        lock, connected, held = client.lock("x"), threading.Event(), threading.Event()
        line = lock._channel
        at_once = present(line.present)

        def slowly() -> Connection:
            connection = at_once()
            connected.set()
            assert held.wait(PATIENCE_S)
            return connection

        line.present = slowly
        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(lock.acquire, timeout=0.1)
            assert connected.wait(PATIENCE_S)
            line.present = at_once
            assert lock.acquire()  # The object keeps the hold.
            held.set()
            assert late.result(PATIENCE_S) is None
        lock.release()


@pytest.mark.usefixtures("fencelock_cluster")
def test_each_loop_has_a_client_that_ends_with_it() -> None:
    async def use() -> None:
        assert await report_async("monday") == "monday"
        async with lock_async as hold:
            assert (hold.held, clients()) == (True, 1)
        await lock_async.acquire()  # The end of the loop releases it.

    for _ in range(2):
        asyncio.run(use())
        assert clients() == 0


def test_an_object_is_not_used_by_two_loops_at_a_time(fencelock_cluster: LocalCluster) -> None:
    entered, tried = threading.Event(), threading.Event()
    shared = aio.connect(fencelock_cluster.addresses, lazy=True).lock("shared")

    async def first() -> None:
        async with shared:
            entered.set()
            assert await asyncio.to_thread(tried.wait, PATIENCE_S)

    async def second() -> None:
        assert await shared.acquire(timeout=PATIENCE_S)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(asyncio.run, first())
        assert entered.wait(PATIENCE_S)
        try:
            with pytest.raises(RuntimeError, match="lock 'shared' is used by another event loop"):
                asyncio.run(second())
        finally:
            tried.set()
        running.result(PATIENCE_S)
    asyncio.run(second())


def test_a_client_of_a_loop_that_was_never_shut_down_ends_when_another_is_used(
    fencelock_cluster: LocalCluster,
) -> None:
    client = aio.connect(fencelock_cluster.addresses, lazy=True)
    for _ in range(2):
        loop = asyncio.new_event_loop()
        held = loop.run_until_complete(client.lock("x").acquire(timeout=PATIENCE_S))
        assert held
        loop.close()
    until(lambda: clients() == 1)

    async def use() -> None:
        assert await client.lock("y").acquire(timeout=PATIENCE_S)

    asyncio.run(use())
    until(lambda: clients() == 0)


def test_a_service_starts_while_no_node_runs() -> None:
    nodes = {"n1": f"tcp://127.0.0.1:{free_ports(1)[0]}"}
    client = fencelock.connect(nodes["n1"], lazy=True)
    late = client.lock("x")
    with pytest.raises(UnavailableError, match=nodes["n1"]):
        late.acquire(timeout=0.1)
    config = Config(
        cluster="fencelock",
        protocol="paxos",
        nodes=nodes,
        settings=ProtocolSettings(paxos_memory=True),
    )
    with fencelock.Node.start(config, "n1", found=True):
        assert late.acquire(timeout=PATIENCE_S)
        assert client.protocol == "paxos"
        client.close()
    with pytest.raises(ClosedError):
        client.lock("x")
    with pytest.raises(ClosedError):
        late.acquire()


def test_a_client_closed_while_it_connects_stays_closed(fencelock_cluster: LocalCluster) -> None:
    def settings() -> Settings:
        client.close()
        return Settings(Target.find(fencelock_cluster.addresses, None))

    client = fencelock.Client(LazyConnection(settings))
    for _ in range(2):
        with pytest.raises(ClosedError):
            client.status("a")
    assert clients() == 0


@pytest.mark.usefixtures("fencelock_cluster")
def test_arguments_are_set_before_the_first_use() -> None:
    fencelock.configure("tcp://127.0.0.1:1", label="someone")
    with pytest.raises(UnavailableError, match=r"tcp://127\.0\.0\.1:1"):
        lock.acquire(timeout=0)
    with pytest.raises(ConfigError, match="connected already"):
        fencelock.configure()
    fencelock.close()
    fencelock.configure()
    with lock:
        pass


def test_a_signals_handler_may_be_the_first_to_connect_while_the_client_connects(
    fencelock_cluster: LocalCluster,
) -> None:
    target = Target.find(fencelock_cluster.addresses, None)
    handled: list[fencelock.Hold] = []
    signals = iter([signal.SIGUSR1])

    def settings() -> Settings:
        for number in signals:
            signal.raise_signal(number)
        return Settings(target)

    with fencelock.Client(LazyConnection(settings)) as client:

        def handle(number: int, frame: object) -> None:
            handled.append(client.lock("handler").acquire())

        before = signal.signal(signal.SIGUSR1, handle)
        try:
            with client.lock("main") as hold:
                assert {one.object_name for one in handled} == {"handler"}
                assert hold.held
                assert handled[0].held
        finally:
            signal.signal(signal.SIGUSR1, before)


@forks
@pytest.mark.usefixtures("fencelock_cluster")
def test_objects_made_before_a_fork_work_after_it_but_holds_are_the_parents() -> None:
    hold = lock.acquire(timeout=PATIENCE_S)
    other, clock = fencelock.lock("other"), default_client.ref("n1/clock")
    assert hold is not None

    def is_as_expected() -> bool:
        facts = [hold.lost, lock.acquire(blocking=False) is None, report("tuesday") == "tuesday"]
        for refuse in (hold.raise_if_lost, hold.release, lambda: clock.ask(ReadClock())):
            text = refusal((LockOwnershipLostError, ClosedError), refuse)
            facts.append(f"belongs to process {os.getppid()}" in text)
        with other as own:
            facts.append(own.held)
        fencelock.close()
        return all(facts)

    in_child(is_as_expected)
    assert hold.held
    hold.release()


def test_a_dropped_client_is_freed_with_what_it_held(
    fencelock_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    observer = fencelock_cluster.connect()
    with observer.lock("x"):
        before = clients(), descriptors()
    texts: list[str] = []

    def keep(message: Warning | str, *rest: object) -> None:  # The warning keeps its source alive.
        texts.append(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", keep)
        for _ in range(5):
            hold = fencelock.connect(fencelock_cluster.addresses).lock("x").acquire(timeout=9)
            assert hold  # It keeps the client.
            del hold
        gc.collect()
        until(lambda: clients() == before[0] and descriptors() <= before[1])
    assert sum("client was dropped" in text for text in texts) == 5
    assert observer.lock("x").acquire(blocking=False)


def test_a_dropped_hold_is_released_unless_its_lock_lives(fencelock_cluster: LocalCluster) -> None:
    client, other = fencelock_cluster.connect(), fencelock_cluster.connect()
    kept = client.lock("kept")
    kept.acquire()
    assert other.lock("kept").acquire(blocking=False) is None
    kept.release()
    with pytest.warns(ResourceWarning, match="lock 'x' was released since its hold was dropped"):
        client.lock("x").acquire()
    assert other.lock("x").acquire(timeout=PATIENCE_S)
    client.lock("named", owner="job").acquire()
    assert other.lock("named").acquire(blocking=False) is None


@pytest.mark.parametrize("act", [copy.copy, copy.deepcopy, pickle.dumps])
def test_nothing_of_a_client_is_copied_or_pickled(
    act: Callable[[object], object], fencelock_cluster: LocalCluster
) -> None:
    """A copy of a hold would release the lock of the original when it is dropped."""
    client, other = fencelock_cluster.connect(), fencelock_cluster.connect()
    lock = client.lock("x")
    hold = lock.acquire()
    config, printers = client.map("m"), client.semaphore("s", permits=2)
    for one in (hold, lock, client, config, config.watch(), printers, client.ref("local/clock")):
        with pytest.raises(TypeError, match=r"belongs to one client.*make it anew.*detach"):
            act(one)
    gc.collect()
    assert hold.held
    assert other.lock("x").acquire(blocking=False) is None


THREADS = "hold = fencelock.lock('x').acquire()\n"
TASKS = """
import asyncio
from fencelock import aio
async def main():
    global client, hold
    client = await aio.connect()
    hold = await client.lock('x').acquire()
asyncio.run(main())
"""


@pytest.mark.parametrize("acquires", [THREADS, TASKS])
def test_a_program_that_leaves_all_to_the_end_ends_well(
    fencelock_cluster: LocalCluster, acquires: str
) -> None:
    program = f"import fencelock\n{acquires}print(hold.fence)\n"
    ended = run_to_end([sys.executable, "-W", "error", "-c", program], check=True)
    assert (int(ended.stdout) > 0, ended.stderr) == (True, "")
    assert not fencelock_cluster.connect().lock("x").locked()


def test_the_first_acquire_without_a_node_at_the_default_address_names_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nobody = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    monkeypatch.setattr("fencelock.cluster.client.connection.DEFAULT_ADDRESS", nobody)
    advice = pytest.raises(UnavailableError, match="Start a node with `fencelock dev`")
    with fencelock.connect(nobody, lazy=True) as client, advice:
        client.lock("orders/42").acquire(timeout=0.1)


def test_a_decorator_that_cannot_work_raises_at_once() -> None:
    def plain() -> None:
        """Do nothing."""

    async def coroutine() -> None:
        """Do nothing."""

    async def generator() -> AsyncIterator[int]:
        yield 1

    wrong: Any = plain
    for locked in (fencelock.locked, aio.locked):
        with pytest.raises(TypeError, match=r'write @locked\("report/\{day\}"\)'):
            locked(wrong)
        with pytest.raises(TypeError, match="unexpected keyword argument 'foo'"):
            locked("x", foo=3)
    with pytest.raises(TypeError, match=r"is a coroutine function: use fencelock\.aio\.locked"):
        fencelock.locked("x")(coroutine)
    with pytest.raises(TypeError, match="plain is not a coroutine function"):
        aio.locked("x")(wrong)
    with pytest.raises(TypeError, match="generator is a generator: take the lock inside it"):
        aio.locked("x")(generator)  # type: ignore[arg-type]
