"""Clients that use a node's proxy; the callers inside its process count as one client. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from fencelock.actors.api.name import SESSION_BYTES_MAX, client_of
from fencelock.actors.api.request import Query, Request, RequestKey
from fencelock.actors.api.role_request import AskRole
from fencelock.actors.error import InvalidRequestError, OverloadedError
from fencelock.actors.message import NS_PER_MS, Address, Instant, ms_between, node_of
from fencelock.actors.proxy.access import key_of
from fencelock.actors.quota import DEFAULT_QUOTAS

KNOWN_CLIENTS_MAX = 100_000
"""Clients that a proxy knows; a new one replaces the one silent for longest."""

NODE_REQUESTS_MAX = 100_000
"""Maximum requests in flight through one node; further ones are refused, to bound memory."""

ASKERS_MAX = 1_024
"""Clients without a session at a node whose requests to roles it counts."""

SECOND_NS = 1_000 * NS_PER_MS
BEGINNING = Instant(0)


class OverQuotaError(OverloadedError):
    """A client exceeds a quota; the text names the quota, the value and the limit."""


class OpenSessions:
    """Counts the open sessions that were opened through this node, by key, or by client without.

    Not a limit of the table: members of two releases must apply one log alike.
    """

    def __init__(self) -> None:
        self._by_owner: dict[str, set[str]] = {}

    def check(self, session: str, most: int, node: str) -> None:
        """Refuse to open ``session`` if its owner has ``most`` already, by an `OverQuotaError`."""
        owner = _owner_of(session)
        count = len(self._by_owner.get(owner, ()))
        if count >= most:
            raise OverQuotaError(
                f"{owner!r} has {count} open sessions of node {node}, its quota sessions is "
                f"{most}; end some, or let them expire"
            )

    def opened(self, session: str) -> None:
        """Count an open session, by its id."""
        self._by_owner.setdefault(_owner_of(session), set()).add(session)

    def ended(self, session: str) -> None:
        owner = _owner_of(session)
        known = self._by_owner.get(owner)
        if known is not None:
            known.discard(session)
            if not known:
                del self._by_owner[owner]

    def clear(self) -> None:
        """Begin anew: it is not known which sessions have ended."""
        self._by_owner.clear()


def _owner_of(session: str) -> str:
    """Return the name of the key that ``session`` was opened with, or of the client."""
    return key_of(client_of(session))


@dataclass(slots=True, eq=False)
class Usage:
    """The use of one client's quotas or, with keys, of those of all clients with one key."""

    owner: str
    """The client or the key, in words."""
    in_flight: int = 0
    """Commands in flight."""
    bytes: int = 0
    """Their size (bytes), if they are encoded for a log."""
    counted_from: Instant = BEGINNING
    counted: int = 0
    """Number of requests since then."""


@dataclass(slots=True, eq=False)
class RemoteClient:
    """One client, as of its last message."""

    address: Address
    session: str
    """The session that it uses."""
    received_at: Instant
    usage: Usage
    """Its requests are charged to this."""
    assigned: str = ""
    """The id of the last session that it used."""
    keeps: tuple[RequestKey, ...] = ()
    """Keys of its keep-alives in flight, the oldest and the newest."""


