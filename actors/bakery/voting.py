"""Votes, and copies of what the leaders agree on, so that a majority outlives any leader.

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
   the hold is *decided*. Only then is it sent to copies (`AddTicket`), which confirm that they keep
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

A member that has just restarted is alive, but no keeper yet, for 0.3 s and the time of a
hand-over. Until then it counts as lost.

The members may change: the electorate says who elects, the former seating whose tables are merged.
So a member that is removed hands its table over, and a new one is a keeper from its first epoch on.

What is kept too long
---------------------

A copy that did not receive a release keeps the hold until its lease ends. It does no harm: copies
give no votes, and a table that is merged beside it says that it was dropped. If that was so long
ago that no list of ended requests has it (`ENDED_OWNERS_MAX`), the lock is free only when the lease
is over. A waiting copy ends after `COPY_MS` unless its owner repeats it.

Source: the essay *snaplock*, which plans it: "Later we will add a stronger failsafe by having
leaders share the current locks with other non-leader snaplock daemons."
"""

from __future__ import annotations

from dataclasses import dataclass

from fencelock.actors.bakery.config import COPY_MS
from fencelock.actors.bakery.epochs import EpochState, answer
from fencelock.actors.bakery.table import TicketEntry, TicketTable
from fencelock.actors.bakery.ticket import Ticket, Turn, epoch_of
from fencelock.actors.bakery.ticket_attempt import TicketAttempt, TicketAttempts
from fencelock.actors.bakery.wire import (
    AddTicket,
    Collected,
    DropTicket,
    Entering,
    Extend,
    Extended,
    MaxTicket,
    Owned,
    TicketDropped,
    TicketEnded,
    Yield,
    request_of,
)
from fencelock.actors.effect import Effect, Observe
from fencelock.actors.message import Instant, later


