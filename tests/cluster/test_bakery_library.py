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
from support.session_harness import ANN, ME, WATCHER, A, B, SessionHarness, of, one
from support.table_scene import amounts, hold_to_read, hold_to_write, until_queued

import fencelock
import fencelock.aio
from fencelock.actors.api import message as api
from fencelock.actors.api.message import Inspect, Release
from fencelock.actors.api.name import object_name
from fencelock.actors.api.rwlock import RWLOCK, RWLOCK_PERMITS, AcquireReadWrite, Downgrade
from fencelock.actors.api.session_message import Renew, Unlocking
from fencelock.actors.bakery.config import TERM_MS_MIN
from fencelock.actors.bakery.config import Terms as ClusterTerms
from fencelock.actors.bakery.ticket import TERM_MS_MAX
from fencelock.actors.effect import Send
from fencelock.actors.error import InvalidRequestError, UnsupportedError
from fencelock.actors.message import NS_PER_MS
from fencelock.actors.role_message import LinkDown, LinkRefused
from fencelock.actors.session.message import HoldsLost
from fencelock.cluster.client.lock_options import LockOptions, term_ms_of, wait_ms_of
from fencelock.cluster.node.config import parse, starting_config
from fencelock.cluster.node.node import Node

TTL_MS = 600_000
HOUR_MS = 3_600_000
WEEK_S = 7 * 24 * 3_600


@pytest.fixture
def harness() -> SessionHarness:
    return SessionHarness(TTL_MS)


def wanted(harness: SessionHarness, wait_ms: int | None = None) -> api.Acquire:
    return one(api.Acquire, harness.open(harness.acquire(wait_ms=wait_ms)), A)


def granted(asked: api.Acquire, lock: str = "x", hold_ms: int = 1_000) -> api.Granted:
    return api.Granted(
        lock=lock,
        fence=7,
        session=asked.session,
        owner=asked.owner,
        request=asked.request,
        hold_ms=hold_ms,
        grace_ms=5_000,
    )


def held(harness: SessionHarness, hold_ms: int = 1_000) -> api.Acquire:
    asked = wanted(harness)
    assert one(api.Granted, harness.hear(A, granted(asked, hold_ms=hold_ms)), ANN).fence == 7
    return asked


def unlocking(harness: SessionHarness, lock: str = "x") -> list[Send]:
    word = Unlocking(lock=lock, fence=7, grace_ms=5_000, session=harness.assigned, owner="ann")
    return of_watcher(harness.hear(A, word))


def of_watcher(said: list[Send]) -> list[Send]:
    return [send for send in said if send.to == WATCHER]


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


def test_an_acquire_without_durations_asks_for_those_of_the_cluster(
    harness: SessionHarness,
) -> None:
    """Fields are never left out, 0 stands for the cluster's own."""
    asked = wanted(harness)
    assert (asked.lock, asked.owner, asked.wait_ms) == ("x", "ann", None)
    assert (asked.hold_ms, asked.grace_ms) == (0, 0)
    assert asked.request > 0


def test_a_holder_is_busy_until_its_release_is_confirmed(harness: SessionHarness) -> None:
    held(harness)
    assert one(api.Refused, harness.acquire(token=9), ANN).reason is api.Reason.ALREADY_HELD
    release = one(api.Release, harness.release(), A)
    assert (release.lock, release.owner, release.fence) == ("x", "ann", 7)
    assert of(api.Acquire, harness.acquire(token=10)) == []
    done = api.Released(lock="x", session=release.session, owner="ann", request=release.request)
    said = harness.hear(A, done)
    assert one(api.Released, said, ANN).count == 0
    assert one(api.Acquire, said, A).owner == "ann"


def test_all_that_is_said_of_a_lock_is_asked_for(harness: SessionHarness) -> None:
    """Shared locks have tests of their own."""
    asked = api.Acquire(
        lock="x",
        owner="ann",
        wait_ms=wait_ms_of(10.5),
        hold_ms=term_ms_of("duration", 3_600),
        grace_ms=term_ms_of("grace", 0.5),
    )
    said = one(api.Acquire, harness.open(harness.hear(ANN, asked)), A)
    assert (said.wait_ms, said.hold_ms, said.grace_ms) == (10_500, HOUR_MS, 500)


def test_a_release_of_what_is_not_held_is_an_error_and_says_nothing_to_anybody(
    harness: SessionHarness,
) -> None:
    """In the original unlocking before locking is silently nothing."""
    said = harness.release()
    assert one(api.Refused, said, ANN).reason is api.Reason.NOT_HELD
    assert of(api.Release, said, A) == []


def test_who_holds_may_ask_for_other_things_and_its_deadline_is_the_hour_it_asked_for(
    harness: SessionHarness,
) -> None:
    asked_ms = harness.now_ms
    asked = wanted(harness)
    harness.hear(A, granted(asked, hold_ms=HOUR_MS))
    ends_ms = harness.until() // NS_PER_MS - 5_000
    assert abs(ends_ms - asked_ms - HOUR_MS) <= HOUR_MS // 100
    assert one(api.Inspect, harness.hear(ANN, api.Inspect(lock="y", request=5)), A).lock == "y"
    assert one(api.Release, harness.release(), A).fence == 7


