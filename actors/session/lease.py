"""The life of a client's session in the cluster, and how long the client trusts it. Pure.

A session lives for its TTL from when the cluster last received a message of it, by log time,
which never runs ahead of true time by more than a clock's drift. The client counts from when
it *sent* the last message that was confirmed, which was earlier, on its own clock, and
subtracts the drift of two clocks. So it knows of a loss before the cluster can act on it,
however late or lost the messages are.

    NONE ── a request needs a session ──> OPENING ── Opened without a TTL ──> UNKEPT
      ^                                   │     │
      ├── refused, or needed no more ─────┘     └─── Opened with a TTL ─────> OPEN
      │                                                                        │
      └── not confirmed within its TTL, ended by the cluster, client closed ───┘

Each session of a client has its own name, so no message of an earlier one counts in a later one.

Source: Cary Gray and David Cheriton, "Leases", SOSP 1989; Mike Burrows, "The Chubby lock
service", OSDI 2006, section 2.8 (jeopardy and grace period).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct

from fencelock.actors.api.session_message import End, KeepAlive, Open, Opened
from fencelock.actors.effect import Effect, Observe
from fencelock.actors.lease import relied_ns
from fencelock.actors.message import NS_PER_MS, Address, Instant, later, ms_between
from fencelock.actors.session.event import Suspected
from fencelock.actors.session.requests import FIRST_REPEAT_MS, RETRY_MS_MAX, paused

if TYPE_CHECKING:
    from fencelock.actors.session.state import SessionState

KEEPS_PER_TTL = 5
"""Keep-alives in a TTL: several may be lost before there is reason to worry."""

SUSPECT_PART = 2
"""The session is suspect when its TTL divided by this has passed unconfirmed."""

LINGER_MS = 30_000
"""Time for which an unused session is kept (ms); then it is left to expire."""

OPEN_MS_MAX = 4_000
"""Longest pause between two attempts to open a session (ms)."""

KEEP_ALIVE_MS_MIN = 1_000
"""Shortest interval between keep-alives to an endpoint that owes a reply (ms)."""

SENT_MAX = 256
"""Maximum keep-alives whose replies are awaited; each confirms the session as of its sending."""

EPOCH = Instant(0)
"""An instant before every clock reading."""

FOREVER = Instant(1 << 63)
"""An instant after every clock reading."""


class Stage(Enum):
    """State of a session."""

    NONE = "none"
    OPENING = "opening"
    OPEN = "open"
    UNKEPT = "unkept"
    """The cluster keeps no sessions: holds live at the nodes that granted them."""


MOVES: dict[Stage, tuple[Stage, ...]] = {
    Stage.NONE: (Stage.OPENING,),
    Stage.OPENING: (Stage.OPEN, Stage.UNKEPT, Stage.NONE),
    Stage.OPEN: (Stage.NONE,),
    Stage.UNKEPT: (),
}
"""The moves of a client's session. A cluster that keeps no sessions never begins to keep them."""


@dataclass(slots=True)
class SessionTrust:
    """A client's trust in one session. There is one object per session, and its times only grow."""

    suspect_at: Instant
    """From then on there is reason to worry: the cluster should have confirmed the session."""
    until: Instant
    """From then on the cluster may have ended the session."""


