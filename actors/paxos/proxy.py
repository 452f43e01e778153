"""The proxy of a node of the replicated log: clients send requests here, the log decides."""

from __future__ import annotations

from collections.abc import Callable

from fencelock.actors.api.message import (
    Acquire,
    Describe,
    Inspect,
    Reason,
    Release,
)
from fencelock.actors.api.name import OWNER_BYTES_MAX
from fencelock.actors.api.probe_message import Probe
from fencelock.actors.api.request import Command
from fencelock.actors.api.session_message import ListLocks
from fencelock.actors.bootstrap_message import VotingStatus
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import Address, Instant, node_of
from fencelock.actors.paxos.event import (
    Consulted,
    Divergence,
    Gather,
    Isolated,
    LeaderChanged,
    Skipped,
    SlotOutcomes,
)
from fencelock.actors.paxos.message import Declined, Proposed
from fencelock.actors.paxos.proxy_clients import RemoteClients
from fencelock.actors.paxos.proxy_closed import Closed
from fencelock.actors.paxos.proxy_event import (
    FromClient,
    FromLog,
    Heard,
    Rarer,
    Round,
    Told,
)
from fencelock.actors.paxos.proxy_in_flight import ASK_AGAIN_MS, InFlightRequests
from fencelock.actors.paxos.proxy_quorum_contact import QuorumContact
from fencelock.actors.paxos.proxy_reading import Readings
from fencelock.actors.paxos.proxy_replies import ProxyReplies
from fencelock.actors.paxos.proxy_requests import ProxyRequests
from fencelock.actors.paxos.proxy_serving import Serving
from fencelock.actors.paxos.proxy_status import Description
from fencelock.actors.paxos.proxy_wording import refuse
from fencelock.actors.proxy.backend import Reported
from fencelock.actors.role import Host, Role, Summary
from fencelock.actors.session.message import Undecided

ROUND_MS = 250
"""Interval of the check for requests to repeat, while any is in flight (ms)."""

BURST = 500
"""Maximum commands proposed again per round: repetitions under load must not double the load."""

FOLLOW_BURST = 5_000
"""Maximum commands proposed again when the master changes: half of its queue."""


