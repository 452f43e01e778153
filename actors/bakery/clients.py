"""Clients that use a proxy, with their addresses for notifications. Pure."""

from __future__ import annotations

from collections import OrderedDict

from fencelock.actors.message import Address, Instant, ms_between

GUESTS_MAX = 100_000
"""Maximum sessions that a proxy knows; a new one replaces the one silent for longest."""

SILENCE_MS = 15_000
"""A client silent for this long (ms) is gone or uses another proxy: its waits here end."""


class RemoteClients:
    """Address and time of each session's last message; the one silent for longest is first."""

    def __init__(self) -> None:
        self.known: OrderedDict[str, tuple[Address, Instant]] = OrderedDict()

    def hear(self, asker: Address, session: str, now: Instant) -> None:
        """Note a message of a session."""
        if not session:
            return
        self.known[session] = (asker, now)
        self.known.move_to_end(session)
        if len(self.known) > GUESTS_MAX:
            self.known.popitem(last=False)

    def asker_of(self, session: str) -> Address | None:
        """Return the address of a session's client, None if it sent nothing here lately."""
        known = self.known.get(session)
        return known[0] if known is not None else None

    def fall_silent(self, now: Instant) -> list[str]:
        """Drop sessions that were silent for too long; return them."""
        gone: list[str] = []
        while self.known:
            session, (_, heard_at) = next(iter(self.known.items()))
            if ms_between(heard_at, now) < SILENCE_MS:
                break
            del self.known[session]
            gone.append(session)
        return gone
