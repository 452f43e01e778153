"""Clients that wait at a proxy for a change of the cluster's state. Pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from msgspec.structs import replace

from fencelock.actors.api.cluster_message import ClusterDown, ClusterUp, Watch
from fencelock.actors.bakery.event import Readiness
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address, Instant, ms_between, node_of

WATCHERS_MAX = 10_000
"""Maximum clients that wait at one proxy; a new one replaces the one that waits for longest."""

WATCHER_SILENCE_MS = 15_000
"""A client that did not ask again for this long (ms) is gone, or uses another proxy."""

NUMBERS = 1 << 20
"""Changes, with numbers that differ from those in another life of the proxy."""

_LIVES = 1 << 31


class Watchers:
    """Answers each `Watch` once the cluster's state differs from the one that its sender knows.

    Each client is owed one answer at most, so a slow one receives only the newest state.
    Callers in the process of ``node`` are not dropped for silence.
    """

    def __init__(self, node: str, life: int) -> None:
        self.node = node
        number = life % _LIVES * NUMBERS + 1
        self.state: ClusterUp | ClusterDown = ClusterDown(
            number=number, reason="starting", epoch=0, leaders=()
        )
        self.waiting: OrderedDict[Address, tuple[Watch, Instant]] = OrderedDict()

    def watch(self, asker: Address, asked: Watch, now: Instant) -> list[Effect]:
        """Reply at once if the sender does not know the present state, else when it changes."""
        if asked.known != self.state.number:
            self.waiting.pop(asker, None)
            return [self._answer(asker, asked)]
        self.waiting[asker] = (asked, now)
        self.waiting.move_to_end(asker)
        if len(self.waiting) <= WATCHERS_MAX:
            return []
        self.waiting.popitem(last=False)
        return [Observe("proxy.watcher_displaced")]

    def see(self, readiness: Readiness) -> list[Effect]:
        """Store the cluster's state; answer all waiting clients, if it is new."""
        voters = {member.node for member in readiness.members if member.votes}
        electorate, seating = readiness.electorate, readiness.seating
        known: dict[str, Any] = {
            "number": self.state.number,
            "reason": readiness.detail,
            "epoch": seating.epoch,
            "leaders": tuple(leader.node for leader in seating.leaders),
        }
        state: ClusterUp | ClusterDown = ClusterDown(**known)
        if electorate.members and electorate.is_quorum(voters):
            complete = electorate.everyone.keys() <= voters
            state = ClusterUp(**known, complete=complete, ready=readiness.ready)
        if state == self.state:
            return []
        self.state = replace(state, number=state.number + 1)
        waiting, self.waiting = self.waiting, OrderedDict()
        return [self._answer(asker, asked) for asker, (asked, _) in waiting.items()]

    def fall_silent(self, now: Instant) -> list[Effect]:
        gone: list[Address] = []
        for asker, (_, asked_at) in self.waiting.items():  # Oldest first.
            if ms_between(asked_at, now) < WATCHER_SILENCE_MS:
                break
            if node_of(asker) != self.node:
                gone.append(asker)
        for asker in gone:
            del self.waiting[asker]
        return [Observe("proxy.watcher_silent", len(gone))] if gone else []

    def _answer(self, asker: Address, asked: Watch) -> Send:
        return Send(asker, replace(self.state, session=asked.session, request=asked.request))
