"""The reference by which threads outside a node talk to a role inside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pykka

from holdfast.actors.role import Role


class RoleRef(pykka.ActorRef[Any]):
    """A Pykka reference whose `ask` takes its question back when the caller gives up.

    Everything else is Pykka's: ``tell``, ``ask(block=False)`` with a future, timeouts.
    """

    def __init__(self, role: Role[Any], abandon: Callable[[pykka.Future[Any]], None]) -> None:
        super().__init__(role)
        self._abandon = abandon

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
        future = super().ask(message, block=False)
        if not block:
            return future
        try:
            return future.get(timeout=timeout)
        except (pykka.Timeout, KeyboardInterrupt, SystemExit):
            self._abandon(future)
            raise
