"""Clients that use a node's proxy; the callers inside its process are one of them. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from fencelock.actors.api.name import SESSION_BYTES_MAX
from fencelock.actors.message import Address, Instant, ms_between

GUESTS_MAX = 100_000
"""Clients that a proxy knows; a new one replaces the one silent for longest."""

GUEST_ERRANDS_MAX = 10_000
"""Commands in flight for one client, so that one cannot use up a node."""

SILENCE_MS = 60_000
"""A client silent for this long (ms) is gone or uses another node: its requests are dropped here.
Its session is independent of that; it ends in the log, by its TTL."""


@dataclass(slots=True, eq=False)
class RemoteClient:
    """One client.

    Attributes:
        asker: the address it last sent from.
        session: the session of its last message, which it may use.
        heard_at: the time of that message.
        in_flight_requests: number of its commands in flight.
        keeps: keys of its keep-alives in flight, the oldest and the newest.

    """

    asker: Address
    session: str
    heard_at: Instant
    in_flight_requests: int = 0
    keeps: tuple[tuple[str, str, str, int], ...] = ()

    def is_silent(self, now: Instant) -> bool:
        """Return whether it has been silent for too long."""
        return ms_between(self.heard_at, now) >= SILENCE_MS


class RemoteClients:
    """All clients by id, the one silent for longest first."""

    def __init__(self) -> None:
        self.by_id: OrderedDict[str, RemoteClient] = OrderedDict()
        self.last: RemoteClient | None = None
        """The client that sent the latest message, and so is the last of them."""

    def hear(self, name: str, asker: Address, session: str, now: Instant) -> RemoteClient:
        """Note a message of the client ``name`` in a session that is its own."""
        guest = self.by_id.get(name)
        if guest is None:
            guest = self.by_id[name] = RemoteClient(asker, session, now)
            if len(self.by_id) > GUESTS_MAX:
                self.by_id.popitem(last=False)
        else:
            guest.asker, guest.session, guest.heard_at = asker, session, now
            self.by_id.move_to_end(name)
        self.last = guest
        return guest

    def again(self, asker: Address, session: str, now: Instant) -> RemoteClient | None:
        """Return the last client if this message is also its, in the same session; else None."""
        guest = self.last
        if guest is None or guest.asker != asker or guest.session != session:
            return None
        guest.heard_at = now
        return guest

    def forget_silent(self, now: Instant) -> bool:
        """Drop clients that have been silent for too long; return whether there were any."""
        before = len(self.by_id)
        while self.by_id and next(iter(self.by_id.values())).is_silent(now):
            self.by_id.popitem(last=False)
        if not self.by_id:
            self.last = None
        return len(self.by_id) < before


def why_foreign(client: str, session: str) -> str:
    """Return why the remote ``client`` may not use ``session``; empty if it may.

    Client ids have none of the signs that separate the parts of a session's name, and only nodes'
    sessions have a ``/``. So none can be mistaken for another.
    """
    if "~" in client or "." in client:
        return f"client id {client!r} has a '~' or a '.', which only its sessions may have"
    if session != client and not session.startswith((f"{client}~", f"{client}.")):
        return f"session {session[:80]!r} is not of the client {client!r} itself"
    if len(session.encode(errors="replace")) > SESSION_BYTES_MAX:  # It is kept.
        return f"session {session[:80]!r} is longer than {SESSION_BYTES_MAX} bytes"
    if "/" in session:
        return f"session {session[:80]!r} has a '/', which only nodes have in theirs"
    return ""
