"""Who waits at a door for the cluster to change: it went up or down, or became ready. Pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from fencelock.actors.bakery.config import majority
from fencelock.actors.bakery.event import Readiness
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.lock.cluster_message import ClusterDown, ClusterUp, Watch
from fencelock.actors.message import Address, Instant, ms_between, node_of

WATCHERS_MAX = 10_000
"""Who waits at one door; who comes later takes the place of who asked longest ago."""

SILENCE_MS = 15_000
"""A client that did not ask anew for so long is gone, or at another door (ms)."""

NUMBERS = 1 << 20
"""Changes that one life of a door can tell apart from those of its others."""

_LIVES = 1 << 31


class ClusterView(NamedTuple):
    """What a watcher is told: it is told anew when this is not what it was."""

    up: bool
    complete: bool
    ready: bool
    reason: str
    epoch: int
    leaders: tuple[str, ...]


class Watchers:
    """Answers each `Watch` once the cluster is not as its asker knows it.

    Nobody is owed more than one answer, so a slow client hears of the newest state only.

    Args:
        node: this node: who asks in its process is not forgotten for being silent.
        configured: how many members there are in all.
        life: of this node: what an earlier one said is not what this one says.

    """

    def __init__(self, node: str, configured: int, life: int) -> None:
        self.node = node
        self.configured = configured
        self.number = life % _LIVES * NUMBERS + 1
        self.scene = ClusterView(False, False, False, "starting", 0, ())
        self.waiting: OrderedDict[Address, tuple[Watch, Instant]] = OrderedDict()

    def watch(self, asker: Address, asked: Watch, now: Instant) -> list[Effect]:
        """Answer at once if the asker knows another state, or none; else later."""
        if asked.known != self.number:
            self.waiting.pop(asker, None)
            return [self._answer(asker, asked)]
        self.waiting[asker] = (asked, now)
        self.waiting.move_to_end(asker)
        if len(self.waiting) <= WATCHERS_MAX:
            return []
        self.waiting.popitem(last=False)
        return [Observe("proxy.watcher_displaced")]

    def see(self, readiness: Readiness) -> list[Effect]:
        """Take in how the cluster is; answer all who wait, if that is new."""
        silent = sum(not member.votes for member in readiness.members)
        connected = len(readiness.reachable) - silent
        scene = ClusterView(
            connected >= majority(self.configured),
            connected >= self.configured,
            readiness.ready,
            readiness.detail,
            readiness.epoch,
            tuple(leader.node for leader in readiness.leaders),
        )
        if scene == self.scene:
            return []
        self.scene = scene
        self.number += 1
        waiting, self.waiting = self.waiting, OrderedDict()
        return [self._answer(asker, asked) for asker, (asked, _) in waiting.items()]

    def leave(self, asker: Address) -> None:
        """Forget one who waits no more."""
        self.waiting.pop(asker, None)

    def fall_silent(self, now: Instant) -> list[Effect]:
        """Forget clients that asked too long ago."""
        gone: list[Address] = []
        for asker, (_, asked_at) in self.waiting.items():  # Longest ago first.
            if ms_between(asked_at, now) < SILENCE_MS:
                break
            if node_of(asker) != self.node:
                gone.append(asker)
        for asker in gone:
            del self.waiting[asker]
        return [Observe("proxy.watcher_silent", len(gone))] if gone else []

    def _answer(self, asker: Address, asked: Watch) -> Send:
        scene = self.scene
        if not scene.up:
            down = ClusterDown(
                number=self.number,
                reason=scene.reason,
                epoch=scene.epoch,
                leaders=scene.leaders,
                session=asked.session,
                request=asked.request,
            )
            return Send(asker, down)
        up = ClusterUp(
            number=self.number,
            complete=scene.complete,
            ready=scene.ready,
            reason=scene.reason,
            epoch=scene.epoch,
            leaders=scene.leaders,
            session=asked.session,
            request=asked.request,
        )
        return Send(asker, up)
