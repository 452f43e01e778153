"""Requests of other processes to roles, until the roles reply. Pure.

A request to a role of another node is sent to the proxy of that node, under the name of this one:
to that proxy, this node is a client, which has the rights of a node. So only the first proxy checks
the rights of the client, and no request is sent on twice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from msgspec.structs import replace

from fencelock.actors.api.lock_message import Reason, Refused, refused
from fencelock.actors.api.role_request import AskRole, RoleReply
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.error import OverloadedError
from fencelock.actors.message import NS_PER_MS, Address, Instant, address_of, node_of
from fencelock.actors.proxy.clients import OverQuotaError, RemoteClients
from fencelock.actors.proxy.event import AskReplied, DropAsk, PassAsk
from fencelock.actors.role_message import LinkDown, LinkUp

CLIENT_MAX = 64
"""Unanswered requests to roles of one client, or of all clients with one key."""

NODE_MAX = 1_024
"""Unanswered requests to roles through one proxy: each may keep `ROLE_REQUEST_BYTES_MAX`."""


@dataclass(frozen=True, slots=True)
class OpenAsk:
    """A request to a role that has no reply yet."""

    client: Address
    request: AskRole
    owner: str
    """The client or the key that it counts for, in words."""
    ends_at: Instant
    node: str
    """The node of the role."""


class RoleAsks:
    """Passes requests to roles to the host, or to their nodes, and the replies to the clients."""

    def __init__(self, node: str, clients: RemoteClients) -> None:
        self.node = node
        self.open: dict[int, OpenAsk] = {}
        self._clients = clients
        self._linked = clients.linked
        self._number = 0
        self._by_owner: Counter[str] = Counter()

    def on_ask(self, client: Address, request: AskRole, now: Instant) -> list[Effect]:
        """Pass ``request`` on, and expect a reply if the client wants one.

        Raises:
            OverQuotaError: its owner has too many unanswered ones.
            OverloadedError: the node has.

        """
        node, owner = request.node or self.node, self._clients.owner_of(node_of(client))
        if node != self.node and node not in self._linked:
            detail = (
                f"node {node} cannot be reached; node {self.node}, which was to pass the request "
                f"on, has links to {', '.join(sorted(self._linked)) or 'no node'}"
            )
            return [Send(client, refused(request, Reason.GONE, detail)), Observe("proxy.refused")]
        if not request.wait_ms:
            return [self._passed(node, request, 0)]
        of_node = node_of(client) in self._linked  # It passes on requests that it has counted.
        if self._by_owner[owner] >= CLIENT_MAX and not of_node:
            raise OverQuotaError(
                f"{owner} has {CLIENT_MAX} unanswered requests to roles of node {self.node}, the "
                "limit; nothing was done"
            )
        if len(self.open) >= NODE_MAX:
            raise OverloadedError(
                f"node {self.node} has {NODE_MAX} unanswered requests to roles, the limit; nothing "
                "was done"
            )
        self._number += 1
        ends_at = Instant(now + request.wait_ms * NS_PER_MS)
        self.open[self._number] = OpenAsk(client, request, owner, ends_at, node)
        self._by_owner[owner] += 1
        return [self._passed(node, request, self._number)]

    def _passed(self, node: str, request: AskRole, number: int) -> Send:
        """Pass ``request`` to the role's node, under a number of its own; 0 for no reply."""
        if node == self.node:
            return self._to_host(PassAsk(number=number, role=request.role, body=request.body))
        own = replace(request, session=self.node, request=number, node="")
        return Send(address_of(node, "proxy"), own)

    def on_replied(self, sender: Address, reply_event: AskReplied, now: Instant) -> list[Effect]:
        """Send the reply of a role of this node to the client that waits for it."""
        return self._answer(self.node, reply_event)

    def on_reply(self, sender: Address, reply: RoleReply | Refused, now: Instant) -> list[Effect]:
        """Send the reply of another node's proxy to the client that waits for it."""
        if isinstance(reply, Refused):
            event = AskReplied(number=reply.request, reason=reply.reason, detail=reply.detail)
        else:
            event = AskReplied(number=reply.request, body=reply.body)
        return self._answer(node_of(sender), event)

    def _answer(self, node: str, reply_event: AskReplied) -> list[Effect]:
        known = self.open.get(reply_event.number)
        if known is None or known.node != node:
            return []
        self._drop(reply_event.number)
        request = known.request
        if reply_event.reason is not None:
            no = refused(request, reply_event.reason, reply_event.detail)
            return [Send(known.client, no), Observe("proxy.refused")]
        reply = RoleReply(body=reply_event.body, session=request.session, request=request.request)
        return [Send(known.client, reply)]

    def on_link(self, sender: Address, link: LinkUp | LinkDown, now: Instant) -> list[Effect]:
        """Note a link to another node; end the requests that a broken one may have lost."""
        if isinstance(link, LinkUp):
            self._linked[link.node] = None
            return []
        self._linked.pop(link.node, None)
        lost = [number for number, ask in self.open.items() if ask.node == link.node]
        return [
            effect
            for number in lost
            for effect in self._answer(
                link.node,
                AskReplied(
                    number=number,
                    reason=Reason.GONE,
                    detail=f"the link from node {self.node} to node {link.node} broke before role "
                    f"{self.open[number].request.role} replied; it is unknown whether it received "
                    "the request",
                ),
            )
        ]

    def expire(self, now: Instant) -> list[Effect]:
        """Forget the requests whose clients have stopped waiting."""
        effects: list[Effect] = []
        for number, ask in [*self.open.items()]:
            if ask.ends_at <= now:
                self._drop(number)
                effects.append(Observe("proxy.ask_expired"))
                if ask.node == self.node:
                    effects.append(self._to_host(DropAsk(number=number)))
        return effects

    def _drop(self, number: int) -> OpenAsk | None:
        ask = self.open.pop(number, None)
        if ask is not None:
            self._by_owner[ask.owner] -= 1
            if not self._by_owner[ask.owner]:
                del self._by_owner[ask.owner]
        return ask

    def _to_host(self, message: PassAsk | DropAsk) -> Send:
        return Send(address_of(self.node, "node"), message)
