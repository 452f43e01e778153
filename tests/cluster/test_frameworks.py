"""Frameworks that enter and leave a ``with`` on different threads and tasks hold and release."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from support.expect import PATIENCE_S, present
from support.faces import FACES
from support.programs import run_to_end

import fencelock
from fencelock import aio

LOCKS = 3
REQUESTS = 12


def connect_aio(addresses: str) -> aio.Connecting:
    return aio.connect(addresses, cluster=FACES, connect_timeout=PATIENCE_S)


@pytest.fixture
def other(paxos_addresses: str) -> Iterator[fencelock.Client]:
    with fencelock.connect(paxos_addresses, cluster=FACES, connect_timeout=PATIENCE_S) as client:
        yield client


def assert_free(other: fencelock.Client, name: str) -> None:
    """Show that nothing is left behind: another client gets the lock and leaves it."""
    with other.lock(name, timeout=PATIENCE_S):
        pass
    status = other.status(name)
    assert (status.holder, status.waiters) == (None, ())


class Protected:
    """The resource that the locks protect: no task may enter while another is inside."""

    def __init__(self) -> None:
        self.inside: set[str] = set()
        self.fences: dict[str, list[int]] = {}

    def enter(self, name: str, fence: int) -> None:
        assert name not in self.inside
        self.inside.add(name)
        self.fences.setdefault(name, []).append(fence)

    def leave(self, name: str) -> None:
        self.inside.remove(name)


def fenced(lock_of: Callable[[str], fencelock.Lock]) -> Callable[[str], Iterator[fencelock.Hold]]:
    def dependency(name: str) -> Iterator[fencelock.Hold]:
        with lock_of(name) as hold:
            yield hold

    return dependency


def service(dependency: Callable[..., Any], protected: Protected) -> FastAPI:
    """Return an application whose dependency holds a lock around a handler of each kind."""
    app = FastAPI()
    # Not `Annotated`: annotations are strings in this file, and a string cannot name a parameter.

    @app.get("/sync/{name}")
    def handle(name: str, hold: Any = Depends(dependency)) -> int:  # noqa: B008
        assert hold.held
        protected.enter(name, hold.fence)
        time.sleep(0.01)
        protected.leave(name)
        return int(hold.fence)

    @app.get("/async/{name}")
    async def handle_async(name: str, hold: Any = Depends(dependency)) -> int:  # noqa: B008
        assert hold.held
        protected.enter(name, hold.fence)
        await asyncio.sleep(0.01)
        protected.leave(name)
        return int(hold.fence)

    return app


async def request_all(app: FastAPI, kind: str) -> list[httpx.Response]:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
        paths = [f"/{kind}/{kind}-{number % LOCKS}" for number in range(REQUESTS)]
        asks = (http.get(path, timeout=PATIENCE_S) for path in paths)
        return await asyncio.gather(*asks)


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("shared", [False, True], ids=["a lock a request", "shared locks"])
def test_a_fastapi_yield_dependency_holds_and_releases(
    client: fencelock.Client, other: fencelock.Client, kind: str, shared: bool
) -> None:
    """A sync dependency enters and leaves on different threads of a pool."""
    names = [f"{kind}-{number}" for number in range(LOCKS)]
    locks = {name: client.lock(name, timeout=PATIENCE_S) for name in names}
    protected = Protected()

    def lock_of(name: str) -> fencelock.Lock:
        return locks[name] if shared else client.lock(name, timeout=PATIENCE_S)

    responses = asyncio.run(request_all(service(fenced(lock_of), protected), kind))
    assert [response.status_code for response in responses] == [200] * REQUESTS
    assert {name: len(fences) for name, fences in protected.fences.items()} == dict.fromkeys(
        names, REQUESTS // LOCKS
    )
    for name in names:
        assert protected.fences[name] == sorted(set(protected.fences[name]))
        assert_free(other, name)


async def test_a_fastapi_dependency_of_the_asyncio_client_holds_and_releases(
    paxos_addresses: str, other: fencelock.Client
) -> None:
    protected = Protected()
    async with connect_aio(paxos_addresses) as client:

        async def dependency(name: str) -> AsyncIterator[aio.Hold]:
            async with client.lock(name, timeout=PATIENCE_S) as hold:
                yield hold

        app = service(dependency, protected)
        responses = [*await request_all(app, "async"), *await request_all(app, "sync")]
    assert [response.status_code for response in responses] == [200] * 2 * REQUESTS
    for name in protected.fences:
        assert_free(other, name)


async def test_wait_for_an_acquire_gives_a_hold_that_its_caller_releases(
    paxos_addresses: str, other: fencelock.Client
) -> None:
    """Before Python 3.12 `asyncio.wait_for` runs the acquire in a task of its own."""
    async with connect_aio(paxos_addresses) as client:
        lock = client.lock("waited for")
        for _ in range(3):
            hold = present(await asyncio.wait_for(lock.acquire(), 5))
            assert hold.fence == lock.fence
            await lock.release()
        again = present(await asyncio.wait_for(lock.acquire(), 5))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.lock("waited for").acquire(), 0.05)
        await again.release()
    assert_free(other, "waited for")


async def test_gathered_acquires_give_holds_that_their_caller_releases(
    paxos_addresses: str, other: fencelock.Client
) -> None:
    async def use(lock: aio.Lock) -> int:
        async with lock as hold:
            await asyncio.sleep(0)
            return hold.fence

    async with connect_aio(paxos_addresses) as client:
        locks = [client.lock(f"gathered-{number}") for number in range(LOCKS)]
        for _ in range(3):
            holds = await asyncio.gather(*(lock.acquire() for lock in locks))
            assert all(hold is not None and hold.held for hold in holds)
            await asyncio.gather(*(lock.release() for lock in locks))
        same = client.lock("gathered-0")
        order = await asyncio.gather(*(use(same) for _ in range(5)))
        assert len(set(order)) == 5
    for number in range(LOCKS):
        assert_free(other, f"gathered-{number}")


FIXTURE = """
import pytest, pytest_asyncio
from fencelock import aio

