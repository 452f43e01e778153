"""The longest lease that may exist, which a majority knows: raised for a grant, lowered after it.

When too many leaders are lost at once, nobody knows the holds any more, and the coordinator waits
until every lease must have ended. It knows the longest one from the members, so nothing is
granted beyond what they know.

*What is stated.* Each leader states a bound for its own votes: "no lease for which I have a vote
has more than ``bound_ms`` left, and I give no vote for a longer one". The statements of one
leader in one epoch are numbered, and only that leader makes them. Its first, number 0, is
``bound_ms`` of the seating: the longest lease that the leaders found in the tables that they
merged, or the default. The coordinator of the leader's node sends a statement to all members
(`Vouch`), which write it down before they confirm it (`Vouched`). A member keeps the one with the
highest number, and accepts none once it has promised a higher epoch.

*Raising.* A leader that is to vote for a longer lease states a higher bound first, and gives the
vote once a quorum of the electorate has confirmed it. This also holds for the votes that another
leader or a renewal requests, and for a vote of a former epoch before it counts in a round of this
one. The bound of the seating covers only what the first leaders to merge found: a vote that
only the last one has may be for a longer lease, which no client was granted yet.

*Lowering.* Now and then a leader looks at its table. If all leases there, and those that it voted
for of late, are much shorter than its bound, it obeys the lower bound from then on, and states
it.

*Why it is safe.* Let a client rely on a lease that has ``left_ms`` left. At each instant a quorum
of the leaders has votes for it (no-conflicting-votes, lease-outlives-belief), which end no earlier.
Consider one of these leaders, and its highest-numbered statement among those that members who
promise the next epoch report. If it made or prolonged the vote before that statement, the
lease was in its table then, so the stated bound is not shorter. If it made the vote later, it
obeyed the stated bound, or a later one that a quorum had confirmed; but then one of the members
that promise reports the later one. So at least a quorum of the leaders state ``left_ms``
or more, and the quorum-th highest bound covers every lease (`longest_lease_ms`).
A leader that is gone cannot lower its own, and need not: the others are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fencelock.actors.bakery.config import election_of, leader_of, quorum
from fencelock.actors.bakery.electorate import Electorate
from fencelock.actors.bakery.ticket import LEASE_MS_MAX
from fencelock.actors.bakery.wire import BoundStatement, Seating, Vouch, Vouched
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Instant, ms_between

RECENT_MS = 5_000
"""Interval at which a leader may lower its bound (ms). A bound that was needed in the last two
intervals is kept, so that clients that take long leases again and again do not wait each time."""


def longest_lease_ms(seating: Seating, statements: Sequence[BoundStatement]) -> int:
    """Return the longest time that a lease of ``seating`` may have left (ms).

    ``statements`` has the last one of each leader that has made any, as far as a majority knows.
    """
    stated = {one.leader: one.bound_ms for one in statements}
    bounds = sorted(stated.get(one.node, seating.bound_ms) for one in seating.leaders)
    longest_ms = bounds[-quorum(len(bounds))] if bounds else 0
    return min(longest_ms, LEASE_MS_MAX + 1)  # It was rounded up; more is in no honest journal.


@dataclass(slots=True)
class OwnBound:
    """The statements of one leader, and the bound that its votes obey.

    Attributes:
        default_ms: the lease that clients get unless they ask for another (ms): the lowest bound.
        bound_ms: the longest lease for which it votes (ms).
        number, stated_ms: its last statement.
        known: whether a quorum has confirmed that.
        recent_ms: the longest lease requested since ``turned_at``; ``before_ms``: in the interval
            before.

    """

    node: str
    default_ms: int = 0
    epoch: int = 0
    bound_ms: int = 0
    number: int = 0
    stated_ms: int = 0
    known: bool = True
    recent_ms: int = 0
    before_ms: int = 0
    turned_at: Instant = Instant(0)  # noqa: RUF009  # A number.

    def begin(self, epoch: int, bound_ms: int) -> None:
        """Begin an epoch, whose seating has ``bound_ms``, without any statement."""
        self.epoch, self.number, self.known = epoch, 0, True
        self.stated_ms = self.bound_ms = bound_ms

    def wait_for(self, lease_ms: int, *, serving: bool) -> list[Effect]:
        """Return nothing if a vote for ``lease_ms`` may be given, else what must come first.

        Before this leader serves, it states nothing: it does not know the bound of the seating.
        """
        self.recent_ms = max(self.recent_ms, lease_ms)
        if lease_ms <= self.bound_ms:
            return []
        waits = Observe("bakery.bound_awaited")
        if not serving:
            return [waits]
        if lease_ms > self.stated_ms:
            self._state(lease_ms)
        return [waits, self._statement()]

    def lower(self, longest_ms: int, now: Instant) -> list[Effect]:
        """Lower the bound if it is not needed any more; repeat a statement that is not confirmed.

        No lease in this leader's table has more than ``longest_ms`` left.
        """
        if ms_between(self.turned_at, now) >= RECENT_MS:
            wanted_ms = max(self.default_ms, longest_ms, self.recent_ms, self.before_ms)
            self.before_ms, self.recent_ms, self.turned_at = self.recent_ms, 0, now
            least = wanted_ms == self.default_ms
            if wanted_ms < self.stated_ms and (least or 2 * wanted_ms <= self.stated_ms):
                self._state(wanted_ms)
                self.bound_ms = min(wanted_ms, self.bound_ms)
        return [] if self.known else [self._statement()]

    def on_known(self, known: Vouched) -> None:
        """Vote for leases up to the stated bound: a quorum of the electorate has confirmed it."""
        if (known.epoch, known.number) == (self.epoch, self.number):
            self.known = True
            self.bound_ms = self.stated_ms

    @property
    def is_raised(self) -> bool:
        """Whether the bound is to be lowered later."""
        return self.stated_ms > self.default_ms or not self.known

    def _state(self, bound_ms: int) -> None:
        self.number += 1
        self.stated_ms, self.known = bound_ms, False

    def _statement(self) -> Send:
        stated = Vouch(epoch=self.epoch, number=self.number, bound_ms=self.stated_ms)
        return Send(election_of(self.node), stated)


class MaxLease:
    """Has the last statement of this node's leader confirmed by the members."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.stated = Vouch(epoch=0, number=0, bound_ms=0)
        self.vouched: dict[str, None] = {}
        """Members that have confirmed ``stated``."""

    def begin(self, seating: Seating, stated: Vouch, electorate: Electorate) -> list[Send]:
        if stated.epoch != seating.epoch:
            return []
        if stated != self.stated:
            self.vouched, self.stated = {}, stated
        left = [member for member in electorate.everyone if member not in self.vouched]
        return [Send(election_of(member), stated) for member in left]

    def on_vouched(self, member: str, vouched: Vouched, electorate: Electorate) -> list[Send]:
        """Count members that know it; notify the leader of this node once a quorum does."""
        epoch, number = self.stated.epoch, self.stated.number
        if (vouched.epoch, vouched.number) != (epoch, number):
            return []
        self.vouched[member] = None
        if not electorate.is_quorum(self.vouched):
            return []
        return [Send(leader_of(self.node), Vouched(epoch=epoch, number=number))]
