"""Which peers there are, by the name they have on the command line."""

from __future__ import annotations

from collections.abc import Callable

from peers import bare, etcd, fencelock_nodes, pysyncobj_members, redis_servers, redlock, zookeeper
from peers.peer import ComparedPeer, Door, Spec

PEERS: dict[str, tuple[Callable[[], ComparedPeer], Callable[[Spec], Door]]] = {
    "fencelock": (fencelock_nodes.Fencelock, fencelock_nodes.open_door),
    "bare": (bare.Bare, bare.open_door),
    "redlock": (redlock.Redlock, redlock.open_door),
    "redlock-raw": (redlock.RawRedlock, redlock.open_raw_door),
    "redis": (redis_servers.OneRedis, redis_servers.open_door),
    "etcd": (etcd.Etcd, etcd.open_door),
    "zookeeper": (zookeeper.ZooKeeper, zookeeper.open_door),
    "pysyncobj": (pysyncobj_members.PySyncObj, pysyncobj_members.open_door),
}
"""Name to the servers' class and to what a client process calls."""
