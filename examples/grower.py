"""Grows the cluster from one node to three and five, and shrinks it again: ``--grow``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from background import Background
from contenders import Contenders
from local_cluster import READY_S, ClusterFailedError, LocalCluster

import fencelock
from fencelock import ChangeMembers, FencelockError, MemberAction, MembershipError, UnavailableError

JOINING = ("n2", "n3", "n4", "n5")
LEAVING = ("n1", "n2", "n3", "n4")
"""The node that was alone at first is the first to go: another one is alone at the end."""

LIMIT_S = 300.0
"""Time limit for all changes (s); they need some twenty seconds."""

PAUSE_S = 0.1


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
        except (FencelockError, ClusterFailedError) as error:
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
            if self.stopped.wait(PAUSE_S) or time.monotonic() > ends:
                text = f"{what} took more than {READY_S:g} s"
                raise ClusterFailedError(f"{text}; last reply: {self._waits_for or 'none'}")
