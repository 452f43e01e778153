"""Which roles make up a node, for each protocol: the one place that knows them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from fencelock.actors.bakery.config import (
    GRACE_MS,
    HOLD_MS,
    OBTENTION_MS,
    PRIORITY,
    TERM_MS_MIN,
    Terms,
)
from fencelock.actors.bakery.seating import seat_bakery
from fencelock.actors.central.broker import Broker
from fencelock.actors.central.server import LockServer
from fencelock.actors.client.message import Close
from fencelock.actors.clock import Clock
from fencelock.actors.effect import Send, Spawn
from fencelock.actors.error import UnsupportedError
from fencelock.actors.lamport.message import Neighbors
from fencelock.actors.lamport.process import LockProcess
from fencelock.actors.lamport.reliable_channel import ReliableChannel
from fencelock.actors.lock.command import FENCE_FLOOR_MAX, ExtendSessions
from fencelock.actors.lock.proxy import Proxy
from fencelock.actors.message import Address, Message, address_of
from fencelock.actors.paxos.config import leader_of, replica_of
from fencelock.actors.paxos.event import Resign
from fencelock.actors.paxos.proxy import LogProxy
from fencelock.actors.paxos.seating import LogOptions, seat_log
from fencelock.actors.paxos.snapshots import JOURNAL_BYTES
from fencelock.cluster.host.role_set import Closing, RoleSet
from fencelock.cluster.lock_machine import LockMachine
from fencelock.transport.wire import encode

US_PER_MS = 1_000

CLOSE_MS = 1_000
"""How long a node that stops may take to give back what callers inside its process hold (ms)."""

RESIGN_MS = 2_000
"""How long a leader that stops may take to let another one lead (ms)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an operator may choose for a protocol; see ``cluster/config.py`` for the file."""

    bakery_hold_ms: int = HOLD_MS
    """`bakery`: how long a lock may be held where nobody says otherwise (ms)."""
    bakery_grace_ms: int = GRACE_MS
    """`bakery`: how much longer until it is taken away (ms)."""
    bakery_least_ms: int = TERM_MS_MIN
    """`bakery`: who asks for a shorter duration, or grace, is refused (ms)."""
    bakery_wait_ms: int | None = OBTENTION_MS
    """`bakery`: how long who says nothing waits for a lock (ms); None for without limit."""
    bakery_priority: int = PRIORITY
    """`bakery`: of this node as a leader, 1 to 14, the smaller the likelier; 15 is off."""
    bakery_pid: int = 0
    """`bakery`: of this process, which tells candidates apart."""
    central_server: str = ""
    """`central`: the node that runs the lock server; empty for the first by name."""
    central_journal: bool = False
    """`central`: keep the server's table on disk, so that a restarted server goes on."""
    paxos_journal_bytes: int = JOURNAL_BYTES
    """`paxos`: after how many bytes of commands a member's journal is cut, 1 or more."""
    paxos_memory: bool = False
    """`paxos`: keep nothing on disk. Faster; but a node that restarts votes no more until all
    are restarted together, and then nobody remembers who held what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """What a node knows when its roles are made."""

    node: str
    nodes: tuple[str, ...]
    """All members, this one too, sorted."""
    boot: int
    """Drawn anew at each start, 63 bits: tells this life of the node from earlier ones."""
    random: Random
    first_stamp: int = 0
    """Where the logical clock begins."""
    settings: Settings = Settings()
    journal: Mapping[str, tuple[Message, ...]] = field(
        default_factory=dict[str, tuple[Message, ...]]
    )
    """What the journal of this node holds, by the name of the role that wrote it."""
    journal_id: int = 0
    """The random id of that journal, 0 if there is none."""

    @property
    def records(self) -> tuple[Message, ...]:
        """Everything in the journal, role by role."""
        return tuple(record for records in self.journal.values() for record in records)

    def records_of(self, role: str) -> tuple[Message, ...]:
        """Return what the role of that name (``"server"``) wrote and still needs, oldest first."""
        return self.journal.get(role, ())


Recipe = Callable[[NodeContext], RoleSet]
"""How a protocol seats its roles on one node."""


def recipe_of(protocol: str) -> Recipe:
    """Return how ``protocol`` seats its roles.

    Raises:
        UnsupportedError: there is no such protocol; the text names those there are.

    """
    if protocol not in RECIPES:
        known = ", ".join(sorted(RECIPES))
        raise UnsupportedError(f"protocol {protocol!r} does not exist; there are {known}")
    return RECIPES[protocol]


def keeps_journal(protocol: str, settings: Settings, node: str, nodes: tuple[str, ...]) -> bool:
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


def server_of(settings: Settings, nodes: tuple[str, ...]) -> str:
    """Return the node that runs the lock server: the chosen one, or the first by name."""
    return settings.central_server or nodes[0]


def bakery(seat: NodeContext) -> RoleSet:
    """Seat leader and door on every node, then election and cluster status; three of them lead."""
    settings = seat.settings
    terms = Terms(
        hold_ms=settings.bakery_hold_ms,
        grace_ms=settings.bakery_grace_ms,
        least_ms=settings.bakery_least_ms,
        wait_ms=settings.bakery_wait_ms,
    )
    roles = seat_bakery(
        seat.node,
        seat.nodes,
        seat.boot,
        seat.random,
        seat.journal,
        journal=seat.journal_id,
        date_ms=seat.first_stamp // US_PER_MS,
        terms=terms,
        priority=settings.bakery_priority,
        pid=settings.bakery_pid,
    )
    clock = Spawn(address_of(seat.node, "clock"), Clock, {"start": seat.first_stamp})
    return RoleSet(roles=(clock, *roles))


def lamport(seat: NodeContext) -> RoleSet:
    """Seat a clock, a courier, a lock process and a proxy on every node; nobody leads."""
    clock, channel, process = (
        address_of(seat.node, role) for role in ("clock", "courier", "process")
    )
    neighbors = Neighbors(nodes=seat.nodes)
    return RoleSet(
        roles=(
            Spawn(clock, Clock, {"start": seat.first_stamp, "channel": channel}),
            Spawn(
                channel, ReliableChannel, {"node": seat.node, "boot": seat.boot, "process": process}
            ),
            Spawn(
                process,
                LockProcess,
                {
                    "node": seat.node,
                    "boot": seat.boot,
                    "clock": clock,
                    "proxy": address_of(seat.node, "proxy"),
                },
            ),
            _proxy(seat, "lamport", process),
        ),
        openings=(Send(channel, neighbors), Send(process, neighbors)),
    )


def central(seat: NodeContext) -> RoleSet:
    """Seat the lock server on one node, and on every node a proxy and its lock clients."""
    owner = server_of(seat.settings, seat.nodes)
    server, clients = address_of(owner, "server"), address_of(seat.node, "clients")
    roles = [
        Spawn(address_of(seat.node, "clock"), Clock, {"start": seat.first_stamp}),
        Spawn(
            clients,
            Broker,
            {
                "proxy": address_of(seat.node, "proxy"),
                "server": server,
                "boot": seat.boot,
                "random": seat.random,
            },
        ),
        _proxy(seat, "central", clients),
    ]
    if seat.node == owner:
        # The date is the floor of the fences: a restarted server without a journal has
        # forgotten who holds what, but its fences go on rising, so that storage can tell.
        arguments = {
            "granted": seat.first_stamp,
            "journal": seat.settings.central_journal,
            "records": seat.records_of("server"),
        }
        roles.append(Spawn(server, LockServer, arguments))
    return RoleSet(roles=tuple(roles))


def paxos(seat: NodeContext) -> RoleSet:
    """Seat the replicated log and its table of locks on every node, with its door as listener.

    Without a disk fences begin at the date, so that they rise over restarts of the whole group.
    """
    proxy = address_of(seat.node, "proxy")
    machine = LockMachine()
    memory = seat.settings.paxos_memory
    floor = min(seat.first_stamp, FENCE_FLOOR_MAX) if memory else 0
    log = seat_log(
        seat.node,
        seat.nodes,
        seat.random,
        machine,
        records=None if memory else seat.records,
        journal=seat.journal_id,
        boot=seat.boot,
        date_ms=seat.first_stamp // US_PER_MS,
        options=LogOptions(
            listener=proxy,
            opening=(encode(ExtendSessions(master=seat.node, fence_floor=floor)),),
            journal_bytes=seat.settings.paxos_journal_bytes,
        ),
    )
    closings = [Closing(proxy, Close(), CLOSE_MS)]
    if len(seat.nodes) > 1:
        closings.append(Closing(leader_of(seat.node), Resign(), RESIGN_MS))
    arguments = {
        "node": seat.node,
        "members": seat.nodes,
        "replica": replica_of(seat.node),
        "name": f"{seat.node}/{seat.boot:x}",
        "encode": machine.write,
    }
    return RoleSet(
        roles=(
            Spawn(address_of(seat.node, "clock"), Clock, {"start": seat.first_stamp}),
            *log,
            Spawn(proxy, LogProxy, arguments),
        ),
        closings=tuple(closings),
    )


def _proxy(seat: NodeContext, protocol: str, backend: Address) -> Spawn:
    arguments = {
        "node": seat.node,
        "nodes": seat.nodes,
        "protocol": protocol,
        "backend": backend,
        "holds_by_session": protocol == "central",
    }
    return Spawn(address_of(seat.node, "proxy"), Proxy, arguments)


RECIPES: dict[str, Recipe] = {
    "bakery": bakery,
    "central": central,
    "lamport": lamport,
    "paxos": paxos,
}
"""By the name the configuration uses."""
