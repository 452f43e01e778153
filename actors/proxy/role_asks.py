"""Requests of other processes to roles of this node, until the roles reply. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fencelock.actors.api.message import refused
from fencelock.actors.api.role_request import AskRole, RoleReply
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.error import OverloadedError
from fencelock.actors.message import NS_PER_MS, Address, Instant, address_of
from fencelock.actors.proxy.clients import OverQuotaError
from fencelock.actors.proxy.message import AskReplied, DropAsk, PassAsk

CLIENT_MAX = 64
"""Unanswered requests to roles of one client, or of all clients with one key."""

NODE_MAX = 1_024
"""Unanswered requests to roles through one proxy: each may keep `REQUEST_BYTES_MAX`."""


@dataclass(frozen=True, slots=True)
class OpenAsk:
    """A request to a role that has no reply yet."""

    client: Address
    request: AskRole
    owner: str
    """The client or the key that it counts for, in words."""
    ends_at: Instant


class RoleAsks:
    """Passes requests to roles to the host, and the roles' replies to the clients.

    Args:
        node: this node.

    """

    def __init__(self, node: str) -> None:
        self.node = node
        self.open: dict[int, OpenAsk] = {}
        self._number = 0
        self._by_owner: Counter[str] = Counter()

    def begin(self, client: Address, request: AskRole, owner: str, now: Instant) -> list[Effect]:
        """Pass ``request`` on, and expect a reply if the client wants one.

        Raises:
            OverQuotaError: ``owner`` has too many unanswered ones.
            OverloadedError: the node has.

        """
        if not request.wait_ms:
            return [self._to_host(PassAsk(number=0, role=request.role, body=request.body))]
        if self._by_owner[owner] >= CLIENT_MAX:
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
        self.open[self._number] = OpenAsk(client, request, owner, ends_at)
        self._by_owner[owner] += 1
        return [self._to_host(PassAsk(number=self._number, role=request.role, body=request.body))]

    def answer(self, reply_event: AskReplied) -> list[Effect]:
        """Send the reply of a role to the client that waits for it."""
        ask = self._drop(reply_event.number)
        if ask is None:
            return []
        request = ask.request
        if reply_event.reason is not None:
            no = refused(request, reply_event.reason, reply_event.detail)
            return [Send(ask.client, no), Observe("proxy.refused")]
        reply = RoleReply(body=reply_event.body, session=request.session, request=request.request)
        return [Send(ask.client, reply)]

    def expire(self, now: Instant) -> list[Effect]:
        """Forget the requests whose clients have stopped waiting."""
        effects: list[Effect] = []
        for number, ask in [*self.open.items()]:
            if ask.ends_at <= now:
                self._drop(number)
                effects += [self._to_host(DropAsk(number=number)), Observe("proxy.ask_expired")]
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
