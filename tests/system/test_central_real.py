"""`central` with real processes: nodes are killed and come back while their clients live."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from support.expect import PATIENCE_S
from support.programs import run_to_end
from support.real_nodes import until
from support.samples import fence_of

import fencelock
from fencelock.actors.api.lock_message import Contender
from fencelock.actors.error import UnavailableError
from fencelock.verification.bench.members import NodeProcesses

FREE_S = 20.0
"""Time in which a lock that must be free must be granted (s)."""
CLUSTER = "central-test"
NODES = ("n1", "n2", "n3")
SERVER, PROXY = "n1", "n2"


class CentralProcesses(NodeProcesses):
    """Three `fencelock serve` processes of `central`; the first one runs the lock server."""

    cluster = CLUSTER

    def restart(self, *nodes: str) -> None:
        for node in nodes:
            self.kill(node)
        for node in nodes:
            self.start(node)

    def client_of(self, *nodes: str) -> fencelock.Client:
        addresses = ",".join(self.addresses[node] for node in nodes)
        return fencelock.connect(addresses, cluster=self.cluster, connect_timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def members(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[CentralProcesses]:
    """Return nodes that all run. Each test starts again what it kills, and leaves no lock held."""
    folder = tmp_path_factory.mktemp("members")
    with CentralProcesses(folder, "central", len(NODES), durable=request.param) as members:
        yield members
        for node, process in members.processes.items():
            assert process.poll() is None, (members.folder / f"{node}.log").read_text()


RESTARTS = [
    pytest.param(False, (PROXY,), id="the node it came through"),
    pytest.param(True, (SERVER,), id="the server, with a journal", marks=pytest.mark.long),
    pytest.param(True, NODES, id="all nodes, with a journal", marks=pytest.mark.long),
]


def wait_until_ready(client: fencelock.Client, node: str) -> None:
    def is_ready() -> bool:
        with suppress(UnavailableError):
            return node in {status.node for status in client.describe() if status.ready}
        return False

    until(is_ready, node)


def granted_in_time(client: fencelock.Client) -> int:
    """Acquire the lock within `FREE_S`, whether or not the server answers at first."""
    ends = time.monotonic() + FREE_S
    while time.monotonic() < ends:
        with suppress(UnavailableError):
            hold = client.lock("a").acquire(timeout=ends - time.monotonic())
            if hold is not None:
                return hold.fence
    pytest.fail(f"no client was granted the lock within {FREE_S:g} s")


def fence_shown(client: fencelock.Client) -> int | None:
    """Return the fence of the hold, None if the lock is free, once the server answers."""
    shown: list[Contender | None] = []

    def is_shown() -> bool:
        with suppress(UnavailableError):
            shown.append(client.status("a").holder)
        return bool(shown)

    until(is_shown)
    return None if shown[0] is None else shown[0].fence


def is_granted_at_once(client: fencelock.Client) -> bool:
    with suppress(UnavailableError):
        return client.lock("a").acquire(timeout=1.0) is not None
    return False


@pytest.mark.parametrize(("members", "restarted"), RESTARTS, indirect=["members"])
def test_a_living_clients_lock_outlives_restarts_and_can_be_released(
    members: CentralProcesses, restarted: tuple[str, ...]
) -> None:
    with members.client_of(PROXY) as holder, members.client_of("n3") as other:
        lock = holder.lock("a")
        fence = fence_of(lock.acquire(timeout=PATIENCE_S))

        members.restart(*restarted)
        wait_until_ready(holder, PROXY)

        wait_until_ready(other, "n3")
        assert lock.held
        assert not is_granted_at_once(other)
        assert fence_shown(other) == fence
        lock.release()
        assert granted_in_time(other) > fence


@pytest.mark.parametrize(("members", "restarted"), RESTARTS, indirect=["members"])
def test_a_lock_is_free_once_its_client_is_closed_after_restarts(
    members: CentralProcesses, restarted: tuple[str, ...]
) -> None:
    with members.client_of("n3") as other:
        with members.client_of(PROXY) as holder:
            held = holder.lock("a").acquire(timeout=PATIENCE_S)
            fence = fence_of(held)
            members.restart(*restarted)
            wait_until_ready(holder, PROXY)
        wait_until_ready(other, "n3")
        assert granted_in_time(other) > fence


@pytest.mark.parametrize("members", [False], indirect=True)
def test_a_client_that_closes_with_its_node_down_holds_nothing(members: CentralProcesses) -> None:
    with members.client_of("n3") as other:
        while True:  # A client begins at any of its nodes.
            holder = members.client_of(PROXY, "n3")
            held = holder.lock("a").acquire(timeout=PATIENCE_S)
            fence = fence_of(held)
            status = other.status("a")
            assert status.holder is not None
            if status.holder.node == PROXY:
                break
            holder.close()
        members.kill(PROXY)
        holder.close()
        assert granted_in_time(other) > fence
        members.start(PROXY)


@pytest.mark.parametrize("members", [False], indirect=True)
def test_an_operator_releases_a_lock_of_a_dead_client_through_a_restarted_node(
    members: CentralProcesses,
) -> None:
    code = (
        "import os, sys, fencelock\n"
        f"at, cluster = {members.addresses[PROXY]!r}, {CLUSTER!r}\n"
        "client = fencelock.connect(at, cluster=cluster, connect_timeout=60)\n"
        "hold = client.lock('a').acquire()\n"
        "print(hold.fence, flush=True)\n"
        "os._exit(0)\n"
    )
    command = [sys.executable, "-c", code]
    dead = run_to_end(command, check=True)
    members.restart(PROXY)

    with members.client_of("n3") as other:
        assert not is_granted_at_once(other)
        operate = [
            sys.executable,
            "-m",
            "fencelock",
            "release",
            "a",
            "--fence",
            dead.stdout.strip(),
        ]
        operate += ["--yes", "--connect", members.addresses["n3"], "--cluster", CLUSTER]
        done = run_to_end(operate)
        assert done.returncode == 0, done.stderr
        assert granted_in_time(other) > int(dead.stdout)