@dataclass(slots=True)
class SessionLease:
    """One client's sessions, one after the other, each under a different name."""

    name: str
    ttl_ms: int
    label: str
    secret: str = ""
    """Random digits in the names of its sessions, see `without_secret`; empty if none."""
    stage: Stage = Stage.NONE
    count: int = 0
    """Number of sessions begun so far."""
    assigned: str = ""
    """The cluster's id of the session."""
    confirmed_at: Instant = EPOCH
    """Send time of the last message that the cluster confirmed."""
    until: Instant = FOREVER
    """Time at which the session can no longer be trusted, if the cluster keeps one."""
    used_at: Instant = EPOCH
    due_at: Instant = EPOCH
    """Time of the next attempt to open, or the next keep-alive."""
    step_ms: int = FIRST_REPEAT_MS
    suspected: bool = False
    pinned: bool = False
    """Whether the cluster has something that ends with this session, so that it is kept alive."""
    lived_ms: int = 0
    """The TTL of the session in force, as the cluster set it (ms)."""
    sent: dict[int, Instant] = field(default_factory=dict[int, Instant])
    """Send times of unanswered openings or keep-alives, by number."""
    last_sent_at: Instant = EPOCH
    trust: SessionTrust | None = None
    """The client's trust in the session in force; None where the cluster keeps no sessions. The
    client's threads read it; see `ClientHold`."""
    trusted_ns: int = 0
    """Time for which the session certainly lives after a confirmed message was sent (ns)."""
    suspect_ns: int = 0
    """Time without confirmation after which the session is suspect (ns)."""
    ready: bool = False
    """Whether requests that need a session can be sent: derived from `stage`, for speed."""
    kept: bool = False
    """Whether the cluster keeps the session, so that holds belong to it; also derived."""

    def enter(self, stage: Stage) -> None:
        if stage not in MOVES[self.stage]:
            raise AssertionError(f"a session in stage {self.stage.value} cannot be {stage.value}")
        self.stage = stage
        self.kept = stage is Stage.OPEN
        self.ready = self.kept or stage is Stage.UNKEPT

    @property
    def wanted(self) -> str:
        """The name under which the session is, or was last, opened."""
        name = self.name if self.count <= 1 else f"{self.name}~{self.count}"
        return f"{name}~{self.secret}" if self.secret else name

    @property
    def spoken(self) -> str:
        """The name to send in keep-alives."""
        return self.assigned if self.ready else self.name

    def need(self, now: Instant) -> None:
        self.used_at = now
        if not self.ready and self.stage is Stage.NONE:
            self.enter(Stage.OPENING)
            self.count += 1
            self.due_at, self.step_ms = now, FIRST_REPEAT_MS

    def note_sent(self, number: int, now: Instant) -> None:
        self.sent[number] = now
        self.last_sent_at = now
        if len(self.sent) > SENT_MAX:
            del self.sent[next(iter(self.sent))]

    def asked_for(self, session: str, number: int) -> bool:
        """Return whether an opening of that name and number is unanswered."""
        return self.stage is Stage.OPENING and session == self.wanted and number in self.sent

    def opened(self, opened: Opened, now: Instant) -> bool:
        """Adopt the session that the cluster gave; return whether it was requested and lives."""
        if not self.asked_for(opened.session, opened.request):
            return False
        sent_at = self.sent[opened.request]
        if opened.ttl_ms <= 0:
            self.enter(Stage.UNKEPT)
            self.assigned = opened.assigned
            self.sent.clear()
            return True
        if self.trusted_until(sent_at, opened.ttl_ms) <= now:
            return False  # It may have ended meanwhile; a later attempt decides.
        self.enter(Stage.OPEN)
        self.assigned, self.lived_ms = opened.assigned, opened.ttl_ms
        self.confirmed_at, self.until = sent_at, self.trusted_until(sent_at, opened.ttl_ms)
        self.trusted_ns = self.until - sent_at
        self.suspect_ns = self.lived_ms // SUSPECT_PART * NS_PER_MS
        self.trust = SessionTrust(Instant(sent_at + self.suspect_ns), self.until)
        self.due_at = later(now, self.keep_ms)
        self.sent.clear()
        return True

    def confirm(self, sent_at: Instant | None) -> None:
        """Note that the cluster received the message sent at ``sent_at``, if it keeps sessions."""
        trust = self.trust
        if trust is not None and sent_at is not None and sent_at > self.confirmed_at:
            self.confirmed_at = sent_at
            self.until = trust.until = Instant(sent_at + self.trusted_ns)
            trust.suspect_at = Instant(sent_at + self.suspect_ns)
            self.suspected = False

    def passed(self, now: Instant) -> bool:
        return now >= self.until

    def drop(self) -> str:
        """Forget the session in force; return its name, empty if there is none to end."""
        assigned = self.assigned if self.kept else ""
        self.enter(Stage.NONE)
        self.pinned = False
        self.assigned = ""
        self.until = FOREVER
        self.suspected = False
        self.trust = None
        self.sent.clear()
        return assigned

    def suspect(self, now: Instant) -> Suspected | None:
        """Return the notification that the session became suspect, once each time."""
        if self.trust is None or self.suspected or now < self.trust.suspect_at:
            return None
        self.suspected = True
        silent, left = ms_between(self.confirmed_at, now), ms_between(now, self.until)
        return Suspected(silent_ms=silent, left_ms=left)

    @property
    def keep_ms(self) -> int:
        """The pause between two keep-alives (ms)."""
        return max(1, self.lived_ms // KEEPS_PER_TTL)

    @staticmethod
    def trusted_until(sent_at: Instant, ttl_ms: int) -> Instant:
        """Return until when a session whose message was sent at ``sent_at`` surely lives."""
        return Instant(sent_at + relied_ns(ttl_ms))


class Ending(Struct):
    """A session that was given up, and whose `End` is repeated for a while."""

    gives_up_at: Instant
    resend_at: Instant
    step_ms: int = FIRST_REPEAT_MS


def greet(state: SessionState, endpoints: Iterable[Address], now: Instant) -> list[Effect]:
    """Send a keep-alive to each of ``endpoints``. Each number is used once."""
    session_lease = state.session_lease
    effects: list[Effect] = []
    for endpoint in endpoints:
        state.greetings += 1
        if session_lease.kept:
            session_lease.note_sent(state.greetings, now)
        alive = KeepAlive(session=session_lease.spoken, request=state.greetings)
        effects.append(state.in_flight.send(endpoint, alive, now))
    return effects


def open_session(state: SessionState, now: Instant) -> list[Effect]:
    """Request a session, if one is wanted and an attempt is due.

    Each attempt has its own number, which identifies its send time: the session's TTL counts
    from there.
    """
    session_lease, in_flight = state.session_lease, state.in_flight
    if session_lease.stage is not Stage.OPENING or session_lease.due_at > now:
        return []
    if not state.session_used(now):
        session_lease.drop()  # The users that wanted it have given up.
        return []
    session_lease.due_at = paused(in_flight.random, session_lease.step_ms, now)
    session_lease.step_ms = min(2 * session_lease.step_ms, OPEN_MS_MAX)
    in_flight.number += 1
    session_lease.note_sent(in_flight.number, now)
    opening = Open(
        session=session_lease.wanted,
        ttl_ms=session_lease.ttl_ms,
        label=session_lease.label,
        request=in_flight.number,
    )
    return [in_flight.send(endpoint, opening, now) for endpoint in _targets(state)]


def open_over(state: SessionState, endpoint: Address, now: Instant) -> list[Effect]:
    """Request a wanted session at once over a new link: what was sent before it was up is lost."""
    opening = state.session_lease.stage is Stage.OPENING and endpoint in _targets(state)
    return hasten(state, now) if opening else []


def keep_session(state: SessionState, now: Instant) -> list[Effect]:
    """Send a keep-alive, if anything needs the session and one is due."""
    session_lease = state.session_lease
    if not session_lease.kept or session_lease.due_at > now or not state.session_used(now):
        return []
    lost = not state.endpoints.any_usable() or session_lease.suspected or state.in_flight.cancels
    session_lease.due_at = later(
        now, min(session_lease.keep_ms, KEEP_ALIVE_MS_MIN) if lost else session_lease.keep_ms
    )
    return greet(state, _targets(state), now)


def keep_soon(state: SessionState, now: Instant) -> None:
    """Send a keep-alive soon: a request had to be repeated."""
    session_lease = state.session_lease
    if session_lease.kept:
        soon = later(session_lease.last_sent_at, min(KEEP_ALIVE_MS_MIN, session_lease.keep_ms))
        session_lease.due_at = min(session_lease.due_at, max(soon, now))


def end_sessions(state: SessionState, now: Instant) -> list[Effect]:
    """Send `End` for sessions that were given up, repeatedly, for a while."""
    effects: list[Effect] = []
    for session, ending in list(state.endings.items()):
        if ending.gives_up_at <= now:
            del state.endings[session]  # It expires by itself.
            effects.append(Observe("client.end_unconfirmed"))
        elif ending.resend_at <= now:
            ending.resend_at = paused(state.in_flight.random, ending.step_ms, now)
            ending.step_ms = min(2 * ending.step_ms, RETRY_MS_MAX)
            endpoint = state.endpoints.choose().address
            state.in_flight.number += 1
            end = End(session=session, request=state.in_flight.number)
            effects.append(state.in_flight.send(endpoint, end, now, owes=False))
    return effects


def hasten(state: SessionState, now: Instant) -> list[Effect]:
    """Open the session or keep it alive at once: the endpoint in use has changed."""
    state.session_lease.due_at = now
    state.session_lease.step_ms = FIRST_REPEAT_MS
    return [*open_session(state, now), *keep_session(state, now)]


def _targets(state: SessionState) -> list[Address]:
    """Return the endpoint in use, or all, if none replies."""
    if state.endpoints.any_usable():
        return [state.endpoints.choose().address]
    return list(state.endpoints.table)
