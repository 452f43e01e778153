"""Requests of other processes to roles of this node, as the node's host serves them.

The proxy has checked who asks. The host parses the request, finds the role, and gives it the
request from a temporary address, as it does for a caller inside the process. Whatever the role
sends to that address, however many events later, goes back through the proxy.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pykka

from fencelock.actors.api.lock_message import ERROR_REASONS, Reason
from fencelock.actors.api.role_request import (
    REPLY_BYTES_MAX,
    DescribeRole,
    ReadState,
    RoleDescribed,
    RoleDescription,
    RoleRequest,
)
from fencelock.actors.error import RefusedError, UnavailableError
from fencelock.actors.message import Message, address_of
from fencelock.actors.proxy.event import AskReplied, DropAsk, PassAsk
from fencelock.cluster.host.pending_asks import AskReply
from fencelock.transport.admission import message_in
from fencelock.transport.cbor import MalformedFrameError
from fencelock.transport.codec import encode

if TYPE_CHECKING:
    from fencelock.cluster.host.role_set import RoleSlot
    from fencelock.cluster.host.scheduler import Scheduler

NO_ROLE = "nobody"
"""The role that a request seems to come from if its sender wants no reply: there is none."""

NAMED_ROLES_MAX = 50
"""Roles, or requests of a role, that the text of a refusal names."""


class RoleAsks:
    """The requests that roles of one node have not answered yet, by the proxy's numbers."""

    def __init__(self, scheduler: Scheduler, inbox_max: int) -> None:
        self._scheduler = scheduler
        self._inbox_max = inbox_max
        self._open: dict[int, AskReply] = {}

    def begin(self, proxy: RoleSlot, ask: PassAsk) -> None:
        """Give the request of ``ask`` to its role, or answer why not."""
        scheduler = self._scheduler
        role_slot = scheduler.roles.get(address_of(scheduler.node, ask.role))
        if role_slot is None:
            names = ", ".join([slot.name for slot in scheduler.roles.values()][:NAMED_ROLES_MAX])
            text = f"node {scheduler.node} has no role {ask.role!r}; it has {names}"
            self._refuse(proxy, ask.number, Reason.GONE, text)
            return
        try:
            message = message_in(ask.body, member=False)
        except MalformedFrameError as error:
            text = f"the request to role {ask.role} of node {scheduler.node} is malformed: {error}"
            self._refuse(proxy, ask.number, Reason.INVALID, text)
            return
        if isinstance(message, DescribeRole | ReadState):
            self._reply(proxy, ask.number, scheduler.reply_for(role_slot, message))
        elif not issubclass(kind := type(message), RoleRequest) or kind not in role_slot.accepts:
            text = (
                f"role {ask.role} of node {scheduler.node} does not take {kind.__name__} "
                f"from another process; it takes {requests_of(role_slot)}"
            )
            self._refuse(proxy, ask.number, Reason.UNSUPPORTED, text)
        elif len(scheduler.ready) >= self._inbox_max:
            text = f"{self._inbox_max} events wait on node {scheduler.node}; nothing was done"
            self._refuse(proxy, ask.number, Reason.OVERLOADED, text)
        elif not ask.number:
            scheduler.post(role_slot, address_of(scheduler.node, NO_ROLE), message)
        else:
            reply = AskReply(partial(self._settled, proxy, ask.number))
            self._open[ask.number] = reply
            scheduler.post(role_slot, scheduler.asks.open(reply, role_slot.address), message)

    def drop(self, ask: DropAsk) -> None:
        """Forget a request, and notify its role, so that it does nothing for a caller that left."""
        if (reply := self._open.pop(ask.number, None)) is not None:
            self._scheduler.abandon(reply)

    def _settled(
        self,
        proxy: RoleSlot,
        number: int,
        reply: AskReply,
        value: Any,
        error: BaseException | None,
    ) -> None:
        """Pass on what a role sent to the address of ``reply``."""
        self._open.pop(number, None)
        if error is None:
            self._reply(proxy, number, value)
        elif isinstance(error, pykka.ActorDeadError):
            self._refuse(proxy, number, Reason.GONE, str(error))
        elif isinstance(error, RefusedError | UnavailableError):
            self._refuse(proxy, number, ERROR_REASONS.get(type(error), Reason.INTERNAL), str(error))
        else:
            self._refuse(proxy, number, Reason.INTERNAL, f"{reply.role}: {error!r}")

    def _reply(self, proxy: RoleSlot, number: int, value: Message | RoleDescription) -> None:
        if not number:
            return
        try:
            message = RoleDescribed(role=value) if isinstance(value, RoleDescription) else value
            body = encode(message)
        except Exception as error:  # noqa: BLE001  # A role's reply that no wire carries: a bug.
            self._scheduler.note_fault(f"the reply {value!r}", error)
            text = f"its reply, a {type(value).__name__}, cannot be sent: {error}"
            self._refuse(proxy, number, Reason.INTERNAL, text)
            return
        if len(body) > REPLY_BYTES_MAX:
            text = f"its reply has {len(body)} bytes, at most {REPLY_BYTES_MAX} are sent"
            self._refuse(proxy, number, Reason.LIMIT_REACHED, text)
            return
        self._post(proxy, AskReplied(number=number, body=body))

    def _refuse(self, proxy: RoleSlot, number: int, reason: Reason, detail: str) -> None:
        if number:
            self._post(proxy, AskReplied(number=number, reason=reason, detail=detail))
        else:
            self._scheduler.counters["host.tell_refused"] += 1

    def _post(self, proxy: RoleSlot, reply: AskReplied) -> None:
        self._scheduler.post(proxy, self._scheduler.here, reply)


def requests_of(role_slot: RoleSlot) -> str:
    """Return the names of the requests that a role takes from other processes."""
    own = [kind.__name__ for kind in role_slot.accepts if issubclass(kind, RoleRequest)]
    return ", ".join(sorted([DescribeRole.__name__, ReadState.__name__, *own])[:NAMED_ROLES_MAX])
