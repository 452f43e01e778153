"""Watches: the changes of an object, one after the other, for both clients."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

import pykka

from fencelock.actors.api.changes import ChangesRead, ReadChanges
from fencelock.actors.error import (
    AcquireCancelledError,
    FencelockError,
    OverloadedError,
    StaleError,
    UnavailableError,
)
from fencelock.cluster.host.pending_asks import AskReply
from fencelock.cluster.operation import AwaitReply, Operation
from fencelock.cluster.session_channel import SessionChannel, closed_meanwhile

T = TypeVar("T")

PAUSE_S = 1.0
"""Time between two attempts while no node answers (s)."""


class BaseWatch(Generic[T]):
    """The changes of one object of the cluster, beginning with the object as it is.

    It asks the cluster for the changes after the last one that it has. So none is missing and none
    comes twice, also when nodes crash or the client uses another one. For one thread or task at a
    time.
    """

    def __init__(self, channel: SessionChannel, lock: str) -> None:
        self._channel = channel
        self._lock = lock
        self._version: int | None = None
        """The version up to which all changes were received; None before the first reply."""
        self._reply: AskReply | None = None
        """The request that has no reply yet. It stays when its user stops waiting for a while."""
        self._items: deque[T] = deque()
        """What was received and not returned yet."""
        self.resyncs = 0
        """How often changes were left out, because the cluster had forgotten some of them: it keeps
        the last 1,000 of an object. The next item is the object as it is then."""

    def _take(self, read: ChangesRead) -> None:
        """Add the items for a reply to those that were received."""
        raise NotImplementedError

    def _next(self, timeout: float | None = None) -> Operation[T]:
        """End with the next item; wait ``timeout`` (s) at most, for ever with None.

        Raises:
            TimeoutError: there was none in time. It comes with the next call.

        """
        ends_at = None if timeout is None else time.monotonic() + timeout
        while not self._items:
            read = yield from self._reading(ends_at)
            if read is None:
                continue
            if read.resync and self._version is not None:
                self.resyncs += 1
            self._take(read)
            self._version = read.version
        return self._items.popleft()

    def _reading(self, ends_at: float | None) -> Operation[ChangesRead | None]:
        """End with the next reply, or None if no node could answer.

        Raises:
            FencelockError: the refusal, if asking again would not help. Before the first reply,
                also that no node answers.

        """
        self._channel.check()
        if self._reply is None:
            self._reply = AskReply()
            self._channel.submit(ReadChanges(lock=self._lock, after=self._version), self._reply)
        reply = self._reply
        try:
            yield _awaited(reply, ends_at)
        except (pykka.ActorDeadError, AcquireCancelledError):
            raise closed_meanwhile() from None
        except (UnavailableError, StaleError, OverloadedError):
            if self._version is None:
                raise
        except FencelockError:
            raise
        else:
            read = reply.get(timeout=0)
            assert isinstance(read, ChangesRead)
            return read
        finally:
            if reply.done:
                self._reply = None
        with suppress(TimeoutError):
            left_s = PAUSE_S if ends_at is None else min(PAUSE_S, ends_at - time.monotonic())
            yield AwaitReply(AskReply(), max(0.0, left_s))
        if ends_at is not None and time.monotonic() >= ends_at:
            raise TimeoutError("no change came in time")
        return None

    def _closing(self) -> None:
        """Stop waiting for changes."""
        reply, self._reply = self._reply, None
        if reply is not None:
            self._channel.abandon(reply)


def _awaited(reply: AskReply, ends_at: float | None) -> AskReply | AwaitReply:
    if ends_at is None:
        return reply
    return AwaitReply(reply, max(0.0, ends_at - time.monotonic()))
