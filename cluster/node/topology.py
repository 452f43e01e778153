"""The roles of a node, for each protocol: the one place that knows them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import cast

from fencelock.actors.bakery.backend import BakeryBackend
from fencelock.actors.bakery.beats import ClusterStatus
from fencelock.actors.bakery.config import (
    BAKERY_TIMING,
    PRIORITY,
    BakeryTiming,
    Terms,
    election_of,
    proxy_of,
    status_of,
)
from fencelock.actors.bakery.config import members_of as bakery_members_of
from fencelock.actors.bakery.election import ElectionCoordinator
from fencelock.actors.bakery.electorate import Electorate
from fencelock.actors.bakery.epochs import DurablePromises, EpochLimit, VoterRegistry
from fencelock.actors.bakery.leader import Leader
from fencelock.actors.bakery.reconfigurer import Reconfigurer as BakeryReconfigurer
from fencelock.actors.bakery.wire import NodeInfo
from fencelock.actors.bootstrap import Bootstrap, Voters, bootstrap_of, greet_time_ms
from fencelock.actors.bootstrap_message import Founding, GroupConfig, Voter, vote_id
from fencelock.actors.central.broker import Broker
from fencelock.actors.central.server import LockServer
from fencelock.actors.clock import Clock
from fencelock.actors.effect import Send, Spawn
from fencelock.actors.error import UnsupportedError
from fencelock.actors.lamport.process import LockProcess
from fencelock.actors.lamport.reliable_channel import ReliableChannel
from fencelock.actors.lamport.wire import Neighbors
from fencelock.actors.membership import Member
from fencelock.actors.membership_target import NO_TARGET, MemberTarget
from fencelock.actors.message import Address, Message, address_of
from fencelock.actors.paxos.backend import PaxosBackend
from fencelock.actors.paxos.config import leader_of, monitor_of
from fencelock.actors.paxos.event import Resign
from fencelock.actors.paxos.member import LogOptions, log_roles
from fencelock.actors.paxos.snapshots import JOURNAL_BYTES
from fencelock.actors.proxy.access import Rights
from fencelock.actors.proxy.backend import Backend
from fencelock.actors.proxy.lock_manager import LockManager
from fencelock.actors.proxy.proxy import Proxy
from fencelock.actors.quota import DEFAULT_QUOTAS, Quotas
from fencelock.actors.session.event import Close
from fencelock.actors.session.session import ClientSession
from fencelock.actors.table.wire import ExtendSessions
from fencelock.actors.timing import TIMING, Timing
from fencelock.cluster.host.role_set import Closing, RoleSet
from fencelock.cluster.node.lock_machine import LockMachine
from fencelock.transport.codec import encode

US_PER_MS = 1_000

NODE_CLOSE_MS = 1_000
"""Time limit for releasing what callers inside the process hold when a node stops (ms)."""

RESIGN_MS = 2_000
"""Time limit for handing over the leadership when a node stops (ms)."""


DEFAULT_TERMS = Terms()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolSettings:
    """The options of the protocols; see ``cluster/node/config.py`` for the file."""

    bakery_terms: Terms = DEFAULT_TERMS
    """`bakery`: default durations of holds and waits, the same on every node."""
    bakery_timing: BakeryTiming = BAKERY_TIMING
    """`bakery`: the times for which members wait for each other, the same on every node."""
    bakery_copies: bool = True
    """`bakery`: whether members that do not lead keep copies of what the leaders agree on."""
    bakery_target: MemberTarget = NO_TARGET
    """`bakery`: the number of members at which the coordinator keeps the group."""
    priority: int = PRIORITY
    """The priority of this node, 1 to 14, lower is likelier; 15 is off. `bakery`: as a leader.
    `paxos`: as a new member, if it is none."""
    bakery_pid: int = 0
    """`bakery`: the id of this process, which distinguishes candidates."""
    central_server: str = ""
    """`central`: the node that runs the lock server; empty for the first by name."""
    central_journal: bool = False
    """`central`: keep the server's table on disk, so that a restarted server continues."""
    paxos_journal_bytes: int = JOURNAL_BYTES
    """`paxos`: bytes of commands after which a member compacts its journal, 1 or more."""
    paxos_timing: Timing = TIMING
    """`paxos`: the times of leases, heartbeats and elections, the same on every member."""
    paxos_target: MemberTarget = NO_TARGET
    """`paxos`: the number of members at which the leader keeps the group."""
    quotas: Quotas = DEFAULT_QUOTAS
    paxos_memory: bool = False
    """`paxos`: keep nothing on disk. This is faster, but a node that restarts does not vote again
    until all are restarted together, and then all holds are forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """The facts from which a node's roles are made."""

    node: str
    nodes: tuple[str, ...]
    """All nodes of the configuration, this one too, sorted."""
    endpoints: Mapping[str, str] = field(default_factory=dict[str, str])
    """The endpoint of each node, as far as the configuration says."""
    version: str = ""
    """The version of this software, for operators."""
    boot: int
    """Random number of 63 bits, drawn at each start; distinguishes this life from earlier ones."""
    random: Random
    first_stamp: int = 0
    settings: ProtocolSettings = ProtocolSettings()
    journal: Mapping[str, tuple[Message, ...]] = field(
        default_factory=dict[str, tuple[Message, ...]]
    )
    """The records in this node's journal, by the name of the role that wrote them, oldest
    first."""
    rights: tuple[Rights, ...] | None = None
    """The rights of each key; None where no keys are used."""
    journal_id: int = 0
    """The random id of that journal, or 0 if there is none."""
    journal_secret: int = 0
    """The secret of that journal, with which its starts are proven."""
    founding: Founding = Founding.NO
    """Whether an operator wants a new group (`paxos`, `bakery`)."""

    @property
    def records(self) -> tuple[Message, ...]:
        return tuple(record for records in self.journal.values() for record in records)


