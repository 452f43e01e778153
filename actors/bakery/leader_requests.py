"""Requests of proxies to a leader: locks, releases, renewals, queries. Pure."""

from __future__ import annotations

from dataclasses import replace

from fencelock.actors.bakery.config import Terms, election_of, later
from fencelock.actors.bakery.entry import Key
from fencelock.actors.bakery.event import Raise
from fencelock.actors.bakery.message import Chosen
from fencelock.actors.bakery.pending_release import PendingReleases, not_held_here
from fencelock.actors.bakery.proxy_message import (
    Lock,
    NotLeading,
    Query,
    RenewHold,
    Unlock,
    UnlockAll,
    Unlocked,
)
from fencelock.actors.bakery.step_message import DropTicket, TicketDropped
from fencelock.actors.bakery.ticket import Who
from fencelock.actors.bakery.ticket_attempt import TicketAttempts
from fencelock.actors.bakery.timer_queue import Step, locked
from fencelock.actors.bakery.validation import problem_of
from fencelock.actors.bakery.wording import peeked
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address, Instant

FromDoor = Lock | Unlock | UnlockAll | RenewHold | Query


class LeaderRequests:
    """Serves proxies while this leader serves at all; else replies that it does not.

    Args:
        attempts: this leader's own tickets, with its epoch state and its table.
        endings: releases and renewals in flight.
        terms: the allowed durations.

    """

    def __init__(self, attempts: TicketAttempts, endings: PendingReleases, terms: Terms) -> None:
        self.epoch_state = attempts.epoch_state
        self.tickets = attempts.table
        self.attempts = attempts
        self.endings = endings
        self.terms = terms
        self.connected: dict[str, int] = {}
        """The connected members, each with its life."""

    def serve(self, door: Address, asked: FromDoor, now: Instant) -> list[Effect]:
        """Process a request of a proxy."""
        if isinstance(asked, Query):
            return self._on_peek(door, asked, now)
        if isinstance(asked, UnlockAll):
            return self._on_unlock_all(door, asked, now) if self.epoch_state.serving else []
        if not self.epoch_state.serving:
            return [Send(door, NotLeading(lock=asked.lock, who=asked.who, owner=""))]
        problem = problem_of(door, asked, self.tickets, self.terms, now)
        if problem is not None:
            return [problem, Observe("bakery.refused")]
        match asked:
            case Lock():
                return self._on_lock(door, asked, now)
            case Unlock():
                return self._on_unlock(door, asked, now)
            case RenewHold():
                return self._on_prolong(door, asked, now)

    def _on_peek(self, door: Address, peek: Query, now: Instant) -> list[Effect]:
        """Say who holds a lock; nothing if others may have been let in without this leader."""
        if not self.epoch_state.trusted(now):
            return [Observe("bakery.peek_unanswered")]
        return [Send(door, peeked(self.tickets, peek, self.epoch_state.epoch, now))]

    def _on_lock(self, door: Address, asked: Lock, now: Instant) -> list[Effect]:
        lease_ms = asked.hold_ms + asked.grace_ms
        if lease_ms > self.epoch_state.bound_ms:  # The proxy repeats it once enough members know.
            return [Send(election_of(self.epoch_state.node), Raise(bound_ms=lease_ms))]
        attempt = self.attempts.agenda.find(asked.lock, asked.who, asked.request)
        if attempt is not None:
            attempt.heard_at = now
            entry = attempt.entry
            entry.ticket = entry.ticket._replace(door=door)
            if attempt.step is Step.HELD:
                return [locked(entry), Observe("bakery.answered_again")]
            return []
        known = self.tickets.get(asked.lock, Key(asked.who, asked.request))
        owner = known.owner if known is not None else ""
        if self._can_serve(owner):
            return [Send(door, NotLeading(lock=asked.lock, who=asked.who, owner=owner))]
        return self.attempts.open(door, asked, now)

    def _can_serve(self, owner: str) -> bool:
        """Return whether ``owner`` is another leader, connected in the life it was chosen in."""
        epoch_state = self.epoch_state
        life = self.connected.get(owner)
        return (
            life is not None
            and owner in epoch_state.others
            and Chosen(owner, life) in epoch_state.leaders
        )

    def _on_unlock(self, door: Address, asked: Unlock, now: Instant) -> list[Effect]:
        if self.endings.known(door, asked.number):
            return []
        if asked.waiting:
            attempt = self.attempts.agenda.find(asked.lock, asked.who, asked.request)
            waits = attempt is not None and attempt.step is not Step.HELD
            dropped = self.attempts.drop(attempt, now) if attempt is not None and waits else []
            return [*dropped, Send(door, Unlocked(number=asked.number, found=waits))]
        known = self.tickets.of(asked.lock, asked.who)
        fence = asked.fence
        held = next((entry for entry in known if fence and entry.fence == fence), None)
        if held is not None:
            # Others may have only a waiting copy, which they know by its request number.
            asked = replace(asked, request=held.ticket.request)
        elif fence:
            for entry in known:  # The owner knows the request number of the hold.
                if self._can_serve(entry.owner):
                    word = NotLeading(lock=asked.lock, who=asked.who, owner=entry.owner)
                    return [Send(door, word)]
        found = self._forget(asked.lock, asked.who, asked.request, asked.fence)
        dropped = self.endings.drop(door, asked, now, found=found)
        return [*dropped, *self.attempts.advance(asked.lock, now)]

    def _forget(self, lock: str, who: Who, request: int, fence: int) -> bool:
        """Drop the named entries and their attempts; return whether they were known."""
        for entry in self.tickets.named(lock, who, request, fence):
            self.attempts.agenda.forget(entry)
        return self.tickets.drop(lock, who, request, fence)

    def on_dropped(self, leader: str, said: TicketDropped, now: Instant) -> list[Effect]:
        """Count leaders that dropped a request; once its number is known, all drop it by that too.

        A client knows a hold by its fence. A leader that did not vote for it does not.
        """
        word = self.endings.named(leader, said)
        if word is None:
            return self.endings.on_dropped(leader, said, now)
        self._forget(word.lock, word.who, word.request, word.fence)
        told = self.epoch_state.tell(word, frozenset((leader,)))
        settled = self.endings.on_dropped(leader, said, now)
        return [*told, *settled, *self.attempts.advance(word.lock, now)]

    def _on_unlock_all(self, door: Address, asked: UnlockAll, now: Instant) -> list[Effect]:
        """Drop everything of a session that is known here; the proxy asks the others, too."""
        effects: list[Effect] = [Send(door, Unlocked(number=asked.number, found=True))]
        for entry in self.tickets.of_session(asked.session):
            ticket = entry.ticket
            self.attempts.agenda.forget(entry)
            self.tickets.drop(ticket.lock, ticket.who, ticket.request, 0)
            word = DropTicket(
                epoch=self.epoch_state.epoch,
                lock=ticket.lock,
                who=ticket.who,
                request=ticket.request,
                fence=0,
                number=0,
                mine=False,
            )
            effects += [*self.epoch_state.tell(word), *self.attempts.advance(ticket.lock, now)]
        return effects

    def _on_prolong(self, door: Address, asked: RenewHold, now: Instant) -> list[Effect]:
        if self.endings.known(door, asked.number):
            return []
        held = [e for e in self.tickets.of(asked.lock, asked.who) if e.fence == asked.fence]
        if not held or held[0].is_over(now):
            return [Send(door, not_held_here(asked.number))]
        entry = held[0]
        if entry.owner not in asked.missed and self._can_serve(entry.owner):
            word = NotLeading(lock=asked.lock, who=asked.who, owner=entry.owner)
            return [Send(door, word)]
        hold_ms = asked.hold_ms or entry.ticket.hold_ms
        ticket = entry.ticket._replace(hold_ms=hold_ms)
        if ticket.lease_ms > self.epoch_state.bound_ms:
            return [Send(election_of(self.epoch_state.node), Raise(bound_ms=ticket.lease_ms))]
        # Its owner cannot be reached, or thinks it is over: this leader owns it from now on.
        entry.ticket, entry.owner = ticket, self.epoch_state.node
        # Never shorter: a late copy of an earlier renewal must not undo a later one.
        self.tickets.prolong(entry, later(now, ticket.lease_ms))
        return self.endings.extend(door, asked, entry, now)
