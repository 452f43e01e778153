"""A rogue member sends extremes, then dies: the group goes on, also after a restart."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.bakery_cluster_harness import ClusterHarness
from support.planted_bugs import plant, returning
from support.rogue_roles import ROGUE, forges_members, rogue

from fencelock.actors import clock
from fencelock.actors.api.lock_message import Granted, Refused
from fencelock.actors.bakery import epochs
from fencelock.actors.bakery.beats import ClusterStatus
from fencelock.actors.bakery.config import leader_of
from fencelock.actors.bakery.election import ElectionCoordinator
from fencelock.actors.bakery.epochs import EpochLimit
from fencelock.actors.bakery.event import ElectionDue
from fencelock.actors.bakery.leader import Leader
from fencelock.actors.bakery.ticket import FENCE_COUNTER_MAX, LEASE_MS_MAX
from fencelock.actors.bakery.wire import Beat, Collected, Lead, MaxTicket, Merged, Seating
from fencelock.actors.bootstrap import Bootstrap, JournalStatus, bootstrap_of
from fencelock.actors.bootstrap_message import GroupConfig, Join, Start, Superseded, Voter
from fencelock.actors.clock import STAMP_MAX, Clock
from fencelock.actors.effect import Effect, Effects, Send
from fencelock.actors.message import Address, Instant
from fencelock.cluster.node.topology import MakeRoles, bakery, central, lamport, paxos
from fencelock.verification.simulation.planting import planted
from fencelock.verification.simulation.violation import ViolationError

PATIENCE_MS = 4_000
"""A sound group serves again after some 3,200 ms."""


class FarClock(Clock):
    """Stamps frames with the end of logical time, and with the most that may be accepted."""

    def departing(self) -> int:
        self.time += 1
        return (STAMP_MAX - 1, 1 << 53, 1 << 62)[self.time % 3]


def serves_without(forging: MakeRoles, make_roles: MakeRoles) -> ClusterHarness:
    """Run with a rogue member for a while; then it is honest, and all restart."""
    harness = ClusterHarness(3, make_roles=make_roles)
    harness.world.nodes[ROGUE].make_roles = forging
    harness.start()
    harness.run(2_000)
    for name in harness.names:
        harness.world.crash(name)
    harness.world.nodes[ROGUE].make_roles = make_roles
    harness.start()
    harness.acquire("n1")
    harness.until(lambda: bool(harness.answers(Granted) or harness.answers(Refused)), PATIENCE_MS)
    return harness


@pytest.mark.parametrize("make_roles", [bakery, central, lamport, paxos])
def test_a_far_stamp_stops_no_member(
    make_roles: MakeRoles, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = planted(make_roles, rogue("clock", FarClock))
    serves_without(far, make_roles)
    monkeypatch.setattr(clock, "AHEAD_US", STAMP_MAX)
    with pytest.raises(ViolationError, match=" broke"):
        serves_without(far, make_roles)


class InventsStarts(Bootstrap):
    """Reports of each member that it has started again from the same journal."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        effects = super().handle(sender, event, now)
        if not isinstance(event, Join):
            return effects
        start = Start(event.start.journal, 1 << 40, 1)
        return [*effects, Send(sender, Superseded(to=event.start.boot, start=start))]


def all_vote_without(forging: MakeRoles, make_roles: MakeRoles) -> None:
    harness = serves_without(forging, make_roles)
    roles = [harness.world.role_at(bootstrap_of(name)) for name in harness.names]
    assert [role.standing for role in roles] == [JournalStatus.VOTER] * 3


