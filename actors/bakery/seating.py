"""Which roles `bakery` needs on a node, for a recipe to seat them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.actors.bakery.config import (
    PRIORITY,
    Terms,
    door_of,
    election_of,
    leader_of,
    status_of,
)
from holdfast.actors.bakery.door import Door
from holdfast.actors.bakery.election import ElectionCoordinator
from holdfast.actors.bakery.leader import Leader
from holdfast.actors.bakery.status import ClusterStatus
from holdfast.actors.effect import Spawn
from holdfast.actors.message import Message

if TYPE_CHECKING:
    from random import Random


def seat_bakery(
    node: str,
    members: tuple[str, ...],
    life: int,
    random: Random,
    records: Sequence[Message],
    *,
    terms: Terms | None = None,
    priority: int = PRIORITY,
    pid: int = 0,
) -> tuple[Spawn, ...]:
    """Return the roles of ``node``, which is one of ``members``.

    Args:
        node: the member they are for.
        members: all of them, in any order.
        life: of this node: drawn anew at each start.
        random: spreads proposals, and begins round robins; one of this node's own.
        records: what the coordinator's journal holds, oldest first.
        terms: the durations; the same everywhere.
        priority: 1 to 14, the smaller the likelier to lead; `OFF` for never.
        pid: of the process.

    """
    terms = terms or Terms()
    ordered = tuple(sorted(members))
    known = {"node": node, "members": ordered}
    status = {**known, "life": life, "priority": priority, "pid": pid}
    bound_ms = terms.hold_ms + terms.grace_ms
    election = {**known, "bound_ms": bound_ms, "random": random, "records": records}
    return (
        Spawn(leader_of(node), Leader, {**known, "life": life, "terms": terms}),
        Spawn(door_of(node), Door, {**known, "terms": terms, "random": random, "life": life}),
        Spawn(election_of(node), ElectionCoordinator, election),
        Spawn(status_of(node), ClusterStatus, status),
    )
