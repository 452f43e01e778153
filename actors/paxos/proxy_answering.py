"""What the log says, passed on to whom it concerns."""

from __future__ import annotations

from fencelock.actors.effect import Effect, Effects, Observe, Send
from fencelock.actors.lock.command import CloseReason
from fencelock.actors.lock.message import Reason
from fencelock.actors.lock.outcome import Denied, Freed, Held, Lost, Queued, SessionClosed
from fencelock.actors.message import Instant, Message
from fencelock.actors.paxos.event import Happened
from fencelock.actors.paxos.message import Decline, Declined
from fencelock.actors.paxos.proxy_command import errand_of
from fencelock.actors.paxos.proxy_errand import ACQUIRE, RELEASE, Errand, Errands, Kind
from fencelock.actors.paxos.proxy_event import Rest, Told
from fencelock.actors.paxos.proxy_guest import Guests, client_of
from fencelock.actors.paxos.proxy_own import OwnSession
from fencelock.actors.paxos.proxy_wording import (
    answer,
    ended,
    hold_lost,
    new_granted,
    new_released,
    refuse,
)

_LOSSES: frozenset[type[Message]] = frozenset({Lost, SessionClosed})


class Answering:
    """Ends errands by their outcomes, and tells of losses.

    Args:
        node: this node.
        errands: what waits for an outcome.
        guests: the clients of other processes.
        own: for callers inside this one.

    """

    def __init__(self, node: str, errands: Errands, guests: Guests, own: OwnSession) -> None:
        self.node = node
        self.errands = errands
        self.guests = guests
        self.own = own
        self.master = ""
        """The node that leads, if any is known."""

    def happened(self, happened: Happened, now: Instant) -> list[Effect]:
        """Take in what one slot brought, of which this node's replica tells every one."""
        outcomes = happened.outcomes
        if not self.errands.by_key and _LOSSES.isdisjoint(map(type, outcomes)):
            return []  # As mostly where few clients come: nothing but losses concerns them.
        return self._take_each(outcomes, now, warning=True)

    def told(self, outcome: Told, now: Instant) -> list[Effect]:
        """Take in what the master's replica says itself, ahead of this node's own."""
        return self._take_each((outcome,), now, warning=False)

    def declined(self, declined: Declined) -> Effects:
        """Take in that a proposal was not accepted.

        Mostly it is proposed again, when there is another master or soon. What is new, and was
        refused by a master that has too much to do, is refused here: nothing was done.
        """
        mark = Observe(f"paxos.proposal_declined_{declined.why.name.lower()}")
        errand = self.errands.numbered(declined.number)
        if errand is None or errand.asked is None or errand.own:
            return [mark]
        if declined.why is Decline.INVALID:
            self.errands.end(errand)
            text = "the log cannot read this request"
            return [refuse(errand.asker, errand.asked, Reason.INVALID, text), mark]
        if declined.why is Decline.OVERLOADED and declined.master and _is_untried(errand):
            self.errands.end(errand)
            text = f"too much waits for a place in the log at {declined.master}; nothing was done"
            return [refuse(errand.asker, errand.asked, Reason.OVERLOADED, text), mark]
        return [mark]

    def _take_each(
        self, outcomes: tuple[Message, ...], now: Instant, *, warning: bool
    ) -> list[Effect]:
        """Answer whoever waits here; count the answers, and not one by one."""
        effects: list[Effect] = []
        by_key, end = self.errands.by_key, self.errands.end
        granted = released = 0
        for outcome in outcomes:
            if isinstance(outcome, Held):
                kind = ACQUIRE
            elif isinstance(outcome, Freed):
                kind = RELEASE
            else:
                if isinstance(outcome, Rest):
                    self._take(outcome, now, effects)
                    if warning and isinstance(outcome, Lost | SessionClosed):
                        self._warn(outcome, now, effects)
                continue
            session, owner, lock = outcome.session, outcome.owner, outcome.lock
            request = outcome.request
            errand = by_key.get((session, owner, lock, request))
            if errand is None or errand.kind is not kind:
                continue  # Nobody's here, or a grant of a release, which can only be wrong.
            if errand.own:
                effects += self.own.settle(errand, outcome, now)
                continue
            end(errand)
            if isinstance(outcome, Held):
                granted += 1
                message: Message = new_granted(
                    lock=lock,
                    fence=outcome.fence,
                    session=session,
                    owner=owner,
                    request=request,
                    count=outcome.count,
                )
            else:
                released += 1
                message = new_released(
                    lock=lock, session=session, owner=owner, request=request, count=outcome.count
                )
            effects.append(Send(errand.asker, message))
        if granted:
            effects.append(Observe("proxy.granted", granted))
        if released:
            effects.append(Observe("proxy.released", released))
        return effects

    def _take(self, outcome: Rest, now: Instant, effects: list[Effect]) -> None:
        """Answer whoever waits for ``outcome`` here, if anybody does."""
        errand = errand_of(self.errands, outcome)
        if errand is None or isinstance(outcome, Lost):
            return
        if isinstance(outcome, Queued):
            self.errands.known(errand, now)
            if errand.own:
                self.own.tenure.confirm(errand)
            return
        if errand.own:
            effects += self.own.settle(errand, outcome, now)
            return
        self.errands.end(errand)
        effects.append(Send(errand.asker, answer(errand, outcome, now, self.node, self.master)))
        if isinstance(outcome, Denied):
            effects.append(Observe("proxy.refused"))

    def _warn(self, outcome: Lost | SessionClosed, now: Instant, effects: list[Effect]) -> None:
        """Tell of a loss whom it concerns, unasked, if that one is here."""
        guest = self.guests.by_id.get(client_of(outcome.session))
        if isinstance(outcome, Lost):
            effects += self.own.taken(outcome)
            if guest is not None:
                effects.append(Send(guest.asker, hold_lost(outcome)))
            return
        effects += self.own.closed(outcome, now)
        if guest is not None and outcome.reason is not CloseReason.GRACEFUL:
            effects.append(Send(guest.asker, ended(outcome)))


def _is_untried(errand: Errand) -> bool:
    """Return whether ``errand`` is new work, no copy of which can be in the log yet."""
    return errand.proposed_at == errand.since and errand.kind in (
        Kind.OPEN,
        Kind.ACQUIRE,
        Kind.EVICT,
    )