@pytest.mark.parametrize("make_roles", [bakery, paxos])
def test_an_invented_start_stops_no_member(
    make_roles: MakeRoles, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventing = planted(make_roles, rogue("bootstrap", InventsStarts))
    all_vote_without(inventing, make_roles)
    plant(monkeypatch, Start, "is_proven", returning(True))
    with pytest.raises(AssertionError):
        all_vote_without(inventing, make_roles)


class InventsGroups(Bootstrap):
    """Sends each node that joins a group of its own invention, of which it is the only member."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        effects = super().handle(sender, event, now)
        if not isinstance(event, Join):
            return effects
        alone = (Voter(ROGUE, 1),)
        config = GroupConfig(to=event.start.boot, group=666, founded_ms=1, voters=alone)
        return [Send(sender, config), *(one for one in effects if not is_config(one))]


def is_config(effect: Effect) -> bool:
    return isinstance(effect, Send) and isinstance(effect.message, GroupConfig)


def finds_its_group_beside(inventing: MakeRoles, make_roles: MakeRoles) -> None:
    """Let a member that lost its disk meet a rogue one first, and the honest one later.

    The rogue one is honest after the next restart.
    """
    harness = ClusterHarness(3, make_roles=make_roles).start()
    harness.run(3_000)
    for name in harness.names:
        harness.world.crash(name)
    harness.world.nodes[LOST].disk.lose()
    harness.world.nodes[ROGUE].make_roles = inventing
    for name in (ROGUE, LOST, "n2"):
        harness.world.power_on(name)
        harness.run(2_000)
    harness.world.crash(ROGUE)
    harness.world.nodes[ROGUE].make_roles = make_roles
    harness.world.power_on(ROGUE)

    def groups() -> set[GroupConfig | None]:
        return {harness.world.role_at(bootstrap_of(name)).group for name in harness.names}

    harness.until(lambda: len(groups()) == 1, PATIENCE_MS)


LOST = "n1"


@pytest.mark.parametrize("make_roles", [bakery, paxos])
def test_an_invented_group_keeps_no_empty_node_out(
    make_roles: MakeRoles, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventing = planted(make_roles, rogue("bootstrap", InventsGroups))
    finds_its_group_beside(inventing, make_roles)
    plant(monkeypatch, Bootstrap, "_is_believed", returning(True))
    with pytest.raises(ViolationError, match="one-group"):
        finds_its_group_beside(inventing, make_roles)


class LeadsFarAhead(ElectionCoordinator):
    """Calls the other leaders away to an epoch that no member has promised."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        effects, seating = super().handle(sender, event, now), self.promises.seating
        if not 0 < seating.epoch < FAR or not isinstance(event, ElectionDue):
            return effects
        epoch = seating.epoch + FAR
        called = [one for one in seating.leaders if one.node != ROGUE]
        return [
            *effects,
            *(
                Send(
                    leader_of(one.node),
                    Lead(seating=Seating(epoch, (one,), 0), former=seating, empty=True),
                )
                for one in called
            ),
        ]


FAR = 60_000


def test_leaders_that_were_called_far_away_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without a restart: the others see which epochs they do not obey any more."""

    def grants() -> None:
        far = planted(bakery, rogue("election", LeadsFarAhead))
        harness = ClusterHarness(3, make_roles=far).start()
        harness.run(5_000)
        assert harness.lock("n1").fence

    grants()
    plant(monkeypatch, ElectionCoordinator, "_on_barred", returning(()))
    with pytest.raises(AssertionError):
        grants()


class EndlessLeases(ClusterStatus):
    """Reports in its beats that later leaders are installed, whose leases last for a week."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        return [endless(effect) for effect in super().handle(sender, event, now)]


class EndlessTables(Leader):
    """Takes part, with leases, numbers and rounds that no honest leader has."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        return [endless(effect) for effect in super().handle(sender, event, now)]


def endless(effect: Effect) -> Effect:
    """Return ``effect`` with a lease of a week, and numbers at their limits, if it has any."""
    if not isinstance(effect, Send):
        return effect
    match message := effect.message:
        case Beat(member=own) if own.seating.epoch:
            epoch = own.seating.epoch + 1
            seating = own.seating._replace(epoch=epoch, bound_ms=LEASE_MS_MAX)
            forged = own._replace(seating=seating, promised=epoch)
            return Send(effect.to, replace(message, member=forged))
        case Merged():
            return Send(effect.to, replace(message, left_ms=LEASE_MS_MAX))
        case MaxTicket() | Collected():
            return Send(effect.to, replace(message, highest=FENCE_COUNTER_MAX, known=(1 << 63) - 1))
        case _:
            return effect


def test_forged_members_stop_no_member(monkeypatch: pytest.MonkeyPatch) -> None:
    forging = planted(bakery, forges_members)
    serves_without(forging, bakery)
    plant(monkeypatch, epochs, "can_follow", returning(True))
    with pytest.raises(AssertionError):
        serves_without(forging, bakery)


@pytest.mark.long
def test_endless_leases_stop_no_member(monkeypatch: pytest.MonkeyPatch) -> None:
    forging = planted(bakery, rogue("cluster", EndlessLeases))
    forging = planted(forging, rogue("leader", EndlessTables))
    serves_without(forging, bakery)
    plant(monkeypatch, EpochLimit, "allows_lease", returning(True))
    with pytest.raises(AssertionError):
        serves_without(forging, bakery)
