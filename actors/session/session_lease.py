"""The life of a client's session in the cluster, and how long the client trusts it. Pure.

A session lives for its TTL from when the cluster last received a message of it, by log time,
which never runs ahead of true time by more than a clock's drift. The client counts from when
it *sent* the last message that was confirmed, which was earlier, on its own clock, and
subtracts the drift of two clocks. So it knows of a loss before the cluster can act on it,
however late or lost the messages are.

Source: Cary Gray and David Cheriton, "Leases", SOSP 1989; Mike Burrows, "The Chubby lock
service", OSDI 2006, section 2.8 (jeopardy and grace period).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from fencelock.actors.api.session_message import Opened
from fencelock.actors.lease import relied_until
from fencelock.actors.message import NS_PER_MS, Instant, ms_between
from fencelock.actors.session.holding import SessionTrust
from fencelock.actors.session.message import Suspected, Trusted
from fencelock.actors.session.pending import RETRY_MS, later

KEEPS_PER_TTL = 5
"""Keep-alives in a TTL: several may be lost before there is reason to worry."""

SUSPECT_PART = 2
"""The session is suspect when this part of its TTL (a half) has passed unconfirmed."""

LINGER_MS = 30_000
"""Time for which an unused session is kept (ms); then it is left to expire."""

OPEN_MS_MAX = 4_000
"""Longest pause between two attempts to open a session (ms)."""

PROBE_MS = 1_000
"""Shortest interval between keep-alives to an endpoint that owes a reply (ms)."""

SENT_MAX = 256
"""Maximum keep-alives whose replies are awaited; each confirms the session as of its sending."""

EPOCH = Instant(0)
"""An instant before every clock reading."""


class Stage(Enum):
    """State of a session."""

    NONE = "none"
    OPENING = "opening"
    OPEN = "open"
    UNKEPT = "unkept"
    """The cluster keeps no sessions: holds live at the nodes that granted them."""


@dataclass(slots=True)
class SessionLease:
    """One client's sessions, one after the other, each under a different name.

    Attributes:
        name: the client's name.
        secret: random digits in the names of its sessions, see `without_secret`; empty if none.
        count: number of sessions begun so far.
        assigned: the cluster's id of the session.
        confirmed_at: send time of the last message that the cluster confirmed.
        until: time at which the session can no longer be trusted.

    """

    name: str
    ttl_ms: int
    label: str
    secret: str = ""
    stage: Stage = Stage.NONE
    count: int = 0
    assigned: str = ""
    confirmed_at: Instant = EPOCH
    until: Instant = EPOCH
    used_at: Instant = EPOCH
    due_at: Instant = EPOCH
    """Time of the next attempt to open, or the next keep-alive."""
    step_ms: int = RETRY_MS
    suspected: bool = False
    pinned: bool = False
    """Whether the cluster has something that ends with this session, so that it is kept alive."""
    lived_ms: int = 0
    """The TTL of the session in force, as the cluster set it (ms)."""
    sent: dict[int, Instant] = field(default_factory=dict[int, Instant])
    """Send times of unanswered openings or keep-alives, by number."""
    last_sent_at: Instant = EPOCH
    told_until: Instant = EPOCH
    trust: SessionTrust | None = None
    """The client's trust in the session in force, as the watcher was last notified of it; None
    where the cluster keeps no sessions. The client's threads read it; see `Hold`."""
    trusted_ns: int = 0
    """Time for which the session certainly lives after a confirmed message was sent (ns)."""
    suspect_ns: int = 0
    """Time without confirmation after which the session is suspect (ns)."""
    news_at: Instant = EPOCH
    """A confirmed message sent from this time on makes the watcher's last notification too old."""
    thin_at: Instant = EPOCH
    """Time at which that notification is too old by itself."""
    ready: bool = False
    """Whether requests that need a session can be sent: derived from `stage`, for speed."""
    kept: bool = False
    """Whether the cluster keeps the session, so that holds belong to it; also derived."""

    def enter(self, stage: Stage) -> None:
        """Enter another state."""
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
        """Request a session, if there is none."""
        self.used_at = now
        if not self.ready and self.stage is Stage.NONE:
            self.enter(Stage.OPENING)
            self.count += 1
            self.due_at, self.step_ms = now, RETRY_MS
            self.sent.clear()

    def note_sent(self, number: int, now: Instant) -> None:
        """Store the send time of an opening or keep-alive with ``number``."""
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
        self.suspected = False
        self.confirmed_at, self.until = sent_at, self.trusted_until(sent_at, opened.ttl_ms)
        self.trust = SessionTrust(self.suspect_at, self.until)
        self.trusted_ns = self.until - sent_at
        self.suspect_ns = self.lived_ms // SUSPECT_PART * NS_PER_MS
        self._told(EPOCH)
        self.due_at = later(now, self.keep_ms)
        self.sent.clear()
        return True

    def confirm(self, sent_at: Instant, now: Instant) -> bool:
        """Note that the cluster received the message sent at ``sent_at``.

        Return whether there may be `news`: this runs with each reply, and usually there is none.
        """
        assert self.kept
        confirmed_at = self.confirmed_at
        if sent_at > confirmed_at:
            self.confirmed_at = confirmed_at = sent_at
            self.until = Instant(sent_at + self.trusted_ns)
        return (
            self.suspected
            or confirmed_at >= self.news_at
            or now >= self.thin_at
            or now - confirmed_at >= self.suspect_ns
        )

    def passed(self, now: Instant) -> bool:
        """Return whether the session may have ended by now."""
        return self.kept and now >= self.until

    def drop(self) -> str:
        """Forget the session in force; return its name, empty if there is none to end."""
        assigned = self.assigned if self.kept else ""
        self.enter(Stage.NONE)
        self.pinned = False
        self.assigned = ""
        self.suspected = False
        self.trust = None
        self.sent.clear()
        return assigned

    def news(self, now: Instant, *, holding: bool) -> list[Trusted | Suspected]:
        """Return the notifications for the watcher. Small progress is not worth one."""
        if not self.kept:
            return []
        news: list[Trusted | Suspected] = []
        gained, left = self.until - self.told_until, self.told_until - now
        length = self.lived_ms * NS_PER_MS
        small = gained < length // (2 * KEEPS_PER_TTL) and left > length // SUSPECT_PART
        if gained > 0 and (self.suspected or not small):
            self.suspected = False
            self._told(self.until)
            if self.trust is not None:
                self.trust.suspect_at, self.trust.until = self.suspect_at, self.until
            news.append(Trusted(suspect_at=self.suspect_at, until=self.until))
        if now >= self.suspect_at and holding and not self.suspected:
            self.suspected = True
            silent, left = ms_between(self.confirmed_at, now), ms_between(now, self.until)
            news.append(Suspected(silent_ms=silent, left_ms=left))
        return news

    def _told(self, until: Instant) -> None:
        """Note until when the watcher trusts the session, and when it needs more news."""
        length = self.lived_ms * NS_PER_MS
        self.told_until = until
        self.news_at = Instant(until - self.trusted_ns + length // (2 * KEEPS_PER_TTL))
        self.thin_at = Instant(until - length // SUSPECT_PART)

    @property
    def suspect_at(self) -> Instant:
        """Time from which the session is suspect."""
        return later(self.confirmed_at, self.lived_ms // SUSPECT_PART)

    @property
    def keep_ms(self) -> int:
        """The pause between two keep-alives (ms)."""
        return max(1, self.lived_ms // KEEPS_PER_TTL)

    @staticmethod
    def trusted_until(sent_at: Instant, ttl_ms: int) -> Instant:
        """Return until when a session certainly lives whose message was sent at ``sent_at``."""
        return relied_until(sent_at, ttl_ms)


@dataclass(slots=True)
class Ending:
    """A session that was given up, and whose `End` is repeated for a while."""

    gives_up_at: Instant
    resend_at: Instant
    step_ms: int = RETRY_MS
