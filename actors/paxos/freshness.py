"""How old the state of a follower is, at most: proven by heartbeats, not guessed. Pure."""

from __future__ import annotations

from collections import deque

from fencelock.actors.message import NS_PER_MS, Instant
from fencelock.actors.paxos.event import Fresh
from fencelock.actors.paxos.message import NO_BALLOT, Ballot, Heartbeat

BEATS_MAX = 64
"""Heartbeats whose answers may still prove something; see `monitor.ASKED_MAX`."""

PENDING_MAX = 64
"""Proofs that wait for slots to be applied; a replica that lags more proves the older ones."""


class StalenessBound:
    """An acceptor's side: what the heartbeats of one master prove about slots.

    Let this acceptor have answered heartbeat ``i`` of ballot ``b`` at ``a`` (by its own
    clock, the first time it did). If heartbeat ``j`` says that this answer was heard, ``j``
    was sent after ``a``. If a later one says that a majority answered ``j`` (or one after
    ``j``), then each of that majority had promised nothing above ``b`` at some time after
    ``a``. Promises never go back, so before ``a`` no majority had accepted anything under a
    ballot above ``b``: whatever was decided before ``a`` was decided under ``b`` or below.

    - Below ``b``: it is what phase one of ``b`` found, and lies before the first slot that
      ``b`` gave out itself. A heartbeat says whose answers were heard only when that slot
      is decided, so it lies before the ``committed`` of ``j``.
    - Under ``b``: nobody knows of it but through the commander of ``b``, which said all
      it knew (without a gap, and nothing is applied beyond one) as ``committed`` of ``j``.

    So what anybody knew to be decided at ``a`` is before the ``committed`` of ``j``. Only
    one clock was read, and neither its rate nor any message's delay was guessed.

    Args:
        place: which of the members this is.
        members: how many there are.

    """

    def __init__(self, place: int, members: int) -> None:
        self.place = place
        self.members = members
        self.ballot = NO_BALLOT
        self.answered: dict[int, Instant] = {}
        """When each heartbeat was first answered, by number, rising."""
        self.last = 0
        """The last heartbeat in ``answered``; an older one that comes again proves nothing."""
        self.beats: dict[int, Fresh] = {}
        """What each heartbeat proves once a majority has answered it, by number, rising."""

    def take(self, beat: Heartbeat, now: Instant) -> Fresh | None:
        """Take a heartbeat that is answered at ``now``; return what is proven by it, if anything.

        Its ballot is not below that of the one before, and its leader was checked.
        """
        self._turn_to(beat.ballot)
        self._note(beat, now)
        proven: Fresh | None = None
        for number in list(self.beats):
            if number > beat.confirmed:
                break
            proven = self.beats.pop(number)
        return proven

    def _turn_to(self, ballot: Ballot) -> None:
        if ballot == self.ballot:
            return
        self.ballot, self.last = ballot, 0
        self.answered, self.beats = {}, {}

    def _note(self, beat: Heartbeat, now: Instant) -> None:
        newest = next(reversed(self.beats), 0)
        if len(beat.heard) == self.members and beat.number > newest:
            since = self.answered.get(beat.heard[self.place])
            if since is not None:
                self.beats[beat.number] = Fresh(since=since, slot=beat.committed)
                _bound(self.beats)
        if beat.number > self.last:
            self.last = beat.number
            self.answered[beat.number] = now
            _bound(self.answered)


def _bound(numbered: dict[int, Instant] | dict[int, Fresh]) -> None:
    if len(numbered) > BEATS_MAX:
        del numbered[next(iter(numbered))]


class Freshness:
    """A replica's side: since when it lacks nothing that anybody knew."""

    def __init__(self) -> None:
        self.since: Instant | None = None
        """All that anybody knew to be decided at this instant (own clock) is applied."""
        self.pending: deque[Fresh] = deque()
        """What will be so, as soon as slots are applied."""

    def take(self, fresh: Fresh, applied: int) -> None:
        """Take a proof; all slots before ``applied`` are applied."""
        if len(self.pending) < PENDING_MAX:
            self.pending.append(fresh)
        self.progress(applied)

    def progress(self, applied: int) -> None:
        """Note that all slots before ``applied`` are applied."""
        while self.pending and self.pending[0].slot <= applied:
            since = self.pending.popleft().since
            self.since = since if self.since is None else max(self.since, since)

    def age_ms(self, now: Instant) -> int | None:
        """Return how old the state is at most (ms, rounded up), None if nothing is proven."""
        return None if self.since is None else ms_up(self.since, now)


def ms_up(earlier: Instant, later: Instant) -> int:
    """Return the milliseconds from ``earlier`` to ``later``, rounded up, never below 0."""
    return max(0, -((earlier - later) // NS_PER_MS))
