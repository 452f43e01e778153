"""The proxy of a node that runs `bakery`: it keeps a request until leaders have answered it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fencelock.actors.api.cluster_message import Watch
from fencelock.actors.api.message import (
    Acquire,
    Cancel,
    Describe,
    Inspect,
    KeepAlive,
    Reason,
    Release,
)
from fencelock.actors.api.probe_message import Probe, ProbeReply
from fencelock.actors.api.session_message import End, Evict, ListLocks, Open, Opened, Renew
from fencelock.actors.bakery import notifications
from fencelock.actors.bakery import proxy_wording as words
from fencelock.actors.bakery.clients import RemoteClients
from fencelock.actors.bakery.cluster_watch import Watchers
from fencelock.actors.bakery.config import SILENT_MS, Terms, leader_of
from fencelock.actors.bakery.description import describe
from fencelock.actors.bakery.event import DoorDue, ListTickets, Readiness, Tally
from fencelock.actors.bakery.in_flight import InFlightRequests, Kind
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
from fencelock.actors.bakery.proxy_replies import FromLeader, ProxyReplies
from fencelock.actors.bakery.proxy_requests import ANSWER_MS, ProxyRequests
from fencelock.actors.bootstrap_message import VotingStatus
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant, address_of, ms_between
from fencelock.actors.proxy.description import has_room
from fencelock.actors.proxy.message import Report, Reported
from fencelock.actors.role import Host, Role, Summary

if TYPE_CHECKING:
    from random import Random

TICK_MS = 50
"""Resolution of a proxy's deadlines (ms)."""

FromClient = (
    Acquire
    | Release
    | Cancel
    | Renew
    | Inspect
    | Describe
    | KeepAlive
    | Open
    | End
    | ListLocks
    | Evict
    | Watch
    | Probe
)
Heard = (
    FromClient
    | Locked
    | LockFailed
    | Unlocked
    | NotLeading
    | Unlocking
    | Expired
    | HoldRenewed
    | QueryResult
    | Readiness
    | VotingStatus
    | Tally
    | Reported
    | DoorDue
)


