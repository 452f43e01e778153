"""Kills the leader again and again, and starts its node anew: ``--kill-leader``."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from background import Background
from contenders import Contenders
from local_cluster import LocalCluster, leaders_of

import fencelock
from fencelock.verification.bench.members import described

DOWN_S = 1.0
"""Time for which a killed node stays down (s), or half the time between kills if that is less."""

LAST_BEFORE_END_S = 3.0
"""Time before the end without a kill (s): clients must be served again after each."""

BAKERY_NODES_MIN = 3
"""With three nodes, two are left: a majority of the nodes and of the leaders."""

LOOK_AGAIN_S = 0.05


def why_not(protocol: str, nodes: int, *, journal: bool) -> str:
    """Return why the leader of such a cluster cannot be killed, in words; empty if it can."""
    if protocol == "lamport":
        return (
            "lamport has no leader, and needs every node up with what it knows: "
            "use --protocol paxos, bakery, or central with --journal"
        )
    if protocol == "central" and not journal:
        return (
            "a central server that is killed forgets who holds what, and two could hold at once: "
            "add --journal, or use --protocol paxos"
        )
    if protocol == "bakery" and nodes < BAKERY_NODES_MIN:
        return (
            f"bakery with {nodes} node{'' if nodes == 1 else 's'} has no leader to spare: "
            f"use --nodes {BAKERY_NODES_MIN} or more"
        )
    return ""


@dataclass
class LeaderKiller(Background):
    """A thread that kills the leader; where several nodes lead, one after the other.

    No node is killed unless all are ready and there was a grant since the last kill.

    Args:
        cluster: the cluster of these nodes.
        watcher: a client that knows who leads.
        contenders: the clients that must be served again after each kill.
        every_s: time between two kills (s); the first comes after half of it.
        until: the end of the run (s of the monotonic clock).

    """

    cluster: LocalCluster
    watcher: fencelock.Client
    contenders: Contenders
    every_s: float = field(kw_only=True)
    until: float = field(kw_only=True)

    def __post_init__(self) -> None:
        self._last = self.until - LAST_BEFORE_END_S
        super().__init__()

    def run(self) -> None:
        """Kill a leader again and again, until it is too late for that."""
        pause_s = self.every_s / 2
        while not self.stopped.wait(pause_s) and time.monotonic() < self._last:
            began = time.monotonic()
            leader = self._wait_for_leader()
            if not leader:
                return
            self.contenders.killed()
            self.cluster.kill(leader)
            self.stopped.wait(min(DOWN_S, self.every_s / 2))
            self.cluster.start(leader)
            pause_s = max(0.0, began + self.every_s - time.monotonic())

    def _wait_for_leader(self) -> str:
        """Return who leads once all nodes are ready; empty if it is too late for that."""
        while time.monotonic() < self._last:
            if ended := self.cluster.ended():
                said = self.cluster.log_of(ended)
                self.contenders.problems.append(f"node {ended} ended by itself:\n{said}")
                return ""
            statuses = described(self.watcher)
            ready = {status.node for status in statuses if status.ready}
            leaders = leaders_of(statuses) or (self.cluster.server,)
            leader = leaders[len(self.contenders.kills_ms) % len(leaders)]
            all_ready = ready == set(self.cluster.nodes)
            if all_ready and leader and not self.contenders.unserved:
                return leader
            if self.stopped.wait(LOOK_AGAIN_S):
                return ""
        return ""
