"""Reads on real nodes: local ones of a proven age, and those of the proxy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.expect import PATIENCE_S, present
from support.real_nodes import NODES, Cluster, ask, config_in, running_nodes, started, until
from support.samples import fence_of

from fencelock.actors.api import lock_message as api
from fencelock.actors.api.cluster_message import Describe, NodeStatus
from fencelock.actors.api.lock_message import Inspect
from fencelock.actors.error import StaleError, UnavailableError, UnsupportedError
from fencelock.actors.session.session import TTL_MS
from fencelock.cluster.node.node import Node

WITHOUT = ["bakery", "central", "lamport"]


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Return two nodes, of which the first runs the server of `central`."""
    yield from started(Cluster(request.param, 2, tmp_path))


@pytest.mark.parametrize("pair", WITHOUT, indirect=True)
def test_a_local_read_is_refused_by_client_and_node_and_names_who_has_it(pair: Cluster) -> None:
    client = pair.connect("n2")
    with pytest.raises(UnsupportedError, match="paxos has"):
        client.status("a", read="local", max_age=1.0)
    with pytest.raises(UnsupportedError, match="paxos has"):
        client.locks(read="local", max_age=1.0)
    with pytest.raises(UnsupportedError, match="paxos has"):
        ask(pair.running["n2"], Inspect(lock="a", age_ms=1_000))


@pytest.mark.parametrize("pair", ["central"], indirect=True)
def test_a_held_lock_is_never_called_free_when_the_server_is_silent(pair: Cluster) -> None:
    client = pair.connect("n2")
    lock = client.lock("a")
    fence = fence_of(lock.acquire(timeout=PATIENCE_S))
    assert present(client.status("a").holder).fence == fence
    pair.stop("n1")
    for one in (client, pair.connect("n2")):
        with pytest.raises(UnavailableError, match="not known who holds it"):
            one.status("a")


@pytest.mark.parametrize("pair", ["central"], indirect=True)
def test_a_read_after_a_release_shows_no_holder_through_any_node(pair: Cluster) -> None:
    """A release is confirmed only when the server knows of it."""
    client, other = pair.connect("n2"), pair.connect("n1")
    for _ in range(200):
        with client.lock("a", timeout=PATIENCE_S):
            assert other.status("a").holder is not None
        status = other.status("a")
        assert (status.holder, status.age_ms) == (None, 0)


# Three nodes of the log in one process, on loopback: callers inside it


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Node]]:
    with running_nodes(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


def test_each_node_reads_what_was_decided_and_its_greatest_age(nodes: dict[str, Node]) -> None:
    held: api.Granted = ask(nodes["n1"], api.Acquire(lock="read"))
    for node in nodes.values():
        status: api.LockStatus = ask(node, api.Inspect(lock="read"))
        assert status.holder is not None
        assert (status.holder.fence, status.age_ms) == (held.fence, 0)
        local: api.LockStatus = ask(node, api.Inspect(lock="read", age_ms=60_000))
        assert local.age_ms is not None
        assert 0 <= local.age_ms <= 60_000
    ask(nodes["n1"], api.Release(lock="read", fence=held.fence))
    status = ask(nodes["n3"], api.Inspect(lock="read"))
    assert status.holder is None


def test_every_node_reports_who_leads_and_that_it_is_ready(nodes: dict[str, Node]) -> None:
    statuses: list[NodeStatus] = []

    def all_are_ready() -> bool:
        statuses[:] = [ask(node, Describe()) for node in nodes.values()]
        return all(status.ready for status in statuses)

    until(all_are_ready, statuses)  # On a busy machine a node may get a beat late.
    (leader,) = {status.leader for status in statuses}
    assert [status.node for status in statuses if "leads" in status.detail] == [leader]


def test_the_others_serve_on_without_the_leader_none_without_a_majority(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    nodes = {node: Node.start(config, node, found=True) for node in NODES}
    try:
        ask(nodes["n1"], api.Acquire(lock="b"))
        deadline = time.monotonic() + PATIENCE_S
        status: NodeStatus = ask(nodes["n1"], Describe())
        while not status.leader:
            assert time.monotonic() < deadline, "no node leads"
            status = ask(nodes["n1"], Describe())
        leader = nodes.pop(status.leader)
        first: api.Granted = ask(leader, api.Acquire(lock="a"))
        began = time.monotonic()
        leader.stop()
        one, two = nodes.values()
        granted: api.Granted = ask(one, api.Acquire(lock="a"))
        assert granted.fence > first.fence
        assert time.monotonic() - began < TTL_MS / 1000, "a node that stops gives back"
        two.stop()
        with pytest.raises(UnavailableError, match=r"a majority of n1, n2, n3 has not answered"):
            ask(one, api.Acquire(lock="c", wait_ms=0))
        with pytest.raises(StaleError, match="100 ms were allowed"):
            ask(one, api.Inspect(lock="c", age_ms=100))
        # It stands for election first.
        until(lambda: "a majority of n1, n2, n3" in ask(one, Describe()).detail)
        assert not ask(one, Describe()).ready
    finally:
        for node in nodes.values():
            node.stop()


@pytest.mark.parametrize("protocol", ["paxos", "bakery", "central"])
def test_a_status_requested_while_nodes_start_is_answered(protocol: str, tmp_path: Path) -> None:
    with running_nodes(tmp_path, protocol) as nodes:
        asked = [node.proxy.ask(api.Inspect(lock="early"), block=False) for node in nodes.values()]
        for status in asked:
            answer: api.LockStatus = status.get(timeout=PATIENCE_S)
            assert answer.holder is None
