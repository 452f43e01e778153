"""The session of a node itself: opened, kept alive, and trusted for a limited time."""

from __future__ import annotations

from fencelock.actors.effect import Effect
from fencelock.actors.lease import relied_ns
from fencelock.actors.message import Address, Instant, ms_between
from fencelock.actors.paxos.proxy_in_flight import (
    NOBODY,
    InFlightRequest,
    InFlightRequests,
    Kind,
    key_of_session,
)
from fencelock.actors.table.command import (
    CloseReason,
    CloseSession,
    Command,
    KeepSession,
    OpenSession,
)
from fencelock.actors.table.outcome import SessionOpened

TTL_MS = 15_000
"""TTL of the session: it outlives the node's last confirmed message by this (ms of log time)."""


class NodeSessionLease:
    """A node's sessions, one after the other.

    A session is trusted for its TTL, less the drift of two clocks, from the proposal of the last
    command that the log confirmed. The log cannot end it before: it counts from when it received
    the command, which is later, and a new master begins to count anew.

    Args:
        node: this node, for people.
        name: unique to this life of the node, and not a client's: ``node/boot``.
        in_flight_requests: takes the commands.

    """

    def __init__(self, node: str, name: str, in_flight_requests: InFlightRequests) -> None:
        self.node = node
        self.name = name
        self.in_flight_requests = in_flight_requests
        self.generation = 1
        """Number of sessions so far, with this one: each that follows a lost one gets a new
        name."""
        self.session = ""
        """The id of the session in force, empty if there is none."""
        self.ttl_ms = TTL_MS
        self.confirmed_at = Instant(0)
        self.kept_at = Instant(0)
        """The time at which the last keep-alive was proposed."""
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
        """Note that the session is open; return whether it can still be trusted."""
        self.session, self.ttl_ms = opened.assigned, opened.ttl_ms
        self.confirmed_at = self.kept_at = in_flight_request.since
        if self.is_over(now):
            self.leave()
        return bool(self.session)

    def settle(self, in_flight_request: InFlightRequest) -> None:
        """Note that a request is over, with any outcome."""
        if in_flight_request is self.opening:
            self.opening = None
        if in_flight_request is self.keeping:
            self.keeping = None

    def confirm(self, in_flight_request: InFlightRequest) -> None:
        """Note that the log performed the request: the session lived after it was proposed."""
        if in_flight_request.key[0] == self.session and in_flight_request.since > self.confirmed_at:
            self.confirmed_at = in_flight_request.since

    def is_over(self, now: Instant) -> bool:
        """Return whether there is a session that may have ended."""
        if not self.session:
            return False
        # The log's clock may be fast and this node's slow, as with a lease.
        sure_ns = relied_ns(self.ttl_ms)
        return now - self.confirmed_at >= sure_ns

    def why_over(self, now: Instant) -> str:
        """Describe why the session may have ended."""
        silent_ms = ms_between(self.confirmed_at, now)
        return f"session {self.session!r} was not confirmed for {silent_ms} ms"

    def keep(self, now: Instant) -> list[Effect]:
        """Send a keep-alive, if one is due or was not confirmed in time."""
        heard_at = max(self.confirmed_at, self.kept_at)
        if not self.session or ms_between(heard_at, now) < self.ttl_ms // 5:
            return []
        return self.keep_now(now)

    def keep_now(self, now: Instant) -> list[Effect]:
        """Send a new keep-alive; the one in flight would confirm an earlier time."""
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
        """Let the session expire: it has no holds."""
        if self.keeping is not None:
            self.in_flight_requests.end(self.keeping)
            self.keeping = None
        self.session = ""

    def abandon(self, now: Instant, asker: Address = NOBODY) -> list[Effect]:
        """End the session explicitly, and notify ``asker``; the next one has another name."""
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
