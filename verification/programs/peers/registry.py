"""The peers, by their names on the command line."""

from __future__ import annotations

from collections.abc import Callable

from peers import bare, etcd, fencelock_nodes, pysyncobj_members, redis_servers, redlock, zookeeper
from peers.peer import ComparedPeer, PeerConnection, Spec

PEERS: dict[str, tuple[Callable[[], ComparedPeer], Callable[[Spec], PeerConnection]]] = {
    "fencelock": (fencelock_nodes.Fencelock, fencelock_nodes.open_connection),
    "fencelock-retained": (fencelock_nodes.FencelockRetained, fencelock_nodes.open_connection),
    "fencelock-cohort": (fencelock_nodes.FencelockCohort, fencelock_nodes.open_connection),
    "fencelock-unconfirmed": (
        fencelock_nodes.FencelockUnconfirmed,
        fencelock_nodes.open_connection,
    ),
    "fencelock-door": (fencelock_nodes.FencelockDoor, redis_servers.open_connection),
    "fencelock-door-waiting": (
        fencelock_nodes.FencelockDoorWaiting,
        redis_servers.open_waiting_connection,
    ),
    "bare": (bare.Bare, bare.open_connection),
    "redlock": (redlock.Redlock, redlock.open_connection),
    "redlock-raw": (redlock.RawRedlock, redlock.open_raw_connection),
    "redis": (redis_servers.OneRedis, redis_servers.open_connection),
    "redis-waiting": (redis_servers.OneRedisWaiting, redis_servers.open_waiting_connection),
    "etcd": (etcd.Etcd, etcd.open_connection),
    "zookeeper": (zookeeper.ZooKeeper, zookeeper.open_connection),
    "pysyncobj": (pysyncobj_members.PySyncObj, pysyncobj_members.open_connection),
}
"""From names to the servers' class and the function that a client process calls."""
