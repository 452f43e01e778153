"""Passes the leaders' messages to a proxy on to its clients. Pure."""

from __future__ import annotations

from fencelock.actors.api.message import Acquire, Cancel, Inspect, Release
from fencelock.actors.api.session_message import End, Renew
from fencelock.actors.bakery import notifications
from fencelock.actors.bakery import proxy_wording as words
from fencelock.actors.bakery.clients import RemoteClients
from fencelock.actors.bakery.config import leader_of, quorum
from fencelock.actors.bakery.in_flight import InFlightRequest, InFlightRequests, Kind, Name
from fencelock.actors.bakery.proxy_message import (
    Expired,
    HoldRenewed,
    Locked,
    LockFailed,
    NotLeading,
    QueryResult,
    Unlocked,
    Unlocking,
)
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address, Instant, node_of

FromLeader = (
    Locked | LockFailed | Unlocked | NotLeading | Unlocking | Expired | HoldRenewed | QueryResult
)


class ProxyReplies:
    """Ends requests in flight by the leaders' replies, and passes on their notifications.

    Args:
        node: this node.
        members: all configured members.
        in_flight_requests: the requests that wait for a reply.
        guests: the clients.

    """

    def __init__(
        self,
        node: str,
        members: tuple[str, ...],
        in_flight_requests: InFlightRequests,
        guests: RemoteClients,
    ) -> None:
        self.node = node
        self.members = members
        self.in_flight_requests = in_flight_requests
        self.guests = guests

    def hear(self, sender: Address, event: FromLeader, now: Instant) -> list[Effect]:
        """Process a message, if its sender can be a leader."""
        node = node_of(sender)
        if node not in self.members or sender != leader_of(node):
            return [Observe("bakery.stranger_answers")]
        match event:
            case Locked() | LockFailed():
                name = Name(Kind.LOCK, event.lock, event.who, event.request)
                in_flight_request = self.in_flight_requests.by_name.get(name)
                if in_flight_request is None:
                    return self._on_late(event)
                return self._on_decided(in_flight_request, event)
            case Unlocked() | HoldRenewed() | QueryResult():
                in_flight_request = self.in_flight_requests.by_number.get(event.number)
                if in_flight_request is None:
                    return [Observe("bakery.late_answer")]
                return self._on_done(node, in_flight_request, event, now)
            case NotLeading():
                effects: list[Effect] = []
                for in_flight_request in self.in_flight_requests.about(event.lock, event.who):
                    effects += self.in_flight_requests.turn_to(in_flight_request, event.owner, now)
                return effects
            case Unlocking():
                return self._on_unlocking(event)
            case Expired():
                return self._on_expired(event)

    def _on_decided(
        self, in_flight_request: InFlightRequest, event: Locked | LockFailed
    ) -> list[Effect]:
        self.in_flight_requests.end(in_flight_request)
        if in_flight_request.asker is None:
            return []
        assert isinstance(in_flight_request.asked, Acquire)
        if isinstance(event, LockFailed):
            return [
                words.failed(in_flight_request, in_flight_request.asked, event),
                Observe("proxy.refused"),
            ]
        return [
            notifications.granted(in_flight_request, in_flight_request.asked, event),
            Observe("proxy.granted"),
        ]

    def _on_late(self, event: Locked | LockFailed) -> list[Effect]:
        """Notify the client of a grant that no request here waits for any more.

        It may have the hold through another proxy. If it does not, it gives it back.
        """
        if isinstance(event, LockFailed):
            return [Observe("bakery.late_answer")]
        effects: list[Effect] = [Observe("bakery.stray_grant")]
        asker = self.guests.asker_of(event.who.session)
        if asker is not None:
            effects.append(Send(asker, notifications.stray(event)))
        return effects

    def _on_done(
        self,
        leader: str,
        in_flight_request: InFlightRequest,
        event: Unlocked | HoldRenewed | QueryResult,
        now: Instant,
    ) -> list[Effect]:
        asked = in_flight_request.asked
        match event:
            case Unlocked() if isinstance(asked, End):
                in_flight_request.answered[leader] = None
                if len(in_flight_request.answered) < quorum(
                    len(self.in_flight_requests.readiness.leaders)
                ):
                    return []
            case Unlocked() if not isinstance(asked, Release | Cancel | Acquire):
                return [Observe("bakery.answer_malformed")]
            case HoldRenewed() if not isinstance(asked, Renew):
                return [Observe("bakery.answer_malformed")]
            case HoldRenewed() if not event.fence:
                asked_on = self.in_flight_requests.pass_on(in_flight_request, leader, now)
                if asked_on is not None:
                    return asked_on
            case QueryResult() if not isinstance(asked, Inspect):
                return [Observe("bakery.answer_malformed")]
            case QueryResult():
                decided = self.in_flight_requests.read(in_flight_request, leader, event, now)
                if decided is None:
                    return []
                event = decided
            case _:
                pass
        self.in_flight_requests.end(in_flight_request)
        return notifications.done(in_flight_request, event, self.node)

    def _on_unlocking(self, event: Unlocking) -> list[Effect]:
        asker = self.guests.asker_of(event.who.session)
        if asker is None:
            return [Observe("bakery.unlocking_of_stranger")]
        return [Send(asker, notifications.unlocking(event))]

    def _on_expired(self, event: Expired) -> list[Effect]:
        asker = self.guests.asker_of(event.who.session)
        if asker is None:
            return [Observe("bakery.expiry_of_stranger")]
        return [Send(asker, notifications.expired(event))]
