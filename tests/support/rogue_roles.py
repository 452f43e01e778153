"""Roles of a member that sends what no honest one sends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from fencelock.actors.bakery.beats import ClusterStatus
from fencelock.actors.bakery.electorate import Electorate
from fencelock.actors.bakery.wire import Beat, Chosen
from fencelock.actors.effect import Effect, Effects, Send, Spawn, Wake
from fencelock.actors.message import Address, Instant, Message, Timer, address_of
from fencelock.actors.paxos.acceptor import Acceptor
from fencelock.actors.paxos.config import acceptor_of, leader_of, replica_of
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.paxos.wire import (
    NO_OP,
    Accept,
    Ballot,
    Commit,
    Heartbeat,
    HeartbeatAck,
    Promise,
    TableDigest,
)
from fencelock.actors.role import Host, Role
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.topology import MakeRoles, NodeContext
from fencelock.verification.simulation.planting import Change, planted

ROGUE, OTHERS = "n3", ("n1", "n2")
FAR = 1 << 61
FIRST_ROUND = 1 << 20
STRIKE_MS = 5

Forge = Callable[[Ballot], Sequence[Message]]
"""Returns what a rogue leader sends under a ballot."""


class ForgedMembers(ClusterStatus):
    """Reports in its beats that a later seating has other members, after changes without end."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        return [self.forged(effect) for effect in super().handle(sender, event, now)]

    def forged(self, effect: Effect) -> Effect:
        if not isinstance(effect, Send) or not isinstance(beat := effect.message, Beat):
            return effect
        own = beat.member
        if not own.seating.epoch:
            return effect
        epoch = own.seating.epoch + 1
        alone = (self.electorate.everyone[ROGUE]._replace(journal=1),)  # It has no such journal.
        forged = own._replace(
            seating=own.seating._replace(epoch=epoch, leaders=(Chosen(ROGUE, self.life),)),
            promised=epoch,
            electorate=Electorate(1 << 40, alone),
        )
        return Send(effect.to, replace(beat, member=forged))


def rogue(name: str, role: type[Role[Any]]) -> Change:
    """Return the change that runs ``role`` as the role ``name`` of the rogue member."""
    address = address_of(ROGUE, name)
    return lambda spawn: replace(spawn, role=role) if spawn.address == address else spawn


forges_members = rogue("cluster", ForgedMembers)


class Strike(Timer):
    """It is time to send forged messages."""


class RogueLeader(Role[Strike]):
    """Claims ballots of its node without any promise, and sends what ``forge`` returns for each."""

    def __init__(self, address: Address, host: Host, *, forge: Forge) -> None:
        super().__init__(address, host)
        self.forge = forge
        self.round = FIRST_ROUND

    def begin(self, now: Instant) -> Effects:
        return (Wake(STRIKE_MS, Strike()),)

    def handle(self, sender: Address, event: Strike, now: Instant) -> Effects:
        self.round += 1
        forged = self.forge(Ballot(self.round, leader_of(ROGUE)))
        sends = [Send(acceptor_of(one), what) for one in OTHERS for what in forged]
        return [*sends, Wake(STRIKE_MS, Strike())]


def with_rogue_leader(make_roles: MakeRoles, forge: Forge) -> MakeRoles:
    """Return ``make_roles`` with a `RogueLeader` on the rogue member."""

    def make_rogue(context: NodeContext) -> RoleSet:
        roles = make_roles(context)
        if context.node != ROGUE:
            return roles
        leader = Spawn(address_of(ROGUE, "commander-rogue"), RogueLeader, {"forge": forge})
        return dataclasses.replace(roles, roles=(*roles.roles, leader))

    return make_rogue


def far_slots(ballot: Ballot) -> list[Message]:
    """Name slots where no log can be."""
    return [
        Accept(ballot=ballot, slot=FAR, batch=NO_OP, committed=FAR),
        Commit(ballot=ballot, committed=FAR),
        Heartbeat(ballot=ballot, number=1, committed=FAR, min_applied=FAR),
    ]


class FarAcceptor(Acceptor):
    """Reports that it has applied slots where no log can be."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        return [far(effect) for effect in super().handle(sender, event, now)]


def far(effect: Effect) -> Effect:
    if not isinstance(effect, Send):
        return effect
    match message := effect.message:
        case Promise():
            return Send(effect.to, replace(message, first=FAR, votes=(), more=None))
        case HeartbeatAck():
            return Send(effect.to, replace(message, applied=FAR, log_version=-1))
        case _:
            return effect


class FarReplica(Replica):
    """Sends digests of slots where no log can be."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        slot = FAR - FAR % self.log.digests.step
        digest = TableDigest(scheme=1, slot=slot, state=1, decided=1, counters=(), asks=True)
        sends = [Send(replica_of(one), digest) for one in OTHERS]
        return [*super().handle(sender, event, now), *sends]


ROLES: dict[type[Role[Any]], type[Role[Any]]] = {Acceptor: FarAcceptor, Replica: FarReplica}


def reaches_far(spawn: Spawn) -> Spawn:
    """Let the roles of `paxos` on the rogue member name slots where no log can be."""
    is_rogue = spawn.address.partition("/")[0] == ROGUE
    return replace(spawn, role=ROLES.get(spawn.role, spawn.role)) if is_rogue else spawn


def with_rogue(make_roles: MakeRoles, protocol: str) -> MakeRoles:
    """Return ``make_roles`` with a rogue member; it sends real frames over its node's sockets."""
    if protocol != "paxos":
        return planted(make_roles, forges_members)
    return with_rogue_leader(planted(make_roles, reaches_far), far_slots)
