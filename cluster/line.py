"""The line from a user's threads to the session role of their client."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any, Protocol

import pykka

from holdfast.actors.client.message import Survey, Surveyed
from holdfast.actors.error import ClosedError
from holdfast.actors.lock.message import (
    Acquire,
    Cancel,
    Granted,
    Inspect,
    LockStatus,
)
from holdfast.actors.message import Event


@dataclass(slots=True)
class Grip:
    """What one owner of this client holds, until its release was confirmed."""

    fence: int
    releasing: bool = False
    """A release was begun; that the lock is no longer held is then no surprise."""


class Role(Protocol):
    """The session role, as threads reach it (`holdfast.cluster.host.ref.RoleRef`)."""

    def ask(self, message: Event) -> Any:
        """Return the answer, or raise the refusal as an error."""
        ...

    def tell(self, message: Event) -> None:
        """Say ``message``; nobody waits for an answer."""
        ...


class Line:
    """Carries questions of any thread to the session, and refuses when there is none.

    Attributes:
        grips: what is held, by lock and owner. An owner is sequential, so no two threads
            write one entry at a time.

    """

    def __init__(self, session: Role) -> None:
        self.grips: dict[tuple[str, str], Grip] = {}
        self.closed = False
        self._session = session
        self._pid = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that connected."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Refuse if there is nobody to ask.

        Raises:
            ClosedError: the client is closed, or this is a forked process.

        """
        if self.forked:
            raise ClosedError(
                f"this client belongs to process {self._pid}, which forked process "
                f"{os.getpid()}: connect anew after a fork"
            )
        if self.closed:
            raise ClosedError("this client is closed: connect anew")

    def ask(self, message: Event) -> Any:
        """Return the session's answer, whenever it comes.

        Raises:
            ClosedError: the client is closed, was closed meanwhile, or was forked.
            HoldfastError: the refusal, as its own error.

        """
        self.check()
        try:
            return self._session.ask(message)
        except pykka.ActorDeadError:
            raise ClosedError("this client was closed before an answer came") from None

    def ask_for_lock(self, acquire: Acquire) -> int:
        """Return the fence under which ``acquire`` was granted."""
        granted = self.ask(acquire)
        assert isinstance(granted, Granted)
        return granted.fence

    def cancel(self, cancel: Cancel) -> None:
        """Have the session undo an acquire; without a session there is nothing to undo."""
        if not self.forked:
            with contextlib.suppress(pykka.ActorDeadError):
                self._session.tell(cancel)

    def status(self, name: str) -> LockStatus:
        """Return what a node knows of the lock ``name``."""
        status = self.ask(Inspect(lock=name))
        assert isinstance(status, LockStatus)
        return status

    def survey(self) -> Surveyed:
        """Return what all nodes say of themselves."""
        surveyed = self.ask(Survey())
        assert isinstance(surveyed, Surveyed)
        return surveyed
