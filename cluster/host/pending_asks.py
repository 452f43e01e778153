"""Requests from threads outside the node: their way to the dispatcher, and their replies."""

from __future__ import annotations

import itertools
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pykka

from fencelock.actors.error import ClosedError
from fencelock.actors.message import Address, Local, Message, Refusal
from fencelock.cluster.host.fork import ForkCounter

WAKING_MS = 5
"""Limit of the dispatcher's sleep while threads are being woken (ms). It matters when one of them
does not wake the next: it was interrupted, or does not get the interpreter's lock."""

Arrival = Callable[[], None]
"""A call to run on the dispatcher's thread."""

Then = Callable[[Any, Any, BaseException | None], None]
"""A callback for an answer; gets the reply, the value and the error, one of which is None."""


class AskReply(pykka.Future[Any]):
    """A Pykka future on one lock, where Pykka's own takes a condition and three locks.

    The lock is held until there is an answer. A thread that acquires it releases it again, so
    that any number of threads may wait and get the answer any number of times.

    Args:
        then: called with this reply, the value and the error (one of them None), on the
            thread that answers, before any waiting thread wakes. It must be quick and must not
            raise.

    Attributes:
        address: the address from which the role is asked, once the dispatcher has the request.
        role: the role that was asked.
        done: whether there is an answer.

    """

    # Every request makes a reply: rarely set fields default on the class, which is cheaper.
    address: Address | None = None
    role: Address | None = None
    _get_hook = None
    _next: Callable[[], None] | None = None
    done = False
    _value: Any = None
    _error: BaseException | None = None
    _awaited = False
    forks: int | None = None
    """If `ForkCounter` has another count, it will never be answered here; None if no user
    has it."""

    def __init__(self, then: Then | None = None) -> None:
        self._then = then
        self._callbacks: list[Callable[[], None]] = []
        self._replied = replied = threading.Lock()
        replied.acquire()

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once there is a reply; at once if there is one.

        It must be quick and must not raise. It runs on the thread that answers or wakes, or on this
        one.
        """
        self._callbacks.append(callback)
        if self.done:
            self._call_back()

    def get(self, *, timeout: float | None = None) -> Any:
        """Return the answer, or raise it if it is an exception.

        Args:
            timeout: how long to wait (s), None for no limit.

        Raises:
            pykka.Timeout: there is no answer yet.
            ClosedError: this process was forked after the request.

        """
        if self._get_hook is not None:
            return super().get(timeout=timeout)
        if not self.done:
            if self.forks is not None and self.forks != ForkCounter.forks:
                raise ClosedError("this was asked before the process forked: ask anew after a fork")
            self._awaited = True
            try:
                seconds = -1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)
                if not self._replied.acquire(timeout=seconds):
                    raise pykka.Timeout(f"{timeout} seconds")
                try:  # noqa: SIM105  (`suppress` would cost more than the rest)
                    self._replied.release()
                except RuntimeError:
                    pass  # We were woken twice: the lock is free for all.
            finally:
                # Order matters: the waker sets `_next` first, and only then reads `_awaited`.
                self._awaited = False
                if self._next is not None:
                    self._next()
        if self._error is not None:
            raise self._error
        return self._value

    def set(self, value: Any = None) -> None:
        """Set the answer.

        Raises:
            queue.Full: there is one already.

        """
        self.settle(value, None)
        self.wake()

    def set_exception(self, exc_info: Any = None) -> None:
        """Set an exception as the answer; None for the one that is being handled.

        Raises:
            queue.Full: there is an answer.

        """
        _, error, _ = sys.exc_info() if exc_info is None else exc_info
        self.settle(None, error)
        self.wake()

    def fail(self, error: BaseException) -> None:
        self.settle(None, error)
        self.wake()

    def set_get_hook(self, func: Any) -> None:
        """Let ``func(timeout)`` compute the reply when it is requested (Pykka).

        Raises:
            queue.Full: there is an answer.

        """
        if self.done:
            raise queue.Full
        super().__init__()  # Makes only the parts that a hook needs.
        super().set_get_hook(func)

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Set the answer, but leave waiting threads asleep: `wake` must follow.

        Raises:
            queue.Full: there is one already.

        """
        if self.done or self._get_hook is not None:
            raise queue.Full
        if self._then is not None:
            self._then(self, value, error)
        if error is not None:
            self._error = error
        self._value = value
        self.done = True

    def wake(self, following: Callable[[], None] | None = None) -> bool:
        """Wake the threads that wait for the answer of `settle`. Calling it twice does no harm.

        Args:
            following: called by each of them once it is awake, on its own thread.

        Returns:
            Whether one of them certainly will call it.

        """
        self._next = following
        awaited = self._awaited
        try:
            self._replied.release()
        except RuntimeError:  # It was woken before, and perhaps interrupted then.
            awaited = False
        if self._callbacks:
            self._call_back()
        return awaited

    def _call_back(self) -> None:
        """Call each callback, whether the answer or the callback came first.

        A callback is removed only after its call. If an interrupt comes between the two, it is
        called again later.
        """
        for callback in self._callbacks[:]:
            callback()
            try:  # noqa: SIM105  (`suppress` would cost more than the rest)
                self._callbacks.remove(callback)
            except ValueError:  # Another thread called it, too.
                pass


