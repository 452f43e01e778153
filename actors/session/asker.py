"""The role inside a client that asks the roles of nodes.

A request to a role is for one node, and is sent once: only the role knows what a repetition would
do. So it does not take the way of requests about locks, which any node may serve and which the
session repeats. The asker finds the link to the node, sends the request in an `AskRole`, and passes
the reply on. If no link leads to the node, another node passes the request on. It ends with the
first of these:

- the reply of the role, or the refusal of the node;
- a link that breaks: the node is gone, or has lost what it knew of the request;
- the time limit of the request.

A client knows the addresses of nodes, and not their names. So the asker sends a probe over each new
link; the reply names the node. A client is connected once one node has answered. So a request for a
node whose link is not known waits for the other first links, and for the replies to the probes, but
for `FIND_MS` at most, and no longer than half of its own time.
"""

from __future__ import annotations

from collections.abc import Mapping

import pykka
from msgspec import Struct
from msgspec.structs import replace

from fencelock.actors.api.cluster_message import Probe, ProbeReply
from fencelock.actors.api.lock_message import ERROR_REASONS, ERRORS, Abandon, Reason, Refused
from fencelock.actors.api.role_request import AskRole, RoleReply
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.error import FencelockError, UnavailableError
from fencelock.actors.message import (
    Address,
    Instant,
    Local,
    Refusal,
    Timer,
    address_of,
    ms_between,
    node_of,
)
from fencelock.actors.role import Host, Role, Summary
from fencelock.actors.role_message import LinkDown, LinkRefused, LinkUp

FIND_MS = 2_000
"""Longest wait for the names of nodes (ms): a node that lives replies to a probe at once."""

ASK_TICK_MS = 100
"""Resolution of time limits (ms): they may be late by this much."""

ASKS_MAX = 1_000
"""Unanswered requests of one client: more than all nodes of a cluster together accept of it."""


class RoleGoneError(UnavailableError, pykka.ActorDeadError):
    """The role that was asked, or its node, does not run, or cannot be reached.

    The text names the roles or the nodes that do. If the request had been sent before, it is
    unknown whether the role received it.
    """


class AskTimeoutError(FencelockError, pykka.Timeout, TimeoutError):
    """A role of another process sent no reply in time. It may have received the request."""


# Not declared there: the table of locks needs no Pykka.
ERRORS[Reason.GONE] = RoleGoneError
ERROR_REASONS[RoleGoneError] = Reason.GONE


class AskNode(Local):
    """From a user: give the request in ``body`` to ``role`` of ``node``. See `AskRole`.

    Answered by a `RoleReply`, a `Refused` or an `AskTimedOut`; with ``wait_ms`` 0 by nothing.
    """

    node: str
    role: str
    body: bytes
    wait_ms: int


class AskTimedOut(Refusal):
    """No reply came within the ``wait_ms`` of an `AskNode`. Never on the wire."""

    text: str

    def error(self) -> Exception:
        """Return the error, which is also a Pykka timeout."""
        return AskTimeoutError(self.text)


class AskTick(Timer):
    """End the requests whose time is up."""


class NodeLink(Struct):
    """One link of the client."""

    label: str
    """The address of the node, as its user named it."""
    tried: bool = False
    """Whether it is known if the first connection succeeds."""
    up: bool = False
    node: str = ""
    """The node behind it, once it has replied to a probe over this link."""
    refused: str = ""
    """The reason why the process there does not accept this client."""


class OpenAsk(Struct):
    """A request without a reply."""

    user: Address
    ask: AskNode
    asked_at: Instant
    link: str = ""
    """The link over which it was sent; empty while the node is being looked for."""


Event = AskNode | RoleReply | Refused | ProbeReply | Abandon | LinkUp | LinkDown | LinkRefused