class RemoteClients:
    """All clients by id, the one silent for longest first.

    The callers of ``node`` are one client, which is never silent. Another one that is silent for
    ``silence_ms`` is gone or uses another node. With ``keyed``, all with one key share its quotas.
    """

    def __init__(self, node: str, silence_ms: int) -> None:
        self.quotas = DEFAULT_QUOTAS
        self.keyed = False
        self._by_key: dict[str, Usage] = {}
        """The joint use of the clients with each key."""
        self.askers: OrderedDict[str, Usage] = OrderedDict()
        """Without keys: the use of clients that have sent only requests to roles, the latest last.
        """
        self.node = node
        self.linked: dict[str, None] = {}
        """The nodes to which this one has a link that is up."""
        self.silence_ms = silence_ms
        self.by_id: OrderedDict[str, RemoteClient] = OrderedDict()
        self.local: RemoteClient | None = None
        """The callers inside this process, in the session of the node."""
        self.latest: RemoteClient | None = None
        """The client that sent the latest request, and is charged for it. None for a role of this
        node that used another session than the node's, and for a node that passes a request to a
        role on. After another request to a role it is not among ``by_id``."""

    def admit(self, sender: Address, request: Request, now: Instant) -> None:
        """Note the client of ``request`` as the latest.

        If it may not use that session, refuse the request (`InvalidRequestError`).
        """
        client, session = node_of(sender), request.session
        if isinstance(request, AskRole):
            self.latest = self._asker(client, session, now)
            return
        if client == self.node:
            if not session and not isinstance(request, Query):
                text = f"session is empty; the role 'session' of {client} has one for its callers"
                raise InvalidRequestError(text)
            if not session.startswith(f"{client}/"):
                self.latest = None
                return
            known = self.local = self.local or RemoteClient(sender, session, now, Usage(client))
        else:
            found = self.by_id.get(client)
            if found is None or found.session != session:
                problem = why_foreign(client, session)
                if problem:
                    raise InvalidRequestError(problem)
            known = found or self._add(client, sender, session, now)
            self.by_id.move_to_end(client)
        known.address, known.session, known.received_at = sender, session, now
        if "." in session:
            known.assigned = session
        self.latest = known

    def _asker(self, client: str, session: str, now: Instant) -> RemoteClient | None:
        """Return the client of a request to a role, None if it is a node that has counted it.

        Such requests come from another role than the client's session. So they do not tell where
        that is: the client is not among ``by_id`` for them, and its next request is admitted anew.
        """
        problem = why_foreign(client, session)
        if problem or client == self.node:
            text = problem or "a caller inside the process asks the role itself"
            raise InvalidRequestError(text)
        if client in self.linked:
            return None
        return RemoteClient(Address(""), session, now, self._usage_of_asker(client))

    def _usage_of_asker(self, client: str) -> Usage:
        known = self.by_id.get(client)
        if known is not None:
            return known.usage
        owner = self.owner_of(client)
        if self.keyed:
            return self._by_key.setdefault(owner, Usage(owner))
        usage = self.askers[client] = self._taken_from_askers(client, owner)
        if len(self.askers) > ASKERS_MAX:
            self.askers.popitem(last=False)
        return usage

    def _taken_from_askers(self, client: str, owner: str) -> Usage:
        return self.askers.pop(client) if client in self.askers else Usage(owner)

    def check_rate(self, usage: Usage, request: Request, now: Instant) -> None:
        """Refuse a request beyond the quota of a second (`OverQuotaError`).

        Count from ``now`` if one has passed.
        """
        most = self.quotas.requests_per_s
        local = self.local is not None and usage is self.local.usage
        if now - usage.counted_from >= SECOND_NS:
            usage.counted_from, usage.counted = now, 1
        elif not local and is_full(usage.counted - 1, most, eases=request.EASES):
            raise OverQuotaError(
                f"{usage.owner} has sent {usage.counted} requests to node "
                f"{self.node} within a second, its quota requests_per_s is {most}; nothing was done"
            )

    def of(self, session: str) -> RemoteClient | None:
        """Return the client that uses ``session``, or None if it has sent nothing here recently."""
        client = client_of(session)
        if client == self.node:
            return self.local
        found = self.by_id.get(client)
        known = found is not None and session in (found.assigned, found.session)
        return found if known else None

    def is_silent(self, client: RemoteClient, now: Instant) -> bool:
        silent = ms_between(client.received_at, now) >= self.silence_ms
        return silent and client is not self.local

    def forget_silent(self, now: Instant) -> list[str]:
        """Drop clients that have been silent for too long; return their ids."""
        silent: list[str] = []
        for name, client in self.by_id.items():
            if not self.is_silent(client, now):
                break
            silent.append(name)
        for name in silent:
            if self.by_id.pop(name) is self.latest:
                self.latest = None
        return silent

    def owner_of(self, client: str) -> str:
        """Return whose quotas ``client`` uses, in words: its own, or those of its key."""
        return f"key {key_of(client)!r}" if self.keyed else f"client {client!r}"

    def _add(self, name: str, sender: Address, session: str, now: Instant) -> RemoteClient:
        owner = self.owner_of(name)
        if self.keyed:
            usage = self._by_key.setdefault(owner, Usage(owner))
        else:
            usage = self._taken_from_askers(name, owner)
        client = self.by_id[name] = RemoteClient(sender, session, now, usage)
        if len(self.by_id) > KNOWN_CLIENTS_MAX:
            self.by_id.popitem(last=False)
        return client


def is_full(count: int, limit: int, *, eases: bool) -> bool:
    """Return whether there is no room for one more command beside ``count``.

    The limit of commands that ease the load (`Event.EASES`) is twice as high.
    """
    return count >= limit and count >= (2 * limit if eases else limit)


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
