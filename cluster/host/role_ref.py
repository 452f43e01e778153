"""Pykka references to the roles of a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

import pykka
from pykka import messages

from fencelock.actors.api.request import RepliedBy
from fencelock.actors.api.role_request import DescribeRole, ReadState, RoleRequest
from fencelock.actors.error import FencelockError
from fencelock.actors.message import Message
from fencelock.actors.role import Role
from fencelock.cluster.host.fork import ForkCounter
from fencelock.cluster.host.pending_asks import AskReply
from fencelock.transport.codec import check_types

A = TypeVar("A")

ActorStop = messages._ActorStop  # pyright: ignore[reportPrivateUsage]
"""The message by which Pykka stops an actor, and `pykka.ActorRegistry.stop_all` stops all."""

UNIVERSAL = (
    DescribeRole,
    ReadState,
    messages.ProxyCall,
    messages.ProxyGetAttr,
    messages.ProxySetAttr,
    ActorStop,
)
"""Messages that the host answers in place of the role."""


class RoleRef(pykka.ActorRef[Any]):
    """A Pykka reference whose `ask` withdraws its request when the caller gives up.

    Args:
        role: the role that receives the messages.
        submit: takes a message and the reply for its answer, from any thread.
        abandon: withdraws a request, from any thread.
        stop_node: stops the role's node, from any thread; the reply is set when it has stopped.
            None for a role that stops alone.

    """

    def __init__(
        self,
        role: Role[Any],
        submit: Callable[[Any, AskReply | None], None],
        abandon: Callable[[AskReply], None],
        stop_node: Callable[[AskReply | None], None] | None,
    ) -> None:
        super().__init__(role)
        self._stop_node = stop_node
        self._submit = submit
        self.submit: Callable[[Any, AskReply], None] = submit
        """Send a message without waiting; the answer or the error goes to the reply.

        The caller guarantees that the role accepts the message and that its fields have their
        declared types. So a message whose parts are constant need not be checked for each request.
        """
        self.abandon = abandon
        """Withdraw the request of a reply; the role is notified."""

    def tell(self, message: Any) -> None:
        """Send ``message`` without waiting; never blocks.

        Raises:
            TypeError: the role does not accept ``message``, or a field does not have its declared
                type.
            pykka.ActorDeadError: the role, or its node, has stopped.
            fencelock.actors.error.OverloadedError: too much waits for this node.

        """
        self._check(message)
        if not self.is_alive():
            raise pykka.ActorDeadError(f"{self} not found")
        self._send(message, None)

    @overload  # type: ignore[override]  # The last overload takes all that Pykka's takes.
    def ask(
        self, message: RoleRequest[A], *, block: Literal[False], timeout: float | None = None
    ) -> pykka.Future[A]: ...

    @overload
    def ask(
        self, message: RoleRequest[A], *, block: Literal[True] = True, timeout: float | None = None
    ) -> A: ...

    @overload
    def ask(
        self, message: RepliedBy[A], *, block: Literal[False], timeout: float | None = None
    ) -> pykka.Future[A]: ...

    @overload
    def ask(
        self, message: RepliedBy[A], *, block: Literal[True] = True, timeout: float | None = None
    ) -> A: ...

    @overload
    def ask(self, message: Any, *, block: bool = True, timeout: float | None = None) -> Any: ...

    def ask(  # pyright: ignore[reportIncompatibleMethodOverride]  # The last overload takes all.
        self, message: Any, *, block: bool = True, timeout: float | None = None
    ) -> Any:
        """Send ``message`` and return the role's answer, however many events later it comes.

        Args:
            message: of a type that the role accepts, or `DescribeRole` or `ReadState`, which the
                host answers.
            block: whether to wait here; if not, a Pykka future is returned at once.
            timeout: how long to wait here (s), None for no limit. When the wait ends
                without an answer, the role is notified, so that it does not grant a lock to
                a caller that has left.

        Raises:
            TypeError: the role does not accept ``message``, or a field does not have its declared
                type.
            pykka.Timeout: ``timeout`` ran out.
            pykka.ActorDeadError: the role, or its node, has stopped.
            fencelock.actors.error.OverloadedError: too much waits for this role.
            fencelock.actors.error.ClosedError: this process is a fork of the node's.
            fencelock.actors.error.FencelockError: the role refused, for the reason raised.

        """
        self._check(message)
        reply = AskReply()
        try:
            self._send(message, reply)
            if not block:
                reply.forks = ForkCounter.forks
            return reply.get(timeout=timeout) if block else reply
        except FencelockError:
            raise
        except BaseException:  # Out of time, or interrupted by the handler of any signal.
            self.abandon(reply)
            raise

    def _send(self, message: Any, reply: AskReply | None) -> None:
        if type(message) is ActorStop and self._stop_node is not None:
            self._stop_node(reply)
        else:
            self._submit(message, reply)

    def _check(self, message: Any) -> None:
        """Refuse at the caller a message that a role would drop, or that would break it."""
        accepts = self.actor_class.accepts
        if type(message) not in accepts and not isinstance(message, UNIVERSAL):
            known = ", ".join(sorted(kind.__name__ for kind in accepts))
            raise TypeError(f"{self.actor_class.__name__} does not accept {message!r}, but {known}")
        if isinstance(message, Message):
            check_types(message)  # Roles trust the types of local messages.
