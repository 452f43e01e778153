"""The clients of other processes that speak with a door, so that they can be told unasked. Pure."""

from __future__ import annotations

from collections import OrderedDict

from fencelock.actors.message import Address, Instant, ms_between, node_of

GUESTS_MAX = 100_000
"""Sessions that a door knows; the one silent for longest is forgotten for a new one."""

SILENCE_MS = 15_000
"""A client that said nothing for so long is gone, or at another door: its waits here end (ms)."""


class RemoteClients:
    """Where each session spoke from last, and when; whoever was silent for longest first.

    Args:
        node: this node: its own callers need not be watched.

    """

    def __init__(self, node: str) -> None:
        self.node = node
        self.known: OrderedDict[str, tuple[Address, Instant]] = OrderedDict()

    def hear(self, asker: Address, session: str, now: Instant) -> None:
        """Note that a session spoke."""
        if not session or node_of(asker) == self.node:
            return
        self.known[session] = (asker, now)
        self.known.move_to_end(session)
        if len(self.known) > GUESTS_MAX:
            self.known.popitem(last=False)

    def asker_of(self, session: str) -> Address | None:
        """Return where a session is to be told, None if it did not speak here lately."""
        known = self.known.get(session)
        return known[0] if known is not None else None

    def fall_silent(self, now: Instant) -> list[str]:
        """Forget those that were silent for too long; return them."""
        gone: list[str] = []
        while self.known:
            session, (_, heard_at) = next(iter(self.known.items()))
            if ms_between(heard_at, now) < SILENCE_MS:
                break
            del self.known[session]
            gone.append(session)
        return gone