@pytest.mark.parametrize("word", [api.Granted, api.Refused])
def test_an_answer_that_names_another_lock_ends_no_wait(
    harness: SessionHarness, word: type[api.Granted | api.Refused]
) -> None:
    """It is dropped and counted; in the original the lock fails."""
    asked = wanted(harness)
    answer: api.Granted | api.Refused = granted(asked, "other")
    if word is api.Refused:
        answer = api.Refused(
            lock="other",
            reason=api.Reason.TIMED_OUT,
            detail="no",
            session=asked.session,
            owner="ann",
            request=asked.request,
        )
    assert harness.hear(A, answer) == []
    assert "client.unfit_answer_dropped" in harness.counted
    assert one(api.Granted, harness.hear(A, granted(asked)), ANN).lock == "x"


def test_a_confirmation_that_names_another_lock_confirms_nothing(harness: SessionHarness) -> None:
    held(harness)
    release = one(api.Release, harness.release(), A)
    wrong = api.Released(
        lock="other", session=release.session, owner="ann", request=release.request
    )
    assert harness.hear(A, wrong) == []
    assert of(api.Release, harness.run(1_000), A)  # It is said again.


def test_nothing_is_released_by_itself_when_the_duration_is_over(harness: SessionHarness) -> None:
    """The original's library replies to UNLOCK; here the holder decides."""
    held(harness)
    said = harness.run_kept(2_000, A)
    assert one(Unlocking, said, WATCHER).lock == "x"
    assert of(api.Release, said) == []
    assert of(Renew, said) == []
    release = one(api.Release, harness.release(), A)
    done = api.Released(lock="x", session=release.session, owner="ann", request=release.request)
    assert one(api.Released, harness.hear(A, done), ANN).lock == "x"


def test_a_warning_that_comes_after_the_grace_is_too_late(harness: SessionHarness) -> None:
    held(harness)
    said = harness.run_kept(7_000, A)
    assert one(HoldsLost, said, WATCHER).losses[0].lock == "x"
    assert unlocking(harness) == []


def test_a_warning_about_another_lock_is_dropped(harness: SessionHarness) -> None:
    """It harms no other lock."""
    held(harness, HOUR_MS)
    assert unlocking(harness, "other") == []
    assert of(HoldsLost, harness.run_kept(10_000, A)) == []


def test_the_fate_of_another_node_does_not_matter_to_a_wait(harness: SessionHarness) -> None:
    asked = wanted(harness)
    assert of(api.Refused, harness.hear(ME, LinkDown(node="b"))) == []
    assert one(api.Granted, harness.hear(A, granted(asked)), ANN).fence == 7


def test_a_request_that_cannot_be_delivered_goes_to_another_node(harness: SessionHarness) -> None:
    """In the original the lock fails at once."""
    asked = wanted(harness)
    moved = one(api.Acquire, harness.hear(ME, LinkDown(node="a")), B)
    assert moved.request == asked.request


def test_with_no_node_of_its_cluster_left_a_wait_fails_at_once_and_says_why(
    harness: SessionHarness,
) -> None:
    wanted(harness)
    said = harness.hear(ME, LinkRefused(node="a", detail="wrong cluster"))
    said += harness.hear(ME, LinkRefused(node="b", detail="wrong cluster"))
    assert one(api.Refused, said, ANN).reason is api.Reason.WRONG_CLUSTER


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (api.Reason.TIMED_OUT, fencelock.LockTimeoutError),
        (api.Reason.INVALID, fencelock.InvalidRequestError),
        (api.Reason.ALREADY_HELD, fencelock.AlreadyHeldError),
        (api.Reason.OVERLOADED, fencelock.OverloadedError),
        (api.Reason.UNAVAILABLE, fencelock.UnavailableError),
    ],
)
def test_each_refusal_is_an_error_of_its_own(
    harness: SessionHarness, reason: api.Reason, error: type[Exception]
) -> None:
    """In the original all but one are INVALID."""
    harness.open(harness.acquire())
    refused = one(api.Refused, harness.refuse([Send(A, harness_asked(harness))], reason), ANN)
    assert type(refused.error()) is error


def harness_asked(harness: SessionHarness) -> api.Acquire:
    """Return ann's `Acquire` as the proxy received it."""
    (pending,) = harness.role.session_state.in_flight.pending.values()
    return api.Acquire(lock="x", session=harness.assigned, owner="ann", request=pending.number)


def test_a_wait_that_nobody_answers_ends_by_the_clients_own_clock(harness: SessionHarness) -> None:
    wanted(harness, wait_ms=3_000)
    said = harness.run(2_900)
    assert of(api.Refused, said, ANN) == []
    refused = one(api.Refused, harness.run(10_000), ANN)
    assert refused.reason is api.Reason.UNAVAILABLE
    assert "silent" in refused.detail


def test_a_release_that_nobody_confirms_is_told_after_a_while_and_goes_on(
    harness: SessionHarness,
) -> None:
    """A user does not wait forever, and its released lock is not held forever."""
    held(harness, HOUR_MS)
    said = [*harness.release(), *harness.run(11_000)]
    assert one(api.Refused, said, ANN).reason is api.Reason.UNAVAILABLE
    assert of(api.Release, harness.run(5_000))
    assert of(api.Cancel, said) == []


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
