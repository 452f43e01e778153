"""The roles that `bakery` needs on a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fencelock.actors.bakery.backend import BakeryBackend
from fencelock.actors.bakery.config import (
    PRIORITY,
    Terms,
    election_of,
    leader_of,
    proxy_of,
    status_of,
)
from fencelock.actors.bakery.election import ElectionCoordinator
from fencelock.actors.bakery.epochs import DurablePromises, EpochLimit, VoterRegistry
from fencelock.actors.bakery.leader import Leader
from fencelock.actors.bakery.status import ClusterStatus
from fencelock.actors.bootstrap import Bootstrap, Voters, bootstrap_of, vote_id
from fencelock.actors.bootstrap_message import GroupConfig
from fencelock.actors.effect import Spawn
from fencelock.actors.message import Message
from fencelock.actors.proxy.proxy import Proxy

if TYPE_CHECKING:
    from random import Random


DEFAULT_TERMS = Terms()
"""The durations of a cluster whose configuration sets none."""


def seat_bakery(
    node: str,
    members: tuple[str, ...],
    life: int,
    random: Random,
    records: Mapping[str, tuple[Message, ...]],
    *,
    journal: int,
    date_ms: int,
    terms: Terms = DEFAULT_TERMS,
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
    kept, founded = records.get("election", ()), records.get("bootstrap", ())
    known: dict[str, Any] = {"node": node, "members": tuple(sorted(members))}
    status = {**known, "life": life, "priority": priority, "pid": pid}
    election = {**known, "bound_ms": terms.lease_ms, "random": random, "records": kept}

    def seat(group: GroupConfig, votes: bool, voters: Voters) -> tuple[Spawn, ...]:
        limit = _epoch_limit(group, date_ms, kept)
        voting = {"voting": VoterRegistry(voters, vote_id(group, node), votes, limit)}
        return (
            Spawn(status_of(node), ClusterStatus, status | voting),
            Spawn(election_of(node), ElectionCoordinator, election | voting),
        )

    bootstrap = {
        "members": known["members"],
        "journal": journal,
        "boot": life,
        "date_ms": date_ms,
        "records": founded,
        "durable": True,
        "seat": seat,
        "voter": election_of,
        "voting": (election_of(node), status_of(node)),
        "listener": proxy_of(node),
    }
    backend = BakeryBackend(node, known["members"], terms, random, life)
    limit = {"limit": _epoch_limit(_group_in(founded), date_ms, kept)}
    return (
        Spawn(leader_of(node), Leader, {**known, "life": life, "terms": terms, **limit}),
        Spawn(proxy_of(node), Proxy, {"backend": backend}),
        Spawn(bootstrap_of(node), Bootstrap, bootstrap),
    )


def _group_in(records: Sequence[Message]) -> GroupConfig | None:
    """Return the group in the journal of `Bootstrap`, None for a new node."""
    return next((record for record in records if isinstance(record, GroupConfig)), None)


def _epoch_limit(group: GroupConfig | None, date_ms: int, kept: Sequence[Message]) -> EpochLimit:
    """Return the limit of epochs of a node that starts at ``date_ms`` with the records ``kept``."""
    age_ms = 0 if group is None else max(0, date_ms - group.founded_ms)
    return EpochLimit(age_ms // 1_000, DurablePromises.recover(kept).promised)
