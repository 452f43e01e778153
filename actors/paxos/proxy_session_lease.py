"""How a node opens a session of its own, keeps it, and knows until when it lives for certain."""

from __future__ import annotations

from fencelock.actors.effect import Effect
from fencelock.actors.lock.command import (
    CloseReason,
    CloseSession,
    Command,
    KeepSession,
    OpenSession,
)
from fencelock.actors.lock.outcome import SessionOpened
from fencelock.actors.message import NS_PER_MS, Address, Instant, ms_between
from fencelock.actors.paxos.config import DRIFT_PPM
from fencelock.actors.paxos.proxy_in_flight import (
    NOBODY,
    InFlightRequest,
    InFlightRequests,
    Kind,
    key_of_session,
)

_PPM = 1_000_000

TTL_MS = 15_000
"""How long the session outlives the last confirmed word of this node (log time)."""


class NodeSessionLease:
    """The session of a node, one after the other.

    It is believed to live for its TTL, less the drift of two clocks, from when the last
    command was proposed that the log confirmed. The log cannot end it before: it counts
    from when it heard, which is later, and a new master begins to count anew.

    Args:
        node: this node, for people.
        name: unique to this life of the node, and no client's: ``node/boot``.
        in_flight_requests: where commands go.

    """

    def __init__(self, node: str, name: str, in_flight_requests: InFlightRequests) -> None:
        self.node = node
        self.name = name
        self.in_flight_requests = in_flight_requests
        self.generation = 1
        """How many sessions there were, with this one: each lost one makes a new name."""
        self.session = ""
        """The id of the session in force, empty if there is none."""
        self.ttl_ms = TTL_MS
        self.confirmed_at = Instant(0)
        self.kept_at = Instant(0)
        """When the last keep was proposed."""
        self.opening: InFlightRequest | None = None
        self.keeping: InFlightRequest | None = None
        self.requests = 0

    def open(self, now: Instant) -> list[Effect]:
        """Open a session, unless that is under way."""
        if self.opening is not None:
            return []
        name = self.name if self.generation == 1 else f"{self.name}~{self.generation}"
        self.requests += 1
        request = self.requests
        command = OpenSession(session=name, ttl_ms=TTL_MS, label=self.node, request=request)
        self.opening = self._add(Kind.OPEN, name, request, command, now)
        return [self.in_flight_requests.propose(self.opening)]

    def begin(
        self, in_flight_request: InFlightRequest, opened: SessionOpened, now: Instant
    ) -> bool:
        """Take in that the session is open; return whether it can still be relied on."""
        self.session, self.ttl_ms = opened.assigned, opened.ttl_ms
        self.confirmed_at = self.kept_at = in_flight_request.since
        if self.is_over(now):
            self.leave()
        return bool(self.session)

    def settle(self, in_flight_request: InFlightRequest) -> None:
        """Note that ``errand`` is over, one way or the other."""
        if in_flight_request is self.opening:
            self.opening = None
        if in_flight_request is self.keeping:
            self.keeping = None

    def confirm(self, in_flight_request: InFlightRequest) -> None:
        """Note that the log has done ``errand``: the session lived after it was proposed."""
        if in_flight_request.key[0] == self.session and in_flight_request.since > self.confirmed_at:
            self.confirmed_at = in_flight_request.since

    def is_over(self, now: Instant) -> bool:
        """Return whether there is a session that may not live any more."""
        if not self.session:
            return False
        # The log's clock may be fast and this node's slow, as with a lease.
        sure_ns = self.ttl_ms * NS_PER_MS * (_PPM - DRIFT_PPM) // (_PPM + DRIFT_PPM)
        return now - self.confirmed_at >= sure_ns

    def why_over(self, now: Instant) -> str:
        """Return in words why the session may not live any more."""
        silent_ms = ms_between(self.confirmed_at, now)
        return f"session {self.session!r} was not confirmed for {silent_ms} ms"

    def keep(self, now: Instant) -> list[Effect]:
        """Say that the node is there, if that is due or was not confirmed in time."""
        heard_at = max(self.confirmed_at, self.kept_at)
        if not self.session or ms_between(heard_at, now) < self.ttl_ms // 5:
            return []
        return self.keep_now(now)

    def keep_now(self, now: Instant) -> list[Effect]:
        """Say that the node is there; what is under way would confirm an earlier time."""
        if not self.session:
            return []
        if self.keeping is not None:
            self.in_flight_requests.end(self.keeping)
        self.kept_at = now
        self.requests += 1
        command = KeepSession(session=self.session, request=self.requests)
        self.keeping = self._add(Kind.KEEP, self.session, self.requests, command, now)
        return [self.in_flight_requests.propose(self.keeping)]

    def leave(self) -> None:
        """Let the session end by itself: nothing is held in it."""
        if self.keeping is not None:
            self.in_flight_requests.end(self.keeping)
            self.keeping = None
        self.session = ""

    def abandon(self, now: Instant, asker: Address = NOBODY) -> list[Effect]:
        """End the session for certain, and tell ``asker``: the next one has another name."""
        old = self.session
        self.leave()
        self.generation += 1
        self.requests += 1
        command = CloseSession(session=old, reason=CloseReason.GRACEFUL, request=self.requests)
        ending = self._add(Kind.END, old, self.requests, command, now)
        ending.asker = asker
        return [self.in_flight_requests.propose(ending)]

    def _add(
        self, kind: Kind, session: str, request: int, command: Command, now: Instant
    ) -> InFlightRequest:
        key = key_of_session(kind, session, request)
        return self.in_flight_requests.add(kind, key, command, now, own=True)
