"""A leader that stops hands over: how long nothing is decided, simulated and between real nodes."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pykka
import pytest
from support.log_workload import LogWriter, logbook
from support.real_nodes import running_nodes

import fencelock
from fencelock.actors.message import NS_PER_MS, address_of
from fencelock.actors.paxos.config import LEASE_MS, leader_of
from fencelock.actors.paxos.event import Resign
from fencelock.actors.timing import TIMING
from fencelock.cluster.node.node import Node
from fencelock.verification.simulation.faults import Faults
from fencelock.verification.simulation.world import World

LONG_S = 30.0


def world_of_three(seed: int) -> World:
    world = World(seed, Faults(delay_us=500, sync_us=1_000))
    for name in ("n1", "n2", "n3"):
        world.add(name, logbook(every_ms=2), member=True)
    world.power_on_all()
    world.run(2_000 * NS_PER_MS)
    return world


def longest_gap_ms(world: World, ms: int) -> int:
    """Return how long at most nothing was decided in the next ``ms``."""
    times = [world.time]
    last = 0
    for _ in range(ms):
        world.run(world.time + NS_PER_MS)
        scribes = [world.role_at(address_of(name, "scribe")) for name in world.nodes]
        heard = max(len(scribe.heard) for scribe in scribes if isinstance(scribe, LogWriter))
        if heard > last:
            times.append(world.time)
        last = heard
    times.append(world.time)
    return max(b - a for a, b in itertools.pairwise(times)) // NS_PER_MS


@pytest.mark.parametrize("seed", range(5))
def test_the_log_goes_on_long_before_a_lease_is_over(seed: int) -> None:
    world = world_of_three(seed)
    leaders = {world.role_at(address_of(name, "scribe")).leader for name in world.nodes}
    (leader,) = leaders
    world.nodes[leader].tell(leader_of(leader), Resign())

    assert longest_gap_ms(world, 1_000) < LEASE_MS // 3
    assert world.marks["paxos.handed_over"] == world.marks["paxos.took_over"] == 1
    assert world.marks["paxos.lease_released"] >= len(world.nodes) - 1
    (successor,) = {world.role_at(address_of(name, "scribe")).leader for name in world.nodes}
    assert successor != leader


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, Node]]:
    with running_nodes(tmp_path) as nodes:
        yield nodes


def test_real_nodes_hand_over_in_a_fraction_of_an_election(nodes: dict[str, Node]) -> None:
    leader = wait_for_leader(nodes)
    proxy = next(node for name, node in nodes.items() if name != leader)
    grants: list[float] = []
    over = threading.Event()

    def work() -> None:
        with fencelock.connect(proxy.address, connect_timeout=LONG_S) as client:
            while not over.is_set():
                with client.lock("x", timeout=LONG_S):
                    grants.append(time.monotonic())

    worker = threading.Thread(target=work)
    worker.start()
    wait_for(lambda: len(grants) > 20)
    began = time.monotonic()
    assert nodes[leader].stop()
    took = time.monotonic() - began
    enough = len(grants) + 20
    wait_for(lambda: len(grants) > enough)
    over.set()
    worker.join(LONG_S)

    gap = max(b - a for a, b in itertools.pairwise(grants))
    assert gap < (LEASE_MS + TIMING.election_ms) / 1_000
    assert took < 3 * TIMING.outcome_ms / 1_000


def wait_for_leader(nodes: dict[str, Node]) -> str:
    leaders: list[str] = []

    def is_known() -> bool:
        try:
            leader = nodes["n1"].ref("leader")
        except pykka.ActorDeadError:
            return False  # The members have not met yet.
        leaders.append(leader.ask(Resign(), timeout=LONG_S).leader)
        return bool(leaders[-1])

    wait_for(is_known)
    return leaders[-1]


def wait_for(is_so: Callable[[], bool]) -> None:
    ends = time.monotonic() + LONG_S
    pause = threading.Event()
    while not is_so():
        assert time.monotonic() < ends
        pause.wait(0.01)
