"""Changes of the cluster while clients work: ``--kill-leader`` and ``--grow``."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from contenders import READY_S, Contenders
from local_cluster import LocalCluster, leaders_of

import fencelock
from fencelock import ChangeMembers, FencelockError, MemberAction, MembershipError, UnavailableError
from fencelock.verification.bench.members import STOP_S, BenchFailedError, described

DOWN_S = 1.0
"""Time for which a killed node stays down (s), or half the time between kills if that is less."""

LAST_BEFORE_END_S = 3.0
"""Time before the end without a kill (s): clients must be served again after each."""

BAKERY_NODES_MIN = 3
"""With three nodes, two are left: a majority of the nodes and of the leaders."""

LOOK_AGAIN_S = 0.05

JOINING = ("n2", "n3", "n4", "n5")
LEAVING = ("n1", "n2", "n3", "n4")
"""The node that was alone at first is the first to go: another one is alone at the end."""

LIMIT_S = 300.0
"""Time limit for all changes (s); they need some twenty seconds."""


class Background(ABC):
    """A thread of its own for `run`, which ends soon after `stopped` is set."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self.run)

    @abstractmethod
    def run(self) -> None:
        """Do the work of the thread."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stopped.set()
        self._thread.join(STOP_S)


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
                log = self.cluster.log_of(ended)
                self.contenders.problems.append(f"node {ended} ended by itself:\n{log}")
                return ""
            statuses = described(self.watcher)
            ready = {status.node for status in statuses if status.ready}
            leaders = leaders_of(statuses) or (self.cluster.server,)
            leader = leaders[len(self.contenders.kills_ms) % len(leaders)]
            all_ready = ready == set(self.cluster.names)
            if all_ready and leader and not self.contenders.unserved:
                return leader
            if self.stopped.wait(LOOK_AGAIN_S):
                return ""
        return ""


class Grower(Background):
    """A thread that lets nodes join and leave, each after clients were served since the last.

    Args:
        cluster: the cluster of one node.
        watcher: a client of it.
        contenders: the clients that must be served again after each change.

    Attributes:
        changes: the members after each change.
        over: whether the last change was made, or one failed.

    """

    def __init__(
        self, cluster: LocalCluster, watcher: fencelock.Client, contenders: Contenders
    ) -> None:
        super().__init__()
        self.changes: list[tuple[str, ...]] = []
        self.over = threading.Event()
        self._cluster, self._watcher, self._contenders = cluster, watcher, contenders
        self._waits_for = ""

    @property
    def is_complete(self) -> bool:
        """Whether all changes were made."""
        return len(self.changes) == len(JOINING) + len(LEAVING)

    def run(self) -> None:
        """Make all changes, one after the other."""
        try:
            for node in JOINING:
                self._cluster.add(node)
                self._change(MemberAction.JOIN, node)
            for node in LEAVING:
                self._change(MemberAction.LEAVE, node)
                self._cluster.stop(node)
        except FencelockError as error:
            self._contenders.problems.append(f"the cluster did not change: {error}")
        finally:
            self.over.set()

    def _change(self, action: MemberAction, node: str) -> None:
        """Ask for a change until it is done, then until clients were served since."""
        change = ChangeMembers(action=action, node=node)
        self._until(lambda: self._is_done(change), f"{action.name} {node}")
        self._contenders.changed()
        self._until(lambda: not self._contenders.unserved, "a grant")

    def _is_done(self, change: ChangeMembers) -> bool:
        try:
            reached = self._watcher.change_members(change)
        except (UnavailableError, MembershipError) as error:
            self._waits_for = str(error)  # A node is still starting, or this machine is busy.
            return False
        if reached.done:
            self.changes.append(reached.members)
        self._waits_for = reached.detail
        return reached.done

    def _until(self, done: Callable[[], bool], what: str) -> None:
        ends = time.monotonic() + READY_S
        while not done():
            if self.stopped.wait(LOOK_AGAIN_S) or time.monotonic() > ends:
                text = f"{what} took more than {READY_S:g} s"
                raise BenchFailedError(f"{text}; last reply: {self._waits_for or 'none'}")
