"""Reads of a proven age: refused where no node can prove it, and no held lock is called free."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.holds import fence_of
from support.real_nodes import loopback_addresses

import fencelock
from fencelock import aio
from fencelock.actors.api.message import Inspect
from fencelock.actors.error import UnavailableError, UnsupportedError
from fencelock.cluster.node.config import Config
from fencelock.cluster.node.node import Node

PATIENCE_S = 60
WITHOUT = ["bakery", "central", "lamport"]


class Pair:
    """Two nodes in this process, of which the first runs the server of `central`."""

    def __init__(self, protocol: str, data: Path) -> None:
        at = loopback_addresses(2)
        config = Config(cluster="reads", protocol=protocol, nodes=at, data=data)
        self.nodes = [Node.start(config, node, found=True) for node in at]
        self.second = at["n2"]

    def stop(self) -> None:
        for node in self.nodes:
            node.stop(PATIENCE_S)


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(request.param, tmp_path)
    yield pair
    pair.stop()


@pytest.mark.parametrize("pair", WITHOUT, indirect=True)
def test_a_local_read_is_refused_by_client_and_node_and_names_who_has_it(pair: Pair) -> None:
    with fencelock.connect(pair.second, cluster="reads", connect_timeout=PATIENCE_S) as client:
        with pytest.raises(UnsupportedError, match="paxos has"):
            client.status("a", read="local", max_age=1.0)
        with pytest.raises(UnsupportedError, match="paxos has"):
            client.locks(read="local", max_age=1.0)
    with pytest.raises(UnsupportedError, match="paxos has"):
        pair.nodes[1].proxy.ask(Inspect(lock="a", age_ms=1_000), timeout=PATIENCE_S)


@pytest.mark.parametrize("pair", WITHOUT, indirect=True)
def test_a_local_read_of_a_task_is_refused_too(pair: Pair) -> None:
    async def reads() -> None:
        async with aio.connect(pair.second, cluster="reads", connect_timeout=PATIENCE_S) as client:
            await client.status("a", read="local", max_age=1.0)

    with pytest.raises(UnsupportedError, match="paxos has"):
        asyncio.run(reads())


@pytest.mark.parametrize("pair", ["central"], indirect=True)
def test_a_held_lock_is_never_called_free_when_the_server_is_silent(pair: Pair) -> None:
    with fencelock.connect(pair.second, cluster="reads", connect_timeout=PATIENCE_S) as client:
        lock = client.lock("a")
        fence = fence_of(lock.acquire(timeout=PATIENCE_S))
        holder = client.status("a").holder
        assert holder is not None
        assert holder.fence == fence
        pair.nodes[0].stop(PATIENCE_S)
        with pytest.raises(UnavailableError, match="not known who holds it"):
            client.status("a")
        with (
            fencelock.connect(pair.second, cluster="reads", connect_timeout=PATIENCE_S) as other,
            pytest.raises(UnavailableError, match="not known who holds it"),
        ):
            other.status("a")


@pytest.mark.parametrize("pair", ["central"], indirect=True)
def test_a_read_after_a_release_shows_no_holder_through_any_node(pair: Pair) -> None:
    """A release is confirmed only when the server knows of it."""
    first = pair.nodes[0].address
    with (
        fencelock.connect(pair.second, cluster="reads", connect_timeout=PATIENCE_S) as client,
        fencelock.connect(first, cluster="reads", connect_timeout=PATIENCE_S) as other,
    ):
        for _ in range(200):
            with client.lock("a", timeout=PATIENCE_S):
                assert other.status("a").holder is not None
            status = other.status("a")
            assert (status.holder, status.age_ms) == (None, 0)
