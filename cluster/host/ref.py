"""The reference by which threads outside a node send messages to a role inside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pykka
from pykka import messages

from fencelock.actors.message import Message
from fencelock.actors.role import Role
from fencelock.cluster.host.reply import Reply
from fencelock.transport.wire import pack

PYKKAS_OWN = (
    messages.ProxyCall,
    messages.ProxyGetAttr,
    messages.ProxySetAttr,
    messages._ActorStop,  # pyright: ignore[reportPrivateUsage]
)
"""Pykka's own messages to an actor."""


class RoleRef(pykka.ActorRef[Any]):
    """A Pykka reference whose `ask` withdraws its request when the caller gives up.

    Args:
        role: the role that receives the messages.
        submit: takes a message and the reply for its answer, from any thread.
        abandon: withdraws a request, from any thread.

    """

    def __init__(
        self,
        role: Role[Any],
        submit: Callable[[Any, Reply | None], None],
        abandon: Callable[[Reply], None],
    ) -> None:
        super().__init__(role)
        self._submit = submit
        self.submit: Callable[[Any, Reply], None] = submit
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
        self._submit(message, None)

    def ask(self, message: Any, *, block: bool = True, timeout: float | None = None) -> Any:
        """Send ``message`` and return the role's answer, however many events later it comes.

        Args:
            message: of a type that the role accepts.
            block: whether to wait here; if not, a Pykka future is returned at once.
            timeout: how long to wait here (s), None for without limit. When the wait ends
                without an answer, the role is notified, so that it does not grant a lock to
                a caller that has left.

        Raises:
            TypeError: the role does not accept ``message``, or a field does not have its declared
                type.
            pykka.Timeout: ``timeout`` ran out.
            pykka.ActorDeadError: the role, or its node, has stopped.
            fencelock.actors.error.OverloadedError: too much waits for this role.
            fencelock.actors.error.FencelockError: the role refused, for the reason raised.

        """
        self._check(message)
        reply = Reply()
        try:
            self._submit(message, reply)
            return reply.get(timeout=timeout) if block else reply
        except (pykka.Timeout, KeyboardInterrupt, SystemExit):
            self.abandon(reply)
            raise

    def _check(self, message: Any) -> None:
        """Refuse at the caller a message that a role would drop, or that would break it."""
        accepts = self.actor_class.accepts
        if type(message) not in accepts and not isinstance(message, PYKKAS_OWN):
            known = ", ".join(sorted(kind.__name__ for kind in accepts))
            raise TypeError(f"{self.actor_class.__name__} does not accept {message!r}, but {known}")
        if isinstance(message, Message):
            pack(message)  # Roles trust the types of local messages.