class Asker(Role[Event | AskTick]):
    """Sends requests to the roles of nodes, each once, and passes the replies on.

    Invariants:
        asked-once: No request is sent a second time.
        one-end: A user who wants a reply receives one: the role's, a refusal, or a timeout.

    ``labels`` are the user's names of the nodes' addresses, by the names of the links.
    """

    def __init__(
        self, address: Address, host: Host, *, client: str, labels: Mapping[str, str]
    ) -> None:
        super().__init__(address, host)
        self.client = client
        self.links = {link: NodeLink(label) for link, label in labels.items()}
        self.open: dict[int, OpenAsk] = {}
        self.number = 0
        self.ticking = False

    def summary(self) -> Summary:
        return ("nodes", ", ".join(sorted(self._nodes()))), ("in flight", len(self.open))

    def handle(self, sender: Address, event: Event | AskTick, now: Instant) -> Effects:
        match event:
            case AskNode():
                effects = self._on_ask(sender, event, now)
            case RoleReply() | Refused():
                effects = self._on_reply(sender, event)
            case ProbeReply():
                effects = self._on_named(sender, event, now)
            case Abandon():
                self.open = {n: one for n, one in self.open.items() if one.user != sender}
                effects = []
            case LinkUp():
                link = self.links.setdefault(event.node, NodeLink(event.node))
                link.tried, link.up, link.node, link.refused = True, True, "", ""
                effects = self._probes()
            case LinkDown():
                effects = self._on_broken(event.node, "broke", now)
            case LinkRefused():
                effects = self._on_broken(event.node, f"was refused: {event.detail}", now)
                if event.node in self.links:
                    self.links[event.node].refused = event.detail
            case AskTick():
                self.ticking = False
                effects = self._on_tick(now)
        if self.open and not self.ticking:
            self.ticking = True
            effects.append(Wake(ASK_TICK_MS, AskTick()))
        return effects

    def _on_ask(self, user: Address, ask: AskNode, now: Instant) -> list[Effect]:
        if len(self.open) >= ASKS_MAX:
            text = f"{ASKS_MAX} requests of this client to roles are unanswered, the limit"
            return self._end(user, ask, Reason.OVERLOADED, text)
        self.number += 1
        self.open[self.number] = OpenAsk(user, ask, now)
        return self._send(self.number, now) or self._probes()

    def _send(self, number: int, now: Instant) -> list[Effect]:
        """Send a request, if it is known which link leads to its node; end it, if none does."""
        waiting = self.open[number]
        ask = waiting.ask
        named = {link.node: name for name, link in self.links.items() if link.up and link.node}
        unknown = any(not link.tried or (link.up and not link.node) for link in self.links.values())
        find_ms = min(FIND_MS, ask.wait_ms // 2 or FIND_MS)
        if ask.node not in named and unknown and ms_between(waiting.asked_at, now) < find_ms:
            return []
        if named:
            through = ask.node if ask.node in named else min(named)
            waiting.link = named[through]
            if not ask.wait_ms:
                del self.open[number]
            request = AskRole(
                role=ask.role,
                body=ask.body,
                wait_ms=ask.wait_ms,
                session=self.client,
                request=number,
                node="" if through == ask.node else ask.node,
            )
            return [Send(address_of(waiting.link, "proxy"), request)]
        del self.open[number]
        text = f"node {ask.node} cannot be reached; {self._has_links()}"
        return self._end(waiting.user, ask, Reason.GONE, text)

    def _has_links(self) -> str:
        text = f"the client has links to {', '.join(sorted(self._nodes())) or 'no node'}"
        lost = [
            f"{link.label}: {link.refused}" if link.refused else link.label
            for link in self.links.values()
            if not link.node
        ]
        return f"{text}, and none to {', '.join(lost)}" if lost else text

    def _on_reply(self, sender: Address, reply: RoleReply | Refused) -> list[Effect]:
        waiting = self.open.get(reply.request)
        if waiting is None or waiting.link != node_of(sender):
            return [Observe("client.late_answer_dropped")]
        del self.open[reply.request]
        passed_on = self.links[waiting.link].node != waiting.ask.node
        if passed_on and isinstance(reply, Refused) and reply.reason is Reason.GONE:
            reply = replace(reply, detail=f"{reply.detail}; {self._has_links()}")
        return [Send(waiting.user, reply)]

    def _on_named(self, sender: Address, reply: ProbeReply, now: Instant) -> list[Effect]:
        link = self.links.get(node_of(sender))
        if link is None or not link.up:
            return [Observe("client.late_answer_dropped")]
        link.node = reply.node
        return self._send_waiting(now)

    def _on_broken(self, name: str, what: str, now: Instant) -> list[Effect]:
        link = self.links.setdefault(name, NodeLink(name))
        former, link.node = link.node, ""
        link.tried, link.up = True, False
        effects: list[Effect] = []
        for number, waiting in [*self.open.items()]:
            if waiting.link == name:
                del self.open[number]
                text = (
                    f"the link to node {former} ({link.label}) {what} before role "
                    f"{waiting.ask.role} replied; it is unknown whether it received the request"
                )
                effects += self._end(waiting.user, waiting.ask, Reason.GONE, text)
        return [*effects, *self._send_waiting(now)]

    def _on_tick(self, now: Instant) -> list[Effect]:
        effects: list[Effect] = []
        for number, waiting in [*self.open.items()]:
            ask = waiting.ask
            if ask.wait_ms and ms_between(waiting.asked_at, now) >= ask.wait_ms:
                del self.open[number]
                text = f"{ask.node}/{ask.role} sent no reply within {ask.wait_ms / 1000:g} s"
                effects.append(Send(waiting.user, AskTimedOut(text=text)))
        effects += self._send_waiting(now)
        if any(not waiting.link for waiting in self.open.values()):
            effects += self._probes()  # The first ones may have been lost.
        return effects

    def _send_waiting(self, now: Instant) -> list[Effect]:
        """Look again for the nodes of the requests that were not sent."""
        effects: list[Effect] = []
        for number in [number for number, one in self.open.items() if not one.link]:
            effects += self._send(number, now)
        return effects

    def _probes(self) -> list[Effect]:
        unnamed = (name for name, link in self.links.items() if link.up and not link.node)
        return [Send(address_of(name, "proxy"), Probe(session=self.client)) for name in unnamed]

    def _nodes(self) -> set[str]:
        return {link.node for link in self.links.values() if link.node}

    def _end(self, user: Address, ask: AskNode, reason: Reason, detail: str) -> list[Effect]:
        if not ask.wait_ms:
            return [Observe("client.tell_failed")]
        no = Refused(lock="", reason=reason, detail=detail, session=self.client, owner="")
        return [Send(user, no)]
