"""The workloads of objects that are no locks, by the word of ``fencelock simulate --objects``."""

from __future__ import annotations

from fencelock.actors.error import ConfigError
from fencelock.cluster.guarantee import Guarantee, demand
from fencelock.cluster.simulation.barriers import BARRIERS
from fencelock.cluster.simulation.deadlines import DEADLINES
from fencelock.cluster.simulation.elections import ELECTIONS
from fencelock.cluster.simulation.latches import LATCHES
from fencelock.cluster.simulation.maps import MAPS
from fencelock.cluster.simulation.mixed import mixed
from fencelock.cluster.simulation.run import Workload
from fencelock.cluster.simulation.rwlocks import RWLOCKS
from fencelock.cluster.simulation.semaphores import SEMAPHORES
from fencelock.cluster.simulation.several import LOCK_ALL

WORKLOADS: dict[str, tuple[Guarantee, Workload]] = {
    "semaphores": (Guarantee.SEMAPHORES, SEMAPHORES),
    "rwlocks": (Guarantee.RWLOCKS, RWLOCKS),
    "several": (Guarantee.LOCK_ALL, LOCK_ALL),
    "elections": (Guarantee.ELECTIONS, ELECTIONS),
    "deadlines": (Guarantee.DEADLINES, DEADLINES),
    "maps": (Guarantee.MAPS, MAPS),
    "latches": (Guarantee.LATCHES, LATCHES),
    "barriers": (Guarantee.BARRIERS, BARRIERS),
}
"""The workloads by name, each with the guarantee that it needs from the protocol."""

ALL = "all"
"""The name for the workloads of all kinds in one run."""


def workload_of(word: str, protocol: str) -> Workload:
    """Return the workload that ``word`` names: one of `WORKLOADS`, or for `ALL` all of them.

    Raises:
        ConfigError: there is no such workload.
        UnsupportedError: the protocol does not have the objects of the workload.

    """
    if word == ALL:
        for guarantee, _ in WORKLOADS.values():
            demand(protocol, guarantee)
        return mixed([workload for _, workload in WORKLOADS.values()])
    if word not in WORKLOADS:
        words = ", ".join((*WORKLOADS, ALL))
        raise ConfigError(f"--objects is {word!r}, and must be one of {words}")
    guarantee, workload = WORKLOADS[word]
    demand(protocol, guarantee)
    return workload
