"""Copies of what the leaders agree on, so that a majority of the members outlives any leader.

Two of three leaders (a *quorum* of them) decide each step of a ticket. If these two are lost at
once, the third one cannot tell what they agreed on. So with five members or more (`COPIES_FROM`)
every member keeps the holds. The *keepers* of an epoch are its leaders and its *copies*, which are
all other members that vote. With fewer members, or with ``[bakery] copies = false``, the leaders
are the only keepers, and all of this holds for them alone.

What moves
----------

A seating names its keepers, each in one life: no hold is on a disk, so a table dies with its life.
Of ``k`` keepers a quorum is ``k // 2 + 1``, and ``k - quorum + 1`` of them (`exports_needed`)
include a member of every quorum.

1. *Grant.* The owner asks the leaders for votes. Once a quorum of the leaders voted in one round,
   the hold is *decided*. Only then it is sent to copies (`AddTicket`), which confirm that they keep
   it (`Collected`). The owner grants once a quorum of the keepers has it (kept-by-quorum).
   Leaders that voted are keepers, too. So of five members three votes are enough, and the copies
   are asked only for those that do not come within `COPY_AFTER_MS`, that were refused, or whose
   leader is not connected. With six members or more they are asked at once.
2. *Renewal and release.* `Extend` restarts the lease at copies once a quorum of the leaders has
   restarted it, and `DropTicket` drops the copy. Either is confirmed once a quorum of the keepers
   has done it. Tickets that wait are sent to the copies as well, unconfirmed.
3. *Epoch.* A proposal names the leaders and the copies. Each of them fetches the tables of the
   former keepers, as many as `exports_needed`, and merges them (`state_transfer.py`). Whoever has
   handed its table over keeps nothing more in a lower epoch (no-lower-epoch). The seating is
   installed once a quorum of its leaders and a quorum of its keepers have merged.
4. *Newcomers.* A member that starts has no copies. The coordinator proposes an epoch with the same
   leaders in which it keeps them. A keeper that is not connected stays one, in its life.

Why no hold is forgotten
------------------------

*The tables have it.* Let a client rely on the hold ``f``, which was granted or renewed last in
epoch ``e``. Then a quorum of the keepers of ``e`` confirmed ``f`` before the client learned of it.
The next seating that is installed follows that of ``e`` (seating-known-by-majority), and each of
its keepers that merged has `exports_needed` tables of the keepers of ``e``, in the lives that the
seating names. So it has the table of a keeper that confirmed ``f``: before it handed the table
over, since afterwards it obeys no step of ``e``. Such a table lacks ``f`` only if

- the lease ended there, which is later than the client believes in it (lease-outlives-belief), or
- the client released it, or
- a conflicting hold with a higher fence replaced it. Then nobody relies on ``f``, as shown below.

So ``f`` is in the table of each keeper that merged. These are a quorum of the keepers of the new
epoch, as if ``f`` had been granted there, and the argument goes on from epoch to epoch. Keepers
that begin an epoch without having merged do not matter: a quorum has.

*The highest fence stays.* Let two of the merged records conflict, ``f`` and a higher ``g``. The
table of a copy has ``g`` only if it was decided: a quorum of the leaders voted for it, and shares a
leader with the quorum that voted for ``f`` last. That leader votes for no lower fence after a
higher one (fences-rise), so it voted for ``g`` later, and had ended ``f`` before
(no-conflicting-votes). The table of a leader may have a vote for ``g`` that was not decided. A
leader gives back its votes for its own rounds that it did not win. So another leader asked for
this vote, and had voted for ``g`` itself: two of three had ended ``f``, or never had it. In both
cases one of them took part when ``f`` was granted or renewed last, and nobody relies on it any
more. This is why copies are sent decided holds only. A copy that kept what was merely asked for
might have a ``g`` that lost, and give up ``f``, which was granted.

*What was released stays so.* A quorum of the keepers dropped it, so one of the merged tables says
so. And a hold under a higher fence that has ended was kept by a quorum as well: one of the tables
has it or its end, so ``f`` is not granted again after it (fences-rise).

*Turns stay.* A ticket that waits keeps its number if any of the merged tables has it. Otherwise its
proxy sends the request again, and it draws another one: that costs its place, and nothing else.

Who may be lost
---------------

There is one keeper for each member at most, ``k <= n``. If a majority of the members lives, and
each is a keeper in its life, then ``n // 2 + 1 >= exports_needed(k)`` tables are there, and enough
keepers for a quorum: nobody waits, whichever members led. With three or four members this is true
of the leaders alone, so they have no copies. If fewer are left, nobody can tell what was held, and
the coordinator waits until all leases have ended (`election.py`).

A member that has just restarted lives, and is no keeper for a moment: 0.3 s, and the time of a
hand-over. Until then it counts as lost.

The members may change: the electorate says who elects, the former seating whose tables are merged.
So a member that is removed hands its table over, and a new one is a keeper from its first epoch on.

What is kept too long
---------------------

A copy that did not receive a release keeps the hold until its lease ends. It does no harm: copies
give no votes, and a table that is merged beside it says that it was dropped. Only if that was so
long ago that no list of ended requests has it (`ENDED_MAX`) the lock is free later, when the lease
is over. A waiting copy ends after `COPY_MS` unless its owner repeats it.

Source: the essay *snaplock*, which plans it: "Later we will add a stronger failsafe by having
leaders share the current locks with other non-leader snaplock daemons."
"""

