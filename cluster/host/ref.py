"""The reference by which threads outside a node talk to a role inside it."""

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
"""What Pykka itself says to an actor."""


class RoleRef(pykka.ActorRef[Any]):
    """A Pykka reference whose `ask` takes its question back when the caller gives up.

    Args:
        role: who is spoken to.
        submit: takes what is said and where the answer goes, from any thread.
        abandon: takes a question back, from any thread.

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
        """Send a message and go on; the answer, or why there is none, goes to the reply.

        The caller vouches for it: the role accepts the message, and its fields are of the types
        that they were declared with. What is made for each request need not be checked for each.
        """
        self.abandon = abandon
        """Take back the question that a reply was to answer; the role is told."""

    def tell(self, message: Any) -> None:
        """Send ``message`` and go on; never blocks.

        Raises:
            TypeError: the role does not accept ``message``, or a field is of another type
                than it was declared.
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
            message: what the role accepts.
            block: whether to wait here; else a Pykka future is returned at once.
            timeout: how long to wait here (s), None for without limit. The role is told
                when the wait ends without an answer, so that a lock is not granted to
                somebody who has left.

        Raises:
            TypeError: the role does not accept ``message``, or a field is of another type
                than it was declared.
            pykka.Timeout: ``timeout`` is over.
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
        """Refuse at the caller what a role would drop, or what would break it."""
        accepts = self.actor_class.accepts
        if type(message) not in accepts and not isinstance(message, PYKKAS_OWN):
            known = ", ".join(sorted(kind.__name__ for kind in accepts))
            raise TypeError(f"{self.actor_class.__name__} does not accept {message!r}, but {known}")
        if isinstance(message, Message):
            pack(message)  # Roles trust the types of what they hear.
