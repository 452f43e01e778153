"""Watches of both clients: the changes of an object, one after the other."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar

import pykka
from msgspec.structs import replace

from fencelock.actors.api.changes import ChangesRead, ReadChanges
from fencelock.actors.api.name import titled
from fencelock.actors.error import (
    AcquireCancelledError,
    ClosedError,
    OverloadedError,
    StaleError,
    UnavailableError,
)
from fencelock.actors.message import Message
from fencelock.cluster.client.operation import (
    AwaitReply,
    InTasks,
    InThreads,
    Operation,
    drive,
    drive_async,
    operation,
)
from fencelock.cluster.client.session_channel import SessionChannel, Uncopyable, closed_meanwhile
from fencelock.cluster.client.settings import check_number
from fencelock.cluster.host.pending_asks import AskReply

T = TypeVar("T")

NOTHING = "no change came in time"

WATCH_RETRY_S = 1.0
"""Time between two attempts while no node answers (s)."""


class BaseWatch(Uncopyable, Generic[T]):
    """The changes of one object of the cluster, beginning with its present state.

    The watch requests the changes after the last one that it has received. So no change is missing
    and none comes twice, even if nodes crash or the client has to use another node. Only one thread
    or task at a time may wait for items of a watch; any of them may close it.
    """

    def __init__(
        self, channel: SessionChannel, lock: str, prefix: str = "", after: int | None = None
    ) -> None:
        self._channel = channel
        self._request = ReadChanges(lock=lock, prefix=prefix)
        self._version = after
        """The version up to which all changes were received; None before the first reply."""
        self._began = False
        """Whether a reply has been received."""
        self._reply: AskReply | None = None
        """The request in flight. It stays in flight when a call of `get` ends early."""
        self._closed = False
        self._woken = AskReply()
        """The event for which the caller waits; replies and `close` set it. Each wait makes one."""
        self._items: deque[T] = deque()
        """Items that were received and not returned yet."""
        self.resyncs = 0
        """The number of times that the watch has missed changes, because the cluster keeps only the
        last 1,000 of an object. Each time, the next item shows the present state of the object."""

    def _items_of(self, read: ChangesRead) -> Operation[Iterable[T]]:
        raise NotImplementedError

    @operation
    def get(self, timeout: float | None = None) -> Operation[T]:
        """Wait for the next item and return it.

        Args:
            timeout: how long to wait (s), at least 0; None for no limit.

        Raises:
            TimeoutError: nothing changed in time. No change is lost, and `get` may be called again.
            UnavailableError: no node answered for 10 s before the first item.
            ForbiddenError: the client's key does not allow this name.
            ClosedError: the watch or its client is closed, or is closed meanwhile.
            TypeError: ``timeout`` is no number.
            ValueError: ``timeout`` is negative or NaN.

        """
        return self._next(timeout)

    def _next(self, timeout: float | None = None) -> Operation[T]:
        if timeout is not None:
            allowed = "a number of seconds of at least 0, or None for no limit"
            check_number("timeout", timeout, allowed, lambda s: s >= 0)
        self._check()
        ends_at = None if timeout is None else time.monotonic() + timeout
        while not self._items:
            try:
                read = yield from self._reading(ends_at)
                items = yield from self._items_of(read)
            except (UnavailableError, StaleError, OverloadedError):
                if not self._began:
                    raise
                yield from self._pausing(ends_at)
                continue
            if read.resync and self._version is not None:
                self.resyncs += 1
            self._items += items
            self._version, self._began = read.version, True
        return self._items.popleft()

    def _reading(self, ends_at: float | None) -> Operation[ChangesRead]:
        self._channel.check()
        reply = self._reply
        if reply is None:
            reply = self._reply = self._sent(replace(self._request, after=self._version))
        try:
            read: ChangesRead = yield from self._reply_of(reply, ends_at)
        finally:
            if reply.done:
                self._reply = None
            elif self._closed:
                self._abandon()  # `close` may have come before the request.
        return read

    def _asking(self, message: Message) -> Operation[Any]:
        """Send a request, and end with its reply; a caller that stops waiting withdraws it."""
        reply = self._sent(message)
        try:
            return (yield from self._reply_of(reply, None))
        finally:
            if not reply.done:
                self._channel.abandon(reply)

    def _sent(self, message: Message) -> AskReply:
        self._channel.check()
        reply = AskReply()
        reply.add_done_callback(self._wake)
        self._channel.submit(message, reply)
        return reply

    def _reply_of(self, reply: AskReply, ends_at: float | None) -> Operation[Any]:
        """End with the answer in ``reply``, which must come by ``ends_at``."""
        yield from self._wait_for(reply, ends_at)
        try:
            return reply.get(timeout=0)
        except (pykka.ActorDeadError, AcquireCancelledError):
            raise closed_meanwhile() from None

    def _pausing(self, ends_at: float | None) -> Operation[None]:
        """Wait until the next attempt; raise TimeoutError at ``ends_at``."""
        resumes_at = time.monotonic() + WATCH_RETRY_S
        early = ends_at is not None and ends_at <= resumes_at
        try:
            yield from self._wait_for(AskReply(), ends_at if early else resumes_at)
        except TimeoutError:
            if early:
                raise

    def _wait_for(self, reply: AskReply, ends_at: float | None) -> Operation[None]:
        """Wait until ``reply`` is done; raise TimeoutError at ``ends_at``."""
        while not reply.done:
            self._woken = woken = AskReply()
            # Order matters: `_wake` reads `_woken` after the reply is done, or the watch closed.
            if reply.done:
                break
            self._check()
            try:
                yield woken if ends_at is None else _until(woken, ends_at)
            except TimeoutError:
                raise TimeoutError(NOTHING) from None
        self._check()

    def _wake(self) -> None:
        """Wake the caller that waits. Several threads may call it at the same time."""
        woken = self._woken
        with suppress(queue.Full):  # It was woken before.
            woken.settle(None, None)
        woken.wake()

    def _check(self) -> None:
        if self._closed:
            watched = titled(self._request.lock)
            raise ClosedError(f"the watch of {watched} was closed: make another one")

    def _abandon(self) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            self._channel.abandon(reply)

    def close(self) -> None:
        """End the watch, and drop the items that it has not returned. Closing again does nothing.

        A loop over the watch ends. A call of `get` that waits, and later ones, raise `ClosedError`.
        Any thread or task may close a watch.
        """
        self._closed = True
        self._abandon()
        self._wake()


class Waiting(BaseWatch[T], InThreads):
    """The part of a watch with which a thread waits for changes."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        """Return the next item, as `get` does; end the loop if the watch is closed."""
        try:
            return drive(self._next())
        except ClosedError:
            if self._closed:
                raise StopIteration from None
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncWaiting(BaseWatch[T], InTasks):
    """The part of a watch with which a task waits for changes. Cancelling a wait loses nothing."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Return the next item, as `get` does; end the loop if the watch is closed."""
        try:
            return await drive_async(self._next())
        except ClosedError:
            if self._closed:
                raise StopAsyncIteration from None
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def _until(reply: AskReply, ends_at: float) -> AwaitReply:
    return AwaitReply(reply, max(0.0, ends_at - time.monotonic()))
