"""Requests that change an object, on three nodes: each takes effect once, even if nodes stop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stoppable_cluster import PATIENCE_S, Cluster, started

from fencelock import Client, LockTimeoutError, UnsupportedError
from fencelock.actors.api.latch import AwaitLatch, CountDown, CountedDown, LatchPassed
from fencelock.cluster.client.operation import drive

COUNT = 600


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    yield from started(Cluster("paxos", 3, tmp_path))


def count_down(client: Client, count: int = COUNT, latch: str = "deploy") -> int:
    asked = CountDown(latch=latch, count=count)
    reply = drive(client._connection.line.ask(asked))  # pyright: ignore[reportPrivateUsage]
    assert isinstance(reply, CountedDown)
    return reply.left


def wait(client: Client, wait_ms: int | None = None, count: int = COUNT) -> None:
    asked = AwaitLatch(latch="deploy", count=count, wait_ms=wait_ms)
    reply = drive(client._connection.line.ask(asked))  # pyright: ignore[reportPrivateUsage]
    assert isinstance(reply, LatchPassed)


def test_each_count_down_counts_once_while_a_node_stops(cluster: Cluster) -> None:
    """Three clients count a latch down to 0 while each node in turn is stopped and started."""
    clients = [cluster.connect() for _ in range(3)]
    lefts: list[int] = []
    passed = threading.Event()

    def work(client: Client) -> None:
        for _ in range(COUNT // len(clients)):
            lefts.append(count_down(client))

    def await_it() -> None:
        wait(clients[0])
        passed.set()

    waiter = threading.Thread(target=await_it)
    waiter.start()
    workers = [threading.Thread(target=work, args=(client,)) for client in clients]
    for worker in workers:
        worker.start()
    for node in ("n1", "n2", "n3"):
        cluster.stop(node)
        cluster.start(node)
    for worker in workers:
        worker.join(PATIENCE_S)
    assert passed.wait(PATIENCE_S)
    waiter.join(PATIENCE_S)
    assert sorted(lefts) == list(range(COUNT))  # Each count was reached by one request.


def test_each_change_of_a_counter_counts_once_while_a_node_stops(cluster: Cluster) -> None:
    """Three clients add to a counter while each node in turn is stopped and started."""
    clients = [cluster.connect() for _ in range(3)]
    values: list[int] = []

    def work(client: Client) -> None:
        counter = client.counter("deploys")
        for _ in range(COUNT // len(clients)):
            values.append(counter.add())

    workers = [threading.Thread(target=work, args=(client,)) for client in clients]
    for worker in workers:
        worker.start()
    for node in ("n1", "n2", "n3"):
        cluster.stop(node)
        cluster.start(node)
    for worker in workers:
        worker.join(PATIENCE_S)
    assert sorted(values) == list(range(1, COUNT + 1))  # Each value was reached by one change.
    assert cluster.connect().counter("deploys").get() == COUNT


def test_each_permit_of_a_pool_is_taken_and_given_once_while_a_node_stops(
    cluster: Cluster,
) -> None:
    """Three clients share two permits while each node in turn is stopped and started."""
    clients = [cluster.connect() for _ in range(3)]
    inside: list[int] = []
    most: list[int] = []

    def work(client: Client) -> None:
        pool = client.semaphore("machines", 2, session_aware=False)
        for _ in range(COUNT // len(clients) // 2):
            with pool:
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    workers = [threading.Thread(target=work, args=(client,)) for client in clients]
    for worker in workers:
        worker.start()
    for node in ("n1", "n2", "n3"):
        cluster.stop(node)
        cluster.start(node)
    for worker in workers:
        worker.join(PATIENCE_S)
    assert len(most) == COUNT // 2
    assert max(most) <= 2
    assert cluster.connect().semaphore("machines", 2, session_aware=False).available() == 2


def test_a_wait_times_out_and_its_client_counts_on(cluster: Cluster) -> None:
    client = cluster.connect()
    with pytest.raises(LockTimeoutError, match=r"latch 'deploy'.*count is 2 of 2"):
        wait(client, 50, 2)
    assert [count_down(client, 2), count_down(client, 2)] == [1, 0]
    wait(client, 0, 2)


def test_a_caller_inside_a_node_counts_too(cluster: Cluster) -> None:
    node = cluster.running["n1"]
    reply = node.proxy.ask(CountDown(latch="a", count=2), timeout=PATIENCE_S)
    assert isinstance(reply, CountedDown)
    assert (reply.left, count_down(cluster.connect(), 2, "a")) == (1, 0)


@pytest.mark.parametrize("protocol", ["central", "lamport", "bakery"])
def test_a_protocol_without_the_table_names_the_one_that_has_it(
    protocol: str, tmp_path: Path
) -> None:
    for other in started(Cluster(protocol, 3, tmp_path)):
        with pytest.raises(UnsupportedError, match=f"{protocol} has no CountDown; paxos has it"):
            count_down(other.connect())
