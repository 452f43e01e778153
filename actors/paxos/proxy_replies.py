"""Sends the log's outcomes to the clients that wait for them."""

from __future__ import annotations

from fencelock.actors.api.message import AcquireRequest, Granted, Reason, Refused, Released
from fencelock.actors.api.name import client_of
from fencelock.actors.api.request import Outcome
from fencelock.actors.api.session_message import CloseReason, Ended, Evict, HoldLost, Open
from fencelock.actors.effect import Effect, Effects, Observe, Send
from fencelock.actors.message import Instant, Message
from fencelock.actors.paxos.event import SlotOutcomes
from fencelock.actors.paxos.message import Decline, Declined
from fencelock.actors.paxos.proxy_clients import RemoteClients
from fencelock.actors.paxos.proxy_event import Told
from fencelock.actors.paxos.proxy_in_flight import InFlightRequest, InFlightRequests
from fencelock.actors.paxos.proxy_wording import finished, refuse
from fencelock.actors.table.message import Queued

_LOSSES: frozenset[type[Message]] = frozenset({HoldLost, Ended})


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
                refuse(in_flight_request.asker, in_flight_request.request, Reason.INVALID, text),
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
                refuse(in_flight_request.asker, in_flight_request.request, Reason.OVERLOADED, text),
                mark,
            ]
        return [mark]

    def _take_each(
        self, outcomes: tuple[Message, ...], now: Instant, *, warning: bool
    ) -> list[Effect]:
        """Answer the requests that wait here; count the answers in sum."""
        effects: list[Effect] = []
        granted = released = refused = 0
        for outcome in outcomes:
            if warning and isinstance(outcome, HoldLost | Ended):
                self._warn(outcome, effects)
            if not isinstance(outcome, Outcome):
                continue
            in_flight_request = self.in_flight_requests.answered_by(outcome)
            if in_flight_request is None:
                continue  # No local caller waits for this outcome, or it has the wrong type.
            if isinstance(outcome, Queued):
                self.in_flight_requests.known(in_flight_request, now)
                continue
            self.in_flight_requests.end(in_flight_request)
            if isinstance(outcome, Granted):
                granted += 1
            elif isinstance(outcome, Released):
                released += 1
            else:
                refused += isinstance(outcome, Refused)
                reply = self._finished(in_flight_request, outcome)
                effects.append(Send(in_flight_request.asker, reply))
                continue
            effects.append(Send(in_flight_request.asker, outcome))
        for name, count in (("granted", granted), ("released", released), ("refused", refused)):
            if count:
                effects.append(Observe(f"proxy.{name}", count))
        return effects

    def _finished(self, in_flight_request: InFlightRequest, outcome: Outcome) -> Outcome:
        return finished(outcome, in_flight_request.request, self.node, self.master)

    def _warn(self, outcome: HoldLost | Ended, effects: list[Effect]) -> None:
        """Notify the affected client of a loss, if it uses this node."""
        if isinstance(outcome, Ended) and outcome.reason is CloseReason.GRACEFUL:
            return
        guest = self.guests.by_id.get(client_of(outcome.session))
        if guest is not None:
            effects.append(Send(guest.asker, outcome))


def _is_untried(in_flight_request: InFlightRequest) -> bool:
    """Return whether the request is new work that cannot be in the log yet."""
    return in_flight_request.proposed_at == in_flight_request.since and isinstance(
        in_flight_request.request, Open | AcquireRequest | Evict
    )
