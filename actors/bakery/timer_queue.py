"""The tickets that one leader owns, and when to look at each again. Pure."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from enum import Enum

from fencelock.actors.bakery.config import later
from fencelock.actors.bakery.entry import Entry, Key
from fencelock.actors.bakery.proxy_message import Error, Locked, LockFailed
from fencelock.actors.bakery.ticket import Ticket, Who
from fencelock.actors.effect import Send
from fencelock.actors.message import Instant

STALE_MAX = 1_000
"""So much more is on the list of what is due than is owned, twice, before it is cleared up."""


class Step(Enum):
    """What a ticket waits for."""

    ENTERING = "a quorum that knows that it enters"
    WAITING = "its turn"
    ASKING = "a quorum of votes"
    HELD = "its release"


@dataclass(slots=True, eq=False)
class TicketAttempt:
    """A ticket of this leader's own.

    Attributes:
        wait_until: when it gives up, None for never.
        eager: whether it will not wait at all.
        heard_at: when its door spoke of it last.
        answered: who answered the step, or refused to vote; ``votes``: who voted. Both are of
            the round under way (B6).
        held: a fence under which the same request may hold already: another owner's, who is
            gone. It is taken over, and never given back.
        due: when to look at it again.

    """

    entry: Entry
    wait_until: Instant | None
    eager: bool
    heard_at: Instant
    step: Step = Step.ENTERING
    answered: dict[str, None] = field(default_factory=dict[str, None])
    votes: dict[str, None] = field(default_factory=dict[str, None])
    highest: int = 0
    held: int = 0
    known: int = 0
    """The highest round that others know of this request."""
    due: Instant | None = None
    """Nothing while it is not on the list of what is due."""


class TimerQueue:
    """All of a leader's own tickets, by request and by when they are due."""

    def __init__(self) -> None:
        self.by_key: dict[tuple[str, Key], TicketAttempt] = {}
        self.due: list[tuple[Instant, int, TicketAttempt]] = []
        """What is to be looked at, as a heap; some of it is forgotten, or due at another time."""
        self._count = 0

    def of(self, entry: Entry) -> TicketAttempt | None:
        """Return the course of ``entry``, if this leader owns it."""
        return self.by_key.get((entry.ticket.lock, entry.key))

    def find(self, lock: str, who: Who, request: int) -> TicketAttempt | None:
        """Return the course of that request."""
        return self.by_key.get((lock, Key(who, request)))

    def add(self, attempt: TicketAttempt) -> None:
        """Own a ticket."""
        self.by_key[attempt.entry.ticket.lock, attempt.entry.key] = attempt

    def forget(self, entry: Entry) -> None:
        """Take no more steps for ``entry``, which is dropped or another's."""
        attempt = self.by_key.pop((entry.ticket.lock, entry.key), None)
        if attempt is not None:
            attempt.due = None

    def look_again(self, attempt: TicketAttempt, now: Instant, at: Instant) -> None:
        """Have the course looked at then, or when its wait is over, and not before."""
        if attempt.wait_until is not None and attempt.step is not Step.HELD:
            at = min(at, attempt.wait_until)
        attempt.due = max(at, later(now, 1))
        self._count += 1
        heapq.heappush(self.due, (attempt.due, self._count, attempt))
        if len(self.due) > 2 * len(self.by_key) + STALE_MAX:
            # Holds may last for days, and most are released long before: nothing waits for them.
            self.due = [one for one in self.due if one[2].due == one[0]]
            heapq.heapify(self.due)

    def take_due(self, now: Instant) -> TicketAttempt | None:
        """Return a course that is due, None if none is."""
        while self.due and self.due[0][0] <= now:
            at, _, attempt = heapq.heappop(self.due)
            if attempt.due == at:
                attempt.due = None
                return attempt
        return None


def warn_at(entry: Entry) -> Instant:
    """Return when the duration of a hold is over, and its grace begins."""
    assert entry.until is not None
    return later(entry.until, -entry.ticket.grace_ms)


def locked(entry: Entry) -> Send:
    """Return what the door of a holder is told."""
    ticket = entry.ticket
    return Send(
        ticket.door,
        Locked(
            lock=ticket.lock,
            who=ticket.who,
            request=ticket.request,
            fence=entry.fence,
            hold_ms=ticket.hold_ms,
            grace_ms=ticket.grace_ms,
        ),
    )


def failed(ticket: Ticket, error: Error, detail: str) -> Send:
    """Return what the door of a ticket that failed is told."""
    word = LockFailed(
        lock=ticket.lock, who=ticket.who, request=ticket.request, error=error, detail=detail
    )
    return Send(ticket.door, word)