@dataclass(eq=False)
class Voting:
    """Answers the steps of other leaders: a leader votes, another member keeps copies.

    Invariants: no-conflicting-votes, dropped-stays-dropped, kept-by-quorum.
    """

    epoch_state: EpochState
    table: TicketTable
    attempts: TicketAttempts

    def is_of_other_mode(self, ticket: Ticket) -> bool:
        """Return whether the request is known, but in the other mode: the mode is part of it."""
        attempt = self.attempts.own.get(ticket.key)
        known = self.table.get(ticket.key) if attempt is None else attempt.entry
        return known is not None and known.shared != ticket.shared

    def on_entering(self, leader: str, step: Entering, now: Instant) -> list[Effect]:
        ticket = step.ticket
        attempt = self.attempts.own.get(ticket.key)
        ceded: list[Effect] = []
        if attempt is not None and not attempt.is_held:
            if self.epoch_state.ranks_before(leader):
                return answer(leader, Owned(**request_of(step.epoch, ticket)))
            ceded = self.attempts.cede(attempt, leader, now)
        entry = self.table.put(ticket, leader, now, later(now, COPY_MS))
        if entry is None:
            return [*ceded, *self._it_ended(leader, step)]
        ceded += self.epoch_state.wait_for_bound(ticket.lease_ms)
        message = MaxTicket(
            **request_of(step.epoch, ticket),
            highest=self.table.highest(ticket.lock, step.epoch),
            held=entry.fence,
            known=entry.round,
        )
        return [*ceded, *answer(leader, message)]

    def _it_ended(self, leader: str, step: Entering | AddTicket) -> list[Effect]:
        message = TicketEnded(**request_of(step.epoch, step.ticket))
        return [*answer(leader, message), Observe("bakery.ended_before")]

    def on_add(self, leader: str, step: AddTicket, now: Instant) -> list[Effect]:
        if not self.epoch_state.leads:
            return self._keep(leader, step, now)
        attempt = self.attempts.own.get(step.ticket.key)
        whose = self._whose(attempt, leader, step) if attempt is not None else ""
        if whose == self.epoch_state.node:
            return answer(leader, Owned(**request_of(step.epoch, step.ticket)))
        ceded: list[Effect] = []
        if attempt is not None and whose == leader:
            ceded = self.attempts.cede(attempt, leader, now)
        return [*ceded, *self._take_in(leader, step, now)]

    def _whose(self, attempt: TicketAttempt, leader: str, step: AddTicket) -> str:
        """Return which of two owners of a request continues with it, or "" if votes must decide.

        The order is: the one that granted it, the one that takes a hold over, the one that ranks
        first. But a hold that only the other one takes over is not left to it: its votes may be
        too few.
        """
        if (attempt.is_held or attempt.held) and not step.taken:
            return self.epoch_state.node
        if attempt.is_held or (step.fence if step.taken else 0) != attempt.held:
            return ""
        return self.epoch_state.node if self.epoch_state.ranks_before(leader) else leader

    def _known(self, ticket: Ticket, now: Instant) -> TicketEntry | None:
        """Return the entry of ``ticket``, unless it is over: it does not count, swept or not."""
        entry = self.table.get(ticket.key)
        return None if entry is None or self.table.forget(entry, now) else entry

    def _take_in(self, leader: str, step: AddTicket, now: Instant) -> list[Effect]:
        """Store a ticket with its number; vote for it, if requested and nothing is ahead."""
        ticket, until = step.ticket, later(now, COPY_MS)
        entry = self._known(ticket, now)
        if entry is not None and not obeys_step(entry, leader, step):
            return self._collected(leader, step, entry, voted=self._has_vote(leader, step, entry))
        if entry is None or not entry.holds:
            held = step.fence if step.taken else 0
            entry = self.table.put(ticket, leader, now, until, held)
        elif entry.fence != step.fence:
            self.table.unvote(entry, until)  # It is another round: that vote was given back.
        if entry is None:
            return self._it_ended(leader, step)
        entry.round, entry.owner = step.round, leader
        if step.fence:
            waits = self.epoch_state.wait_for_bound(entry.lease_left_ms(now))
            if waits:  # Its owner sends the step again.
                return waits
        ahead = None if entry.holds else self.table.ahead(entry, now)
        if not entry.holds and ahead is None and self._is_highest(step):
            self.table.vote(entry, step.fence, now)
        if entry.holds:
            self._leave_to(entry)
        voted = self._has_vote(leader, step, entry)
        answered = self._collected(leader, step, entry, voted=voted, ahead=ahead)
        return [*answered, *self.attempts.advance(ticket.lock, now)]

    def _is_highest(self, step: AddTicket) -> bool:
        """Return whether the fence is above those of all votes for tickets that conflict.

        A hold that expired here and is taken over may return under the same fence.
        """
        last = self.table.last_against(step.ticket)
        again = step.taken and self.table.tombstones.expired_under(step.ticket, step.fence)
        return step.fence > last or (again and step.fence == last > 0)

    def _has_vote(self, leader: str, step: AddTicket, entry: TicketEntry) -> bool:
        outdone = step.taken and self.table.is_outdone(step.ticket, step.fence)
        same = (entry.fence, entry.owner, entry.round) == (step.fence, leader, step.round)
        return entry.holds and same and not outdone

    def _leave_to(self, entry: TicketEntry) -> None:
        """Take no more steps for a request that this leader has voted for as another's.

        A new round here would take that vote back, and the other may have won with it.
        """
        attempt = self.attempts.own.get(entry.key)
        if attempt is not None and not attempt.is_held:
            self.attempts.forget(entry)

    def _collected(
        self,
        leader: str,
        step: AddTicket,
        entry: TicketEntry | None,
        *,
        voted: bool,
        ahead: Turn | None = None,
    ) -> list[Effect]:
        message = Collected(
            **request_of(step.epoch, step.ticket),
            round=step.round,
            voted=voted,
            ahead=ahead,
            highest=self.table.highest(step.ticket.lock, step.epoch),
            known=step.round if entry is None else entry.round,
        )
        return answer(leader, message)

    def _keep(self, leader: str, step: AddTicket, now: Instant) -> list[Effect]:
        """Keep a copy of a ticket that waits, or of a hold that a quorum of leaders voted for."""
        ticket, fence = step.ticket, step.fence
        entry = self._known(ticket, now)
        over = self.table.tombstones.is_over(ticket, fence)
        outdated = entry is not None and not obeys_step(entry, leader, step)
        if outdated or (fence and not over and self.table.is_outdone(ticket, fence)):
            return self._collected(leader, step, entry, voted=False)
        entry = None if over else self._put_copy(ticket, leader, fence, now)
        if entry is None:
            return self._it_ended(leader, step)
        entry.round = step.round
        return self._collected(leader, step, entry, voted=True) if fence else []

    def _put_copy(
        self, ticket: Ticket, leader: str, fence: int, now: Instant
    ) -> TicketEntry | None:
        """Store a ticket; let it hold its lock if there is a ``fence``.

        Return None if the request has ended.
        """
        known, until = self.table.get(ticket.key), later(now, COPY_MS)
        if known is not None and known.holds and known.fence != fence:
            self.table.unvote(known, until)  # It is of a round that was lost.
        entry = self.table.put(ticket, leader, now, until, fence)
        if entry is None:
            return None
        entry.owner = leader
        if fence and not entry.holds:
            for other in self.table.holds_against(entry, now):
                self.table.expire(other)  # A quorum has ended it.
            self.table.vote(entry, fence, now)
        return entry

    def on_yield(self, leader: str, step: Yield, now: Instant) -> list[Effect]:
        entry = self.table.get(step.key)
        if entry is None or entry.owner != leader or step.round <= entry.round:
            return [Observe("bakery.late_step")]
        entry.round = step.round
        if entry.holds and epoch_of(entry.fence) == step.epoch:
            self.table.unvote(entry, later(now, COPY_MS))
        return self.attempts.advance(step.lock, now)

    def on_drop(self, leader: str, step: DropTicket, now: Instant) -> list[Effect]:
        if step.mine:
            entry = self.table.get(step.key)
            if entry is not None and entry.owner == leader:
                self._gave_up(entry)
            return self.attempts.advance(step.lock, now)
        request = step.request
        for entry in self.table.named(step.lock, step.who, step.request, step.fence):
            request = max(request, entry.ticket.request)
            self.attempts.forget(entry)
        found = self.table.drop(step.lock, step.who, step.request, step.fence)
        request = request or self.table.tombstones.request_of(step.lock, step.who, step.fence)
        message = TicketDropped(epoch=step.epoch, number=step.number, found=found, request=request)
        answered = answer(leader, message) if step.number else []
        return [*answered, *self.attempts.advance(step.lock, now)]

    def _gave_up(self, entry: TicketEntry) -> None:
        """Drop a ticket that its owner abandoned, unless this leader has the same request."""
        if entry.key not in self.attempts.own:
            self.table.remove(entry)
            return
        entry.owner = self.epoch_state.node
        if not entry.holds:
            self.table.set_until(entry, None)

    def on_extend(self, leader: str, step: Extend, now: Instant) -> list[Effect]:
        """Restart the lease of a hold, or take a hold up that another leader still has."""
        if not self.epoch_state.leads:
            return self._extend_copy(leader, step, now)
        ticket = step.ticket
        entry = self.table.get(ticket.key)
        waits = self.epoch_state.wait_for_bound(ticket.lease_ms)
        if waits:  # Its sender sends it again.
            return waits
        kept = entry is not None and entry.fence == step.fence and not entry.is_over(now)
        if entry is None or not entry.holds:
            against = self.table.queue(ticket.lock).against(shared=ticket.shared)
            free = not any(one.holding for one in against)
            if free and not self.table.is_outdone(ticket, step.fence):
                entry = self.table.put(ticket, leader, now, later(now, COPY_MS), step.fence)
                kept = entry is not None
        if kept and entry is not None:
            if not entry.holds:
                self.table.vote(entry, step.fence, now)
            self._restart(entry, leader, step, now)
            self._leave_to(entry)
        return answer(leader, Extended(epoch=step.epoch, number=step.number, kept=kept))

    def _extend_copy(self, leader: str, step: Extend, now: Instant) -> list[Effect]:
        """Restart the lease of a hold, as a quorum of the leaders did."""
        ticket, fence = step.ticket, step.fence
        entry = self.table.get(ticket.key)
        if entry is None or entry.fence != fence:
            outdone = self.table.is_outdone(ticket, fence)
            entry = None if outdone else self._put_copy(ticket, leader, fence, now)
        if entry is not None:
            self._restart(entry, leader, step, now)
        kept = entry is not None
        return answer(leader, Extended(epoch=step.epoch, number=step.number, kept=kept))

    def _restart(self, entry: TicketEntry, leader: str, step: Extend, now: Instant) -> None:
        entry.ticket, entry.owner = step.ticket, leader
        self.table.extend_until(entry, later(now, step.ticket.lease_ms))


def obeys_step(entry: TicketEntry, leader: str, step: AddTicket) -> bool:
    """Return whether a step is of the highest round, and may change an existing vote or copy."""
    if step.round < entry.round or (step.round == entry.round and leader != entry.owner):
        return False
    if not entry.holds or (step.taken and step.fence == entry.fence):
        return True
    return entry.owner == leader and epoch_of(entry.fence) == step.epoch
