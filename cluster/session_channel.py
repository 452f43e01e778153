"""The line from a user's threads or tasks to the session role of their client."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Protocol

import pykka

from fencelock.actors.error import ClosedError, OverloadedError
from fencelock.actors.lock.message import Inspect, LockStatus
from fencelock.actors.message import Event, Message
from fencelock.cluster.fork_counter import ForkCounter
from fencelock.cluster.host.reply import Reply
from fencelock.cluster.operation import Operation
from fencelock.transport.wire import pack


class Role(Protocol):
    """The session role, as threads reach it (`fencelock.cluster.host.ref.RoleRef`)."""

    def submit(self, message: Event, reply: Reply, /) -> None:
        """Ask ``message``, which is well-typed; the answer, or why not, goes to ``reply``."""
        ...

    def abandon(self, reply: Reply, /) -> None:
        """Take a question back."""
        ...

    def tell(self, message: Event) -> None:
        """Say ``message``; nobody waits for an answer."""
        ...


class SessionChannel:
    """Carries questions of any thread to the session, and refuses when there is none."""

    def __init__(self, session: Role) -> None:
        self.closed = False
        self.submit = session.submit
        """Ask, and go on; `answer` waits for it. For who has called `check`, or closes the client.

        What is asked is well-typed: what a user puts into a question was checked before.
        """
        self._session = session
        self._pid = os.getpid()
        self._forks = ForkCounter.forks

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that connected."""
        return ForkCounter.forks != self._forks

    def check(self) -> None:
        """Refuse if there is nobody to ask.

        Raises:
            ClosedError: the client is closed, or this is a forked process.

        """
        if ForkCounter.forks != self._forks:
            raise ClosedError(
                f"this client belongs to process {self._pid}, which forked process "
                f"{os.getpid()}: connect anew after a fork"
            )
        if self.closed:
            raise ClosedError("this client is closed: connect anew")

    def ask(self, message: Event) -> Operation[Any]:
        """Ask, and end with the session's answer, whenever it comes.

        Who stops waiting takes the question back.

        Raises:
            ClosedError: the client is closed, was closed meanwhile, or was forked.
            FencelockError: the refusal, as its own error.
            TypeError: a field of ``message`` is of another type than it was declared.

        """
        if isinstance(message, Message):
            pack(message)  # It has what a user said, and roles trust the types of what they hear.
        reply = Reply()
        try:
            self.check()
            self.submit(message, reply)
            return (yield from self.answer(reply))
        except BaseException:
            if not reply.done:
                self.abandon(reply)
            raise

    def answer(self, reply: Reply) -> Operation[Any]:
        """End with the answer in ``reply``.

        Raises:
            ClosedError: the client was closed before it came.
            FencelockError: the refusal, as its own error.

        """
        try:
            return (yield reply)
        except pykka.ActorDeadError:
            raise closed_meanwhile() from None

    def inspecting(self, lock: str, age_ms: int | None) -> Operation[LockStatus]:
        """End with what is known of ``lock``; ``age_ms`` as in `Inspect`."""
        status = yield from self.ask(Inspect(lock=lock, age_ms=age_ms))
        assert isinstance(status, LockStatus)
        return status

    def abandon(self, reply: Reply) -> None:
        """Have the session forget a question, and undo what came of it."""
        if not self.forked:
            self._session.abandon(reply)

    def tell(self, message: Event) -> None:
        """Say ``message`` if there is anybody; what was asked before is abandoned by others."""
        if not self.forked:
            with contextlib.suppress(pykka.ActorDeadError, OverloadedError):
                self._session.tell(message)


def closed_meanwhile() -> ClosedError:
    """Return what is raised where a question was open when the client was closed."""
    return ClosedError("this client was closed before an answer came")
