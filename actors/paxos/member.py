"""Creates a member's roles of the log, once it is known which journals vote.

On a node without a disk the roles that would write records are replaced by `MemoryAcceptor` and
its like; `Bootstrap` decides which of them vote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fencelock.actors.bootstrap import GREET_MS, Bootstrap, bootstrap_of, greet_time_ms
from fencelock.actors.bootstrap_message import Founding, GroupConfig, Voter, journals_of, vote_id
from fencelock.actors.effect import Checkpoint, Effects, Persist, Spawn
from fencelock.actors.lease import DRIFT_PPM
from fencelock.actors.membership import Member
from fencelock.actors.membership_target import NO_TARGET, MemberTarget
from fencelock.actors.message import Address, Instant, Message
from fencelock.actors.paxos.acceptor import Acceptor
from fencelock.actors.paxos.config import (
    LOG_MAX,
    LogConfig,
    View,
    acceptor_of,
    catchup_of,
    leader_of,
    members_of,
    monitor_of,
    replica_of,
)
from fencelock.actors.paxos.divergence import AGREED_SLOTS, Quarantined
from fencelock.actors.paxos.failure_detector import FailureDetector
from fencelock.actors.paxos.journal import Base, Recovered, recover
from fencelock.actors.paxos.leader import Leader
from fencelock.actors.paxos.machine import Machine
from fencelock.actors.paxos.reconfigurer import Reconfigurer
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.paxos.snapshots import JOURNAL_BYTES, CatchUp
from fencelock.actors.paxos.wire import NO_REPORT, UNWILLING
from fencelock.actors.table.wire import LOG_VERSION
from fencelock.actors.timing import TIMING, Timing

if TYPE_CHECKING:
    from random import Random

SLOTS = 1 << 20
"""Slots and rounds that a group without disks may use for each millisecond since the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Options of a member's log."""

    listener: Address
    """The role of this node that receives all outcomes and `VotingStatus`."""
    opening: Callable[[GroupConfig], tuple[bytes, ...]] = lambda group: ()
    """Returns the commands with which every leadership of a group begins."""
    timing: Timing = TIMING
    """The times of leases, heartbeats and elections; the same everywhere."""
    drift_ppm: int = DRIFT_PPM
    """Largest deviation of a clock's rate (millionths)."""
    log_max: int = LOG_MAX
    """Decided slots that each replica keeps for others, 1 or more."""
    journal_bytes: int = JOURNAL_BYTES
    """Bytes of commands after which the journal is cut, above 0."""
    greet_ms: int = GREET_MS
    """Time for which a restarted member waits for others to confirm its start (ms)."""
    digest_slots: int = AGREED_SLOTS
    """Number of slots between comparisons of the members' states; the same everywhere."""
    endpoints: Mapping[str, str] = field(default_factory=dict[str, str])
    """The endpoint of each configured node for other nodes, as far as it is known."""
    version: str = ""
    """The version of this software, for operators."""
    target: MemberTarget = NO_TARGET
    """The number of members at which the leader keeps the group."""
    priority: int = UNWILLING
    """The place of this node among those that could become members, 1 to 14."""