from __future__ import annotations

from dataclasses import dataclass

from fencelock.actors.bakery.config import COPY_MS, later
from fencelock.actors.bakery.epochs import EpochState, answer
from fencelock.actors.bakery.message import (
    AddTicket,
    Collected,
    Extend,
    Extended,
    TicketEnded,
    request_of,
)
from fencelock.actors.bakery.table import RequestKey, TicketEntry, TicketPhase, TicketTable
from fencelock.actors.bakery.ticket import Ticket, epoch_of
from fencelock.actors.effect import Effect, Observe
from fencelock.actors.message import Instant


@dataclass(eq=False)
class Copies:
    """Keeps copies in the table of a member that does not lead.

    Invariant: kept-by-quorum.

    Attributes:
        epoch_state: this member's state in its epoch.
        table: its table, which becomes that of a leader if it is chosen.

    """

    epoch_state: EpochState
    table: TicketTable

    def on_add(self, leader: str, step: AddTicket, now: Instant) -> list[Effect]:
        """Keep a ticket that waits, or a hold that a quorum of the leaders voted for."""
        ticket, fence = step.ticket, step.fence
        entry = self._entry_of(ticket)
        if entry is not None and self.table.forget(entry, now):
            entry = None  # As if it had been swept: a copy that is over counts for nothing.
        over = self.table.tombstones.is_over(ticket, fence)
        outdated = entry is not None and not obeys_step(entry, leader, step)
        if outdated or (fence and not over and self.table.is_outdone(ticket, fence)):
            return self._reply(leader, step, entry, kept=False)
        entry = None if over else self._put(ticket, leader, fence, now)
        if entry is None:
            ended = TicketEnded(**request_of(step.epoch, ticket))
            return [*answer(leader, ended), Observe("bakery.ended_before")]
        entry.round = step.round
        return self._reply(leader, step, entry, kept=True) if fence else []

    def on_extend(self, leader: str, step: Extend, now: Instant) -> list[Effect]:
        """Restart the lease of a hold, as a quorum of the leaders did."""
        ticket, fence = step.ticket, step.fence
        entry = self._entry_of(ticket)
        if entry is None or entry.fence != fence:
            outdone = self.table.is_outdone(ticket, fence)
            entry = None if outdone else self._put(ticket, leader, fence, now)
        if entry is not None:
            entry.ticket, entry.owner = ticket, leader
            self.table.extend_until(entry, later(now, ticket.lease_ms))
        kept = Extended(epoch=step.epoch, number=step.number, kept=entry is not None)
        return answer(leader, kept)

    def _entry_of(self, ticket: Ticket) -> TicketEntry | None:
        return self.table.get(ticket.lock, RequestKey(ticket.who, ticket.request))

    def _put(self, ticket: Ticket, leader: str, fence: int, now: Instant) -> TicketEntry | None:
        """Store a ticket; let it hold its lock if there is a ``fence``.

        Return None if the request has ended.
        """
        known, until = self._entry_of(ticket), later(now, COPY_MS)
        if known is not None and known.phase is TicketPhase.HOLDING and known.fence != fence:
            self.table.unvote(known, until)  # It is of a round that was lost.
        entry = self.table.put(ticket, leader, now, until, fence)
        if entry is None:
            return None
        entry.owner = leader
        if fence and entry.phase is not TicketPhase.HOLDING:
            for other in self.table.holds_against(entry, now):  # A quorum has ended it.
                ended = other.ticket
                self.table.remove(other)
                self.table.tombstones.expire(ended.lock, ended.who, ended.request, other.fence)
            self.table.vote(entry, fence, now)
        return entry

    def _reply(
        self, leader: str, step: AddTicket, entry: TicketEntry | None, *, kept: bool
    ) -> list[Effect]:
        lock = step.ticket.lock
        message = Collected(
            **request_of(step.epoch, step.ticket),
            round=step.round,
            voted=kept,
            ahead=None,
            highest=self.table.highest(lock, step.epoch),
            known=step.round if entry is None else entry.round,
        )
        return answer(leader, message)


def obeys_step(entry: TicketEntry, leader: str, step: AddTicket) -> bool:
    """Return whether a step is of the highest round, and may change an existing vote or copy."""
    if step.round < entry.round or (step.round == entry.round and leader != entry.owner):
        return False
    if entry.phase is not TicketPhase.HOLDING or (step.taken and step.fence == entry.fence):
        return True
    return entry.owner == leader and epoch_of(entry.fence) == step.epoch
