"""Polling of the cluster's state: a session asks one endpoint again and again."""

from __future__ import annotations

from dataclasses import dataclass

from fencelock.actors.api.cluster_message import ClusterDown, ClusterUp, Watch
from fencelock.actors.effect import Effect, Send
from fencelock.actors.message import NS_PER_MS, Address, Instant
from fencelock.actors.session.backoff import later
from fencelock.actors.session.endpoint import Endpoints
from fencelock.actors.session.message import ClusterState

WATCH_MS = 5_000
"""Interval of requests to an endpoint without a change (ms): it forgets silent clients."""

FIRST_MS = 500
"""The same while an endpoint has not replied at all (ms)."""

UNSURE_MS = 1_000
"""Time for an endpoint to reply (ms), before an earlier one's reply counts no more."""

NOBODY = Address("")
BEGINNING = Instant(0)


@dataclass(slots=True)
class ClusterPoll:
    """The last reply, its endpoint, and the last state sent to the watcher."""

    wanted: bool = False
    gate: Address = NOBODY
    """The endpoint asked last."""
    known: int = 0
    """The number of its last reply; 0 before the first."""
    request: int = 0
    due_at: Instant = BEGINNING
    unsure_since: Instant | None = None
    """The time since which the endpoint in use has not replied; None if it has."""
    told: ClusterState | None = None
    blind: bool = False
    """Whether the last notification to the watcher was an unknown state."""

    def ask(self, gate: Address, session: str, now: Instant) -> Watch | None:
        """Return the message to send to ``gate`` now, None if none is due."""
        if gate != self.gate:
            self.gate, self.known, self.due_at = gate, 0, now
            self._doubt(now)
        if self.due_at > now:
            return None
        self.due_at = later(now, WATCH_MS if self.known else FIRST_MS)
        self.request += 1
        return Watch(known=self.known, session=session, request=self.request)

    def forget(self, now: Instant) -> None:
        """Note that no endpoint can be asked: the next one is asked from the beginning."""
        self.gate, self.known, self.due_at = NOBODY, 0, later(now, FIRST_MS)
        self._doubt(now)

    def hear(self, gate: Address, word: ClusterUp | ClusterDown, now: Instant) -> bool:
        """Take an endpoint's message; return whether it answers the last request."""
        if not self.wanted or gate != self.gate or word.request != self.request:
            return False
        self.known, self.due_at, self.unsure_since = word.number, now, None
        return True

    def tell(self, watcher: Address | None, state: ClusterState) -> list[Effect]:
        """Send the watcher ``state``, if that is new."""
        self.blind = False
        if state == self.told:
            return []
        self.told = state
        return [] if watcher is None else [Send(watcher, state)]

    def tell_unknown(self, watcher: Address | None, gates: Endpoints, now: Instant) -> list[Effect]:
        """Report an unknown state, if it has lasted long enough and was not reported."""
        if self.unsure_since is None or self.blind:
            return []
        if gates.any_usable() and now - self.unsure_since < UNSURE_MS * NS_PER_MS:
            return []
        told = self.tell(watcher, unknown(f"no node says how it is: {gates.describe(now)}"))
        self.blind = True
        return told

    def next_at(self) -> Instant | None:
        """Return the time of the next request, None if there is none."""
        return self.due_at if self.wanted else None

    def _doubt(self, now: Instant) -> None:
        if self.unsure_since is None:
            self.unsure_since = now


def unknown(reason: str) -> ClusterState:
    """Return the state of a cluster about which nothing is known."""
    return ClusterState(up=False, complete=False, ready=False, reason=reason, epoch=0, leaders=())


def state_of(word: ClusterUp | ClusterDown) -> ClusterState:
    """Return an endpoint's message as a user sees it."""
    up = isinstance(word, ClusterUp)
    return ClusterState(
        up=up,
        complete=isinstance(word, ClusterUp) and word.complete,
        ready=isinstance(word, ClusterUp) and word.ready,
        reason=word.reason,
        epoch=word.epoch,
        leaders=word.leaders,
    )
