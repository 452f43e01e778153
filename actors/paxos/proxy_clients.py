"""The clients of other processes that speak with a node's door. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from fencelock.actors.lock.command import SESSION_BYTES_MAX
from fencelock.actors.message import Address, Instant, ms_between

GUESTS_MAX = 100_000
"""Clients that a door knows; the one silent for longest is forgotten for a new one."""

GUEST_ERRANDS_MAX = 10_000
"""Commands under way for one client, so that one cannot use up a node."""

SILENCE_MS = 60_000
"""A client that said nothing for so long has gone, or to another node: nothing more is done for
it here. Its session does not depend on that; it ends in the log, by its TTL."""


@dataclass(slots=True, eq=False)
class RemoteClient:
    """One client.

    Attributes:
        asker: where it spoke from last.
        session: what it last spoke in, and may.
        heard_at: when.
        in_flight_requests: its commands under way.
        keeps: what its keep-alives under way are known by, the oldest and the newest.

    """

    asker: Address
    session: str
    heard_at: Instant
    in_flight_requests: int = 0
    keeps: tuple[tuple[str, str, str, int], ...] = ()

    def is_silent(self, now: Instant) -> bool:
        """Return whether nothing was heard of it for too long."""
        return ms_between(self.heard_at, now) >= SILENCE_MS


class RemoteClients:
    """All of them by id, whoever was silent for longest first."""

    def __init__(self) -> None:
        self.by_id: OrderedDict[str, RemoteClient] = OrderedDict()
        self.last: RemoteClient | None = None
        """Who spoke last, and so is the last of them."""

    def hear(self, name: str, asker: Address, session: str, now: Instant) -> RemoteClient:
        """Note that the client ``name`` spoke, in a session that is its own."""
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
        """Return who spoke last if that one speaks on in its session, as mostly; else None."""
        guest = self.last
        if guest is None or guest.asker != asker or guest.session != session:
            return None
        guest.heard_at = now
        return guest

    def forget_silent(self, now: Instant) -> bool:
        """Forget who was silent for too long; return whether anybody was."""
        before = len(self.by_id)
        while self.by_id and next(iter(self.by_id.values())).is_silent(now):
            self.by_id.popitem(last=False)
        if not self.by_id:
            self.last = None
        return len(self.by_id) < before


def client_of(session: str) -> str:
    """Return the id of the client, or the node, that ``session`` is of.

    A client is ``me``, its later sessions are ``me~2`` and on, as they are assigned ``me~2.17``;
    a node's own session is ``n1/1f0e`` and on, and its id may have any of these signs but one.
    """
    node, slash, _ = session.partition("/")
    return node if slash else session.partition(".")[0].partition("~")[0]


def why_foreign(client: str, session: str) -> str:
    """Return why the remote ``client`` may not speak in ``session``; empty if it may.

    Ids without the signs that part a session's name, and sessions without the sign that
    only nodes have in theirs, keep each from being taken for another.
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
