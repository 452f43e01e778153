"""References of roles in other processes: Pykka's `ask` and `tell`, over the client's links."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeVar, overload

import pykka

from fencelock.actors.api.request import RepliedBy
from fencelock.actors.api.role_request import (
    ASK_MS_MAX,
    ROLE_REQUEST_BYTES_MAX,
    RoleDescribed,
    RoleReply,
    RoleRequest,
)
from fencelock.actors.error import FencelockError, InvalidRequestError, UnsupportedError
from fencelock.actors.message import Address, Event, Message, is_address, node_of, role_of
from fencelock.actors.session.asker import AskNode, AskTimeoutError
from fencelock.cluster.client.connection import Connection
from fencelock.cluster.client.operation import AwaitReply, Operation, drive, drive_async
from fencelock.cluster.client.session_channel import Uncopyable, closed_meanwhile
from fencelock.cluster.client.settings import check_number
from fencelock.cluster.host.fork import ForkCounter
from fencelock.cluster.host.pending_asks import AskReply
from fencelock.cluster.host.role_ref import RoleRef
from fencelock.transport.admission import message_in
from fencelock.transport.cbor import MalformedFrameError
from fencelock.transport.codec import encode

A = TypeVar("A")

ASK_S_MAX = ASK_MS_MAX / 1000


class BaseRemoteRef(Uncopyable):
    """The part of a reference that does not wait.

    Attributes:
        address: the role, as ``node/role``.

    """

    def __init__(self, connection: Connection, address: str) -> None:
        connection.line.check()
        if type(address) is not str:
            raise TypeError(f"address is {address!r}, and must be a str such as 'n1/clock'")
        if not is_address(address):
            raise InvalidRequestError(
                f"address is {address[:80]!a}, and must be the name of a node and of one of its "
                "roles, such as 'n1/clock'"
            )
        self._connection = connection
        self.address = Address(address)

    def tell(self, message: RoleRequest[Any]) -> None:
        """Send ``message`` without waiting. Nobody learns whether it arrives.

        Raises:
            TypeError: ``message`` is no `RoleRequest`, or a field does not have its declared type.
            InvalidRequestError: ``message`` is larger than 16 KiB.
            ClosedError: the client is closed, or belongs to a process that was forked.

        """
        self._connection.line.check()
        self._connection.asker.tell(self._ask_node(message, 0))

    def _ask_node(self, message: Message, wait_ms: int) -> AskNode:
        if not issubclass(type(message), RoleRequest):
            raise TypeError(
                f"{message!r} is no RoleRequest, and only such requests go to a role of another "
                "process; requests about locks go to client.proxy"
            )
        body = encode(message)
        if len(body) > ROLE_REQUEST_BYTES_MAX:
            raise InvalidRequestError(
                f"{type(message).__name__} has {len(body)} bytes, at most {ROLE_REQUEST_BYTES_MAX} "
                "are sent to a role"
            )
        node, role = node_of(self.address), role_of(self.address)
        return AskNode(node=node, role=role, body=body, wait_ms=wait_ms)

    def _submit(self, message: RoleRequest[Any], timeout: float | None) -> AskReply:
        wait_ms = ASK_MS_MAX
        if timeout is not None:
            allowed = f"0 to {ASK_S_MAX:g} s, or None for {ASK_S_MAX:g} s"
            check_number(
                "timeout", timeout, allowed, lambda s: 0 <= s <= ASK_S_MAX, InvalidRequestError
            )
            wait_ms = max(1, math.ceil(timeout * 1000))
        self._connection.line.check()
        ask, reply = self._ask_node(message, wait_ms), AskReply()
        self._connection.asker.submit(ask, reply)
        return reply

    def _asking(self, message: RoleRequest[Any], timeout: float | None) -> Operation[Any]:
        reply = self._submit(message, timeout)
        value = yield from _awaiting(self._connection.asker, reply, self.address, timeout)
        return self._opened(value)

    def _opened(self, reply: RoleReply) -> Any:
        try:
            message = message_in(reply.body, member=True)
        except MalformedFrameError as error:
            text = f"the reply of {self.address} cannot be read: {error}; import what declares it"
            raise UnsupportedError(text) from error
        return message.role if isinstance(message, RoleDescribed) else message

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address} of {self._connection}>"


class RemoteRef(BaseRemoteRef):
    """A reference of a role of any node. From `fencelock.Client.ref`; for any thread."""

    @overload
    def ask(
        self, message: RoleRequest[A], *, block: Literal[False], timeout: float | None = None
    ) -> pykka.Future[A]: ...

    @overload
    def ask(
        self, message: RoleRequest[A], *, block: Literal[True] = True, timeout: float | None = None
    ) -> A: ...

    def ask(
        self, message: RoleRequest[Any], *, block: bool = True, timeout: float | None = None
    ) -> Any:
        """Send ``message`` to the role, once, and return its reply.

        Args:
            message: the request, of a type that the role takes from other processes:
                `DescribeRole`, which every role takes, or another `RoleRequest`.
            block: whether to wait here. If not, a Pykka future is returned at once, and its
                ``get`` raises what is listed here.
            timeout: the time for the reply (s), 0 to 60; None for 60.

        Raises:
            RoleGoneError: the role does not run, or neither this client nor a node that it reaches
                has a link to its node; or the link broke, and it is unknown whether the role has
                received the request. It is a `pykka.ActorDeadError`.
            AskTimeoutError: no reply came in time. It is a `pykka.Timeout` and a `TimeoutError`.
            UnsupportedError: the role does not take ``message``; the text names what it takes.
            ForbiddenError: the client has a key without the role operator.
            OverloadedError: 64 requests of this client, or key, wait for roles of the node.
            InvalidRequestError: ``timeout`` or the size of ``message`` is out of its limits.
            TypeError: ``timeout`` is no number, or as for `tell`.
            ClosedError: the client is closed, was closed meanwhile, or was forked.

        """
        if block:
            return drive(self._asking(message, timeout))
        reply = self._submit(message, timeout)
        reply.forks = ForkCounter.forks
        return reply.map(self._opened)


class AsyncRemoteRef(BaseRemoteRef):
    """A reference of a role of any node, for tasks. From `AsyncClient.ref`."""

    async def ask(self, message: RoleRequest[A], *, timeout: float | None = None) -> A:
        """Send ``message`` to the role, once, and return its reply; see `RemoteRef.ask`."""
        reply: A = await drive_async(self._asking(message, timeout))
        return reply


class AsyncProxyRef:
    """The reference of the client's own session, for tasks. From `AsyncClient.proxy`."""

    def __init__(self, connection: Connection) -> None:
        connection.line.check()
        self._connection = connection

    @overload
    async def ask(self, message: RepliedBy[A], *, timeout: float | None = None) -> A: ...

    @overload
    async def ask(self, message: Event, *, timeout: float | None = None) -> Any: ...

    async def ask(self, message: Any, *, timeout: float | None = None) -> Any:
        """Send a request about a lock or another object, and return the reply.

        Arguments and errors are those of ``ask`` of `fencelock.Client.proxy`.
        """
        return await drive_async(self._asking(message, timeout))

    def _asking(self, message: Event, timeout: float | None) -> Operation[Any]:
        self._connection.line.check()
        session = self._connection.session_ref
        reply = session.ask(message, block=False)
        assert isinstance(reply, AskReply)
        return (yield from _awaiting(session, reply, "the session", timeout))


def _awaiting(role: RoleRef, reply: AskReply, name: str, timeout: float | None) -> Operation[Any]:
    """End with the answer in ``reply`` of ``role``; withdraw the request if the wait ends first."""
    limit_s = ASK_S_MAX if timeout is None else timeout
    try:
        return (yield reply if timeout is None else AwaitReply(reply, timeout))
    except FencelockError:
        raise
    except TimeoutError:
        role.abandon(reply)
        raise AskTimeoutError(f"{name} sent no reply within {limit_s:g} s") from None
    except pykka.ActorDeadError:
        raise closed_meanwhile() from None
    except BaseException:
        role.abandon(reply)
        raise
