"""The workloads of objects that are no locks, each alone or all kinds in one run."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from fencelock.actors.effect import Effects
from fencelock.actors.error import ConfigError
from fencelock.actors.message import Address, role_of
from fencelock.cluster.guarantee import Guarantee, demand
from fencelock.verification.simulation.barriers import BARRIERS
from fencelock.verification.simulation.counters import COUNTERS
from fencelock.verification.simulation.deadlines import DEADLINES
from fencelock.verification.simulation.elections import ELECTIONS
from fencelock.verification.simulation.handovers import HANDOVERS
from fencelock.verification.simulation.judge import LockJudge
from fencelock.verification.simulation.latches import LATCHES
from fencelock.verification.simulation.maps import MAPS
from fencelock.verification.simulation.pools import POOLS
from fencelock.verification.simulation.redis_doors import REDIS_DOORS
from fencelock.verification.simulation.run import Workload
from fencelock.verification.simulation.rwlocks import RWLOCKS
from fencelock.verification.simulation.semaphores import SEMAPHORES
from fencelock.verification.simulation.several import LOCK_ALL
from fencelock.verification.simulation.trace import Delivery


class MixedJudge(LockJudge):
    """Lets the judge of each kind observe the contenders of its kind.

    Args:
        kinds: the workloads of the kinds. The place of a workload among them ends the names of its
            owners.
        members: the nodes of the cluster.
        contenders: the contenders of all kinds.
        options: those of `LockJudge`.

    """

    def __init__(
        self,
        kinds: Sequence[Workload],
        members: tuple[str, ...],
        contenders: tuple[Address, ...],
        **options: Any,
    ) -> None:
        super().__init__(members, contenders, **options)
        self.parts = [
            kind.judge(
                members,
                tuple(one for one in contenders if role_of(one).endswith(f"-{place}")),
                **options,
            )
            for place, kind in enumerate(kinds)
        ]
        self.inside = cast("Any", ChainMap(*(cast("Any", part.inside) for part in self.parts)))

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        for part in self.parts:
            part.handled(delivered, effects)
        self.grants = sum(part.grants for part in self.parts)

    def crashed(self, node: str, boot: int) -> None:
        for part in self.parts:
            part.crashed(node, boot)

    def left(self, client: str) -> None:
        for part in self.parts:
            part.left(client)


def mixed(kinds: Sequence[Workload]) -> Workload:
    """Return a workload of all ``kinds`` at once; each client has owners of each kind."""
    first, *others = (kind.user for kind in kinds)
    doors = next((kind.doors for kind in kinds if kind.doors is not None), None)
    return Workload(first, partial(MixedJudge, kinds), tuple(others), doors=doors)


WORKLOADS: dict[Guarantee, Workload] = {
    Guarantee.SEMAPHORES: SEMAPHORES,
    Guarantee.RWLOCKS: RWLOCKS,
    Guarantee.LOCK_ALL: LOCK_ALL,
    Guarantee.ELECTIONS: ELECTIONS,
    Guarantee.DEADLINES: DEADLINES,
    Guarantee.MAPS: MAPS,
    Guarantee.LATCHES: LATCHES,
    Guarantee.BARRIERS: BARRIERS,
    Guarantee.COUNTERS: COUNTERS,
    Guarantee.POOLS: POOLS,
    Guarantee.REDIS: REDIS_DOORS,
    Guarantee.HANDOVERS: HANDOVERS,
}
"""The workloads, each by the guarantee that it needs from the protocol."""

ALL = "all"
"""The name for the workloads of all kinds in one run."""


def workload_of(word: str, protocol: str) -> Workload:
    """Return the workload that ``word`` names: the word of a guarantee, or `ALL` for all of them.

    Raises:
        ConfigError: there is no such workload.
        UnsupportedError: the protocol does not have the objects of the workload.

    """
    words = {guarantee.word: guarantee for guarantee in WORKLOADS}
    if word == ALL:
        for guarantee in WORKLOADS:
            demand(protocol, guarantee)
        return mixed([*WORKLOADS.values()])
    if word not in words:
        raise ConfigError(f"--objects is {word!r}, and must be one of {', '.join((*words, ALL))}")
    demand(protocol, words[word])
    return WORKLOADS[words[word]]
