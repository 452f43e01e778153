"""A `paxos` cluster that loses nodes while clients hold and wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.holds import fence_of
from support.real_nodes import loopback_addresses

import fencelock
from fencelock.actors.error import LockOwnershipLostError, StaleError, UnavailableError
from fencelock.actors.session.holds import HoldState
from fencelock.cluster.node.config import Config, parse, starting_config
from fencelock.cluster.node.node import Node

PATIENCE_S = 60
CLUSTER = "majority"


class MajorityCluster:
    """Three nodes in this process that can be stopped and started again."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.running: dict[str, Node] = {}
        self.clients = ExitStack()

    def start(self, *nodes: str) -> None:
        for node in nodes:
            self.running[node] = Node.start(self.config, node, found=True)

    def stop(self, *nodes: str) -> None:
        for node in nodes:
            assert self.running.pop(node).stop(PATIENCE_S)

    def connect(self, ttl: float = 15.0) -> fencelock.Client:
        addresses = ",".join(self.config.nodes.values())
        client = fencelock.connect(addresses, cluster=CLUSTER, connect_timeout=PATIENCE_S, ttl=ttl)
        return self.clients.enter_context(client)

    def close(self) -> None:
        self.clients.close()
        self.stop(*self.running)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MajorityCluster]:
    at = loopback_addresses()
    text = starting_config(at, cluster=CLUSTER, protocol="paxos")
    cluster = MajorityCluster(parse(text, tmp_path))
    cluster.start(*at)
    yield cluster
    cluster.close()


def wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def leader(client: fencelock.Client) -> str:
    """The node that the others take for their leader, once they agree."""
    found: set[str] = set()

    def agree() -> bool:
        found.clear()
        found.update(status.leader for status in client.describe())
        return len(found) == 1 and "" not in found

    wait_for(agree)
    return found.pop()


def test_a_request_that_goes_on_at_another_node_is_the_same_request(
    cluster: MajorityCluster,
) -> None:
    holder, other, witness = (cluster.connect() for _ in range(3))
    held, waited = holder.lock("x"), other.lock("x")
    fence = fence_of(held.acquire())
    assert fence is not None
    with ThreadPoolExecutor(1) as pool:
        waiting: Future[fencelock.Hold | None] = pool.submit(waited.acquire)
        wait_for(lambda: len(witness.status("x").waiters) == 1)
        for _ in range(2):
            gone = leader(witness)
            cluster.stop(gone)
            now = witness.status("x")
            assert now.holder is not None
            assert (now.holder.fence, len(now.waiters)) == (fence, 1)
            cluster.start(gone)
        assert held.held
        held.release()
        got = fence_of(waiting.result(PATIENCE_S))
    assert got is not None
    assert got > fence
    now = witness.status("x")
    assert now.holder is not None
    assert (now.holder.fence, now.holder.times, now.waiters) == (got, 1, ())


def test_without_a_majority_holds_turn_suspect_and_lost_and_nobody_is_granted_anything(
    cluster: MajorityCluster,
) -> None:
    client, other = cluster.connect(ttl=1.0), cluster.connect()
    states: list[HoldState] = []
    lost = threading.Event()
    lock = client.lock("x")
    lock.on_suspect(lambda notice: states.append(notice.state))
    lock.on_lost(lambda notice: states.append(notice.state))
    client.on_lost(lambda _: lost.set())
    fence = fence_of(lock.acquire())
    assert fence is not None
    gone = list(cluster.running)[:2]
    cluster.stop(*gone)
    assert lost.wait(PATIENCE_S)
    assert states[-2:] == [HoldState.SUSPECT, HoldState.LOST]
    with pytest.raises(LockOwnershipLostError):
        lock.release()
    with pytest.raises(UnavailableError):  # Never a mere "somebody else has it".
        other.lock("x").acquire(timeout=0.2)
    with pytest.raises(StaleError):
        other.status("x", read="local", max_age=0.05)
    cluster.start(*gone)
    got = fence_of(other.lock("x").acquire(timeout=PATIENCE_S))
    assert got is not None
    assert got > fence


def test_a_rolling_restart_of_all_nodes_costs_no_hold(cluster: MajorityCluster) -> None:
    client = cluster.connect()
    lost: list[fencelock.Notice] = []
    client.on_lost(lost.append)
    lock = client.lock("x")
    fence = fence_of(lock.acquire())
    for node in list(cluster.running):
        cluster.stop(node)
        with client.lock("y", timeout=PATIENCE_S):
            assert lock.held
        cluster.start(node)
        wait_for(lambda: all(status.ready for status in client.describe()))
    now = lock.status()
    assert now.holder is not None
    assert now.holder.fence == fence
    lock.release()
    assert lost == []