def log_roles(
    node: str,
    members: tuple[str, ...],
    random: Random,
    machine: Machine,
    *,
    records: Sequence[Message] | None,
    journal: int,
    secret: int,
    boot: int,
    date_ms: int,
    founding: Founding = Founding.NO,
    options: LogOptions,
) -> tuple[Spawn, ...]:
    """Return the role that creates the log's other roles on ``node`` once the group is known.

    A node that is no member of the group learns. A member that diverged gets a `Quarantined`.

    Args:
        node: the node, one of ``members``.
        members: all configured nodes, in any order. They found the group.
        random: spreads elections; one of this node's own.
        machine: an empty machine; the journal is applied to it.
        records: the journal, oldest first for each role; None for a node without a disk.
        journal: the id of that journal.
        secret: its secret.
        boot: the id of this life of the node; without a disk, it replaces ``journal``.
        date_ms: the start of this life (ms since 1970).
        founding: whether an operator wants a new group.
        options: see `LogOptions`.

    """
    recovered = None if records is None else recover(records)
    if recovered is not None and recovered.diverged:
        why = {"why": recovered.diverged, "listener": options.listener}
        return (Spawn(replica_of(node), Quarantined, why),)
    durable = records is not None
    identity = journal if durable else boot
    first_number = random.getrandbits(60)

    def make_roles(
        group: GroupConfig, votes: bool, voters: Mapping[Address, int]
    ) -> tuple[Spawn, ...]:
        known, first = _begun(recovered, group)
        begun = _config_of(group, voters, options.endpoints, first, options.timing)
        config = known.recover_views(begun)
        config.nodes.update(dict.fromkeys(members))
        voter = vote_id(group, node, identity)
        report = replace(
            NO_REPORT,
            journal=identity,
            ready=votes,
            endpoint=options.endpoints.get(node, ""),
            version=options.version,
            priority=options.priority,
            life=boot,
            log_version=LOG_VERSION,
        )
        kinds = (Acceptor, Leader, CatchUp)
        if not durable:
            kinds = (MemoryAcceptor, MemoryLeader, MemoryCatchUp)
        acceptor, leader, catchup = kinds
        common = {"node": node, "config": config}
        logged = {**common, "recovered": known}
        voting = {**logged, "voter": voter, "votes": votes}
        lease = {"lease_ms": options.timing.lease_ms, "version": options.version}
        detector = {
            **common,
            "drift_ppm": options.drift_ppm,
            "random": random,
            "listener": options.listener,
            "report": report,
            "voter": voter,
            "first_number": first_number,
        }
        reconfigurer = {
            **common,
            "version": options.version,
            "target": options.target,
            "only": () if durable else tuple(journals_of(group)),
        }
        replica = {
            **logged,
            "listener": options.listener,
            "opening": options.opening(group),
            "log_max": options.log_max,
            "journal_bytes": options.journal_bytes if durable else 0,
            "first_number": first_number,
            "digest_slots": options.digest_slots,
            "machine": machine,
        }
        return (
            Spawn(acceptor_of(node), acceptor, {**voting, **lease}),
            Spawn(leader_of(node), leader, {**voting, "random": random}),
            Spawn(monitor_of(node), FailureDetector, detector),
            Spawn(members_of(node), Reconfigurer, reconfigurer),
            Spawn(catchup_of(node), catchup, common),
            Spawn(replica_of(node), Replica, replica),
        )

    arguments = {
        "members": tuple(sorted(members)),
        "journal": identity,
        "secret": secret,
        "boot": boot,
        "date_ms": date_ms,
        "records": records or (),
        "durable": durable,
        "make_roles": make_roles,
        "voter": acceptor_of,
        "voting": (acceptor_of(node), leader_of(node), monitor_of(node)),
        "listener": options.listener,
        "greet_ms": greet_time_ms(options.timing.round_trip_ms, options.greet_ms),
        "founding": founding,
        "journals": _registered(records or (), recovered, options.endpoints),
    }
    return (Spawn(bootstrap_of(node), Bootstrap, arguments),)


def _begun(recovered: Recovered | None, group: GroupConfig) -> tuple[Recovered, int]:
    """Return the state of a node when its group is known, and the first slot of the group."""
    if recovered is not None:
        return recovered, 0
    first = 1 + group.founded_ms * SLOTS  # Far above all slots and rounds of earlier groups.
    return Recovered(led=first, base=Base(first, 0, ())), first


def _registered(
    records: Sequence[Message], recovered: Recovered | None, endpoints: Mapping[str, str]
) -> tuple[Voter, ...] | None:
    """Return the journals that vote, by this node's journal, or None if it does not know them."""
    founded = next((record for record in records if isinstance(record, GroupConfig)), None)
    if founded is None or recovered is None:
        return None
    return recovered.recover_views(_config_of(founded, {}, endpoints, 0)).journals


def _config_of(
    group: GroupConfig,
    voters: Mapping[Address, int],
    endpoints: Mapping[str, str],
    base: int,
    timing: Timing = TIMING,
) -> LogConfig:
    """Return the views of a group that has not changed its members."""
    seats = tuple(Member(one, endpoints.get(one, ""), journal) for one, journal in group.voters)
    view = View(0, tuple(seat.name for seat in seats), voters, seats)
    return LogConfig(view, lambda seat: vote_id(group, seat.name, seat.journal), base, timing)


class MemoryAcceptor(Acceptor):
    """An acceptor whose promises end with the process, under a journal id of its own.

    It has nothing to store: what it was sent, it knows for as long as it votes.
    """

    def begin(self, now: Instant) -> Effects:
        return without_records(super().begin(now))

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        self.stored = self.config.applied
        return without_records(super().handle(sender, event, now))


class MemoryLeader(Leader):
    """A leader whose rounds end with the process: each generation of the group has its own."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        return without_records(super().handle(sender, event, now))


class MemoryCatchUp(CatchUp):
    """A catch-up that fetches everything again after a restart."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        return without_records(super().handle(sender, event, now))


def without_records(effects: Effects) -> Effects:
    """Return ``effects`` without those for a journal: nothing outlives the process."""
    return [effect for effect in effects if not isinstance(effect, Persist | Checkpoint)]
