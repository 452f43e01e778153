"""The workloads of objects that are no locks, by the word of ``fencelock simulate --objects``."""

from __future__ import annotations

from fencelock.actors.error import ConfigError
from fencelock.cluster.guarantee import Guarantee, demand
from fencelock.verification.simulation.barriers import BARRIERS
from fencelock.verification.simulation.counters import COUNTERS
from fencelock.verification.simulation.deadlines import DEADLINES
from fencelock.verification.simulation.elections import ELECTIONS
from fencelock.verification.simulation.handovers import HANDOVERS
from fencelock.verification.simulation.latches import LATCHES
from fencelock.verification.simulation.maps import MAPS
from fencelock.verification.simulation.mixed import mixed
from fencelock.verification.simulation.pools import POOLS
from fencelock.verification.simulation.redis_doors import REDIS_DOORS
from fencelock.verification.simulation.run import Workload
from fencelock.verification.simulation.rwlocks import RWLOCKS
from fencelock.verification.simulation.semaphores import SEMAPHORES
from fencelock.verification.simulation.several import LOCK_ALL

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
