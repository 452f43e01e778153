"""Nodes of the simulator, their disks and endpoints."""

from __future__ import annotations

from typing import Any

import pytest
from support.judged import N1, N2, SECOND, Tock, only, world_of

from fencelock.actors.api.lock_message import Acquire, Granted
from fencelock.actors.api.session_message import Alive, KeepAlive
from fencelock.actors.effect import Effects, Persist, Retire, Send, Spawn, Wake
from fencelock.actors.message import NS_PER_MS, Address, Instant, Local
from fencelock.actors.role import Role
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.topology import NodeContext
from fencelock.transport.codec import encode
from fencelock.verification.simulation.faults import PPM, Faults
from fencelock.verification.simulation.judge import LockJudge
from fencelock.verification.simulation.nemesis import Nemesis
from fencelock.verification.simulation.node import DriftingClock
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import Judge, ViolationError
from fencelock.verification.simulation.workload import PauseEnded
from fencelock.verification.simulation.world import World

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

    text = str(caught.value)
    assert "n1/role broke in Tock(number=7)" in text
    assert "what was not there" in text


class Endless(Role[NumberNote]):
    def begin(self, now: Instant) -> Effects:
        return [Send(self.address, NumberNote(number=1))]

    def handle(self, sender: Address, event: NumberNote, now: Instant) -> Effects:
        return [Send(self.address, event)]


def test_roles_that_keep_each_other_busy_forever_are_a_violation() -> None:
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


# The disk of a simulated node, its crashes and its lives


def kept(number: int) -> Alive:
    return Alive(session="kept", node="n1", request=number)


class NumberWriter(Role[Tock]):
    """Persists a number, then sends it."""

    peer = N2
    sends_first = False

    def __init__(self, address: Address, host: Any) -> None:
        super().__init__(address, host)
        self.number = 0

    def begin(self, now: Instant) -> Effects:
        return [Wake(3, Tock())]

    def handle(self, sender: Address, event: Tock, now: Instant) -> Effects:
        self.number += 1
        keep = Persist(kept(self.number))
        say = Send(self.peer, KeepAlive(session="s", request=self.number))
        return [say, keep, Wake(3, Tock())] if self.sends_first else [keep, say, Wake(3, Tock())]


class SilentReader(Role[KeepAlive]):
    def handle(self, sender: Address, event: KeepAlive, now: Instant) -> Effects:
        return ()


class HastyWriter(NumberWriter):
    sends_first = True


