"""The ended requests of a leader's table. Pure.

A table remembers two kinds of ended requests. A request that its client dropped has ended for good.
A hold that expired has ended by the clock of this leader only, which may have missed a renewal:
other leaders may still have the hold, under the same fence or under that of a later round.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import NamedTuple

from fencelock.actors.bakery.ticket import EndedRequests, Ticket, Who
from fencelock.actors.message import Instant

REMEMBERED_MAX = 100_000
"""Maximum number of owners whose ended requests are kept. The oldest are dropped first."""


class Ends(NamedTuple):
    """The ended requests of one owner at one lock."""

    dropped: int = 0
    """The last request that the client dropped. It and all earlier ones have ended."""
    held: int = 0
    """The highest fence of a hold that the client dropped, or 0 for none."""
    request: int = 0
    """The request that was granted under ``held``, or 0 if it is not known."""
    expired: int = 0
    """The last request whose hold expired here."""
    fence: int = 0
    """The fence under which `expired` held."""


NOTHING_ENDED = Ends()


class Tombstones:
    """Stores ended requests, so that a late copy of a step does not revive them.

    Invariant: dropped-stays-dropped.
    """

    def __init__(self) -> None:
        self._ends: OrderedDict[tuple[str, Who], Ends] = OrderedDict()
        self._expiries: OrderedDict[str, Instant] = OrderedDict()
        """The time at which the lease of a hold last ended, by lock."""
        self._expired_before: Instant | None = None
        """The latest of the times that `_expiries` no longer has."""

    def of(self, lock: str, who: Who) -> Ends:
        return self._ends.get((lock, who), NOTHING_ENDED)

    def is_over(self, ticket: Ticket, fence: int = 0) -> bool:
        """Return whether ``ticket``, which may hold under ``fence``, has ended.

        A hold that expired here has not ended if other leaders still have it: under the same fence,
        or under the higher fence of a later round.
        """
        ends = self._ends.get((ticket.lock, ticket.who))
        if ends is None:
            return False
        if ticket.request <= ends.dropped or (fence > 0 and fence == ends.held):
            return True
        expired = ticket.request == ends.expired and fence < ends.fence
        return expired or ticket.request < ends.expired

    def expired_under(self, ticket: Ticket, fence: int) -> bool:
        ends = self.of(ticket.lock, ticket.who)
        return (ticket.request, fence) == (ends.expired, ends.fence)

    def drop(self, lock: str, who: Who, request: int, fence: int = 0) -> None:
        """Store that a client dropped this request, or with 0 the one granted under ``fence``.

        An owner's fences rise. So a late copy of an earlier drop does not replace a later one,
        which the client may send again if its reply was lost.
        """
        ends = self.of(lock, who)
        if fence and fence == ends.fence:
            request = max(request, ends.expired)
        ends = ends._replace(dropped=max(request, ends.dropped))
        if fence and fence >= ends.held:
            known = ends.request if fence == ends.held else 0
            ends = ends._replace(held=fence, request=max(request, known))
        self._keep(lock, who, ends)

    def expire(self, lock: str, who: Who, request: int, fence: int) -> None:
        ends = self.of(lock, who)
        if (request, fence) > (ends.expired, ends.fence):
            self._keep(lock, who, ends._replace(expired=request, fence=fence))

    def note_expiry(self, lock: str, at: Instant) -> None:
        self._expiries[lock] = max(at, self._expiries.get(lock, at))
        self._expiries.move_to_end(lock)
        if len(self._expiries) > REMEMBERED_MAX:
            _, gone = self._expiries.popitem(last=False)
            self._expired_before = max(gone, self._expired_before or gone)

    def expired_at(self, lock: str) -> Instant | None:
        """Return the latest time at which the lease of a hold of ``lock`` ended, or may have."""
        return self._expiries.get(lock, self._expired_before)

    def _keep(self, lock: str, who: Who, ends: Ends) -> None:
        self._ends[lock, who] = ends
        self._ends.move_to_end((lock, who))
        if len(self._ends) > REMEMBERED_MAX:
            self._ends.popitem(last=False)

    def knows(self, lock: str, who: Who, request: int, fence: int) -> bool:
        """Return whether the target of a drop, named by fence or by request, has ended."""
        ends = self.of(lock, who)
        return ends.held == fence if fence else max(ends.dropped, ends.expired) >= request

    def request_of(self, lock: str, who: Who, fence: int) -> int:
        """Return the ended request that held under ``fence``, or 0 if it is not known."""
        ends = self.of(lock, who)
        if fence == ends.held:
            return ends.request
        return ends.expired if fence == ends.fence else 0

    def newest(self, most: int) -> list[EndedRequests]:
        found: list[EndedRequests] = []
        for (lock, who), ends in islice(reversed(self._ends.items()), most):
            highest = max(ends.held, ends.fence)
            found.append(EndedRequests(lock, who, ends.dropped, ends.held, highest, highest))
        return found
