"""What the log says, passed on to whom it concerns."""

from __future__ import annotations

from fencelock.actors.effect import Effect, Effects, Observe, Send
from fencelock.actors.lock.command import CloseReason
from fencelock.actors.lock.message import Reason
from fencelock.actors.lock.outcome import Denied, Freed, Held, Lost, Queued, SessionClosed
from fencelock.actors.message import Instant, Message
from fencelock.actors.paxos.event import SlotOutcomes
from fencelock.actors.paxos.message import Decline, Declined
from fencelock.actors.paxos.proxy_clients import RemoteClients, client_of
from fencelock.actors.paxos.proxy_command import errand_of
from fencelock.actors.paxos.proxy_event import Rest, Told
from fencelock.actors.paxos.proxy_in_flight import (
    ACQUIRE,
    RELEASE,
    InFlightRequest,
    InFlightRequests,
    Kind,
)
from fencelock.actors.paxos.proxy_local_session import LocalSession
from fencelock.actors.paxos.proxy_wording import (
    answer,
    ended,
    hold_lost,
    new_granted,
    new_released,
    refuse,
)

_LOSSES: frozenset[type[Message]] = frozenset({Lost, SessionClosed})


class ProxyReplies:
    """Ends errands by their outcomes, and tells of losses.

    Args:
        node: this node.
        in_flight_requests: what waits for an outcome.
        guests: the clients of other processes.
        own: for callers inside this one.

    """

    def __init__(
        self,
        node: str,
        in_flight_requests: InFlightRequests,
        guests: RemoteClients,
        own: LocalSession,
    ) -> None:
        self.node = node
        self.in_flight_requests = in_flight_requests
        self.guests = guests
        self.own = own
        self.master = ""
        """The node that leads, if any is known."""

    def happened(self, happened: SlotOutcomes, now: Instant) -> list[Effect]:
        """Take in what one slot brought, of which this node's replica tells every one."""
        outcomes = happened.outcomes
        if not self.in_flight_requests.by_key and _LOSSES.isdisjoint(map(type, outcomes)):
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
        in_flight_request = self.in_flight_requests.numbered(declined.number)
        if in_flight_request is None or in_flight_request.asked is None or in_flight_request.own:
            return [mark]
        if declined.why is Decline.INVALID:
            self.in_flight_requests.end(in_flight_request)
            text = "the log cannot read this request"
            return [
                refuse(in_flight_request.asker, in_flight_request.asked, Reason.INVALID, text),
                mark,
            ]
        if (
            declined.why is Decline.OVERLOADED
            and declined.master
            and _is_untried(in_flight_request)
        ):
            self.in_flight_requests.end(in_flight_request)
            text = f"too much waits for a place in the log at {declined.master}; nothing was done"
            return [
                refuse(in_flight_request.asker, in_flight_request.asked, Reason.OVERLOADED, text),
                mark,
            ]
        return [mark]

    def _take_each(
        self, outcomes: tuple[Message, ...], now: Instant, *, warning: bool
    ) -> list[Effect]:
        """Answer whoever waits here; count the answers, and not one by one."""
        effects: list[Effect] = []
        by_key, end = self.in_flight_requests.by_key, self.in_flight_requests.end
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
            in_flight_request = by_key.get((session, owner, lock, request))
            if in_flight_request is None or in_flight_request.kind is not kind:
                continue  # Nobody's here, or a grant of a release, which can only be wrong.
            if in_flight_request.own:
                effects += self.own.settle(in_flight_request, outcome, now)
                continue
            end(in_flight_request)
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
            effects.append(Send(in_flight_request.asker, message))
        if granted:
            effects.append(Observe("proxy.granted", granted))
        if released:
            effects.append(Observe("proxy.released", released))
        return effects

    def _take(self, outcome: Rest, now: Instant, effects: list[Effect]) -> None:
        """Answer whoever waits for ``outcome`` here, if anybody does."""
        in_flight_request = errand_of(self.in_flight_requests, outcome)
        if in_flight_request is None or isinstance(outcome, Lost):
            return
        if isinstance(outcome, Queued):
            self.in_flight_requests.known(in_flight_request, now)
            if in_flight_request.own:
                self.own.session_lease.confirm(in_flight_request)
            return
        if in_flight_request.own:
            effects += self.own.settle(in_flight_request, outcome, now)
            return
        self.in_flight_requests.end(in_flight_request)
        effects.append(
            Send(
                in_flight_request.asker,
                answer(in_flight_request, outcome, now, self.node, self.master),
            )
        )
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


def _is_untried(in_flight_request: InFlightRequest) -> bool:
    """Return whether ``errand`` is new work, no copy of which can be in the log yet."""
    return in_flight_request.proposed_at == in_flight_request.since and in_flight_request.kind in (
        Kind.OPEN,
        Kind.ACQUIRE,
        Kind.EVICT,
    )
