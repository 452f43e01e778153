"""The peers, by their names on the command line."""

from __future__ import annotations

from collections.abc import Callable

from peers import bare, etcd, fencelock_nodes, pysyncobj_members, redlock, zookeeper
from peers.peer import ComparedPeer, PeerConnection, Spec

_CONNECTIONS: dict[type[ComparedPeer], Callable[[Spec], PeerConnection]] = {
    fencelock_nodes.Fencelock: fencelock_nodes.FencelockConnection,
    fencelock_nodes.FencelockRetained: fencelock_nodes.FencelockConnection,
    fencelock_nodes.FencelockCohort: fencelock_nodes.FencelockConnection,
    fencelock_nodes.FencelockUnconfirmed: fencelock_nodes.FencelockConnection,
    fencelock_nodes.FencelockDoor: redlock.OneRedisConnection,
    fencelock_nodes.FencelockDoorWaiting: redlock.WaitingConnection,
    bare.Bare: bare.BareConnection,
    redlock.Redlock: redlock.SerialConnection,
    redlock.RawRedlock: redlock.RawConnection,
    redlock.OneRedis: redlock.OneRedisConnection,
    redlock.OneRedisWaiting: redlock.WaitingConnection,
    etcd.Etcd: etcd.EtcdConnection,
    zookeeper.ZooKeeper: zookeeper.ZooKeeperConnection,
    pysyncobj_members.PySyncObj: pysyncobj_members.PySyncObjConnection,
}
PEERS = {peer.name: (peer, connection) for peer, connection in _CONNECTIONS.items()}
"""From names to the class of the servers and that of a client process's connection."""
