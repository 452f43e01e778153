"""The simulated network and its events at nodes, with roles made for the purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.simulator_scene import N1, N2, SECOND, Tock, only, world_of

from fencelock.actors.api.message import Alive, KeepAlive
from fencelock.actors.effect import Effects, Observe, Send, Wake
from fencelock.actors.message import NS_PER_MS, Address, Instant, Local
from fencelock.actors.role import Role
from fencelock.actors.role_message import LinkDown, LinkUp
from fencelock.verification.simulation.faults import Faults
from fencelock.verification.simulation.nemesis import Nemesis
from fencelock.verification.simulation.network import Cut
from fencelock.verification.simulation.world import World

STORM = Faults(
    loss_per_mille=100,
    repeat_per_mille=100,
    reordering=True,
    late_per_mille=10,
    cut_every_ms=300,
    cut_one_way=True,
    pause_every_ms=300,
    crash_every_ms=300,
    crash_in_sync_per_mille=200,
    tail_lost=True,
    drift_every_ms=200,
    jump_every_ms=500,
)


class Note(Local):
    number: int


class Pinger(Role[Tock | Alive]):
    """Says a number to its peer every 10 ms."""

    peer = N2

    def __init__(self, address: Address, host: Any) -> None:
        super().__init__(address, host)
        self.said = 0
        self.heard: list[int] = []

    def begin(self, now: Instant) -> Effects:
        return [Wake(10, Tock())]

    def handle(self, sender: Address, event: Tock | Alive, now: Instant) -> Effects:
        match event:
            case Tock():
                self.said += 1
                ping = KeepAlive(session="s", request=self.said)
                return [Send(self.peer, ping), Wake(10, Tock()), Observe("pinger.said")]
            case Alive():
                self.heard.append(event.request)
                return ()


class Ponger(Role[KeepAlive]):
    def __init__(self, address: Address, host: Any) -> None:
        super().__init__(address, host)
        self.heard: list[int] = []

    def handle(self, sender: Address, event: KeepAlive, now: Instant) -> Effects:
        self.heard.append(event.request)
        return [Send(sender, Alive(session="s", node="n2", request=event.request))]


def test_on_a_good_network_every_message_arrives_once_and_in_order() -> None:
    world = world_of(only(Pinger), only(Ponger))

    world.run(SECOND)

    said, heard = world.role_at(N1).said, world.role_at(N2).heard
    assert said > 80
    assert heard in (list(range(1, said + 1)), list(range(1, said)))
    assert world.marks["pinger.said"] == said


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    def trace(seed: int) -> list[str]:
        world = world_of(only(Pinger), only(Ponger), seed=seed, faults=STORM)
        Nemesis(world, world.members).begin()
        world.run(2 * SECOND)
        return world.trace.lines()

    assert trace(5) == trace(5)
    assert trace(5) != trace(6)


def test_a_trace_line_tells_time_node_sender_receiver_and_event() -> None:
    world = world_of(only(Pinger), only(Ponger))

    world.run(SECOND)

    line = next(line for line in world.trace.lines() if "KeepAlive" in line)
    time, node, who, event = line.split(" ", 3)
    assert 10 <= float(time) < 15
    assert (node, who) == ("n2", "n1/role->n2/role")
    assert event == "KeepAlive(session='s', request=1)"


def test_frames_are_lost_repeated_and_overtaken() -> None:
    bad = Faults(loss_per_mille=200, repeat_per_mille=200, reordering=True, delay_us=20_000)
    world = world_of(only(Pinger), only(Ponger), faults=bad)

    world.run(10 * SECOND)

    heard = world.role_at(N2).heard
    assert heard != sorted(heard)
    assert len(set(heard)) < len(heard)
    assert len(set(heard)) < world.role_at(N1).said - 20
    assert min(world.fault_counts[name] for name in ("lost", "repeated", "overtaken")) > 50


def test_a_one_way_cut_stops_one_direction_only() -> None:
    world = world_of(only(Pinger), only(Ponger))
    world.network.cut([("n2", "n1")], Cut(until=SECOND, holds=False))

    world.run(SECOND)
    assert world.role_at(N1).heard == []
    assert len(world.role_at(N2).heard) > 80

    world.run(2 * SECOND)
    assert len(world.role_at(N1).heard) > 80


def test_a_cut_that_holds_lets_everything_through_at_once_when_it_ends() -> None:
    world = world_of(only(Pinger), only(Ponger))
    world.network.cut([("n1", "n2")], Cut(until=SECOND, holds=True))

    world.run(SECOND)
    assert world.role_at(N2).heard == []

    world.run(SECOND + 5 * NS_PER_MS)
    heard = world.role_at(N2).heard
    assert heard == list(range(1, len(heard) + 1))
    assert len(heard) > 80


def test_a_paused_node_handles_nothing_and_then_everything_at_once() -> None:
    world = world_of(only(Pinger), only(Ponger))
    node = world.nodes["n2"]

    node.pause()
    world.run(SECOND)
    assert world.role_at(N2).heard == []

    node.resume()
    assert len(world.role_at(N2).heard) > 80


class LinkListener(Role[LinkUp | LinkDown]):
    def __init__(self, address: Address, host: Any) -> None:
        super().__init__(address, host)
        self.heard: list[str] = []

    def handle(self, sender: Address, event: LinkUp | LinkDown, now: Instant) -> Effects:
        self.heard.append(f"{type(event).__name__} {event.node}")
        return ()


def test_nodes_hear_of_links_that_come_and_go() -> None:
    told: list[list[str]] = []
    for seed in range(8):
        world = world_of(only(LinkListener), only(LinkListener), seed=seed)
        world.run(SECOND)
        world.crash("n2")
        world.run(2 * SECOND)
        world.power_on("n2")
        world.run(3 * SECOND)
        told.append(world.role_at(N1).heard)

    assert ["LinkUp n2", "LinkDown n2", "LinkUp n2"] in told
    assert ["LinkUp n2", "LinkUp n2"] in told


def test_the_clock_of_a_node_moves_on_with_what_peers_send_but_not_with_clients() -> None:
    def clock_after_a_second(*, peer_is_member: bool) -> int:
        world = World(1)
        world.add("n2", only(Ponger), member=True)
        world.add("n1", only(Pinger), member=peer_is_member)
        for name in world.nodes:
            world.power_on(name)
        world.role_at(Address("n1/clock")).time = 1_000_000
        world.run(SECOND)
        time: int = world.role_at(Address("n2/clock")).time
        return time

    assert clock_after_a_second(peer_is_member=True) > 1_000_000
    assert clock_after_a_second(peer_is_member=False) < 1_000


def test_after_healing_everything_is_up_runs_and_arrives() -> None:
    world = world_of(only(Pinger), only(Ponger), faults=STORM)
    nemesis = Nemesis(world, world.members)
    nemesis.begin()
    world.run(5 * SECOND)
    nemesis.heal()
    world.run(11 * SECOND)
    before = len(world.role_at(N1).heard)

    world.run(12 * SECOND)

    assert len(world.role_at(N1).heard) - before in range(94, 101)
    assert {"crash", "pause", "clock drift", "clock jump", "lost"} <= set(world.fault_counts)


def test_chance_of_one_kind_does_not_reshuffle_the_others() -> None:
    def strikes(change: Callable[[World], None]) -> list[str]:
        world = world_of(only(Pinger), only(Ponger), faults=STORM)
        change(world)
        Nemesis(world, ()).begin()
        world.run(2 * SECOND)
        return [line for line in world.trace.lines() if "is paused" in line]

    def draw_much(world: World) -> None:
        for _ in range(1_000):
            world.streams.net.random()
            world.streams.clock.random()

    assert strikes(draw_much) == strikes(lambda world: None) != []
