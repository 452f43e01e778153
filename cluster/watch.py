"""Watches: the changes of an object, one after the other. Both clients share this part."""

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
    """The changes of one object of the cluster, beginning with its present state.

    The watch requests the changes after the last one that it has received. So no change is missing
    and none comes twice, even if nodes crash or the client has to use another node. Only one thread
    or task at a time may use a watch.
    """

    def __init__(
        self, channel: SessionChannel, lock: str, prefix: str = "", after: int | None = None
    ) -> None:
        self._channel = channel
        self._question = ReadChanges(watched=lock, prefix=prefix)
        self._version = after
        """The version up to which all changes were received; None before the first reply."""
        self._began = False
        """Whether a reply has been received."""
        self._reply: AskReply | None = None
        """The request in flight. It stays in flight when a call of `get` ends early."""
        self._items: deque[T] = deque()
        """Items that were received and not returned yet."""
        self.resyncs = 0
        """The number of times that the watch has missed changes, because the cluster keeps only the
        last 1,000 of an object. Each time, the next item shows the present state of the object."""

    def _items_of(self, read: ChangesRead) -> Operation[Iterable[T]]:
        """End with the items of a reply."""
        raise NotImplementedError

    def _next(self, timeout: float | None = None) -> Operation[T]:
        """End with the next item; wait at most ``timeout`` (s), or without limit for None.

        Raises:
            TimeoutError: no item came in time. The next call may return it.
            FencelockError: the request was refused and a repetition would not help, or no node
                answered before the first item.

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
        """Cancel the request in flight."""
        reply, self._reply = self._reply, None
        if reply is not None:
            self._channel.abandon(reply)


class Waiting(BaseWatch[T]):
    """The part of a watch with which a thread waits for changes."""

    def get(self, timeout: float | None = None) -> T:
        """Wait for the next item and return it.

        Args:
            timeout: how long to wait (s), at least 0; None for no limit.

        Raises:
            TimeoutError: nothing changed in time. No change is lost, and `get` may be called again.
            UnavailableError: no node answered for 10 s before the first item.
            ForbiddenError: the client's key does not allow this name.
            ClosedError: the client is closed.

        """
        return drive(self._next(timeout))

    def close(self) -> None:
        """Cancel the request for changes. The watch can still be used: it sends another one."""
        self._closing()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        """Return the next item; see `get`."""
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