MakeRoles = Callable[[NodeContext], RoleSet]


def make_roles_of(protocol: str) -> MakeRoles:
    if protocol not in PROTOCOLS:
        known = ", ".join(sorted(PROTOCOLS))
        raise UnsupportedError(f"protocol {protocol!r} does not exist; there are {known}")
    return PROTOCOLS[protocol]


def keeps_journal(
    protocol: str, settings: ProtocolSettings, node: str, nodes: tuple[str, ...]
) -> bool:
    """Return whether ``node`` writes anything that must survive its restart."""
    return (
        protocol == "bakery"
        or (protocol == "paxos" and not settings.paxos_memory)
        or (
            protocol == "central"
            and settings.central_journal
            and node == server_of(settings, tuple(sorted(nodes)))
        )
    )


def server_of(settings: ProtocolSettings, nodes: tuple[str, ...]) -> str:
    """Return the node that runs the lock server: the chosen one, or the first by name."""
    return settings.central_server or nodes[0]


def bakery(context: NodeContext) -> RoleSet:
    """Set up leader and proxy on every node; three nodes lead.

    Cluster status and coordinator begin once the group of the node is known.
    """
    settings = context.settings
    node, terms, date_ms = context.node, settings.bakery_terms, context.first_stamp // US_PER_MS
    kept, founded = context.journal.get("election", ()), context.journal.get("bootstrap", ())
    recovered = DurablePromises.recover(kept).installed.electorate
    status = {
        "life": context.boot,
        "priority": settings.priority,
        "pid": settings.bakery_pid,
    }
    timing = {"timing": settings.bakery_timing}
    election = {
        "bound_ms": terms.lease_ms,
        "random": context.random,
        "records": kept,
        "copies": settings.bakery_copies,
    }

    def join(group: GroupConfig, votes: bool, voters: Voters) -> tuple[Spawn, ...]:
        limit = _epoch_limit(group, date_ms, kept, terms.max_ms)
        registry = _voter_registry(context, group, voters, limit, votes=votes)
        voting, electorate = {"voting": registry}, registry.electorate(recovered)
        own = NodeInfo(
            epoch=0,
            number=0,
            journal=context.journal_id,
            ready=votes,
            endpoint=context.endpoints.get(node, ""),
            version=context.version,
        )
        members = {"nodes": context.nodes, "electorate": electorate, "own": own}
        members |= {"target": settings.bakery_target}
        return (
            Spawn(bakery_members_of(node), BakeryReconfigurer, members),
            Spawn(status_of(node), ClusterStatus, status | voting | timing),
            Spawn(election_of(node), ElectionCoordinator, election | voting | timing),
        )

    registered = tuple(Voter(one.name, one.journal) for one in recovered.everyone.values())
    bootstrap = {
        "members": context.nodes,
        "journal": context.journal_id,
        "secret": context.journal_secret,
        "boot": context.boot,
        "date_ms": date_ms,
        "records": founded,
        "durable": True,
        "make_roles": join,
        "voter": election_of,
        "voting": (election_of(node), status_of(node), bakery_members_of(node)),
        "listener": proxy_of(node),
        "greet_ms": greet_time_ms(settings.bakery_timing.round_trip_ms),
        "founding": context.founding,
        "journals": registered or None,
    }
    limit = _epoch_limit(_group_in(founded), date_ms, kept, terms.max_ms)
    backend = BakeryBackend(
        node,
        context.nodes,
        terms,
        context.random,
        context.boot,
        context.endpoints,
        settings.bakery_timing,
        limit,
    )
    roles = (
        Spawn(
            leader_of(node),
            Leader,
            {
                "node": node,
                "members": context.nodes,
                "life": context.boot,
                "terms": terms,
                "limit": limit,
                "share": settings.quotas.tickets,
                **timing,
            },
        ),
        _proxy(context, backend),
        Spawn(bootstrap_of(node), Bootstrap, bootstrap),
    )
    return RoleSet(
        roles=(_clock(context), *roles, _session(context)), closings=(_closing(context),)
    )


