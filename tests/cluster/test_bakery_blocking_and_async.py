"""Deadlines with threads and tasks, on real clusters of `bakery` and `paxos`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.expect import PATIENCE_S, present
from support.faces import CLIENT_KINDS, FACES, connecting
from support.real_nodes import loopback_addresses, running, until
from support.samples import fence_of

import fencelock
from fencelock.actors.error import (
    InvalidRequestError,
    LockOwnershipLostError,
    NotHeldError,
    UnsupportedError,
)
from fencelock.actors.session.holds import HoldState
from fencelock.cluster.client.callback_executor import Notice
from fencelock.cluster.node.config import Config, parse, starting_config

SHORT_S = 0.6
"""A duration, or a grace, that passes during a test."""


on_bakery = pytest.mark.parametrize("cluster", ["bakery"], indirect=True)
on_paxos = pytest.mark.parametrize("cluster", ["paxos"], indirect=True)


def config_of(folder: Path, nodes: int, protocol: str = "bakery") -> Config:
    addresses = loopback_addresses(nodes)
    text = starting_config(addresses, cluster=FACES, protocol=protocol)
    return parse(text.replace("least = 3.0", "least = 0.2"), folder)


@pytest.fixture(scope="module", params=["bakery", "paxos"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Config]:
    config = config_of(tmp_path_factory.mktemp(request.param), 3, request.param)
    with running(config):
        with connected(config) as client:
            # From now on there are leaders: no wait for them.
            _held = client.lock("first").acquire(timeout=PATIENCE_S)
        yield config


def connected(config: Config) -> fencelock.Client:
    addresses = [*config.nodes.values()]
    return fencelock.connect(addresses, cluster=FACES, connect_timeout=PATIENCE_S)


@pytest.fixture
def client(cluster: Config, client_kind: str) -> Iterator[fencelock.Client]:
    with connecting(client_kind, ",".join(cluster.nodes.values())) as connect:
        yield connect()


@pytest.mark.parametrize("client_kind", CLIENT_KINDS)
def test_the_owner_is_notified_at_the_end_of_the_duration_and_the_next_is_served_after_the_grace(
    client: fencelock.Client,
) -> None:
    notices: list[Notice] = []
    lost = threading.Event()
    mine = client.lock("order", duration=SHORT_S, grace=SHORT_S, owner="first")
    mine.on_unlocking(notices.append)
    mine.on_lost(notices.append)
    mine.on_lost(lambda notice: lost.set())
    fence = fence_of(mine.acquire())
    mine.renew()
    began = time.monotonic()
    other = client.lock("order", owner="second", duration=60)
    later = fence_of(other.acquire())
    assert time.monotonic() - began >= SHORT_S * 2 * 0.9
    assert later > fence
    assert lost.wait(PATIENCE_S)
    assert [notice.state for notice in notices] == [HoldState.UNLOCKING, HoldState.LOST]
    assert "release or renew" in notices[0].detail
    assert (mine.lost, mine.held) == (True, False)
    with pytest.raises(LockOwnershipLostError, match="its duration and its grace are over"):
        mine.release()
    other.release()


def test_a_holder_that_renews_in_the_callback_keeps_the_lock(client: fencelock.Client) -> None:
    mine = client.lock("kept", duration=SHORT_S, grace=5, owner="keeper")
    renewed = threading.Semaphore(0)

    def renew(notice: Notice) -> None:
        assert notice.state is HoldState.UNLOCKING
        mine.renew()
        renewed.release()

    mine.on_unlocking(renew)
    fence = fence_of(mine.acquire())
    for _ in range(3):
        assert renewed.acquire(timeout=PATIENCE_S)
    assert (mine.held, mine.fence) == (True, fence)
    assert client.lock("kept", owner="other").acquire(blocking=False) is None
    mine.release()
    assert mine.state is HoldState.FREE


def test_a_renewal_may_be_longer_and_is_never_shorter(client: fencelock.Client) -> None:
    mine = client.lock("longer", duration=SHORT_S, grace=SHORT_S)
    notified = threading.Event()
    mine.on_unlocking(lambda notice: notified.set())
    mine.acquire()
    mine.renew(60)
    mine.renew(SHORT_S)
    assert not notified.wait(3 * SHORT_S)
    assert mine.held
    mine.release()


def test_only_a_held_lock_is_renewed(client: fencelock.Client) -> None:
    with pytest.raises(NotHeldError):
        client.lock("nobodys").renew()


@on_bakery
@pytest.mark.parametrize("terms", [{"duration": 0.1}, {"grace": 0.1}])
def test_a_duration_below_the_clusters_least_is_refused(
    client: fencelock.Client, terms: dict[str, float]
) -> None:
    with pytest.raises(InvalidRequestError, match="is 100 ms, 200 to 600000 ms are allowed"):
        client.lock("short", **terms).acquire()  # type: ignore[arg-type]


@on_bakery
def test_a_renewal_below_the_clusters_least_is_refused_and_changes_nothing(
    client: fencelock.Client,
) -> None:
    mine = client.lock("renewed-short")
    mine.acquire()
    with pytest.raises(InvalidRequestError, match="duration is 100 ms"):
        mine.renew(0.1)
    assert mine.held
    mine.release()


def test_a_holder_of_a_lock_asks_for_it_again_in_vain(client: fencelock.Client) -> None:
    mine = client.lock("twice", owner="one")
    mine.acquire()
    assert mine.acquire(blocking=False) is None
    assert mine.acquire(timeout=0.1) is None
    mine.release()


@on_bakery
def test_reentrant_locks_and_lists_of_locks_are_refused_by_name(client: fencelock.Client) -> None:
    with pytest.raises(UnsupportedError, match="paxos has it"):
        client.rlock("deep")
    with pytest.raises(UnsupportedError, match="paxos does"):
        client.locks()


def test_a_wait_longer_than_the_duration_ends_in_a_hold_of_full_length(
    client: fencelock.Client,
) -> None:
    holder = client.lock("long-wait", owner="holder", duration=60)
    holder.acquire()
    waiter = client.lock("long-wait", owner="waiter", duration=SHORT_S, grace=SHORT_S)
    granted: list[float] = []
    lost: list[float] = []
    waiter.on_lost(lambda notice: lost.append(time.monotonic()))

    def wait() -> None:
        waiter.acquire()
        granted.append(time.monotonic())

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: len(client.status("long-wait").waiters) == 1)
    time.sleep(3 * SHORT_S)
    holder.release()
    thread.join(PATIENCE_S)
    until(lambda: bool(lost))
    assert lost[0] - granted[0] >= 2 * SHORT_S * 0.8


@pytest.mark.parametrize("nodes", [1, 2])
def test_one_node_and_two_grant_locks_too(tmp_path: Path, nodes: int) -> None:
    config = config_of(tmp_path, nodes)
    with running(config), connected(config) as client:
        lock = client.lock("small")
        first = fence_of(lock.acquire(timeout=PATIENCE_S))
        lock.release()
        second = fence_of(lock.acquire(timeout=PATIENCE_S))
        assert second > first


def test_a_lock_and_its_hold_show_the_time_that_is_left(client: fencelock.Client) -> None:
    mine = client.lock("told", duration=60, grace=30)
    assert (mine.remaining, mine.deadline) == (0.0, None)
    before = time.monotonic()
    with mine as hold:
        for one in (mine, hold):
            assert one.deadline is not None
            assert 89 < one.deadline - before < 90.5
            assert 0 < one.remaining <= one.deadline - time.monotonic() + 0.1
        mine.renew(500)
        assert hold.deadline is not None
        assert 520 < hold.deadline - before < 531
    for one in (mine, hold):
        assert (one.remaining, one.deadline) == (0.0, None)


@on_paxos
def test_a_hold_without_a_duration_has_no_deadline(client: fencelock.Client) -> None:
    with client.lock("plain") as hold:
        assert hold.deadline is None
        assert 0 < hold.remaining <= 15
        assert client.status("plain").left_ms is None
        with pytest.raises(UnsupportedError, match="this hold has no deadline"):
            hold.renew()


@on_paxos
def test_an_owner_that_acquires_again_keeps_its_deadline_and_loses_all_levels(
    client: fencelock.Client,
) -> None:
    mine = client.rlock("deep", duration=SHORT_S, grace=SHORT_S, owner="one")
    lost = threading.Event()
    mine.on_lost(lambda notice: lost.set())
    outer = present(mine.acquire())
    deadline = present(outer.deadline)
    inner = present(mine.acquire())
    assert inner.deadline == pytest.approx(deadline, abs=0.01)
    assert 0 < present(client.status("deep").left_ms) <= 2_000 * SHORT_S + 1
    assert lost.wait(PATIENCE_S)
    for hold in (outer, inner):
        assert hold.lost
        with pytest.raises(LockOwnershipLostError):
            hold.release()


@on_paxos
@pytest.mark.parametrize(
    ("terms", "text"),
    [
        ({"duration": 0.05}, "duration is 50 ms, 100 to 604800000 ms are allowed"),
        ({"duration": 1, "grace": 0.05}, "grace is 50 ms, 100 to 604800000 ms are allowed"),
        ({"grace": 1}, "grace is 1000 ms, and needs a duration"),
    ],
)
def test_durations_out_of_their_limits_are_refused_with_a_reason(
    client: fencelock.Client, terms: dict[str, float], text: str
) -> None:
    with pytest.raises(InvalidRequestError, match=text):
        client.lock("short", **terms).acquire()  # type: ignore[arg-type]


@on_paxos
def test_an_evicted_hold_is_lost_long_before_its_deadline(client: fencelock.Client) -> None:
    mine = client.lock("taken", duration=600)
    lost = threading.Event()
    mine.on_lost(lambda notice: lost.set())
    hold = present(mine.acquire())
    client.evict("taken", hold.fence)
    assert lost.wait(PATIENCE_S)
    assert (mine.lost, mine.deadline) == (True, None)
    with pytest.raises(LockOwnershipLostError):
        mine.renew()
