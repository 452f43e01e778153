"""The roles that `bakery` needs on a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fencelock.actors.bakery.config import (
    PRIORITY,
    Terms,
    VoterRegistry,
    door_of,
    election_of,
    leader_of,
    status_of,
)
from fencelock.actors.bakery.election import ElectionCoordinator
from fencelock.actors.bakery.epochs import DurablePromises, EpochLimit
from fencelock.actors.bakery.leader import Leader
from fencelock.actors.bakery.proxy import TicketProxy
from fencelock.actors.bakery.status import ClusterStatus
from fencelock.actors.bootstrap import Bootstrap, Voters, bootstrap_of, vote_id
from fencelock.actors.bootstrap_message import GroupConfig
from fencelock.actors.effect import Spawn
from fencelock.actors.message import Message

if TYPE_CHECKING:
    from random import Random


def seat_bakery(
    node: str,
    members: tuple[str, ...],
    life: int,
    random: Random,
    records: Mapping[str, tuple[Message, ...]],
    *,
    journal: int,
    date_ms: int,
    terms: Terms | None = None,
    priority: int = PRIORITY,
    pid: int = 0,
) -> tuple[Spawn, ...]:
    """Return the roles of ``node``; cluster status and coordinator begin once its group is known.

    Args:
        node: the member.
        members: all members, in any order.
        life: id of this node's life: drawn anew at each start.
        random: spreads proposals, and begins round robins; one of this node's own.
        records: the journal, by the name of the role that wrote it, oldest first.
        journal: the id of that journal.
        date_ms: the start of this life (ms since 1970).
        terms: the durations; the same everywhere.
        priority: 1 to 14, the smaller the likelier to lead; `OFF` for never.
        pid: id of the process.

    """
    terms = terms or Terms()
    ordered = tuple(sorted(members))
    known = {"node": node, "members": ordered}
    status = {**known, "life": life, "priority": priority, "pid": pid}
    kept, bound_ms = records.get("election", ()), terms.hold_ms + terms.grace_ms
    election = {**known, "bound_ms": bound_ms, "random": random, "records": kept}

    promised = DurablePromises.recover(kept).promised

    def limit_of(group: GroupConfig | None) -> EpochLimit:
        age_ms = 0 if group is None else max(0, date_ms - group.founded_ms)
        return EpochLimit(age_ms // 1_000, promised)

    def seat(group: GroupConfig, votes: bool, voters: Voters) -> tuple[Spawn, ...]:
        registry = VoterRegistry(voters, vote_id(group, node), votes)
        voting = {"voting": registry, "limit": limit_of(group)}
        return (
            Spawn(status_of(node), ClusterStatus, {**status, **voting}),
            Spawn(election_of(node), ElectionCoordinator, {**election, **voting}),
        )

    founded = records.get("bootstrap", ())
    group = next((record for record in founded if isinstance(record, GroupConfig)), None)

    bootstrap = {
        "members": ordered,
        "journal": journal,
        "boot": life,
        "date_ms": date_ms,
        "records": records.get("bootstrap", ()),
        "durable": True,
        "seat": seat,
        "voter": election_of,
        "voting": (election_of(node), status_of(node)),
        "listener": door_of(node),
    }
    leader = {**known, "life": life, "terms": terms}
    return (
        Spawn(leader_of(node), Leader, {**leader, "limit": limit_of(group)}),
        Spawn(door_of(node), TicketProxy, {**leader, "random": random}),
        Spawn(bootstrap_of(node), Bootstrap, bootstrap),
    )
