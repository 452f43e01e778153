"""Who holds and who waits, as told by the outcomes of the log: for people, and for tries."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.actors.lock.backend import Look, Seen
from holdfast.actors.lock.message import Absence, Contender
from holdfast.actors.lock.outcome import (
    Denied,
    Freed,
    Held,
    Lost,
    Outcome,
    Queued,
    SessionClosed,
    WaitCancelled,
)
from holdfast.actors.message import Instant, ms_between

Claimant = tuple[str, str]
"""Session and owner."""


@dataclass(slots=True)
class Queue:
    """One lock: its holder, and who waits for it in the order of the log."""

    holder: tuple[Claimant, int, Instant] | None = None
    waiters: dict[Claimant, Instant] = field(default_factory=dict[Claimant, Instant])


class Holders:
    """A view of the table that follows the outcomes; a snapshot may leave gaps in it."""

    def __init__(self) -> None:
        self.locks: dict[str, Queue] = {}
        self.by_session: dict[str, dict[str, int]] = {}
        """How many places a session has at each lock."""

    def follow(self, outcome: Outcome, now: Instant) -> None:
        """Take in one outcome."""
        match outcome:
            case Held():
                self._hold(outcome, now)
            case Queued():
                claimant = (outcome.session, outcome.owner)
                queue = self.locks.setdefault(outcome.lock, Queue())
                if claimant not in queue.waiters:
                    queue.waiters[claimant] = now
                    self._count(outcome.session, outcome.lock, 1)
            case Denied():
                self._stop_waiting(outcome.lock, (outcome.session, outcome.owner))
            case Freed() if outcome.count == 0:
                self._let_go(outcome.lock, (outcome.session, outcome.owner))
            case WaitCancelled() | Lost():
                self._stop_waiting(outcome.lock, (outcome.session, outcome.owner))
                self._let_go(outcome.lock, (outcome.session, outcome.owner))
            case SessionClosed():
                self._close(outcome.session)
            case _:
                pass  # Sessions that open or live change nobody's place.

    def seen(
        self,
        look: Look,
        absent: tuple[Absence, ...],
        now: Instant,
        names: dict[Claimant, tuple[str, str]],
    ) -> Seen:
        """Answer ``look``; ``names`` has session and owner as clients of this node say them."""
        queue = self.locks.get(look.lock, Queue())
        holder = None
        if queue.holder is not None:
            claimant, fence, since = queue.holder
            holder = _contender(claimant, fence, since, now, names)
        waiters = (
            _contender(claimant, None, since, now, names)
            for claimant, since in queue.waiters.items()
        )
        return Seen(
            lock=look.lock,
            query=look.query,
            holder=holder,
            waiters=tuple(waiters),
            waits_for=absent,
        )

    def _hold(self, held: Held, now: Instant) -> None:
        claimant = (held.session, held.owner)
        self._stop_waiting(held.lock, claimant)
        queue = self.locks.setdefault(held.lock, Queue())
        if queue.holder is not None:
            if queue.holder[0] == claimant:
                return
            self._let_go(held.lock, queue.holder[0])  # Its end was in a snapshot.
            queue = self.locks.setdefault(held.lock, Queue())
        queue.holder = (claimant, held.fence, now)
        self._count(held.session, held.lock, 1)

    def _stop_waiting(self, lock: str, claimant: Claimant) -> None:
        queue = self.locks.get(lock)
        if queue is not None and queue.waiters.pop(claimant, None) is not None:
            self._count(claimant[0], lock, -1)
            self._tidy(lock, queue)

    def _let_go(self, lock: str, claimant: Claimant) -> None:
        queue = self.locks.get(lock)
        if queue is not None and queue.holder is not None and queue.holder[0] == claimant:
            queue.holder = None
            self._count(claimant[0], lock, -1)
            self._tidy(lock, queue)

    def _close(self, session: str) -> None:
        for lock in list(self.by_session.get(session, ())):
            queue = self.locks[lock]
            for claimant in [one for one in queue.waiters if one[0] == session]:
                self._stop_waiting(lock, claimant)
            if queue.holder is not None and queue.holder[0][0] == session:
                self._let_go(lock, queue.holder[0])

    def _count(self, session: str, lock: str, by: int) -> None:
        places = self.by_session.setdefault(session, {})
        places[lock] = places.get(lock, 0) + by
        if places[lock] == 0:
            del places[lock]
        if not places:
            del self.by_session[session]

    def _tidy(self, lock: str, queue: Queue) -> None:
        if queue.holder is None and not queue.waiters:
            del self.locks[lock]


def _contender(
    claimant: Claimant,
    fence: int | None,
    since: Instant,
    now: Instant,
    names: dict[Claimant, tuple[str, str]],
) -> Contender:
    session, owner = names.get(claimant, ("", ""))
    return Contender(
        node=claimant[0].partition("/")[0],
        session=session,
        owner=owner,
        fence=fence,
        since_ms=ms_between(since, now),
    )