@pytest_asyncio.fixture
async def client():
    async with aio.connect({addresses!r}, cluster={cluster!r}, connect_timeout=60) as client:
        yield client

@pytest_asyncio.fixture
async def hold(client):
    async with client.lock("a fixture", timeout=60) as hold:
        yield hold

@pytest_asyncio.fixture
async def lock(client):
    lock = client.lock("another fixture", timeout=60)
    await lock.acquire()
    yield lock
    await lock.release()

@pytest.mark.asyncio
@pytest.mark.parametrize("number", range(3))
async def test_it_is_held(hold, lock, number):
    assert hold.held and hold.fence
    assert lock.held and lock.fence > hold.fence
"""


def test_a_pytest_asyncio_fixture_holds_and_releases(
    paxos_addresses: str, other: fencelock.Client, tmp_path: Path
) -> None:
    """Fixtures of pytest-asyncio are entered, used and left in different tasks."""
    (tmp_path / "test_fixture.py").write_text(
        FIXTURE.format(addresses=paxos_addresses, cluster=FACES)
    )
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_default_fixture_loop_scope = function\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    ended = run_to_end(command, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "3 passed" in ended.stdout
    for name in ("a fixture", "another fixture"):
        assert_free(other, name)


def test_any_thread_may_release_a_hold(client: fencelock.Client, other: fencelock.Client) -> None:
    """A lock that another thread acquired is not lost with that thread."""
    lock = client.lock("handed on")
    releases: list[Callable[[fencelock.Hold], None]] = [
        lambda _: lock.release(),
        lambda hold: hold.release(),
    ]
    for release in releases:
        holds: queue.SimpleQueue[fencelock.Hold | None] = queue.SimpleQueue()
        thread = threading.Thread(target=partial(put_acquired, lock, holds))
        thread.start()
        thread.join(PATIENCE_S)
        hold = present(holds.get(timeout=PATIENCE_S))
        assert (lock.held, lock.fence) == (True, hold.fence)
        release(hold)
        assert_free(other, "handed on")


def put_acquired(lock: fencelock.Lock, holds: queue.SimpleQueue[fencelock.Hold | None]) -> None:
    holds.put(lock.acquire())
