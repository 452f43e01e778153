"""Watches: the changes of an object, one after the other, for both clients."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Generic, Self, TypeVar

import pykka

from fencelock.actors.api.changes import ChangesRead, ReadChanges
from fencelock.actors.error import (
    AcquireCancelledError,
    OverloadedError,
    StaleError,
    UnavailableError,
)
from fencelock.cluster.host.pending_asks import AskReply
from fencelock.cluster.operation import AwaitReply, Operation, drive
from fencelock.cluster.session_channel import SessionChannel, closed_meanwhile

T = TypeVar("T")

NOTHING = "no change came in time"

PAUSE_S = 1.0
"""Time between two attempts while no node answers (s)."""


class BaseWatch(Generic[T]):
    """The changes of one object of the cluster, beginning with the object as it is.

    It asks the cluster for the changes after the last one that it has. So none is missing and none
    comes twice, also when nodes crash or the client uses another one. For one thread or task at a
    time.
    """

    def __init__(
        self, channel: SessionChannel, lock: str, prefix: str = "", after: int | None = None
    ) -> None:
        self._channel = channel
        self._question = ReadChanges(watched=lock, prefix=prefix)
        self._version = after
        """The version up to which all changes were received; None before the first reply."""
        self._began = False
        """Whether there was a reply."""
        self._reply: AskReply | None = None
        """The request that has no reply yet. It stays when its user stops waiting for a while."""
        self._items: deque[T] = deque()
        """What was received and not returned yet."""
        self.resyncs = 0
        """How often changes were left out, because the cluster had forgotten some of them: it keeps
        the last 1,000 of an object. The next item is the object as it is then."""

    def _items_of(self, read: ChangesRead) -> Operation[Iterable[T]]:
        """End with the items for a reply."""
        raise NotImplementedError

    def _next(self, timeout: float | None = None) -> Operation[T]:
        """End with the next item; wait ``timeout`` (s) at most, for ever with None.

        Raises:
            TimeoutError: there was none in time. It comes with the next call.
            FencelockError: the refusal, if asking again would not help. Before the first reply,
                also that no node answers.

        """
        ends_at = None if timeout is None else time.monotonic() + timeout
        while not self._items:
            try:
                read = yield from self._reading(ends_at)
                items = yield from self._items_of(read)
            except (UnavailableError, StaleError, OverloadedError):
                if not self._began:
                    raise
                yield from _pausing(ends_at)
                continue
            if read.resync and self._version is not None:
                self.resyncs += 1
            self._items += items
            self._version, self._began = read.version, True
        return self._items.popleft()

    def _reading(self, ends_at: float | None) -> Operation[ChangesRead]:
        """End with the next reply."""
        self._channel.check()
        if self._reply is None:
            self._reply = AskReply()
            self._channel.submit(replace(self._question, after=self._version), self._reply)
        reply = self._reply
        try:
            read = yield _awaited(reply, ends_at)
        except (pykka.ActorDeadError, AcquireCancelledError):
            raise closed_meanwhile() from None
        except TimeoutError:
            raise TimeoutError(NOTHING) from None
        finally:
            if reply.done:
                self._reply = None
        assert isinstance(read, ChangesRead)
        return read

    def _closing(self) -> None:
        """Stop waiting for changes."""
        reply, self._reply = self._reply, None
        if reply is not None:
            self._channel.abandon(reply)


class Waiting(BaseWatch[T]):
    """The part of a watch by which a thread waits for each change."""

    def get(self, timeout: float | None = None) -> T:
        """Return what comes next.

        Args:
            timeout: how long to wait (s); None for no limit.

        Raises:
            TimeoutError: nothing has changed. `get` may be called again.
            UnavailableError: no node answered for 10 s, before anything was received.
            ForbiddenError: the client's key does not allow this name.
            ClosedError: the client is closed.

        """
        return drive(self._next(timeout))

    def close(self) -> None:
        """Stop waiting for changes; the watch may be used again."""
        self._closing()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        """Return what comes next; see `get`."""
        return drive(self._next())


def _pausing(ends_at: float | None) -> Operation[None]:
    """Wait until the next attempt; raise TimeoutError at ``ends_at``."""
    left_s = PAUSE_S if ends_at is None else min(PAUSE_S, ends_at - time.monotonic())
    with suppress(TimeoutError):
        yield AwaitReply(AskReply(), max(0.0, left_s))
    if ends_at is not None and time.monotonic() >= ends_at:
        raise TimeoutError(NOTHING)


def _awaited(reply: AskReply, ends_at: float | None) -> AskReply | AwaitReply:
    if ends_at is None:
        return reply
    return AwaitReply(reply, max(0.0, ends_at - time.monotonic()))