class LogProxy(Role[Heard]):
    """Puts requests into the log and sends their outcomes to clients.

    The log remembers; the proxy does not. A request is translated, proposed, and kept only until
    its outcome arrives from this node's own replica or, sooner, from the master's. Requests of
    one turn are proposed together (`ProposalBatch`). Until the outcome arrives a request is
    proposed again unchanged: the log performs it once, however often it comes and through
    whichever proxy. A request that is sent again after its reply is also proposed again, and
    gets the outcome of the first time.

    While no majority answers, requests wait, since their outcome is not known. A client has its own
    timeout and cancels; the session of callers inside the process is told what is missing.
    Clients keep their own sessions alive, through any proxy.

    Args:
        node: this node.
        members: the nodes that vote, sorted: only outcomes from their replicas count.
        replica: the replica of this node, which takes proposals and answers queries.
        encode: encodes a command for the log.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        node: str,
        members: tuple[str, ...],
        replica: Address,
        encode: Callable[[Command], bytes],
    ) -> None:
        super().__init__(address, host)
        self.node = node
        self.members = frozenset(members)
        self.silence = QuorumContact(members)
        self.in_flight_requests = InFlightRequests(address, replica, encode)
        self.guests = RemoteClients()
        self.serving = Serving(node, self.in_flight_requests)
        self.answering = ProxyReplies(node, self.in_flight_requests, self.guests)
        self.asking = ProxyRequests(node, self.in_flight_requests, self.guests, self.answering)
        self.readings = Readings(node, replica, self.silence)
        self.description = Description(node, members, self.readings)
        self.ticking = False
        self.closed: Closed | None = None
        """The object that answers in place of this proxy once the node must not serve any more."""

    def begin(self, now: Instant) -> Effects:
        """Begin to measure silence."""
        self.silence.heard(now)
        return ()

    def handle(self, sender: Address, event: Heard, now: Instant) -> Effects:
        """Serve clients and process the log's outcomes."""
        if self.closed is not None:
            return self.closed.handle(sender, event, now)
        # The most frequent events are tested first: testing for many types takes a while.
        if isinstance(event, Acquire) or isinstance(event, Release):  # noqa: SIM101
            if self.in_flight_requests.by_key:  # The usual case.
                return self.asking.ask(sender, event, now)
            return self._on_client(sender, event, now)
        if isinstance(event, SlotOutcomes):
            self.silence.heard(now)
            return self.answering.happened(event, now)
        if isinstance(event, Inspect):
            return self._on_client(sender, event, now)
        if isinstance(event, Consulted):
            return self._on_consulted(event, now)
        if isinstance(event, Gather):
            return [*self.in_flight_requests.bundled(), *self._tick()]
        if isinstance(event, Proposed):
            return ()  # The outcomes arrive separately.
        return self._on_rarer(sender, event, now)

    def summary(self) -> Summary:
        """Return how many clients it knows, and how many requests are in flight."""
        return (
            ("clients", len(self.guests.by_id)),
            ("in flight", len(self.in_flight_requests)),
            ("serves", self.closed is None),
        )

    def _on_rarer(self, sender: Address, event: Rarer, now: Instant) -> Effects:
        if isinstance(event, Told):
            return self._on_told(sender, event, now)
        if isinstance(event, FromClient):
            return self._on_client(sender, event, now)
        if isinstance(event, FromLog):
            return self._on_log(sender, event, now)
        match event:
            case Probe():
                return self.serving.reply(sender, event)
            case Reported():
                self.description.reported = event
                return self.description.finish(self.answering.master, now)
            case Round():
                return self._on_round(now)

    def _on_client(self, asker: Address, event: FromClient, now: Instant) -> Effects:
        if not (
            self.in_flight_requests.by_key or self.readings.by_number or self.description.asked
        ):
            self.silence.broken(now)
        if isinstance(event, Describe):
            if len(event.session) > OWNER_BYTES_MAX:  # It would be kept until the answer.
                return [Observe("proxy.session_malformed")]
            return [*self.description.ask(asker, event, now), *self._tick()]
        try:
            if isinstance(event, Inspect | ListLocks):
                self.asking.admit(asker, event.session, now)
                event.check()
                return [*self.readings.ask(asker, event, now), *self._tick()]
        except InvalidRequestError as error:
            return [refuse(asker, event, Reason.INVALID, str(error)), Observe("proxy.refused")]
        return self.asking.ask(asker, event, now)

    def _on_log(self, sender: Address, event: FromLog, now: Instant) -> Effects:
        match event:
            case LeaderChanged():
                self.answering.master = event.master
                told = self.serving.follow(event.master)
                if not event.master:
                    return tuple(told)
                self.in_flight_requests.doubt(now)
                return [*told, *self._repeat(now, FOLLOW_BURST)]
            case Isolated():
                return self.serving.isolate(isolated=event.isolated)
            case Skipped():
                self.in_flight_requests.doubt(now, queued=True)
                return self._repeat(now, FOLLOW_BURST)
            case Declined():
                return self._on_told(sender, event, now)
            case VotingStatus():
                self.description.why_no_vote = event.why
            case Divergence():
                return self._on_divergence(event, now)
        return ()

    def _on_divergence(self, event: Divergence, now: Instant) -> Effects:
        """Show the difference; stop serving if this node is the one that diverged."""
        self.description.why_diverged = event.why
        if not event.quarantined:
            return ()
        self.closed = Closed(self.node, self.description.members, event.why)
        requests = [(one.asker, one.request) for one in self.in_flight_requests.by_key.values()]
        local = self.guests.by_id.get(self.node)
        lost = [] if local is None else [self.closed.end(local.asker, local.session)]
        described = [
            effect
            for asker, describe in self.description.asked
            for effect in self.closed.handle(asker, describe, now)
        ]
        return [*self.closed.refuse_all(requests), *lost, *described, Observe("proxy.closed")]

    def _on_told(self, sender: Address, told: Told | Declined, now: Instant) -> Effects:
        """Handle what a member's replica sends to the proxy itself, perhaps from another node."""
        if node_of(sender) not in self.members:
            return [Observe("paxos.stranger_ignored")]
        if isinstance(told, Declined):
            return self.answering.declined(told)
        self.silence.heard(now)
        return self.answering.told(told, now)

    def _on_consulted(self, consulted: Consulted, now: Instant) -> Effects:
        effects = self.description.on_consulted(consulted)
        if effects is None:
            return self.readings.on_consulted(consulted, now)
        return [*effects, *self.description.finish(self.answering.master, now)]

    def _on_round(self, now: Instant) -> Effects:
        effects: list[Effect] = [
            *self._explain(now),
            *self.readings.end_old(now),
            *self.description.finish(self.answering.master, now),
        ]
        if self.guests.forget_silent(now):
            gone = self.in_flight_requests.forget_silent(now)
            effects.append(Observe("proxy.request_of_silent_client_forgotten", gone))
        effects += self._repeat(now, BURST)
        self.ticking = False
        busy = self.in_flight_requests or self.readings.by_number or self.description.asked
        return [*effects, *self._tick()] if busy else effects

    def _explain(self, now: Instant) -> list[Effect]:
        """Tell the session of callers inside the process why its requests are not decided."""
        local = self.guests.by_id.get(self.node)
        if local is None or not local.in_flight_requests:
            return []
        if self.silence.silent_ms(now) < ASK_AGAIN_MS:
            return []
        return [Send(local.asker, Undecided(detail=self.silence.in_words(now)))]

    def _repeat(self, now: Instant, most: int) -> list[Effect]:
        """Propose again what is due."""
        due = self.in_flight_requests.due(now, most)
        return [self.in_flight_requests.propose(in_flight_request) for in_flight_request in due]

    def _tick(self) -> tuple[Wake, ...]:
        ticking, self.ticking = self.ticking, True
        return () if ticking else (Wake(ROUND_MS, Round()),)
