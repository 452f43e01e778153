"""A simulated node: its roles and its clock."""

from __future__ import annotations

from typing import Any

import pytest
from support.simulator_scene import N1, N2, SECOND, Tock, only, world_of

from fencelock.actors.effect import Effects, Retire, Send, Spawn, Wake
from fencelock.actors.message import NS_PER_MS, Address, Instant, Local
from fencelock.actors.role import Role
from fencelock.verification.simulation.drift import PPM, DriftingClock
from fencelock.verification.simulation.faults import Faults
from fencelock.verification.simulation.nemesis import Nemesis
from fencelock.verification.simulation.violation import ViolationError

STORM = Faults(drift_every_ms=100, drift_ppm=500_000, jump_every_ms=500)


class NumberNote(Local):
    number: int


class Numberer(Role[NumberNote]):
    """Sends itself two notes for each, to a depth, and remembers the order."""

    def __init__(self, address: Address, host: Any) -> None:
        super().__init__(address, host)
        self.order: list[int] = []

    def begin(self, now: Instant) -> Effects:
        return [Send(self.address, NumberNote(number=1))]

    def handle(self, sender: Address, event: NumberNote, now: Instant) -> Effects:
        self.order.append(event.number)
        if event.number >= 8:
            return ()
        return [Send(self.address, NumberNote(number=2 * event.number + one)) for one in (0, 1)]


def test_inside_a_node_events_come_in_the_order_of_sending_and_at_once() -> None:
    world = world_of(only(Numberer))

    assert world.role_at(N1).order == list(range(1, 16))
    assert world.time == 0


class Babbler(Role[NumberNote]):
    """Sends a local event to another node, which is not allowed."""

    def begin(self, now: Instant) -> Effects:
        return [Send(N2, NumberNote(number=1))]

    def handle(self, sender: Address, event: NumberNote, now: Instant) -> Effects:
        return ()


def test_a_local_event_that_would_leave_its_node_is_a_violation() -> None:
    with pytest.raises(ViolationError, match="is local"):
        world_of(only(Babbler), only(Numberer))


class RaisesOnTimer(Role[Tock]):
    def begin(self, now: Instant) -> Effects:
        return [Wake(5, Tock(number=7))]

    def handle(self, sender: Address, event: Tock, now: Instant) -> Effects:
        raise KeyError("what was not there")


def test_a_role_that_raises_is_a_violation_with_event_trace_and_state() -> None:
    world = world_of(only(RaisesOnTimer))

    with pytest.raises(ViolationError) as caught:
        world.run(SECOND)

    told = str(caught.value)
    assert "n1/role broke in Tock(number=7)" in told
    assert "what was not there" in told


class Endless(Role[NumberNote]):
    def begin(self, now: Instant) -> Effects:
        return [Send(self.address, NumberNote(number=1))]

    def handle(self, sender: Address, event: NumberNote, now: Instant) -> Effects:
        return [Send(self.address, event)]


def test_roles_that_keep_each_other_busy_for_ever_are_a_violation() -> None:
    with pytest.raises(ViolationError, match="no end of its turn"):
        world_of(only(Endless))


class SimulatedParent(Role[NumberNote]):
    child = Address("n1/child")

    def begin(self, now: Instant) -> Effects:
        return [Spawn(self.child, Numberer), Send(self.child, NumberNote(number=50))]

    def handle(self, sender: Address, event: NumberNote, now: Instant) -> Effects:
        return [Retire(self.child), Send(self.child, event)]


def test_a_role_can_spawn_another_and_retire_it() -> None:
    world = world_of(only(SimulatedParent))
    child = world.role_at(SimulatedParent.child)
    assert child.order[:2] == [1, 50]

    world.nodes["n1"].tell(N1, NumberNote(number=60))

    assert SimulatedParent.child not in world.nodes["n1"].scheduler.roles
    assert 60 not in child.order
    assert world.marks["host.nobody_there"] == 1


class Sleeper(Role[Tock]):
    def __init__(self, address: Address, host: Any) -> None:
        super().__init__(address, host)
        self.slept: list[int] = []
        self.since = Instant(0)

    def begin(self, now: Instant) -> Effects:
        self.since = now
        return [Wake(100, Tock())]

    def handle(self, sender: Address, event: Tock, now: Instant) -> Effects:
        self.slept.append(now - self.since)
        self.since = now
        return [Wake(100, Tock())]


def test_a_timer_fires_by_the_clock_of_its_node() -> None:
    world = world_of(only(Sleeper), only(Sleeper))
    world.nodes["n1"].run_clock_at(2 * PPM)
    world.nodes["n2"].run_clock_at(PPM // 2)

    world.run(10 * SECOND)

    fast, slow = world.role_at(N1).slept, world.role_at(N2).slept
    assert len(fast) in range(190, 201)
    assert len(slow) in range(47, 51)
    assert min(fast + slow) >= 100 * NS_PER_MS


def test_a_clock_that_jumps_lets_timers_fire_that_are_due_then() -> None:
    world = world_of(only(Sleeper))
    world.nodes["n1"].jump_clock(3_600_000)

    world.run(NS_PER_MS)

    assert len(world.role_at(N1).slept) == 1


def test_a_monotonic_clock_never_goes_back_while_its_node_is_up() -> None:
    world = world_of(only(Sleeper), faults=STORM)
    Nemesis(world, ()).begin()
    readings: list[int] = []
    for ms in range(2_000):
        world.run(ms * NS_PER_MS)
        readings.append(world.nodes["n1"].now())

    assert readings == sorted(readings)
    assert world.fault_counts["clock drift"] > 3


@pytest.mark.parametrize("rate", [1, 333_333, PPM, 1_500_001])
def test_a_clock_reaches_a_reading_at_the_first_instant_that_shows_it(rate: int) -> None:
    clock = DriftingClock(1_000)
    clock.run_at(rate, 50)

    for reading in (1_050, 1_051, 1_777, 5_000):
        time = clock.reaches(reading)
        assert clock.read(time) >= reading
        assert time == 50 or clock.read(time - 1) < reading
