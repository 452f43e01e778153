"""The workloads of objects that are no locks, by the word of ``fencelock simulate --objects``."""

from __future__ import annotations

from fencelock.cluster.guarantee import Guarantee
from fencelock.cluster.simulation.elections import ELECTIONS
from fencelock.cluster.simulation.run import Workload
from fencelock.cluster.simulation.rwlocks import RWLOCKS
from fencelock.cluster.simulation.semaphores import SEMAPHORES
from fencelock.cluster.simulation.several import LOCK_ALL

WORKLOADS: dict[str, tuple[Guarantee, Workload]] = {
    "semaphores": (Guarantee.SEMAPHORES, SEMAPHORES),
    "rwlocks": (Guarantee.RWLOCKS, RWLOCKS),
    "several": (Guarantee.LOCK_ALL, LOCK_ALL),
    "elections": (Guarantee.ELECTIONS, ELECTIONS),
}
"""What a protocol must promise, and the workload."""
