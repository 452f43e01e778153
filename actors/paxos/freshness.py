"""Upper bound on the age of a follower's state, proven by heartbeats and not estimated. Pure."""

from __future__ import annotations

from collections import deque

from fencelock.actors.message import NS_PER_MS, Instant
from fencelock.actors.paxos.event import Fresh
from fencelock.actors.paxos.message import NO_BALLOT, Ballot, Heartbeat

BEATS_MAX = 64
"""Heartbeats whose answers may still prove something; see `failure_detector.ASKED_MAX`."""

PENDING_MAX = 64
"""Proofs that wait for slots to be applied; a replica that lags further uses the older ones."""


class StalenessBound:
    """An acceptor's side: what the heartbeats of one master prove about slots.

    Let this acceptor have answered heartbeat ``i`` of ballot ``b`` at ``a`` (by its own
    clock, the first time it did). If heartbeat ``j`` reports that answer as received, ``j``
    was sent after ``a``. If a later one reports that a majority answered ``j`` (or one after
    ``j``), then each of that majority had promised nothing above ``b`` at some time after
    ``a``. Promises never go back, so before ``a`` no majority had accepted anything under a
    ballot above ``b``: everything decided before ``a`` was decided under ``b`` or below.

    - Below ``b``: phase one of ``b`` found it, so it lies before the first slot that
      ``b`` filled itself. A heartbeat lists received answers only once that slot
      is decided, so it lies before the ``committed`` of ``j``.
    - Under ``b``: any node knows of it only through the commander of ``b``, which sent
      all it knew (without a gap, and nothing is applied beyond one) as ``committed`` of ``j``.

    So everything known anywhere to be decided at ``a`` is before the ``committed`` of ``j``.
    Only one clock was read, and no clock rate or message delay was estimated.

    Args:
        place: index of this member.
        members: number of members.

    """

    def __init__(self, place: int, members: int) -> None:
        self.place = place
        self.members = members
        self.ballot = NO_BALLOT
        self.answered: dict[int, Instant] = {}
        """The time at which each heartbeat was first answered, by number, rising."""
        self.last = 0
        """The last heartbeat in ``answered``; an older one that arrives again proves nothing."""
        self.beats: dict[int, Fresh] = {}
        """The proof that each heartbeat gives once a majority has answered it, by number,
        rising."""

    def take(self, beat: Heartbeat, now: Instant) -> Fresh | None:
        """Take a heartbeat that is answered at ``now``; return what it proves, if anything.

        Its ballot is not below the previous one, and its leader was checked.
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
    """A replica's side: the instant up to which it has applied everything known anywhere."""

    def __init__(self) -> None:
        self.since: Instant | None = None
        """Everything known anywhere to be decided at this instant (own clock) is applied."""
        self.pending: deque[Fresh] = deque()
        """Proofs that count as soon as their slots are applied."""

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
        """Return an upper bound on the state's age (ms, rounded up), None if none is proven."""
        return None if self.since is None else ms_up(self.since, now)


def ms_up(earlier: Instant, later: Instant) -> int:
    """Return the milliseconds from ``earlier`` to ``later``, rounded up, never below 0."""
    return max(0, -((earlier - later) // NS_PER_MS))
