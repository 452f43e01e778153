"""The tickets that one leader owns, and the times at which each is due. Pure."""

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
"""Number of stale entries, beyond twice the live ones, at which the heap is cleaned up."""


class Step(Enum):
    """The event that a ticket waits for."""

    ENTERING = "a quorum that knows that it enters"
    WAITING = "its turn"
    ASKING = "a quorum of votes"
    HELD = "its release"


@dataclass(slots=True, eq=False)
class TicketAttempt:
    """A ticket of this leader's own.

    Attributes:
        wait_until: the time at which it gives up, None for never.
        eager: whether it does not wait at all.
        heard_at: the time of its proxy's last message.
        answered: leaders that answered the step, or refused to vote; ``votes``: those that
            voted. Both are of the present round (B6).
        held: a fence under which the same request may hold already: that of a former owner.
            It is taken over, and never given back.
        due: the time at which it is processed again.

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
    """The highest round of this request that others know."""
    due: Instant | None = None
    """None while it is not in the heap."""


class TimerQueue:
    """All of a leader's own tickets, by request and by the times at which they are due."""

    def __init__(self) -> None:
        self.by_key: dict[tuple[str, Key], TicketAttempt] = {}
        self.due: list[tuple[Instant, int, TicketAttempt]] = []
        """The tickets to process, as a heap; some are forgotten, or due at another time."""
        self._count = 0

    def of(self, entry: Entry) -> TicketAttempt | None:
        """Return the attempt of ``entry``, if this leader owns it."""
        return self.by_key.get((entry.ticket.lock, entry.key))

    def find(self, lock: str, who: Who, request: int) -> TicketAttempt | None:
        """Return the attempt of that request."""
        return self.by_key.get((lock, Key(who, request)))

    def add(self, attempt: TicketAttempt) -> None:
        """Add a ticket that this leader owns."""
        self.by_key[attempt.entry.ticket.lock, attempt.entry.key] = attempt

    def forget(self, entry: Entry) -> None:
        """Take no more steps for ``entry``, which is dropped or another leader's."""
        attempt = self.by_key.pop((entry.ticket.lock, entry.key), None)
        if attempt is not None:
            attempt.due = None

    def look_again(self, attempt: TicketAttempt, now: Instant, at: Instant) -> None:
        """Have the attempt processed then, or when its wait times out, and not before."""
        if attempt.wait_until is not None and attempt.step is not Step.HELD:
            at = min(at, attempt.wait_until)
        attempt.due = max(at, later(now, 1))
        self._count += 1
        heapq.heappush(self.due, (attempt.due, self._count, attempt))
        if len(self.due) > 2 * len(self.by_key) + STALE_MAX:
            # Holds may last for days, and most are released long before: their entries are stale.
            self.due = [one for one in self.due if one[2].due == one[0]]
            heapq.heapify(self.due)

    def take_due(self, now: Instant) -> TicketAttempt | None:
        """Return an attempt that is due, None if none is."""
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
    """Return the grant for the proxy of a holder."""
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
    """Return the failure for the proxy of a ticket."""
    word = LockFailed(
        lock=ticket.lock, who=ticket.who, request=ticket.request, error=error, detail=detail
    )
    return Send(ticket.door, word)