def _voter_registry(
    context: NodeContext, group: GroupConfig, voters: Voters, limit: EpochLimit, *, votes: bool
) -> VoterRegistry:
    """Return the journals that vote in ``group``, of which the founders are registered."""
    endpoints = context.endpoints
    founders = tuple(
        Member(name, endpoints.get(name, ""), journal) for name, journal in group.voters
    )
    return VoterRegistry(
        cast("dict[Address, int]", voters),
        vote_id(group, context.node, context.journal_id),
        votes,
        limit,
        lambda member: vote_id(group, member.name, member.journal),
        Electorate(0, founders),
        context.nodes,
    )


def _group_in(records: Sequence[Message]) -> GroupConfig | None:
    return next((record for record in records if isinstance(record, GroupConfig)), None)


def _epoch_limit(
    group: GroupConfig | None, date_ms: int, kept: Sequence[Message], max_hold_ms: int
) -> EpochLimit:
    """Return the limits of a node that starts at ``date_ms`` with the records ``kept``."""
    age_ms = 0 if group is None else max(0, date_ms - group.founded_ms)
    promises = DurablePromises.recover(kept)
    return EpochLimit(age_ms // 1_000, promises.promised, max(max_hold_ms, promises.lease_ms))


def lamport(context: NodeContext) -> RoleSet:
    """Set up clock, reliable channel, lock process and proxy on every node; there is no leader."""
    clock, channel, process = (
        address_of(context.node, role) for role in ("clock", "channel", "process")
    )
    manager = LockManager(context.node, context.nodes, "lamport", process)
    neighbors = Neighbors(nodes=context.nodes)
    return RoleSet(
        roles=(
            Spawn(clock, Clock, {"start": context.first_stamp, "channel": channel}),
            Spawn(
                channel,
                ReliableChannel,
                {"node": context.node, "boot": context.boot, "process": process},
            ),
            Spawn(
                process,
                LockProcess,
                {
                    "node": context.node,
                    "boot": context.boot,
                    "clock": clock,
                    "proxy": address_of(context.node, "proxy"),
                },
            ),
            _proxy(context, manager),
            _session(context),
        ),
        openings=(Send(channel, neighbors), Send(process, neighbors)),
        closings=(_closing(context),),
    )


def central(context: NodeContext) -> RoleSet:
    """Set up the lock server on one node, and a proxy with lock clients on every node."""
    owner = server_of(context.settings, context.nodes)
    server, clients = address_of(owner, "server"), address_of(context.node, "clients")
    manager = LockManager(context.node, context.nodes, "central", clients, holds_by_session=True)
    roles = [
        _clock(context),
        Spawn(
            clients,
            Broker,
            {
                "proxy": address_of(context.node, "proxy"),
                "server": server,
                "boot": context.boot,
                "random": context.random,
            },
        ),
        _proxy(context, manager),
        _session(context),
    ]
    if context.node == owner:
        # The date is the floor of the fences. A restarted server without a journal has forgotten
        # the holders, but its fences still rise, so that storage can refuse the old ones.
        arguments = {
            "granted": context.first_stamp,
            "journal": context.settings.central_journal,
            "records": context.journal.get("server", ()),
        }
        roles.append(Spawn(server, LockServer, arguments))
    return RoleSet(roles=tuple(roles), closings=(_closing(context),))


def paxos(context: NodeContext) -> RoleSet:
    """Set up the replicated log and its table of locks on every node; the proxy listens to it.

    Fences of a group begin at the date of its founding (us). So they are above those of every group
    that was founded before, also of one that kept nothing on disk.
    """
    proxy = address_of(context.node, "proxy")
    machine = LockMachine()
    memory = context.settings.paxos_memory

    def opening(group: GroupConfig) -> tuple[bytes, ...]:
        floor = group.founded_ms * US_PER_MS
        return (encode(ExtendSessions(leader=context.node, fence_floor=floor)),)

    log = log_roles(
        context.node,
        context.nodes,
        context.random,
        machine,
        records=None if memory else context.records,
        journal=context.journal_id,
        secret=context.journal_secret,
        boot=context.boot,
        date_ms=context.first_stamp // US_PER_MS,
        founding=context.founding,
        options=LogOptions(
            listener=proxy,
            opening=opening,
            journal_bytes=context.settings.paxos_journal_bytes,
            endpoints=context.endpoints,
            version=context.version,
            timing=context.settings.paxos_timing,
            target=context.settings.paxos_target,
            priority=context.settings.priority,
        ),
    )
    closings = [_closing(context)]
    if len(context.nodes) > 1:
        closings.append(Closing(monitor_of(context.node), Resign(), RESIGN_MS))
    timing = context.settings.paxos_timing
    backend = PaxosBackend(context.node, context.nodes, machine.write, context.endpoints, timing)
    return RoleSet(
        roles=(_clock(context), *log, _proxy(context, backend), _session(context)),
        closings=tuple(closings),
    )


def _clock(context: NodeContext) -> Spawn:
    return Spawn(address_of(context.node, "clock"), Clock, {"start": context.first_stamp})


def _proxy(context: NodeContext, backend: Backend) -> Spawn:
    admitting = {"rights": context.rights, "quotas": context.settings.quotas}
    return Spawn(address_of(context.node, "proxy"), Proxy, {"backend": backend, **admitting})


def _session(context: NodeContext) -> Spawn:
    """Set up the session of callers inside the node's process; its endpoint is the node's proxy.

    Its name has the id of this life of the node, and a ``/``, which no client's name has.
    """
    arguments = {
        "session": f"{context.node}/{context.boot:x}",
        "endpoints": (address_of(context.node, "proxy"),),
        "random": Random(context.boot),
        "label": context.node,
    }
    return Spawn(address_of(context.node, "session"), ClientSession, arguments)


def _closing(context: NodeContext) -> Closing:
    return Closing(address_of(context.node, "session"), Close(), NODE_CLOSE_MS)


PROTOCOLS: dict[str, MakeRoles] = {
    "bakery": bakery,
    "central": central,
    "lamport": lamport,
    "paxos": paxos,
}
"""The functions that set up each protocol, by the name the configuration uses."""
