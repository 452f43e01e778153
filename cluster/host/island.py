"""A bridge to nowhere: what a dispatcher sleeps on when its node has no sockets."""

from __future__ import annotations

import os
import select

from holdfast.actors.link import LinkDown, LinkRefused, LinkUp
from holdfast.transport.bridge import Arrival
from holdfast.transport.frame import Frame


class Island:
    """The interface of `Bridge` for roles that talk to nobody outside their process."""

    cluster = ""

    def __init__(self) -> None:
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._bell, select.POLLIN)

    def poll(self, timeout_ms: int | None) -> None:
        """Sleep until `ring` is called, or ``timeout_ms`` (None: without limit) is over."""
        if self._poll.poll(timeout_ms):
            os.eventfd_read(self._bell)

    def ring(self) -> None:
        """Wake the dispatcher; from any thread."""
        os.eventfd_write(self._bell, 1)

    def receive(self, most: int) -> list[Arrival]:
        """Return nothing: nobody can reach an island."""
        del most
        return []

    def events(self) -> list[LinkUp | LinkDown | LinkRefused]:
        """Return nothing: there are no links."""
        return []

    def send(self, link: str, frame: Frame) -> None:
        """Lose ``frame``, as a network may."""

    def close(self) -> None:
        """Give the file descriptor back."""
        os.close(self._bell)
