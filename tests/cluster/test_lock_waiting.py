"""An acquire waits while its own client still holds or releases the lock: it never spins or
fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol

import pytest
from support.holds import fence_of

import fencelock
from fencelock import aio
from fencelock.actors.error import LockTimeoutError, UnavailableError
from fencelock.actors.session import session

PATIENCE_S = 60
CLUSTER = "faces"


class Cable(Protocol):
    """A way to a node; see `conftest.py`."""

    address: str

    def cut(self) -> None: ...

    def mend(self) -> None: ...


@pytest.fixture
def client(paxos_addresses: str) -> Iterator[fencelock.Client]:
    with fencelock.connect(paxos_addresses, cluster=CLUSTER, connect_timeout=PATIENCE_S) as client:
        yield client


@pytest.fixture
def far(cables: list[Cable], monkeypatch: pytest.MonkeyPatch) -> Iterator[fencelock.Client]:
    """A client behind cables, which waits for a release for less than ten seconds."""
    monkeypatch.setattr(session, "ANSWER_MS", 300)
    addresses = ",".join(cable.address for cable in cables)
    with fencelock.connect(addresses, cluster=CLUSTER, connect_timeout=PATIENCE_S) as client:
        yield client
        mend(cables)


def mend(cables: list[Cable]) -> None:
    for cable in cables:
        cable.mend()


LOCKS: dict[str, Callable[[Any, str], Any]] = {
    "anonymous": lambda client, name: client.lock(f"{name}-1"),
    "named": lambda client, name: client.lock(f"{name}-2", owner="job"),
    "rlock": lambda client, name: client.rlock(f"{name}-3", limit=1),
}


@pytest.mark.parametrize("kind", ["anonymous", "named"])
def test_a_holder_that_loops_until_it_holds_waits_for_itself_each_time(
    client: fencelock.Client, kind: str
) -> None:
    lock = LOCKS[kind](client, "loops")
    lock.acquire()
    tries, ends = 0, time.monotonic() + 1
    while not lock.acquire(timeout=0.4) and time.monotonic() < ends:
        tries += 1
    assert tries <= 2
    assert lock.held
    lock.release()
    assert not lock.locked()


def test_an_owner_that_acquires_while_it_releases_elsewhere_waits_for_that(
    client: fencelock.Client,
) -> None:
    lock = client.lock("both", owner="job")
    for _ in range(20):
        hold = lock.acquire()
        assert hold is not None
        hold.release()
        with client.lock("both", owner="job", timeout=PATIENCE_S) as again:
            assert again.fence > hold.fence


@pytest.mark.parametrize("kind", LOCKS)
def test_an_acquire_after_an_unconfirmed_release_waits_within_its_own_timeout(
    far: fencelock.Client, cables: list[Cable], kind: str
) -> None:
    lock = LOCKS[kind](far, "unconfirmed")
    fence = fence_of(lock.acquire())
    for cable in cables:
        cable.cut()
    with pytest.raises(UnavailableError):
        lock.release()
    for timeout in (0.5, 1.0):
        began = time.monotonic()
        with suppress(UnavailableError):  # Nobody can be asked. But never at once.
            assert lock.acquire(timeout=timeout) is None
        assert time.monotonic() - began >= timeout
    mend(cables)
    assert fence_of(lock.acquire(timeout=PATIENCE_S)) > fence
    lock.release()


def test_with_after_an_unconfirmed_release_raises_when_its_timeout_is_over(
    far: fencelock.Client, cables: list[Cable]
) -> None:
    lock = far.lock("hot", owner="job")
    lock.acquire()
    for cable in cables:
        cable.cut()
    with pytest.raises(UnavailableError):
        lock.release()
    began = time.monotonic()
    with (
        pytest.raises((LockTimeoutError, UnavailableError)),
        far.lock("hot", owner="job", timeout=1),
    ):
        pass
    assert time.monotonic() - began >= 1


@pytest.mark.parametrize("kind", LOCKS)
def test_a_task_that_acquires_after_a_cancelled_release_waits_for_it(
    far: fencelock.Client, cables: list[Cable], kind: str
) -> None:
    async def run() -> None:
        addresses = ",".join(cable.address for cable in cables)
        async with aio.connect(addresses, cluster=CLUSTER, connect_timeout=PATIENCE_S) as client:
            lock = LOCKS[kind](client, "cancelled")
            fence = fence_of(await lock.acquire())
            for cable in cables:
                cable.cut()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await lock.release()
            began = time.monotonic()
            with suppress(UnavailableError):
                assert await lock.acquire(timeout=0.5) is None
            assert time.monotonic() - began >= 0.5
            mend(cables)
            assert fence_of(await lock.acquire(timeout=PATIENCE_S)) > fence
            await lock.release()

    del far  # For its fixture.
    asyncio.run(run())


def test_locked_asks_the_cluster_and_remaining_the_clock(client: fencelock.Client) -> None:
    lock = client.lock("seen")
    assert not lock.locked()
    with client.lock("seen") as hold:
        assert lock.locked()
        assert 5 < hold.remaining <= 15
    assert not lock.locked()
    assert hold.remaining == 0


def test_callbacks_of_a_hold_are_called_though_they_come_late(client: fencelock.Client) -> None:
    told: list[fencelock.Notice] = []
    hold = client.lock("evicted").acquire()
    assert hold is not None
    client.evict("evicted", hold.fence)
    end = time.monotonic() + PATIENCE_S
    while not hold.lost:
        assert time.monotonic() < end
    hold.on_lost(told.append)
    while not told:
        assert time.monotonic() < end
    assert told[0].fence == hold.fence
    with pytest.raises(fencelock.LockOwnershipLostError):
        hold.release()
    hold.release()  # The loss was reported.