class PendingAsks:
    """Open requests, by the temporary address their answer is sent to.

    A thread that is woken wakes the next one before it continues, so that the wake-ups do not
    depend on its later work. Only one thread can hold the interpreter's lock: of many woken at once
    all but one find it taken and sleep again. With 64 threads that cost 26 us of processor time
    each, now 12.

    Attributes:
        settled: the answered requests whose threads are still to be woken.
        waking: a thread was woken and must still wake the next, or find that there is none.
        all_awake: called when there is none, on any thread.

    """

    def __init__(self, node: str) -> None:
        self._prefix = f"{node}/ask-"
        self._numbers = itertools.count(1)
        self._open: dict[str, AskReply] = {}
        self.settled: deque[AskReply] = deque()
        self.waking = False
        self.all_awake: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._open)

    def open(self, reply: AskReply, role: Address) -> Address:
        """Return the address from which ``role`` receives the request of ``reply``."""
        reply.address = address = Address(f"{self._prefix}{next(self._numbers)}")
        reply.role = role
        self._open[address] = reply
        return address

    def deliver(self, address: Address, message: Message | Local) -> bool:
        """Settle the request at ``address``; return False if there is none.

        A refusal is raised at the caller. The caller sleeps on until `wake`.
        """
        reply = self._open.pop(address, None)
        if reply is None:
            return False
        if isinstance(message, Refusal):
            reply.settle(None, message.error())
        else:
            reply.settle(message, None)
        self.settled.append(reply)
        return True

    def wake(self) -> None:
        """Wake the next thread, and those after it until one will continue the chain.

        A reply is removed only after its thread was woken: an interrupt may come between any two
        steps of a user's thread, and a thread that was removed but not woken would sleep forever.
        """
        while True:
            try:
                reply = self.settled[0]
            except IndexError:
                self.waking = False
                self.all_awake()
                return
            self.waking = True
            passed_on = reply.wake(self.wake)
            try:
                self.settled.remove(reply)
            except (ValueError, IndexError):  # Another thread also woke it.
                continue
            if passed_on:
                return

    def abandon(self, reply: AskReply) -> None:
        """Close a request that no caller waits for, unless it was answered before."""
        if reply.address is not None:
            self._open.pop(reply.address, None)

    def fail(self, text: str, role: Address | None = None) -> None:
        """Fail every request, or every request to ``role``, with `ActorDeadError`.

        Threads whose requests were answered before are woken first.
        """
        while self.settled:
            self.wake()
        for address, reply in list(self._open.items()):
            if role is None or reply.role == role:
                del self._open[address]
                reply.fail(pykka.ActorDeadError(text))


class CrossThreadQueue:
    """A queue that any thread may add to and that the dispatcher empties.

    Replies that arrive together wake their threads one after the other. Meanwhile the dispatcher
    stays asleep, so that it takes their next requests in one turn and sends them in one frame.
    The last of these threads wakes it; it sleeps at most `WAKING_MS` meanwhile.

    Args:
        asks: knows whether threads are being woken.
        ring: ends the dispatcher's sleep.

    Attributes:
        asleep: the dispatcher sleeps, or will without looking here again. Only the dispatcher
            sets it, so that an interrupted ring is repeated.

    """

    def __init__(self, asks: PendingAsks, ring: Callable[[], None]) -> None:
        self.asleep = False
        self._asks = asks
        self._ring = ring
        self.queue: deque[Arrival] = deque()
        """The waiting calls, which the dispatcher takes from its left end."""
        asks.all_awake = self.look

    def put(self, arrival: Arrival) -> None:
        """Let the dispatcher run ``arrival``; from any thread."""
        self.queue.append(arrival)
        if self.asleep and not self._asks.waking:
            self._ring()

    def look(self) -> None:
        """Wake the dispatcher if anything waits here; from any thread."""
        if self.asleep and self.queue:
            self._ring()

    def take_back(self, arrival: Arrival) -> bool:
        """Remove ``arrival``; return whether it was still there."""
        while True:
            try:
                self.queue.remove(arrival)
            except ValueError:
                return False
            except IndexError:  # Another thread changed the queue while we looked.
                continue
            return True
