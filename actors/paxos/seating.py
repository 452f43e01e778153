"""Which roles the log needs on a member, for a recipe to seat them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.actors.effect import Spawn
from holdfast.actors.message import Address, Message
from holdfast.actors.paxos.acceptor import Acceptor
from holdfast.actors.paxos.catchup import CatchUp
from holdfast.actors.paxos.config import (
    DRIFT_PPM,
    ELECTION_MS,
    LEASE_MS,
    LOG_MAX,
    Config,
    View,
    acceptor_of,
    catchup_of,
    leader_of,
    monitor_of,
    replica_of,
)
from holdfast.actors.paxos.founder import Founder, founder_of
from holdfast.actors.paxos.journal import Base, Recovered, recover
from holdfast.actors.paxos.leader import Leader
from holdfast.actors.paxos.machine import Machine
from holdfast.actors.paxos.memory import (
    IdleLeader,
    MemoryAcceptor,
    MemoryCatchUp,
    MemoryLeader,
    SilentAcceptor,
)
from holdfast.actors.paxos.monitor import Monitor
from holdfast.actors.paxos.photography import JOURNAL_BYTES
from holdfast.actors.paxos.replica import Replica

if TYPE_CHECKING:
    from random import Random


def seat_log(
    node: str,
    members: tuple[str, ...],
    random: Random,
    records: Sequence[Message],
    machine: Machine,
    *,
    listener: Address | None = None,
    opening: tuple[bytes, ...] = (),
    lease_ms: int = LEASE_MS,
    election_ms: int = ELECTION_MS,
    drift_ppm: int = DRIFT_PPM,
    log_max: int = LOG_MAX,
    journal_bytes: int = JOURNAL_BYTES,
) -> tuple[Spawn, ...]:
    """Return the roles of the log on ``node``, which is one of ``members``.

    Args:
        node: the member they are for.
        members: all of them, in any order.
        random: spreads elections; one of this node's own.
        records: the journal of this node, oldest first; those of other roles are passed over.
        machine: empty; it is brought to where the journal ends.
        listener: a role of this node that hears of all outcomes, or None.
        opening: commands with which every reign begins.
        lease_ms: how long an acceptor keeps to a master it heard (ms); the same everywhere.
        election_ms: a master silent for so long is suspected (ms).
        drift_ppm: how far a clock's rate may be from true (millionths).
        log_max: decided slots that each replica keeps for others, 1 or more.
        journal_bytes: after how many bytes of commands the journal is cut; 0 for never.

    """
    kinds = (Acceptor, Leader, CatchUp)
    replica = {"listener": listener, "opening": opening, "log_max": log_max}
    replica |= {"journal_bytes": journal_bytes, "first_number": random.getrandbits(60)}
    times = {"lease_ms": lease_ms, "election_ms": election_ms, "drift_ppm": drift_ppm}
    return _seats(
        node, members, random, recover(records), kinds, {**replica, "machine": machine}, times
    )


def seat_memory_log(
    node: str,
    members: tuple[str, ...],
    random: Random,
    machine: Machine,
    *,
    boot: int,
    date_ms: int,
    listener: Address | None = None,
    opening: tuple[bytes, ...] = (),
    lease_ms: int = LEASE_MS,
    election_ms: int = ELECTION_MS,
    drift_ppm: int = DRIFT_PPM,
    log_max: int = LOG_MAX,
) -> tuple[Spawn, ...]:
    """Return the role that seats the log on a node without a disk, once its group is founded.

    Args:
        node: the member it is for.
        members: all of them, in any order.
        random: spreads elections; one of this node's own.
        machine: empty.
        boot: the life of this node.
        date_ms: when it began (ms since 1970).
        listener: as for `seat_log`; it hears `Franchise`, too.
        opening: as for `seat_log`, as are the others.
        lease_ms: see there.
        election_ms: see there.
        drift_ppm: see there.
        log_max: see there.

    """
    replica = {"machine": machine, "listener": listener, "opening": opening, "log_max": log_max}
    replica |= {"journal_bytes": 0, "first_number": random.getrandbits(60)}
    times = {"lease_ms": lease_ms, "election_ms": election_ms, "drift_ppm": drift_ppm}

    def seat(first: int, votes: bool) -> tuple[Spawn, ...]:
        begun = Recovered(led=first, base=Base(first, 0, ()))
        voting = (MemoryAcceptor, MemoryLeader, MemoryCatchUp)
        kinds = voting if votes else (SilentAcceptor, IdleLeader, MemoryCatchUp)
        return _seats(node, members, random, begun, kinds, replica, times)

    arguments = {
        "members": tuple(sorted(members)),
        "boot": boot,
        "date_ms": date_ms,
        "seat": seat,
        "listener": listener,
    }
    return (Spawn(founder_of(node), Founder, arguments),)


def _seats(
    node: str,
    members: tuple[str, ...],
    random: Random,
    recovered: Recovered,
    kinds: tuple[type[Acceptor], type[Leader], type[CatchUp]],
    replica: Mapping[str, Any],
    times: Mapping[str, int],
) -> tuple[Spawn, ...]:
    config = Config(View(0, tuple(sorted(members))))
    seat = {"node": node, "config": config}
    known = {**seat, "recovered": recovered}
    acceptor, leader, catchup = kinds
    return (
        Spawn(acceptor_of(node), acceptor, {**known, "lease_ms": times["lease_ms"]}),
        Spawn(leader_of(node), leader, {**known, "random": random}),
        Spawn(
            monitor_of(node),
            Monitor,
            {**seat, **times, "random": random, "listener": replica["listener"]},
        ),
        Spawn(catchup_of(node), catchup, seat),
        Spawn(replica_of(node), Replica, {**known, **replica}),
    )