class DurabilityJudge(Judge):
    """Checks that numbers which a peer received in this life of the writer are on its disk."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.received = 0

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        event, writer = delivered.event, self.world.nodes["n1"]
        if type(event) is KeepAlive and delivered.boot == writer.boot:
            self.received += 1
            if encode(kept(event.request)) not in writer.disk.durable[-20:]:
                raise ViolationError(f"{event.request} was sent and not kept")


def write_under_crashes(writer: type[Role[Any]], seed: int) -> World:
    slow_disk = Faults(
        crash_in_sync_per_mille=50, crash_every_ms=500, tail_lost=True, sync_us=2_000, down_ms=20
    )
    world = World(seed, slow_disk)
    world.add("n1", only(writer), member=True)
    world.add("n2", only(SilentReader), member=True)
    world.may_die_in_sync = frozenset({"n1"})
    judge = DurabilityJudge(world)
    world.judges.append(judge)
    world.power_on_all()
    Nemesis(world, ("n1",)).begin()
    world.run(3 * SECOND)
    assert judge.received > 20
    return world


def test_messages_after_a_persist_leave_only_when_the_record_is_durable() -> None:
    worlds = [write_under_crashes(NumberWriter, seed) for seed in range(10)]

    assert sum(world.fault_counts["crash in sync"] for world in worlds) > 20
    assert sum(world.fault_counts["records lost"] for world in worlds) > 5


def test_a_role_that_sends_before_it_persists_is_caught() -> None:
    with pytest.raises(ViolationError, match="was sent and not kept"):
        write_under_crashes(HastyWriter, seed=0)


def test_a_node_begins_its_next_life_with_what_its_disk_kept_and_a_new_boot() -> None:
    seats: list[NodeContext] = []

    def make_roles(context: NodeContext) -> RoleSet:
        seats.append(context)
        return only(NumberWriter)(context)

    world = world_of(make_roles, only(SilentReader))
    world.run(SECOND)
    world.crash("n1")
    world.power_on("n1")

    first, second = seats
    assert first.records == ()
    assert len(second.records) > 50
    assert first.boot != second.boot
    assert first.random.random() != second.random.random()


def test_a_crash_loses_a_random_part_of_the_unsynced_records_or_none() -> None:
    def lost(*, tail_lost: bool) -> set[int]:
        found: set[int] = set()
        for seed in range(30):
            faults = Faults(sync_us=100_000, tail_lost=tail_lost)
            world = world_of(only(NumberWriter), only(SilentReader), seed=seed, faults=faults)
            world.run(4 * NS_PER_MS)
            world.crash("n1")
            found.add(world.fault_counts["records lost"])
        return found

    assert lost(tail_lost=True) == {0, 1}
    assert lost(tail_lost=False) == {0}


# The judge's view of a holder whose granting node crashes


def grant_to(user: str, proxy: str, fence: int, boot: int = 5, at: int = 0) -> list[Delivery]:
    """A grant that comes from a proxy to the session of ``user``, and from there to it."""
    node, owner = user.split("/")
    granted = Granted(lock="x", fence=fence, owner=owner)
    session = Address(f"{node}/session")
    return [
        Delivery(at, node, Address(f"{proxy}/proxy"), session, granted, boot),
        Delivery(at, node, session, Address(user), granted, 1),
    ]


def want(judge: LockJudge, user: str) -> None:
    asked = Send(Address("c1/session"), Acquire(lock="x"))
    judge.handled(Delivery(0, "c1", Address(user), Address(user), PauseEnded(turn=1), 1), [asked])


def watch(judge: LockJudge, deliveries: list[Delivery]) -> None:
    for delivered in deliveries:
        judge.handled(delivered, ())


@pytest.fixture
def judge() -> LockJudge:
    users = (Address("c1/a"), Address("c2/b"))
    judge = LockJudge(("n1", "n2"), users, holds_end_with_node=True)
    for user in users:
        want(judge, user)
    return judge


def test_a_holder_counts_as_outside_from_the_crash_of_its_proxy_on(judge: LockJudge) -> None:
    watch(judge, grant_to("c1/a", "n1", fence=3))
    judge.crashed("n1", 5)

    watch(judge, grant_to("c2/b", "n2", fence=4))

    assert judge.inside["x"].contender == "c2/b"
    assert judge.grants == 2


def test_a_crash_of_another_node_or_an_earlier_life_ends_no_hold(judge: LockJudge) -> None:
    watch(judge, grant_to("c1/a", "n1", fence=3))
    judge.crashed("n2", 5)
    judge.crashed("n1", 4)

    with pytest.raises(ViolationError, match="mutual exclusion"):
        watch(judge, grant_to("c2/b", "n2", fence=4, boot=6))


def test_a_grant_that_outlived_its_proxy_may_be_late_but_not_share_a_fence(
    judge: LockJudge,
) -> None:
    judge.crashed("n1", 5)
    watch(judge, grant_to("c2/b", "n2", fence=4))
    watch(judge, grant_to("c1/a", "n1", fence=3))
    assert judge.inside["x"].contender == "c2/b"

    want(judge, "c1/a")
    with pytest.raises(ViolationError, match="had before"):
        watch(judge, grant_to("c1/a", "n1", fence=4))


def test_a_later_fence_must_be_above_that_of_a_holder_whose_proxy_died(judge: LockJudge) -> None:
    watch(judge, grant_to("c1/a", "n1", fence=9))
    judge.crashed("n1", 5)

    with pytest.raises(ViolationError, match="after fence 9 was shown"):
        watch(judge, grant_to("c2/b", "n2", fence=8))
