"""How a session learns of its cluster as a whole: it asks a gate again and again to be told."""

from __future__ import annotations

from dataclasses import dataclass

from fencelock.actors.client.backoff import later
from fencelock.actors.client.endpoint import Endpoints
from fencelock.actors.client.message import ClusterState
from fencelock.actors.effect import Effect, Send
from fencelock.actors.lock.cluster_message import ClusterDown, ClusterUp, Watch
from fencelock.actors.message import NS_PER_MS, Address, Instant

WATCH_MS = 5_000
"""How often a gate is asked anew although nothing changed (ms): it forgets who is silent."""

FIRST_MS = 500
"""The same while a gate has said nothing at all (ms)."""

UNSURE_MS = 1_000
"""So long a gate may take to say how things are, before what another said counts no more (ms)."""

NOBODY = Address("")
BEGINNING = Instant(0)


@dataclass(slots=True)
class ClusterPoll:
    """What was heard, of which gate, and what the watcher was told."""

    wanted: bool = False
    gate: Address = NOBODY
    """Who was asked last."""
    known: int = 0
    """The number of what it said; 0 while it has said nothing."""
    request: int = 0
    due_at: Instant = BEGINNING
    unsure_since: Instant | None = None
    """Since when the gate in use has said nothing; None if it has."""
    told: ClusterState | None = None
    blind: bool = False
    """Whether the last that the watcher was told is that nobody knows."""

    def ask(self, gate: Address, session: str, now: Instant) -> Watch | None:
        """Return what is to be said to ``gate`` now, None if nothing is."""
        if gate != self.gate:
            self.gate, self.known, self.due_at = gate, 0, now
            self._doubt(now)
        if self.due_at > now:
            return None
        self.due_at = later(now, WATCH_MS if self.known else FIRST_MS)
        self.request += 1
        return Watch(known=self.known, session=session, request=self.request)

    def forget(self, now: Instant) -> None:
        """Note that no gate can be asked: whichever can be next is asked from the beginning."""
        self.gate, self.known, self.due_at = NOBODY, 0, later(now, FIRST_MS)
        self._doubt(now)

    def hear(self, gate: Address, word: ClusterUp | ClusterDown, now: Instant) -> bool:
        """Take in what a gate said; return whether it answers the last question."""
        if not self.wanted or gate != self.gate or word.request != self.request:
            return False
        self.known, self.due_at, self.unsure_since = word.number, now, None
        return True

    def tell(self, watcher: Address | None, state: ClusterState) -> list[Effect]:
        """Tell the watcher, if that is new."""
        self.blind = False
        if state == self.told:
            return []
        self.told = state
        return [] if watcher is None else [Send(watcher, state)]

    def tell_unknown(self, watcher: Address | None, gates: Endpoints, now: Instant) -> list[Effect]:
        """Say that nobody knows, if that is so, for long enough, and was not said."""
        if self.unsure_since is None or self.blind:
            return []
        if gates.any_usable() and now - self.unsure_since < UNSURE_MS * NS_PER_MS:
            return []
        told = self.tell(watcher, unknown(f"no node says how it is: {gates.describe(now)}"))
        self.blind = True
        return told

    def next_at(self) -> Instant | None:
        """Return when a gate is to be asked again, None if none is."""
        return self.due_at if self.wanted else None

    def _doubt(self, now: Instant) -> None:
        if self.unsure_since is None:
            self.unsure_since = now


def unknown(reason: str) -> ClusterState:
    """Return the state of a cluster of which nothing is known."""
    return ClusterState(up=False, complete=False, ready=False, reason=reason, epoch=0, leaders=())


def state_of(word: ClusterUp | ClusterDown) -> ClusterState:
    """Return what a gate said as a user sees it."""
    up = isinstance(word, ClusterUp)
    return ClusterState(
        up=up,
        complete=isinstance(word, ClusterUp) and word.complete,
        ready=isinstance(word, ClusterUp) and word.ready,
        reason=word.reason,
        epoch=word.epoch,
        leaders=word.leaders,
    )
