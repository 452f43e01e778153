"""The interface of a node's connections, as the dispatcher uses it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from fencelock.actors.link import LinkDown, LinkRefused, LinkUp
from fencelock.transport.frame import Frame
from fencelock.transport.hub import Arrival


class Links(Protocol):
    """A node's connections; `SocketHub` is the real ones."""

    cluster: str
    waiting: Collection[str]
    """The clients whose frames wait for `receive_clients`; a live view."""

    def poll(self, timeout_ms: int | None) -> None:
        """Sleep until a frame may have come, `ring` was called, or the time is over."""
        ...

    def ring(self) -> None:
        """End a `poll`; from any thread."""
        ...

    def receive_members(self, most: int) -> Iterable[Arrival]:
        """Read up to ``most`` frames and return those of members; never block."""
        ...

    def receive_clients(self, most: int, within_ns: int) -> tuple[Iterable[Arrival], int]:
        """Return frames of clients with up to ``most`` envelopes, and the number of envelopes.

        Frames that are dropped count as one envelope. Decode no frame after ``within_ns``.
        """
        ...

    def events(self) -> list[LinkUp | LinkDown | LinkRefused]:
        """Return the changes of links since the last call."""
        ...

    def send(self, link: str, frame: Frame) -> None:
        """Send ``frame``, or drop it; never block.

        Raises:
            FrameTooLargeError: encoded, it is above the limit; nothing was sent.

        """
        ...

    def close(self) -> None:
        """Release all resources; on the dispatcher's thread."""
        ...
