"""Sends the log's outcomes to the clients that wait for them."""

from __future__ import annotations

from fencelock.actors.api.message import Reason
from fencelock.actors.effect import Effect, Effects, Observe, Send
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
from fencelock.actors.paxos.proxy_wording import (
    answer,
    ended,
    hold_lost,
    new_granted,
    new_released,
    refuse,
)
from fencelock.actors.table.command import CloseReason
from fencelock.actors.table.outcome import Denied, Freed, Held, Lost, Queued, SessionClosed

_LOSSES: frozenset[type[Message]] = frozenset({Lost, SessionClosed})


class ProxyReplies:
    """Ends requests in flight by their outcomes, and reports losses.

    Args:
        node: this node.
        in_flight_requests: the requests that wait for an outcome.
        guests: the clients.

    """

    def __init__(
        self,
        node: str,
        in_flight_requests: InFlightRequests,
        guests: RemoteClients,
    ) -> None:
        self.node = node
        self.in_flight_requests = in_flight_requests
        self.guests = guests
        self.master = ""
        """The node that leads, if any is known."""

    def happened(self, happened: SlotOutcomes, now: Instant) -> list[Effect]:
        """Process the outcomes of one slot; this node's replica sends those of every slot."""
        outcomes = happened.outcomes
        if not self.in_flight_requests.by_key and _LOSSES.isdisjoint(map(type, outcomes)):
            return []  # Usual with few clients: only losses would matter here.
        return self._take_each(outcomes, now, warning=True)

    def told(self, outcome: Told, now: Instant) -> list[Effect]:
        """Process an outcome that the master's replica sent directly, ahead of this node's own."""
        return self._take_each((outcome,), now, warning=False)

    def declined(self, declined: Declined) -> Effects:
        """Process the rejection of a proposal.

        Most are proposed again, later or to another master. A new request that an overloaded master
        rejected is refused here: nothing was done.
        """
        mark = Observe(f"paxos.proposal_declined_{declined.why.name.lower()}")
        in_flight_request = self.in_flight_requests.numbered(declined.number)
        if in_flight_request is None:
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
        """Answer the requests that wait here; count the answers in sum."""
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
                        self._warn(outcome, effects)
                continue
            session, owner, lock = outcome.session, outcome.owner, outcome.lock
            request = outcome.request
            in_flight_request = by_key.get((session, owner, lock, request))
            if in_flight_request is None or in_flight_request.kind is not kind:
                continue  # No local caller waits for this outcome, or it has the wrong type.
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
        """Answer the request that waits for ``outcome`` here, if there is one."""
        in_flight_request = errand_of(self.in_flight_requests, outcome)
        if in_flight_request is None or isinstance(outcome, Lost):
            return
        if isinstance(outcome, Queued):
            self.in_flight_requests.known(in_flight_request, now)
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

    def _warn(self, outcome: Lost | SessionClosed, effects: list[Effect]) -> None:
        """Notify the affected client of a loss, if it uses this node."""
        guest = self.guests.by_id.get(client_of(outcome.session))
        if guest is None:
            return
        if isinstance(outcome, Lost):
            effects.append(Send(guest.asker, hold_lost(outcome)))
        elif outcome.reason is not CloseReason.GRACEFUL:
            effects.append(Send(guest.asker, ended(outcome)))


def _is_untried(in_flight_request: InFlightRequest) -> bool:
    """Return whether the request is new work that cannot be in the log yet."""
    return in_flight_request.proposed_at == in_flight_request.since and in_flight_request.kind in (
        Kind.OPEN,
        Kind.ACQUIRE,
        Kind.EVICT,
    )
