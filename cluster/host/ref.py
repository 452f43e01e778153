"""The reference by which threads outside a node talk to a role inside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pykka

from holdfast.actors.role import Role
from holdfast.cluster.host.reply import Reply


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
        self._abandon = abandon

    def tell(self, message: Any) -> None:
        """Send ``message`` and go on; never blocks.

        Raises:
            pykka.ActorDeadError: the role, or its node, has stopped.
            holdfast.actors.error.OverloadedError: too much waits for this node.

        """
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
            pykka.Timeout: ``timeout`` is over.
            pykka.ActorDeadError: the role, or its node, has stopped.
            holdfast.actors.error.OverloadedError: too much waits for this role.
            holdfast.actors.error.HoldfastError: the role refused, for the reason raised.

        """
        reply = Reply()
        self._submit(message, reply)
        if not block:
            return reply
        try:
            return reply.get(timeout=timeout)
        except (pykka.Timeout, KeyboardInterrupt, SystemExit):
            self._abandon(reply)
            raise