class TicketProxy(Role[Heard]):
    """Serves clients. The leaders know all holds, so any proxy serves any client.

    A request is kept until it is answered, and sent again under the same number when its
    leader does not answer, or leads no more. So a request that comes before there are leaders
    waits for them, until its own timeout.

    Invariants: B11; see the README of this folder.

    Args:
        node: this node.
        members: all configured members, sorted.
        terms: default durations of requests.
        random: chooses where the round robin over the leaders begins.
        life: id of this node's life: drawn anew at each start.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        node: str,
        members: tuple[str, ...],
        terms: Terms,
        random: Random,
        life: int,
    ) -> None:
        super().__init__(address, host)
        self.node = node
        self.members = members
        self.terms = terms
        self.in_flight_requests = InFlightRequests(node, random)
        self.guests = RemoteClients()
        self.watchers = Watchers(node, len(members), life)
        self.asking = ProxyRequests(node, self.in_flight_requests, terms)
        self.answering = ProxyReplies(node, members, self.in_flight_requests, self.guests)
        self.describing: list[tuple[Address, Describe]] = []
        self.tickets = Tally(serving=False, locks=())
        self.why_no_vote = ""
        """Reason why this node does not vote; empty if it does, or while that is not known."""
        self.is_seated = False
        """Whether the group is known, so that the coordinator reports the election."""
        self.ticking = False

    def handle(self, sender: Address, event: Heard, now: Instant) -> Effects:
        """Serve clients, and process the leaders' messages."""
        if isinstance(event, FromClient):
            effects = self._on_client(sender, event, now)
        elif isinstance(event, FromLeader):
            effects = self.answering.hear(sender, event, now)
        else:
            effects = self._on_node(event, now)
        return [*effects, *self._tick()]

    def summary(self) -> Summary:
        """Return how many clients it knows, and how many requests are in flight."""
        return (
            ("clients", len(self.guests.known)),
            ("in flight", len(self.in_flight_requests.by_number)),
            ("serves", self.in_flight_requests.readiness.ready),
        )

    def _on_client(self, asker: Address, event: FromClient, now: Instant) -> list[Effect]:
        if isinstance(event, Describe | Watch | Probe):
            return self._on_question(asker, event, now)
        reason, problem = words.problem_of(self.node, self.terms, asker, event)
        if problem:
            return [words.refuse(asker, event, reason, problem), Observe("proxy.refused")]
        if self.in_flight_requests.full() and not isinstance(event, KeepAlive | Cancel | Release):
            text = (
                f"node {self.node} has {len(self.in_flight_requests.by_number)} requests, its limit"
            )
            return [words.refuse(asker, event, Reason.OVERLOADED, text)]
        self.guests.hear(asker, event.session, now)
        match event:
            case Acquire():
                return self.asking.acquire(asker, event, now)
            case Release():
                return self.asking.release(asker, event, now)
            case Cancel():
                return self.asking.cancel(asker, event, now)
            case Renew():
                return self.asking.renew(asker, event, now)
            case Inspect():
                return self.asking.inspect(asker, event, now)
            case KeepAlive():
                said = notifications.alive(
                    event.session, self.node, event.request, self.in_flight_requests
                )
                return [Send(asker, said)]
            case Open():
                return [Send(asker, self._opened(event))]
            case End():
                return self.asking.end(asker, event, now)
            case ListLocks() | Evict():
                text = "bakery keeps no table of locks to list, or to take one from"
                return [words.refuse(asker, event, Reason.UNSUPPORTED, f"{text}; paxos does")]

    def _on_node(
        self,
        event: Readiness | VotingStatus | Tally | Reported | DoorDue,
        now: Instant,
    ) -> list[Effect]:
        match event:
            case Readiness():
                self.is_seated = True
                return [*self.in_flight_requests.lead(event, now), *self.watchers.see(event)]
            case VotingStatus():
                return self._on_voting(event)
            case Reported():
                asked, self.describing = self.describing, []
                return describe(
                    self.node,
                    self.members,
                    self.in_flight_requests,
                    self.tickets,
                    event,
                    asked,
                    now,
                    why_no_vote=self.why_no_vote,
                )
            case Tally():
                self.tickets = event
                return [Send(address_of(self.node, "node"), Report())]
            case DoorDue():
                self.ticking = False
                return self._on_due(now)

    def _on_voting(self, status: VotingStatus) -> list[Effect]:
        """Store why this node does not vote; before the first election nothing else is known."""
        self.why_no_vote = status.why
        if self.is_seated or not status.why:
            return []
        self.in_flight_requests.readiness = replace(
            self.in_flight_requests.readiness, detail=status.why
        )
        return self.watchers.see(self.in_flight_requests.readiness)

    def _on_due(self, now: Instant) -> list[Effect]:
        effects = self.watchers.fall_silent(now)
        for session in self.guests.fall_silent(now):
            gone = self.asking.drop_waits(session)
            if gone:
                effects.append(Observe("proxy.wait_of_silent_client_ended", gone))
        for in_flight_request in self.in_flight_requests.due(now):
            if in_flight_request.until is not None and in_flight_request.until <= now:
                self.in_flight_requests.end(in_flight_request)
                effects += words.over(in_flight_request, self.in_flight_requests.readiness, now)
                if in_flight_request.name.kind is Kind.LOCK:
                    effects += self.asking.undo(in_flight_request, now)
            elif (
                in_flight_request.asker is None
                and ms_between(in_flight_request.since, now) >= ANSWER_MS
            ):
                self.in_flight_requests.end(in_flight_request)  # Its target ends by its lease.
            else:
                effects += self.in_flight_requests.say(in_flight_request, now)
        return effects

    def _on_question(
        self, asker: Address, asked: Describe | Watch | Probe, now: Instant
    ) -> list[Effect]:
        if not words.sound_session(asked.session):
            return [Observe("proxy.describe_dropped")]
        if isinstance(asked, Watch):
            return self.watchers.watch(asker, asked, now)
        if isinstance(asked, Probe):
            session, request = asked.session, asked.request
            reply = ProbeReply(session=session, node=self.node, serving=True, request=request)
            return [Send(asker, reply)]
        if not has_room(self.node, self.describing, asker):
            return [Observe("proxy.describe_dropped")]
        self.describing.append((asker, asked))
        if len(self.describing) > 1:
            return []
        return [Send(leader_of(self.node), ListTickets())]

    def _opened(self, asked: Open) -> Opened:
        """Return the reply without keeping a session: it is a name, and leaders know its holds."""
        return Opened(
            session=asked.session,
            assigned=asked.session,
            ttl_ms=max(SILENT_MS, asked.ttl_ms),
            node=self.node,
            request=asked.request,
            master=notifications.leader_for(asked.session, self.in_flight_requests),
        )

    def _tick(self) -> list[Effect]:
        busy = self.in_flight_requests.by_number or self.guests.known or self.watchers.waiting
        if self.ticking or not busy:
            return []
        self.ticking = True
        return [Wake(TICK_MS, DoorDue())]
