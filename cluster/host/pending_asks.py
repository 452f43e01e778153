"""Questions from threads outside the node: each has an address of its own until answered."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable

import pykka

from fencelock.actors.message import Address, Local, Message, Refusal
from fencelock.cluster.host.reply import Reply

WAKING_MS = 5
"""How soon the dispatcher looks up while threads are being woken (ms), should one of them not
come to wake the next: interrupted just then, or kept from the interpreter's lock by another."""


class PendingAsks:
    """Open questions, by the temporary address their answer is sent to.

    Whoever is woken wakes the next before it goes on, so that nobody depends on what it does
    then. The interpreter's lock has one holder: of many that are woken at once all but one find
    it taken and go to sleep again. With 64 that cost 26 us of processor time each, now 12.

    Attributes:
        waking: somebody was woken and is still to wake the next, or to find that there is none.
        all_awake: called when there is none, on any thread.

    """

    def __init__(self, node: str) -> None:
        self._prefix = f"{node}/ask-"
        self._numbers = itertools.count(1)
        self._open: dict[str, Reply] = {}
        self._settled: deque[Reply] = deque()
        self.waking = False
        self.all_awake: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._open)

    def open(self, reply: Reply, role: Address) -> Address:
        """Return the address from which ``role`` is asked on behalf of ``reply``."""
        reply.address = address = Address(f"{self._prefix}{next(self._numbers)}")
        reply.role = role
        self._open[address] = reply
        return address

    def answer(self, address: Address, message: Message | Local) -> bool:
        """Give the answer to whoever waits; return False if nobody asks from ``address``.

        A refusal is raised at the caller. Who waits sleeps on until `wake`.
        """
        reply = self._open.pop(address, None)
        if reply is None:
            return False
        if isinstance(message, Refusal):
            reply.settle(None, message.error())
        else:
            reply.settle(message, None)
        self._settled.append(reply)
        return True

    def wake(self) -> None:
        """Wake one of those who were answered and are not awake yet; it wakes the next."""
        if self._settled or self.waking:
            self._wake_next()

    def _wake_next(self) -> None:
        """Wake the next, on any thread; and those after it until one will do so in its turn.

        It is crossed off only when it was woken: an interrupt may come between any two steps of
        a user's thread, and whoever was crossed off and not woken would sleep for ever.
        """
        while True:
            try:
                reply = self._settled[0]
            except IndexError:
                self.waking = False
                self.all_awake()
                return
            self.waking = True
            passed_on = reply.wake(self._wake_next)
            try:
                self._settled.remove(reply)
            except (ValueError, IndexError):  # Another thread woke it, too.
                continue
            if passed_on:
                return

    def abandon(self, reply: Reply) -> None:
        """Close a question nobody waits for, if it was not answered before."""
        if reply.address is not None:
            self._open.pop(reply.address, None)

    def fail(self, text: str, role: Address | None = None) -> None:
        """Fail every question, or every question to ``role``, with `ActorDeadError`.

        Who was answered before is woken first.
        """
        while self._settled:
            self.wake()
        for address, reply in list(self._open.items()):
            if role is None or reply.role == role:
                del self._open[address]
                reply.fail(pykka.ActorDeadError(text))
