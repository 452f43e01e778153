"""Deadlines of the tickets that a leader owns: repetition, timeout, expiry. Pure."""

from __future__ import annotations

from fencelock.actors.bakery.config import RESEND_MS, later
from fencelock.actors.bakery.entry import Phase
from fencelock.actors.bakery.proxy_message import Expired, Unlocking
from fencelock.actors.bakery.step_message import AddTicket
from fencelock.actors.bakery.ticket_attempt import TicketAttempts
from fencelock.actors.bakery.timer_queue import Step, TicketAttempt, warn_at
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Instant, ms_between

DOOR_SILENT_MS = 10_000
"""A waiting request that its proxy did not repeat for this long is dropped (ms)."""

WARN_AGAIN_MS = 500
"""Interval at which a holder is warned again that its duration is over (ms)."""


class Deadlines:
    """Processes each ticket when it is due.

    Args:
        attempts: the tickets.

    """

    def __init__(self, attempts: TicketAttempts) -> None:
        self.attempts = attempts
        self.epoch_state = attempts.epoch_state
        self.table = attempts.table

    def tick(self, now: Instant) -> list[Effect]:
        """Process the tickets that are due."""
        effects: list[Effect] = []
        while (attempt := self.attempts.agenda.take_due(now)) is not None:
            effects += self._look(attempt, now)
        return effects

    def _look(self, attempt: TicketAttempt, now: Instant) -> list[Effect]:
        if attempt.step is Step.HELD:
            return self._look_at_hold(attempt, now)
        entry = attempt.entry
        if self.table.get(entry.ticket.lock, entry.key) is not entry:
            return self.attempts.ask(attempt, now)
        if ms_between(attempt.heard_at, now) >= DOOR_SILENT_MS and entry.ticket.door:
            return [*self.attempts.drop(attempt, now), Observe("bakery.door_silent")]
        if attempt.wait_until is not None and attempt.wait_until <= now:
            return self.attempts.give_up(attempt, self.table.ahead(entry, now), now)
        if attempt.step is Step.ENTERING:
            self.attempts.agenda.look_again(attempt, now, later(now, RESEND_MS))
            return [*self.attempts.say_entering(attempt)]
        if attempt.step is not Step.ASKING or entry.phase is not Phase.HOLDING:
            return self.attempts.ask(attempt, now)
        if attempt.answered and not attempt.held:
            return self.attempts.lose(attempt, now)
        self.attempts.agenda.look_again(attempt, now, later(now, RESEND_MS))
        add = AddTicket(
            epoch=self.epoch_state.epoch,
            ticket=entry.ticket,
            round=entry.round,
            fence=entry.fence,
            taken=bool(attempt.held),
        )
        said = frozenset(attempt.votes) | frozenset(attempt.answered)
        won = self.attempts.win(attempt, now)
        if not attempt.votes:  # The lease was over: the round's votes are given back.
            return won
        return [*won, *self.epoch_state.tell(add, said)]

    def _look_at_hold(self, attempt: TicketAttempt, now: Instant) -> list[Effect]:
        """Warn the holder when its duration is over, and end the hold when its grace is."""
        entry = attempt.entry
        ticket, until = entry.ticket, entry.until
        assert until is not None
        who, request = ticket.who, ticket.request
        if until <= now:
            # The others judge by their own clocks: it may have been renewed through one of them.
            expired = Expired(lock=ticket.lock, who=who, request=request, fence=entry.fence)
            self.attempts.agenda.forget(entry)
            self.table.forget(entry, now)
            return [
                *self.attempts.advance(ticket.lock, now),
                Send(ticket.door, expired),
                Observe("bakery.lease_over"),
            ]
        if now < warn_at(attempt.entry):
            self.attempts.agenda.look_again(attempt, now, warn_at(attempt.entry))
            return []
        self.attempts.agenda.look_again(attempt, now, min(until, later(now, WARN_AGAIN_MS)))
        warning = Unlocking(
            lock=ticket.lock,
            who=who,
            request=request,
            fence=entry.fence,
            grace_ms=ms_between(now, until),
        )
        return [Send(ticket.door, warning), Observe("bakery.unlocking")]
