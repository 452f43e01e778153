"""Questions from threads outside the node: each has an address of its own until answered."""

from __future__ import annotations

import pykka

from holdfast.actors.message import Address, Local, Message, Refusal
from holdfast.cluster.host.reply import Reply


class Asks:
    """Open questions, by the temporary address their answer is sent to."""

    def __init__(self, node: str) -> None:
        self._prefix = f"{node}/ask-"
        self._number = 0
        self._open: dict[str, Reply] = {}
        self._settled: list[Reply] = []

    def __len__(self) -> int:
        return len(self._open)

    def open(self, reply: Reply, role: Address) -> Address:
        """Return the address from which ``role`` is asked on behalf of ``reply``."""
        self._number += 1
        address = Address(self._prefix + str(self._number))
        reply.address = address
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
        """Wake whoever was answered since the last call: one after the other takes time."""
        if self._settled:
            settled, self._settled = self._settled, []
            for reply in settled:
                reply.wake()

    def abandon(self, reply: Reply) -> None:
        """Close a question nobody waits for, if it was not answered before."""
        if reply.address is not None:
            self._open.pop(reply.address, None)

    def fail(self, text: str, role: Address | None = None) -> None:
        """Fail every question, or every question to ``role``, with `ActorDeadError`.

        Who was answered before is woken first.
        """
        self.wake()
        for address, reply in list(self._open.items()):
            if role is None or reply.role == role:
                del self._open[address]
                reply.fail(pykka.ActorDeadError(text))
