"""The simulator itself, its judges, and what a seed fixes."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from support.judged import N1, N2, SECOND, Tock, only, world_of
from support.programs import run_to_end
from support.samples import READY

from fencelock.actors.api import lock_message as api
from fencelock.actors.api.cluster_message import Describe, NodeStatus
from fencelock.actors.api.session_message import Alive, KeepAlive
from fencelock.actors.effect import Effects, Observe, Send, Spawn, Wake
from fencelock.actors.message import NS_PER_MS, Address, Instant
from fencelock.actors.role import Role
from fencelock.actors.role_message import LinkDown, LinkUp
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.topology import MakeRoles, NodeContext
from fencelock.verification.simulation.faults import CALM, FaultKind, Faults, Survival
from fencelock.verification.simulation.nemesis import Nemesis
from fencelock.verification.simulation.network import Cut
from fencelock.verification.simulation.plan import RunPlan, draw_plan
from fencelock.verification.simulation.report import RunReport
from fencelock.verification.simulation.run import run_seed
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


class Pinger(Role[Tock | Alive]):
    """Sends a number to its peer every 10 ms."""

    peer = N2

    def __init__(self, address: Address, host: Any) -> None:
        super().__init__(address, host)
        self.sent = 0
        self.received: list[int] = []

    def begin(self, now: Instant) -> Effects:
        return [Wake(10, Tock())]

    def handle(self, sender: Address, event: Tock | Alive, now: Instant) -> Effects:
        match event:
            case Tock():
                self.sent += 1
                ping = KeepAlive(session="s", request=self.sent)
                return [Send(self.peer, ping), Wake(10, Tock()), Observe("pinger.sent")]
            case Alive():
                self.received.append(event.request)
                return ()


class Ponger(Role[KeepAlive]):
    def __init__(self, address: Address, host: Any) -> None:
        super().__init__(address, host)
        self.received: list[int] = []

    def handle(self, sender: Address, event: KeepAlive, now: Instant) -> Effects:
        self.received.append(event.request)
        return [Send(sender, Alive(session="s", node="n2", request=event.request))]


def test_every_message_arrives_once_and_in_order_on_a_good_network() -> None:
    world = world_of(only(Pinger), only(Ponger))

    world.run(SECOND)

    sent, received = world.role_at(N1).sent, world.role_at(N2).received
    assert sent > 80
    assert received in (list(range(1, sent + 1)), list(range(1, sent)))
    assert world.marks["pinger.sent"] == sent


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    def trace(seed: int) -> list[str]:
        world = world_of(only(Pinger), only(Ponger), seed=seed, faults=STORM)
        Nemesis(world, world.members).begin()
        world.run(2 * SECOND)
        return world.trace.lines()

    assert trace(5) == trace(5)
    assert trace(5) != trace(6)


def test_a_trace_line_shows_time_node_sender_receiver_and_event() -> None:
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

    received = world.role_at(N2).received
    assert received != sorted(received)
    assert len(set(received)) < len(received)
    assert len(set(received)) < world.role_at(N1).sent - 20
    assert min(world.fault_counts[name] for name in ("lost", "repeated", "overtaken")) > 50


def test_a_one_way_cut_stops_one_direction_only() -> None:
    world = world_of(only(Pinger), only(Ponger))
    world.network.cut([("n2", "n1")], Cut(until=SECOND, holds=False))

    world.run(SECOND)
    assert world.role_at(N1).received == []
    assert len(world.role_at(N2).received) > 80

    world.run(2 * SECOND)
    assert len(world.role_at(N1).received) > 80


def test_a_cut_that_holds_lets_everything_through_at_once_when_it_ends() -> None:
    world = world_of(only(Pinger), only(Ponger))
    world.network.cut([("n1", "n2")], Cut(until=SECOND, holds=True))

    world.run(SECOND)
    assert world.role_at(N2).received == []

    world.run(SECOND + 5 * NS_PER_MS)
    received = world.role_at(N2).received
    assert received == list(range(1, len(received) + 1))
    assert len(received) > 80


def test_a_paused_node_handles_nothing_and_then_everything_at_once() -> None:
    world = world_of(only(Pinger), only(Ponger))
    node = world.nodes["n2"]

    node.pause()
    world.run(SECOND)
    assert world.role_at(N2).received == []

    node.resume()
    assert len(world.role_at(N2).received) > 80


class LinkListener(Role[LinkUp | LinkDown]):
    def __init__(self, address: Address, host: Any) -> None:
        super().__init__(address, host)
        self.received: list[str] = []

    def handle(self, sender: Address, event: LinkUp | LinkDown, now: Instant) -> Effects:
        self.received.append(f"{type(event).__name__} {event.node}")
        return ()


def test_nodes_are_notified_of_links_that_come_and_go() -> None:
    events: list[list[str]] = []
    for seed in range(8):
        world = world_of(only(LinkListener), only(LinkListener), seed=seed)
        world.run(SECOND)
        world.crash("n2")
        world.run(2 * SECOND)
        world.power_on("n2")
        world.run(3 * SECOND)
        events.append(world.role_at(N1).received)

    assert ["LinkUp n2", "LinkDown n2", "LinkUp n2"] in events
    assert ["LinkUp n2", "LinkUp n2"] in events


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


def test_everything_is_up_runs_and_arrives_after_healing() -> None:
    world = world_of(only(Pinger), only(Ponger), faults=STORM)
    nemesis = Nemesis(world, world.members)
    nemesis.begin()
    world.run(5 * SECOND)
    nemesis.heal()
    world.run(11 * SECOND)
    before = len(world.role_at(N1).received)

    world.run(12 * SECOND)

    assert len(world.role_at(N1).received) - before in range(94, 101)
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


# The judges, with a small lock server that is honest or has a bug for each of them to find


PLAN = RunPlan(
    nodes=1, clients=3, owners=2, locks=2, chaos_ms=3_000, served_ms=20_000, drained_ms=2_000
)


class Server(Role[api.Acquire | api.Release | Describe]):
    """One queue for each lock; the first waiter holds it, even if its wait has timed out."""

    def __init__(self, address: Address, host: Any) -> None:
        super().__init__(address, host)
        self.queues: dict[str, list[tuple[Address, api.Acquire]]] = {}
        self.fence = 0

    def handle(
        self, sender: Address, event: api.Acquire | api.Release | Describe, now: Instant
    ) -> Effects:
        match event:
            case api.Acquire():
                return self.on_acquire(sender, event)
            case api.Release():
                return self.on_release(sender, event)
            case Describe():
                return [Send(sender, self.status())]

    def on_acquire(self, sender: Address, acquire: api.Acquire) -> Effects:
        queue = self.queues.setdefault(acquire.lock, [])
        queue.append((sender, acquire))
        return [self.grant(sender, acquire)] if len(queue) == 1 else ()

    def grant(self, sender: Address, acquire: api.Acquire) -> Send:
        self.fence += 1
        granted = api.Granted(
            lock=acquire.lock, fence=self.fence, owner=acquire.owner, request=acquire.request
        )
        return Send(sender, granted)

    def on_release(self, sender: Address, release: api.Release) -> Effects:
        queue = self.queues[release.lock]
        del queue[0]
        released = Send(sender, api.Released(lock=release.lock, owner=release.owner))
        return [released, self.grant(*queue[0])] if queue else [released]

    def status(self) -> NodeStatus:
        return replace(READY, protocol="toy")


class Doorway(Role[api.Acquire | api.Release | api.Granted | api.Released | api.Refused]):
    """A session for a good network: passes everything on."""

    def __init__(self, address: Address, host: Any, *, proxy: Address) -> None:
        super().__init__(address, host)
        self.proxy = proxy

    def handle(
        self,
        sender: Address,
        event: api.Acquire | api.Release | api.Granted | api.Released | api.Refused,
        now: Instant,
    ) -> Effects:
        if isinstance(event, api.Acquire | api.Release):
            return [Send(self.proxy, replace(event, session="s"))]
        return [Send(Address(f"{self.address.partition('/')[0]}/{event.owner}"), event)]


def doorway(context: NodeContext, proxies: tuple[Address, ...]) -> Spawn:
    return Spawn(Address(f"{context.node}/session"), Doorway, {"proxy": proxies[0]})


def serving(server: type[Server]) -> MakeRoles:
    def make_roles(context: NodeContext) -> RoleSet:
        return RoleSet((Spawn(Address(f"{context.node}/proxy"), server),))

    return make_roles


def run(server: type[Server], plan: RunPlan = PLAN, seed: int = 3) -> RunReport:
    return run_seed(serving(server), seed, plan=plan, make_session=doorway)


def test_an_honest_server_passes_every_judge() -> None:
    report = run(Server)

    assert report.violation is None
    assert report.grants > 40
    assert report.deliveries > 500
    assert report.marks["contender.requests"] == report.grants


class GrantsEverybody(Server):
    def on_acquire(self, sender: Address, acquire: api.Acquire) -> Effects:
        return [self.grant(sender, acquire)]

    def on_release(self, sender: Address, release: api.Release) -> Effects:
        return [Send(sender, api.Released(lock=release.lock, owner=release.owner))]


class ReusesFences(Server):
    def grant(self, sender: Address, acquire: api.Acquire) -> Send:
        self.fence = 6
        return super().grant(sender, acquire)


class LowersFences(Server):
    def grant(self, sender: Address, acquire: api.Acquire) -> Send:
        self.fence = 10_000 if self.fence == 0 else self.fence - 2
        return super().grant(sender, acquire)


class ForgetsWaiters(Server):
    def on_release(self, sender: Address, release: api.Release) -> Effects:
        self.queues[release.lock] = []
        return [Send(sender, api.Released(lock=release.lock, owner=release.owner))]


class GrantsTwice(Server):
    def on_acquire(self, sender: Address, acquire: api.Acquire) -> Effects:
        granted = list(super().on_acquire(sender, acquire))
        return granted + granted


class GrantsAfterRefusing(Server):
    def on_acquire(self, sender: Address, acquire: api.Acquire) -> Effects:
        refused = api.Refused(
            lock=acquire.lock, reason=api.Reason.TIMED_OUT, detail="", owner=acquire.owner
        )
        return [Send(sender, refused), *super().on_acquire(sender, acquire)]


class KeepsAResidue(Server):
    def status(self) -> NodeStatus:
        residue = api.LockStatus(lock="lock-1", holder=None, waiters=(), waits_for=())
        return replace(super().status(), locks=(residue,))


class Fails(Server):
    def on_release(self, sender: Address, release: api.Release) -> Effects:
        raise RuntimeError(f"cannot release {release.lock}")


PROGRESS = r"^23000\.000 ms: progress: 20000 ms after all faults ended.* waits \('lock-"


@pytest.mark.parametrize(
    ("server", "text"),
    [
        (GrantsEverybody, "mutual exclusion: c"),
        (ReusesFences, "fence 7.*had before|had before.*fence 7"),
        (LowersFences, "was shown"),
        (ForgetsWaiters, PROGRESS),
        (GrantsTwice, "did not wait for it"),
        (GrantsAfterRefusing, "did not wait for it"),
        (KeepsAResidue, "drain: 2000 ms after everybody was done, n1/proxy: it still has"),
        (Fails, "n1/proxy broke in Release.*RuntimeError: cannot release lock-"),
    ],
)
def test_a_server_with_a_bug_is_caught(server: type[Server], text: str) -> None:
    assert re.search(text, run(server).violation or "", re.DOTALL)


def test_a_run_with_too_few_grants_proves_nothing_and_fails() -> None:
    assert "void: " in (run(Server, dataclasses.replace(PLAN, grants_min=100_000)).violation or "")


def test_a_violation_is_the_same_each_time_and_comes_with_its_trace() -> None:
    first, second = run(GrantsEverybody), run(GrantsEverybody)

    assert first.violation == second.violation
    assert first.trace() == second.trace()
    assert "Granted(" in first.trace()[-1]


def test_each_fault_is_off_in_about_two_runs_of_five_and_never_on_unpromised() -> None:
    promise = Survival(survives=frozenset({FaultKind.LOSS, FaultKind.PAUSE}))
    plans = [draw_plan(seed, promise) for seed in range(400)]

    for knob in ("loss_per_mille", "pause_every_ms"):
        off = sum(getattr(plan.faults, knob) == 0 for plan in plans)
        assert 120 < off < 200
    assert all(plan.faults.crash_every_ms == 0 for plan in plans)
    assert all(plan.faults.cut_every_ms == 0 for plan in plans)
    assert len({plan.nodes for plan in plans}) == 5


def test_calm_is_calm() -> None:
    report = run(Server, dataclasses.replace(PLAN, faults=CALM))

    assert report.faults == {}


# A seed fixes everything: in one process, in others under another hash seed, and in the CLI


def output_of(*arguments: str, hash_seed: int) -> str:
    run = run_to_end(
        [sys.executable, "-m", "fencelock", *arguments],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "COLUMNS": "100"},
        check=True,
        timeout=300,
    )
    return run.stdout


@pytest.mark.parametrize("protocol", ["lamport", "central", "bakery"])
def test_a_seed_twice_in_one_process_gives_one_trace(protocol: str) -> None:
    first, second = run_seed(protocol, 11), run_seed(protocol, 11)

    assert first.trace() == second.trace()
    assert first.deliveries == second.deliveries > 100
    assert first.trace() != run_seed(protocol, 12).trace()


@pytest.mark.parametrize("protocol", ["lamport", "central"])
def test_the_command_prints_the_trace_of_a_run_under_every_hash_seed(protocol: str) -> None:
    for hash_seed, seed in enumerate((20, 21, 30)):
        arguments = ("simulate", "--protocol", protocol, "--seed", str(seed), "--trace")

        output = output_of(*arguments, hash_seed=hash_seed)

        assert output.splitlines()[:-2] == run_seed(protocol, seed).trace()


def test_workers_change_no_outcome() -> None:
    arguments = ("simulate", "--protocol", "central", "--seeds", "0..3")

    alone = output_of(*arguments, hash_seed=0)
    shared = output_of(*arguments, "--workers", "2", hash_seed=1)

    def timeless(text: str) -> list[str]:
        return [line for line in text.splitlines() if "second" not in line]

    assert timeless(alone) == timeless(shared)
    assert "central: 4 seeds without a violation" in alone
