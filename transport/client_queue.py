"""Clients' frames that wait to be decoded: bounded, and served in turn."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

from fencelock.transport.bounds import CLIENT_BYTES_MAX
from fencelock.transport.frame import Frame

CLIENT_FRAMES_MAX = 256
"""Limit of waiting frames of one client; more are dropped, and the client sends them again."""

CLIENT_WAITING_MAX = 32 * CLIENT_BYTES_MAX
"""Limit of waiting frames of one client (bytes, 2 MiB)."""

WAITING_MAX = 512 * CLIENT_BYTES_MAX
"""Limit of waiting frames of all clients (bytes, 32 MiB)."""


class QueuedFrame(NamedTuple):
    """A frame as it arrived, or the rest of one that was decoded."""

    identity: bytes
    """The routing id of its connection."""
    source: int
    """The descriptor of its connection."""
    raw: bytes
    rest: Frame | None = None


class ClientQueue:
    """The waiting frames of clients, by client.

    `take` serves one client after the other. So a client that sends much waits longer itself,
    and others wait for at most one of its frames.

    Attributes:
        frames: the waiting frames of each client, the next client first; read only.

    """

    def __init__(self) -> None:
        self.frames: OrderedDict[str, deque[QueuedFrame]] = OrderedDict()
        self._bytes: dict[str, int] = {}
        self._total = 0

    def put(self, client: str, waiting: QueuedFrame) -> bool:
        """Add a frame; return False if there is no room for it."""
        size = len(waiting.raw)
        frames = self.frames.get(client)
        if frames is None:
            if self._total + size > WAITING_MAX:
                return False
            self.frames[client] = deque((waiting,))
            self._bytes[client] = size
        else:
            used = self._bytes[client] + size
            full = used > CLIENT_WAITING_MAX or self._total + size > WAITING_MAX
            if full or len(frames) >= CLIENT_FRAMES_MAX:
                return False
            frames.append(waiting)
            self._bytes[client] = used
        self._total += size
        return True

    def put_back(self, client: str, rest: QueuedFrame) -> None:
        """Make the rest of a frame the next of ``client``, after all others' turns."""
        self.frames.setdefault(client, deque()).appendleft(rest)
        self._bytes.setdefault(client, 0)

    def take(self) -> tuple[str, QueuedFrame]:
        """Return the next frame and its client; there must be one."""
        client, frames = self.frames.popitem(last=False)
        waiting = frames.popleft()
        size = len(waiting.raw)
        self._total -= size
        if frames:
            self.frames[client] = frames
            self._bytes[client] -= size
        else:
            del self._bytes[client]
        return client, waiting
