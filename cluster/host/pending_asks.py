"""Requests from threads outside the node: their way to the dispatcher, and their answers."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable

import pykka

from fencelock.actors.message import Address, Local, Message, Refusal
from fencelock.cluster.host.reply import Reply

WAKING_MS = 5
"""Limit of the dispatcher's sleep while threads are being woken (ms). It matters when one of them
does not wake the next: it was interrupted, or does not get the interpreter's lock."""

Arrival = Callable[[], None]
"""A call to run on the dispatcher's thread."""


class PendingAsks:
    """Open requests, by the temporary address their answer is sent to.

    A thread that is woken wakes the next one before it goes on, so that none depends on what it
    does then. Only one thread can hold the interpreter's lock: of many woken at once all but one
    find it taken and sleep again. With 64 threads that cost 26 us of processor time each, now 12.

    Attributes:
        settled: the answered requests whose threads are still to be woken.
        waking: a thread was woken and must still wake the next, or find that there is none.
        all_awake: called when there is none, on any thread.

    """

    def __init__(self, node: str) -> None:
        self._prefix = f"{node}/ask-"
        self._numbers = itertools.count(1)
        self._open: dict[str, Reply] = {}
        self.settled: deque[Reply] = deque()
        self.waking = False
        self.all_awake: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._open)

    def open(self, reply: Reply, role: Address) -> Address:
        """Return the address from which ``role`` receives the request of ``reply``."""
        reply.address = address = Address(f"{self._prefix}{next(self._numbers)}")
        reply.role = role
        self._open[address] = reply
        return address

    def answer(self, address: Address, message: Message | Local) -> bool:
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
        """Wake one thread whose request was answered; it wakes the next."""
        if self.settled or self.waking:
            self._wake_next()

    def _wake_next(self) -> None:
        """Wake the next thread, and those after it until one will continue the chain.

        A reply is removed only after its thread was woken: an interrupt may come between any two
        steps of a user's thread, and a thread that was removed but not woken would sleep for ever.
        """
        while True:
            try:
                reply = self.settled[0]
            except IndexError:
                self.waking = False
                self.all_awake()
                return
            self.waking = True
            passed_on = reply.wake(self._wake_next)
            try:
                self.settled.remove(reply)
            except (ValueError, IndexError):  # Another thread woke it, too.
                continue
            if passed_on:
                return

    def abandon(self, reply: Reply) -> None:
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
        """The waiting calls; other code may read its length."""
        asks.all_awake = self.look

    def put(self, arrival: Arrival) -> None:
        """Have ``arrival`` run by the dispatcher; from any thread."""
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

    def run(self) -> None:
        """Run all calls that have arrived so far; on the dispatcher's thread."""
        queue = self.queue
        for _ in range(len(queue)):
            queue.popleft()()

    def run_one(self) -> None:
        """Run the first call.

        Raises:
            IndexError: the queue is empty.

        """
        self.queue.popleft()()
