"""The ended requests of a leader's table. Pure.

An ended request is remembered in one of two ways. A request that its client dropped is over for
good. A hold's expiry is the judgement of one leader's clock, and that leader may have missed a
renewal: others may have the hold still, under the same fence or a later round's.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import NamedTuple

from fencelock.actors.bakery.ticket import EndedRequests, Ticket, Who
from fencelock.actors.message import Instant

REMEMBERED_MAX = 100_000
"""Maximum owners whose ended requests are kept; the oldest are dropped first."""


class Ends(NamedTuple):
    """The ended requests of one owner at one lock."""

    dropped: int = 0
    """The last request that its client dropped: this one and all before are over."""
    held: int = 0
    """The highest fence of a hold that its client dropped, or 0 for none."""
    request: int = 0
    """The request with that fence, or 0 if it is not known."""
    lapsed: int = 0
    """The last request whose hold expired here."""
    fence: int = 0
    """The fence of that hold."""


NOTHING_ENDED = Ends()


class Tombstones:
    """Stores ended requests, so that a late copy of a step does not revive them (B10)."""

    def __init__(self) -> None:
        self._ends: OrderedDict[tuple[str, Who], Ends] = OrderedDict()
        self._lapses: OrderedDict[str, Instant] = OrderedDict()
        """By lock: when a hold of it was last over by its lease."""
        self._lapsed_before: Instant | None = None
        """No lapse that was forgotten is later than this."""

    def of(self, lock: str, who: Who) -> Ends:
        """Return the ended requests of an owner."""
        return self._ends.get((lock, who), NOTHING_ENDED)

    def is_over(self, ticket: Ticket, fence: int = 0) -> bool:
        """Return whether ``ticket``, which may hold under ``fence``, ended before.

        A hold that expired here is not over if others have it still: under the same fence, or
        under a higher one, for which another round got the votes.
        """
        ends = self._ends.get((ticket.lock, ticket.who))
        if ends is None:
            return False
        if ticket.request <= ends.dropped or (fence > 0 and fence == ends.held):
            return True
        lapsed = ticket.request == ends.lapsed and fence < ends.fence
        return lapsed or ticket.request < ends.lapsed

    def lapsed_under(self, ticket: Ticket, fence: int) -> bool:
        """Return whether the hold of ``ticket`` under ``fence`` expired here."""
        ends = self.of(ticket.lock, ticket.who)
        return (ticket.request, fence) == (ends.lapsed, ends.fence)

    def drop(self, lock: str, who: Who, request: int, fence: int = 0) -> None:
        """Store that a client dropped this request (0: known only by its fence).

        An owner's fences rise. So a late copy of an earlier drop replaces no later one, which
        its client may send again, since the reply was lost.
        """
        ends = self.of(lock, who)
        if fence and fence == ends.fence:
            request = max(request, ends.lapsed)
        ends = ends._replace(dropped=max(request, ends.dropped))
        if fence and fence >= ends.held:
            known = ends.request if fence == ends.held else 0
            ends = ends._replace(held=fence, request=max(request, known))
        self._keep(lock, who, ends)

    def lapse(self, lock: str, who: Who, request: int, fence: int) -> None:
        """Store that this hold expired here."""
        ends = self.of(lock, who)
        if (request, fence) > (ends.lapsed, ends.fence):
            self._keep(lock, who, ends._replace(lapsed=request, fence=fence))

    def note_lapse(self, lock: str, at: Instant) -> None:
        """Remember that a hold of ``lock`` was over by its lease at ``at``."""
        self._lapses[lock] = max(at, self._lapses.get(lock, at))
        self._lapses.move_to_end(lock)
        if len(self._lapses) > REMEMBERED_MAX:
            _, gone = self._lapses.popitem(last=False)
            self._lapsed_before = max(gone, self._lapsed_before or gone)

    def lapsed_at(self, lock: str) -> Instant | None:
        """Return when a hold of ``lock`` was last over by its lease, or may have been."""
        return self._lapses.get(lock, self._lapsed_before)

    def _keep(self, lock: str, who: Who, ends: Ends) -> None:
        self._ends[lock, who] = ends
        self._ends.move_to_end((lock, who))
        if len(self._ends) > REMEMBERED_MAX:
            self._ends.popitem(last=False)

    def knows(self, lock: str, who: Who, request: int, fence: int) -> bool:
        """Return whether the target of a drop, named by fence or by request, ended before."""
        ends = self.of(lock, who)
        return ends.held == fence if fence else max(ends.dropped, ends.lapsed) >= request

    def request_of(self, lock: str, who: Who, fence: int) -> int:
        """Return the request that held under ``fence`` until it ended, or 0 if it is not known."""
        ends = self.of(lock, who)
        if fence == ends.held:
            return ends.request
        return ends.lapsed if fence == ends.fence else 0

    def newest(self, most: int) -> list[EndedRequests]:
        """Return the last ended requests, the newest first."""
        found: list[EndedRequests] = []
        for (lock, who), ends in islice(reversed(self._ends.items()), most):
            found.append(
                EndedRequests(lock, who, ends.dropped, ends.held, max(ends.held, ends.fence))
            )
        return found
