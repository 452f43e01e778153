"""A cluster that goes down and up, as clients of real processes are told unasked."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.collected import Collected

import fencelock
from fencelock import aio
from fencelock.cluster.node.config import parse, starting_config
from fencelock.cluster.node.node import Node
from fencelock.cluster.testing.ports import free_ports
from fencelock.verification.bench.members import NodeProcesses

PATIENCE_S = 60
CLUSTER = "bakery-watch"


class WatchedProcesses(NodeProcesses):
    """Three ``fencelock serve`` processes with short durations of holds."""

    cluster = CLUSTER

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "bakery", 3, durable=False)
        with self.configuration_of("n1").open("a", encoding="utf-8") as bakery:
            bakery.write("duration = 0.5\ngrace = 0.5\nleast = 0.5\n")


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedProcesses]:
    """Return nodes that all run. Each test starts again what it kills."""
    with WatchedProcesses(tmp_path_factory.mktemp("trio")) as processes:
        yield processes


class SeenNews(Collected[fencelock.ClusterState]):
    """The notices that a callback got, and a way to wait for one of them."""

    def until(self, holds: Callable[[fencelock.ClusterState], bool]) -> fencelock.ClusterState:
        """Wait until the last that was told is such."""
        return self.wait_for(lambda states: states[-1] if states and holds(states[-1]) else None)


def is_ready(state: fencelock.ClusterState) -> bool:
    return state.up and state.ready and state.complete


def test_a_client_is_told_when_its_cluster_goes_down_and_when_it_is_up_again(
    trio: WatchedProcesses,
) -> None:
    with fencelock.connect(trio.connect, cluster=CLUSTER, connect_timeout=PATIENCE_S) as client:
        seen = SeenNews()
        client.on_cluster(seen.add)
        first = seen.until(is_ready)
        assert (first.reason, len(first.leaders)) == ("ready", 3)
        assert client.cluster == first
        for node in ("n2", "n3"):
            trio.kill(node)
        down = seen.until(lambda state: "1 of 3 members" in state.reason)
        assert (down.up, down.complete, down.ready) == (False, False, False)
        for node in ("n2", "n3"):
            trio.start(node)
        again = seen.until(is_ready)
        assert again.epoch > first.epoch
        for node in trio.names:
            trio.kill(node)
        lost = seen.until(lambda state: "no node says how it is" in state.reason)
        assert (lost.up, lost.ready, lost.epoch, lost.leaders) == (False, False, 0, ())
        for address in trio.addresses.values():
            assert address in lost.reason
        for node in trio.names:
            trio.start(node)
        seen.until(is_ready)
        pairs = zip(seen.values, seen.values[1:], strict=False)
        assert all(earlier != later for earlier, later in pairs)


def test_nodes_that_are_silent_say_nothing_of_the_cluster_any_more(trio: WatchedProcesses) -> None:
    address = trio.addresses["n1"]
    with fencelock.connect(address, cluster=CLUSTER, connect_timeout=PATIENCE_S, ttl=3) as client:
        seen = SeenNews()
        client.on_cluster(seen.add)
        seen.until(is_ready)
        for process in trio.processes.values():  # The client follows the members.
            process.send_signal(signal.SIGSTOP)
        try:
            silent = seen.until(lambda state: not state.up)
            assert "no node says how it is" in silent.reason
            assert not client.cluster.ready
        finally:
            for process in trio.processes.values():
                process.send_signal(signal.SIGCONT)
        seen.until(is_ready)


def test_a_task_is_told_on_its_loop_and_an_error_in_a_callback_is_counted(
    trio: WatchedProcesses,
) -> None:
    async def live() -> tuple[bool, int]:
        loop = asyncio.get_running_loop()
        on_loop: list[bool] = []
        told = asyncio.Event()

        def see(state: fencelock.ClusterState) -> None:
            on_loop.append(asyncio.get_running_loop() is loop)
            if state.ready:
                told.set()
            raise RuntimeError(state.reason)

        async with aio.connect(trio.connect, cluster=CLUSTER, connect_timeout=PATIENCE_S) as client:
            assert not client.cluster.up
            client.on_cluster(see)
            async with asyncio.timeout(PATIENCE_S):
                await told.wait()
            assert client.cluster.ready
            assert await client.lock("x").acquire(timeout=PATIENCE_S) is not None
            return all(on_loop), client.callbacks_failed - len(on_loop)

    assert asyncio.run(live()) == (True, 0)


def test_a_caller_inside_the_process_asks_until_something_changes(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    text = starting_config({"n1": f"tcp://127.0.0.1:{port}"}, cluster=CLUSTER, protocol="bakery")
    with Node.start(parse(text, tmp_path), "n1", found=True) as node:
        number = 0
        news: fencelock.ClusterUp | fencelock.ClusterDown
        ends = time.monotonic() + PATIENCE_S
        while True:
            news = node.ref("proxy").ask(fencelock.Watch(known=number), timeout=PATIENCE_S)
            assert news.number != number
            number = news.number
            if isinstance(news, fencelock.ClusterUp) and news.ready:
                break
            assert time.monotonic() < ends
        assert (news.complete, news.leaders) == (True, ("n1",))
        waits = node.ref("proxy").ask(fencelock.Watch(known=number), block=False)
        assert not waits.done


def test_paxos_does_not_tell_and_says_who_does(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    address = f"tcp://127.0.0.1:{port}"
    config = parse(starting_config({"n1": address}, cluster=CLUSTER), tmp_path)
    with (
        Node.start(config, "n1", found=True) as node,
        fencelock.connect(address, cluster=CLUSTER, connect_timeout=PATIENCE_S) as client,
    ):
        for watch in (lambda: client.cluster, lambda: client.on_cluster(print)):
            with pytest.raises(fencelock.UnsupportedError, match="bakery has it"):
                watch()
        with pytest.raises(fencelock.UnsupportedError, match="bakery has it"):
            node.ref("proxy").ask(fencelock.Watch(), timeout=PATIENCE_S)
