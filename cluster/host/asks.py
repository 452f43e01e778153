"""Questions from threads outside the node: each has an address of its own until answered."""

from __future__ import annotations

from itertools import count
from typing import Any

import pykka

from holdfast.actors.message import Address, Local, Message, Refusal, address_of


class Asks:
    """Open questions, by the temporary address their answer is sent to."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._numbers = count(1)
        self._futures: dict[Address, pykka.Future[Any]] = {}
        self._addresses: dict[pykka.Future[Any], tuple[Address, Address]] = {}

    def __len__(self) -> int:
        return len(self._futures)

    def __contains__(self, address: Address) -> bool:
        return address in self._futures

    def open(self, future: pykka.Future[Any], role: Address) -> Address:
        """Return the address from which ``role`` is asked on behalf of ``future``."""
        address = address_of(self._node, f"ask-{next(self._numbers)}")
        self._futures[address] = future
        self._addresses[future] = (address, role)
        return address

    def answer(self, address: Address, message: Message | Local) -> None:
        """Give the answer to whoever waits; a refusal is raised at the caller."""
        future = self._futures.pop(address)
        del self._addresses[future]
        if isinstance(message, Refusal):
            error = message.error()
            future.set_exception((type(error), error, None))
        else:
            future.set(message)

    def abandon(self, future: pykka.Future[Any]) -> tuple[Address, Address] | None:
        """Close a question nobody waits for; return its address and the role that was asked."""
        pair = self._addresses.pop(future, None)
        if pair is not None:
            del self._futures[pair[0]]
        return pair

    def fail(self, text: str, role: Address | None = None) -> None:
        """Fail every question, or every question to ``role``, with `ActorDeadError`."""
        for future, (address, asked) in list(self._addresses.items()):
            if role is None or asked == role:
                del self._addresses[future]
                del self._futures[address]
                refuse(future, pykka.ActorDeadError(text))


def refuse(future: pykka.Future[Any], error: Exception) -> None:
    """Raise ``error`` at whoever waits for ``future``."""
    future.set_exception((type(error), error, None))
