"""A leader that dies without a sign: for how long no lock is granted, in virtual time."""

from __future__ import annotations

import itertools
from enum import Enum

import pytest

from fencelock.actors.api.lock_message import Acquire, Granted, Release, Released
from fencelock.actors.effect import Effects, Send, Spawn
from fencelock.actors.message import NS_PER_MS, Address, Instant, address_of
from fencelock.actors.role import Host, Role
from fencelock.actors.timing import ROUND_TRIP_MS, TIMING, derived
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.topology import NodeContext, ProtocolSettings, make_roles_of
from fencelock.verification.simulation.faults import Faults
from fencelock.verification.simulation.network import Cut
from fencelock.verification.simulation.workload import client_session
from fencelock.verification.simulation.world import World

SETTLED_MS = 1_500
DEAD_MS = 2_000
FOREVER = 1 << 62
CLIENTS = ("c1", "c2", "c3")

ELECTION_AND_SYNCS_MS = 100
"""For the ballot, two promises and the first slot, each with a sync, and a resent message."""

WITHIN_MS = TIMING.election_ms + TIMING.rank_ms + ELECTION_AND_SYNCS_MS
"""The second follower has stood by then, should the first have died as well."""


class SilentDeath(Enum):
    """The fault of the leader."""

    STOPPED = "stopped"
    CUT_OFF = "cut off from all"
    CUT_OFF_FROM_FOLLOWERS = "cut off from its followers"


class Busy(Role[Granted | Released]):
    """Acquires and releases a lock of its own, again and again, and notes when it is granted."""

    def __init__(self, address: Address, host: Host, *, session: Address, lock: str) -> None:
        super().__init__(address, host)
        self.session = session
        self.lock = lock
        self.number = 0
        self.granted_at: list[Instant] = []

    def begin(self, now: Instant) -> Effects:
        return [self._acquire()]

    def handle(self, sender: Address, event: Granted | Released, now: Instant) -> Effects:
        match event:
            case Granted():
                self.granted_at.append(now)
                release = Release(lock=self.lock, fence=event.fence, owner="busy")
                return [Send(self.session, release)]
            case Released():
                return [self._acquire()]

    def _acquire(self) -> Send:
        self.number += 1
        acquire = Acquire(lock=self.lock, owner="busy", request=self.number)
        return Send(self.session, acquire)


def busy_client(context: NodeContext) -> RoleSet:
    proxies = tuple(address_of(member, "proxy") for member in ("n1", "n2", "n3"))
    session = client_session(context, proxies)
    arguments = {"session": session.address, "lock": context.node}
    return RoleSet((session, Spawn(address_of(context.node, "busy"), Busy, arguments)))


def world_of_three(
    seed: int, nodes: int = 3, delay_us: int = 500, round_trip_ms: int = ROUND_TRIP_MS
) -> World:
    world = World(seed, Faults(delay_us=delay_us, sync_us=2_000))
    settings = ProtocolSettings(paxos_timing=derived(50, round_trip_ms=round_trip_ms))
    for number in range(nodes):
        world.add(f"n{number + 1}", make_roles_of("paxos"), member=True, settings=settings)
    for client in CLIENTS:
        world.add(client, busy_client, member=False)
    world.power_on_all()
    world.run(SETTLED_MS * NS_PER_MS)
    return world


def leader_of(world: World) -> str:
    leaders = {world.role_at(address_of(name, "proxy")).backend.leader for name in world.members}
    (leader,) = leaders
    return str(leader)


def strike(world: World, leader: str, death: SilentDeath) -> None:
    others = [name for name in world.members if name != leader]
    if death is SilentDeath.STOPPED:
        world.nodes[leader].pause()
        return
    if death is SilentDeath.CUT_OFF:
        others += CLIENTS
    links = [link for other in others for link in ((leader, other), (other, leader))]
    world.network.cut(links, Cut(FOREVER, holds=True))


