"""fencelock for asyncio: the same locks, awaited. Imported by name: ``import fencelock.aio``.

For example::

    async with fencelock.aio.lock("orders/42") as hold:
        await storage.write(order, fence=hold.fence)
"""

from fencelock.cluster.client.barrier import AsyncBarrier as Barrier
from fencelock.cluster.client.client import AsyncClient as Client
from fencelock.cluster.client.client import Connecting
from fencelock.cluster.client.client import async_connect as connect
from fencelock.cluster.client.client import default_async_client as _client
from fencelock.cluster.client.counter import AsyncCounter as Counter
from fencelock.cluster.client.election import AsyncCandidate as Candidate
from fencelock.cluster.client.election import AsyncElection as Election
from fencelock.cluster.client.election import AsyncElectionWatch as ElectionWatch
from fencelock.cluster.client.latch import AsyncLatch as Latch
from fencelock.cluster.client.lock import AsyncHold as Hold
from fencelock.cluster.client.lock import AsyncLock as Lock
from fencelock.cluster.client.lock import AsyncRLock as RLock
from fencelock.cluster.client.lock_all import AsyncHoldAll as HoldAll
from fencelock.cluster.client.lock_all import AsyncLockAll as LockAll
from fencelock.cluster.client.map import AsyncMap as Map
from fencelock.cluster.client.map import AsyncMapWatch as MapWatch
from fencelock.cluster.client.pool import AsyncPool as Pool
from fencelock.cluster.client.remote_ref import AsyncRemoteRef as RemoteRef
from fencelock.cluster.client.rwlock import AsyncRWLock as RWLock
from fencelock.cluster.client.semaphore import AsyncSemaphore as Semaphore

# The default client of the running loop, which connects at its first use.
lock = _client.lock
rlock = _client.rlock
semaphore = _client.semaphore
rwlock = _client.rwlock
lock_all = _client.lock_all
election = _client.election
map = _client.map
latch = _client.latch
barrier = _client.barrier
counter = _client.counter
locked = _client.locked
attach = _client.attach
close = _client.close

__all__ = [
    "Barrier",
    "Candidate",
    "Client",
    "Connecting",
    "Counter",
    "Election",
    "ElectionWatch",
    "Hold",
    "HoldAll",
    "Latch",
    "Lock",
    "LockAll",
    "Map",
    "MapWatch",
    "Pool",
    "RLock",
    "RWLock",
    "RemoteRef",
    "Semaphore",
    "attach",
    "barrier",
    "close",
    "connect",
    "counter",
    "election",
    "latch",
    "lock",
    "lock_all",
    "locked",
    "rlock",
    "rwlock",
    "semaphore",
]
