"""Locks and read/write locks on `bakery` as users meet them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib import metadata
from random import Random
from threading import Barrier, Event

import pytest
from support.expect import PATIENCE_S
from support.faces import Connect
from support.real_nodes import ask, loopback_addresses, running
from support.table_scene import amounts, hold_to_read, hold_to_write, until_queued

import fencelock
import fencelock.aio
from fencelock.actors.api import lock_message as api
from fencelock.actors.api.lock_message import Inspect, Release
from fencelock.actors.api.name import object_name
from fencelock.actors.api.rwlock import RWLOCK, RWLOCK_PERMITS, AcquireReadWrite, Downgrade
from fencelock.actors.bakery.config import TERM_MS_MIN
from fencelock.actors.bakery.config import Terms as ClusterTerms
from fencelock.actors.bakery.ticket import TERM_MS_MAX
from fencelock.actors.error import InvalidRequestError, UnsupportedError
from fencelock.cluster.client.settings import LockOptions, term_ms_of, wait_ms_of
from fencelock.cluster.node.config import parse, starting_config
from fencelock.cluster.node.node import Node

WEEK_S = 7 * 24 * 3_600


def test_three_timeouts_have_a_default_of_the_clusters_and_none_of_the_locks() -> None:
    cluster = ClusterTerms()
    assert (cluster.wait_ms, cluster.hold_ms, cluster.grace_ms) == (5_000, 5_000, 5_000)
    lock = LockOptions("x")
    assert (wait_ms_of(lock.timeout), lock.hold_ms, lock.grace_ms) == (None, 0, 0)


def test_ten_thousand_durations_are_kept_or_refused_and_never_changed() -> None:
    """The original silently moves values into their limits."""
    assert (TERM_MS_MIN, TERM_MS_MAX) == (3_000, WEEK_S * 1_000)
    chance = Random(2)
    for _ in range(10_000):
        term = chance.uniform(-10, 2 * WEEK_S)
        if 0 < term <= WEEK_S:
            assert 0 <= term_ms_of("duration", term) - term * 1_000 < 1
        else:
            with pytest.raises(InvalidRequestError, match=f"duration is {term}, and must be"):
                term_ms_of("duration", term)


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (api.Reason.TIMED_OUT, fencelock.LockTimeoutError),
        (api.Reason.INVALID, fencelock.InvalidRequestError),
        (api.Reason.ALREADY_HELD, fencelock.AlreadyHeldError),
        (api.Reason.OVERLOADED, fencelock.OverloadedError),
        (api.Reason.UNAVAILABLE, fencelock.UnavailableError),
        (api.Reason.WRONG_CLUSTER, fencelock.WrongClusterError),
    ],
)
def test_each_refusal_is_an_error_of_its_own(reason: api.Reason, error: type[Exception]) -> None:
    """In the original all but one are INVALID."""
    assert type(api.Refused(lock="x", reason=reason, detail="no").error()) is error


def test_the_version_is_the_one_that_was_built() -> None:
    assert fencelock.__version__ == metadata.version("fencelock")


WRITES = RWLOCK_PERMITS
LEAST_S = 0.3


@pytest.fixture(scope="module")
def bakery_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    text = starting_config(loopback_addresses(), cluster="shared", protocol="bakery")
    text = text.replace("least = 3.0", f"least = {LEAST_S}")
    text = text.replace("obtention = 5.0", f"obtention = {PATIENCE_S}.0")
    config = parse(text, tmp_path_factory.mktemp("shared"))
    with running(config) as nodes:
        yield list(nodes.values())


@pytest.fixture
def addresses(bakery_nodes: list[Node]) -> str:
    return ",".join(node.address for node in bakery_nodes)


@pytest.fixture
def connect(addresses: str) -> Iterator[Connect]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(fencelock.connect(addresses, cluster="shared"))


def test_readers_share_it_and_a_writer_waits_for_them_and_is_alone(
    connect: Connect, name: str, pool: ThreadPoolExecutor
) -> None:
    one, two = (connect().rwlock(name, duration=PATIENCE_S) for _ in range(2))
    first, second = one.read().acquire(), two.read().acquire()
    assert first
    assert second
    assert first.fence != second.fence
    writer = pool.submit(hold_to_write, one)
    until_queued(one, WRITES)
    reader = pool.submit(hold_to_read, two)
    until_queued(one, WRITES, 1)
    status = one.status()
    assert amounts(status) == ([1, 1], [WRITES, 1])
    assert (status.holder, status.permits) == (status.holders[0], WRITES)
    first.release()
    second.release()
    assert max(first.fence, second.fence) < writer.result(PATIENCE_S) < reader.result(PATIENCE_S)
    assert one.status().holder is None


def test_readers_of_many_clients_are_in_together(
    connect: Connect, name: str, pool: ThreadPoolExecutor
) -> None:
    together = Barrier(4)

    def read(rw: fencelock.RWLock) -> int:
        with rw.read() as hold:
            together.wait(PATIENCE_S)
            return hold.fence

    readers = [pool.submit(read, connect().rwlock(name)) for _ in range(4)]
    assert len({reader.result(PATIENCE_S) for reader in readers}) == 4


@pytest.mark.parametrize("side", ["read", "write"])
@pytest.mark.parametrize("blocking", [True, False])
def test_an_owner_that_reads_may_neither_read_again_nor_write(
    connect: Connect, name: str, side: str, blocking: bool
) -> None:
    rw = connect().rwlock(name)
    again = {"read": rw.read, "write": rw.write}[side]()
    with rw.read() as hold:
        with pytest.raises(fencelock.AlreadyHeldError, match=f"fence {hold.fence}; .* release it"):
            again.acquire(blocking=blocking)
        assert hold.held
    with again as later:
        assert later.fence > hold.fence


def test_a_writer_cannot_downgrade(connect: Connect, name: str) -> None:
    rw = connect().rwlock(name)
    with rw.write() as hold:
        with pytest.raises(UnsupportedError, match=r"bakery has no Downgrade.*paxos has it"):
            rw.write().downgrade()
        assert hold.held


def test_a_reader_is_asked_to_unlock_and_renews_while_a_writer_waits(
    connect: Connect, name: str, pool: ThreadPoolExecutor
) -> None:
    one, two = (
        connect().rwlock(name, duration=LEAST_S, grace=PATIENCE_S, timeout=PATIENCE_S)
        for _ in range(2)
    )
    asked = Event()
    read = one.read()
    read.on_unlocking(lambda _: asked.set())
    with read as hold:
        writer = pool.submit(hold_to_write, two)
        until_queued(one, WRITES)
        assert asked.wait(PATIENCE_S)
        hold.renew(PATIENCE_S)
        assert hold.held
        assert not writer.done()
    assert writer.result(PATIENCE_S) > hold.fence


def test_a_reader_that_does_not_renew_loses_it_to_the_writer_and_knows_it_before(
    connect: Connect, name: str
) -> None:
    one, two = connect().rwlock(name, duration=LEAST_S, grace=LEAST_S), connect().rwlock(name)
    late, kept = one.read().acquire(), two.read().acquire()
    assert late
    assert kept
    kept.release()
    with two.write() as hold:
        assert late.lost
        assert hold.fence > late.fence
    with pytest.raises(fencelock.LockOwnershipLostError):
        late.release()


def test_a_wait_that_times_out_names_a_holder(
    connect: Connect, name: str, pool: ThreadPoolExecutor
) -> None:
    one, two, three = (connect().rwlock(name, timeout=0.3) for _ in range(3))
    with one.read(), two.read():
        writer = pool.submit(hold_to_write, three)
        with pytest.raises(fencelock.LockTimeoutError, match=r"held by .*, and by 1 other"):
            writer.result(PATIENCE_S)


async def test_tasks_read_and_write(addresses: str, name: str) -> None:
    async with fencelock.aio.connect(addresses, cluster="shared") as client:
        rw = client.rwlock(name, duration=PATIENCE_S)

        async def read() -> int:
            async with rw.read() as hold:
                return hold.fence

        async with rw.write() as hold:
            readers = [asyncio.create_task(read()) for _ in range(2)]
            while amounts(await rw.status())[1] != [1, 1]:
                pass
        assert min(await asyncio.gather(*readers)) > hold.fence
        async with rw.read():
            with pytest.raises(fencelock.AlreadyHeldError):
                await rw.write().acquire()


def test_an_ask_reads_and_writes(bakery_nodes: list[Node], name: str) -> None:
    node, lock = bakery_nodes[0], object_name(RWLOCK, name)
    one, two = (ask(node, AcquireReadWrite(rwlock=name, hold_ms=60_000)) for _ in range(2))
    assert (one.lock, one.count, one.hold_ms) == (lock, 1, 60_000)
    assert amounts(ask(node, Inspect(lock=lock))) == ([1, 1], [])
    for fence in (one.fence, two.fence):
        assert ask(node, Release(lock=lock, fence=fence)).count == 0
    written = ask(node, AcquireReadWrite(rwlock=name, write=True))
    assert written.fence > max(one.fence, two.fence)
    with pytest.raises(UnsupportedError):
        ask(node, Downgrade(rwlock=name, fence=written.fence))
    ask(node, Release(lock=lock, fence=written.fence))