def longest_gap_ms(world: World, ms: int) -> int:
    """Return for how long at most no lock is granted in the next ``ms``."""
    times, before = [world.time], 0
    for _ in range(ms):
        world.run_for(1)
        clients = (world.role_at(address_of(name, "busy")) for name in CLIENTS)
        grants = sum(len(client.granted_at) for client in clients)
        if grants > before:
            times.append(world.time)
        before = grants
    times.append(world.time)
    return max(later - earlier for earlier, later in itertools.pairwise(times)) // NS_PER_MS


@pytest.mark.parametrize("death", SilentDeath)
def test_locks_are_granted_again_within_an_election_of_a_silent_death(death: SilentDeath) -> None:
    world = world_of_three(0)
    leader, begun = leader_of(world), world.marks["paxos.ballot_begun"]

    strike(world, leader, death)

    assert longest_gap_ms(world, DEAD_MS) <= WITHIN_MS
    others = [name for name in world.members if name != leader]
    heirs = {world.role_at(address_of(name, "proxy")).backend.leader for name in others}
    assert len(heirs) == 1
    assert leader not in heirs
    if death is SilentDeath.STOPPED:  # Else the old leader stands in vain.
        assert world.marks["paxos.ballot_begun"] == begun + 1


FAR_MS = 150
"""The delay one way between continents (ms)."""


@pytest.mark.parametrize("death", SilentDeath)
def test_a_cluster_across_continents_grants_within_three_seconds_of_a_silent_death(
    death: SilentDeath,
) -> None:
    world = world_of_three(1, delay_us=FAR_MS * 1_000, round_trip_ms=2 * FAR_MS)
    world.run_for(SETTLED_MS)
    before = world.marks["paxos.leadership_begun"]
    assert longest_gap_ms(world, 3_000) <= 1_500
    assert world.marks["paxos.leadership_begun"] == before, "no node takes over without a fault"

    strike(world, leader_of(world), death)
    assert longest_gap_ms(world, 5_000) <= 3_000


def test_every_client_goes_on_when_the_first_two_leaders_of_five_nodes_stop() -> None:
    world = world_of_three(0, nodes=5)
    for _ in range(2):
        leader = leader_of(world)
        world.nodes[leader].pause()
        world.members = tuple(name for name in world.members if name != leader)
        assert longest_gap_ms(world, DEAD_MS) <= WITHIN_MS


def test_a_member_that_notices_a_broken_link_stands_as_soon_as_the_lease_ends() -> None:
    """Links of this simulation sometimes break unnoticed, so it may be the second follower."""
    world = world_of_three(0)
    begun, leaderships = world.marks["paxos.ballot_begun"], world.marks["paxos.leadership_begun"]

    world.crash(leader_of(world))
    within_ms = TIMING.lease_ms + TIMING.rank_ms + ELECTION_AND_SYNCS_MS
    world.run_for(within_ms)

    assert world.marks["paxos.ballot_begun"] == begun + 1
    assert world.marks["paxos.leadership_begun"] == leaderships + 1


def test_nodes_that_all_stand_still_for_a_moment_do_not_elect() -> None:
    world = world_of_three(0)
    leaderships = world.marks["paxos.leadership_begun"]
    for _ in range(4):
        for node in world.nodes.values():
            node.pause()
        world.run_for(1_200)
        for node in world.nodes.values():
            node.resume()
        world.run_for(1_000)

    assert world.marks["paxos.leadership_begun"] == leaderships


def test_a_client_that_stands_still_stays_where_it_is() -> None:
    world = world_of_three(0)
    left = world.marks["client.endpoint_silent"]
    for _ in range(4):
        for client in CLIENTS:
            world.nodes[client].pause()
        world.run_for(1_000)
        for client in CLIENTS:
            world.nodes[client].resume()
        world.run_for(1_000)

    assert world.marks["client.endpoint_silent"] == left
