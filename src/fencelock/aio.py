"""fencelock for asyncio: the same locks, awaited. Imported by name: ``import fencelock.aio``.

For example::

    async with fencelock.aio.connect("tcp://10.0.0.1:4040,tcp://10.0.0.2:4040") as client:
        async with client.lock("orders/42") as hold:
            await storage.write(order, fence=hold.fence)
"""

from fencelock.cluster.aio.barrier import Barrier
from fencelock.cluster.aio.client import Client, Connecting, connect
from fencelock.cluster.aio.election import Candidate, Election, ElectionWatch
from fencelock.cluster.aio.latch import Latch
from fencelock.cluster.aio.lock import Hold, Lock, RLock
from fencelock.cluster.aio.lock_all import HoldAll, LockAll
from fencelock.cluster.aio.map import Map, MapWatch
from fencelock.cluster.aio.rwlock import RWLock
from fencelock.cluster.aio.semaphore import Semaphore

__all__ = [
    "Barrier",
    "Candidate",
    "Client",
    "Connecting",
    "Election",
    "ElectionWatch",
    "Hold",
    "HoldAll",
    "Latch",
    "Lock",
    "LockAll",
    "Map",
    "MapWatch",
    "RLock",
    "RWLock",
    "Semaphore",
    "connect",
]
