"""CURVE keys: the key of this process's links, the check of others' keys, and their removal.

libzmq encrypts and authenticates each connection (CURVE, see https://rfc.zeromq.org/spec/26). In
its handshake it asks whether the other side's public key is known (ZAP, spec 27): pyzmq's
authenticator answers that on a thread of its own. Later every frame carries that public key, and
`KeyGuard` compares it with the id of the link before it is parsed.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import zmq

from fencelock.actors.api.name import NAME_END
from fencelock.actors.repeated import Repetitions, times_text
from fencelock.transport.log import note
from fencelock.transport.sockets import MECHANISM_MISMATCH, Socket

UNKNOWN_MAX = 10_000
"""Limit of refused handshakes that wait to be counted."""

SHOWN = 10
"""Characters of an unknown public key in the log, to compare with ``fencelock keys list``."""

GREETING_S = 1.0
"""Time limit for a connection to a node, and for each part of its greeting (s)."""

GREETING = b"\xff" + bytes(8) + b"\x7f\x03"
"""The signature and the major version of a greeting."""

MECHANISM_BEGINS, MECHANISM_ENDS = 12, 32
"""The place of the mechanism in a greeting."""

_DOMAIN = "fencelock"

if TYPE_CHECKING:
    from zmq.auth.thread import ThreadAuthenticator

    from fencelock.transport.connections import Connection


class LinkKey(NamedTuple):
    """The key of the links that this process opens, in the text form of ZeroMQ (Z85)."""

    public: str
    secret: str
    server: str
    """The public key of the cluster's nodes."""

    def secure(self, dealer: Socket) -> None:
        dealer.setsockopt_string(zmq.CURVE_PUBLICKEY, self.public)
        dealer.setsockopt_string(zmq.CURVE_SECRETKEY, self.secret)
        dealer.setsockopt_string(zmq.CURVE_SERVERKEY, self.server)


class ListedKeys(NamedTuple):
    """The keys of the connections that a node accepts."""

    secret: str
    """The secret key of the cluster's nodes."""
    bound: Mapping[str, str]
    """The id of the link that each public key may use. If it ends with `NAME_END`, all ids are
    meant that begin with it."""


class KeyGuard:
    """Admits connections and frames to a ROUTER by the keys of their senders.

    It fails closed: without a reply of the authenticator libzmq ends a handshake, and a frame
    without a known key is dropped.

    """

    def __init__(self, node: str, listed: ListedKeys, count: Callable[[str, int], None]) -> None:
        self._node = node
        self._secret, self._bound = listed
        self._count = count
        self._unknown: deque[str] = deque(maxlen=UNKNOWN_MAX)
        """Keys that the authenticator's thread refused."""
        self._refusals = Repetitions()
        self._authenticator: ThreadAuthenticator | None = None

    def start(self, context: zmq.Context[Socket]) -> None:
        """Begin to answer the handshakes of the sockets in ``context``."""
        from zmq.auth.thread import ThreadAuthenticator  # noqa: PLC0415 (asyncio)

        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.configure_curve_callback(_DOMAIN, self)
        self._authenticator.start()

    def secure(self, router: Socket) -> None:
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt_string(zmq.CURVE_SECRETKEY, self._secret)
        router.setsockopt_string(zmq.ZAP_DOMAIN, _DOMAIN)
        router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether ``key`` is known; on the thread of pyzmq, whose name this is."""
        public = key.decode()
        if public in self._bound:
            return True
        self._unknown.append(public)
        return False

    def admits(self, one: Connection, part: zmq.Frame) -> bool:
        """Return whether the key of a frame's sender may use the id of its link.

        If not, end the connection, count and log.
        """
        try:
            user = str(part.get("User-Id"))
        except zmq.ZMQError:  # Only on a socket that was not secured.
            user = ""
        bound, link = self._bound.get(user), one.name
        if bound is None:
            self._refuse("wire.key_revoked", f"frames under the revoked key {user[:SHOWN]}...")
        elif link == bound or (bound[-1] == NAME_END and link.startswith(bound)):
            one.user = user
            return True
        else:
            name = bound.removesuffix(NAME_END)
            text = f"frames of the key of {name} in the name of {link}"
            self._refuse("wire.key_misused", text, of=name)
        one.end()
        return False

    def failed(self, event: int, value: int) -> None:
        """Count a handshake that failed; those of unknown keys are counted by `tend`.

        Which side ends it first is chance, so the reason is not always known here.
        """
        if event != zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            text = "a connection without a key, with a key for another cluster, or cut off early"
            self._refuse("wire.handshake_failed", text)

    def tend(self) -> None:
        """Count the handshakes that were refused since the last call."""
        unknown = self._unknown
        while unknown:
            text = f"a connection with the unknown key {unknown.popleft()[:SHOWN]}..."
            self._refuse("wire.key_unknown", text)

    def _refuse(self, counter: str, what: str, *, of: str = "") -> None:
        """Count a refusal, and log the latest once an interval for each counter and known key."""
        self._count(counter, 1)  # A stranger chooses `what`, so that must not be the kind.
        count = self._refusals.add(f"{counter} {of}", time.monotonic_ns())
        if count:
            event = counter.partition(".")[2]
            text = f"{self._node} refused {what}{times_text(count)}"
            note(self._node, "WARNING", text, event=event, count=count)

    def lists(self, node: str) -> bool:
        return node in self._bound.values()

    def replace(self, bound: Mapping[str, str], connections: Iterable[Connection]) -> None:
        """Use other bindings; end the connections whose keys are removed, or are bound anew."""
        former, self._bound = self._bound, bound
        for one in connections:
            if bound.get(one.user) != former.get(one.user):
                one.end()

    def close(self) -> None:
        """Stop to answer handshakes; after the sockets are closed."""
        if self._authenticator is not None:
            self._authenticator.stop()
            self._authenticator = None


def why_failed(event: int, value: int, *, has_key: bool) -> str:
    """Return why a node did not accept a link of this process, or "" if it may be no refusal.

    A handshake that fails without a detail is none: the key may be for another cluster, but a proxy
    or load balancer before a node that restarts also accepts a connection and closes it. Also a
    mechanism that differs may fail so, since both sides end the connection: see `mechanism_at`.
    """
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return "it does not know this key, or the key was removed"
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == MECHANISM_MISMATCH:
        return MISMATCHES[has_key]
    return ""


MISMATCHES = {False: "it requires a key", True: "it uses no keys, so it may be any program"}
"""Why a node with another mechanism does not accept a link, by whether the link has a key."""


def mechanism_at(endpoint: str) -> str:
    """Return the security mechanism of the node at ``endpoint``, "NULL" or "CURVE"; "" if unknown.

    A node names it in its greeting (ZMTP 3.0) once it knows the version of the other side, which
    sends no more here. Blocks for `GREETING_S` at most for each part of it.
    """
    greeting = b""
    try:
        parts = urlsplit(endpoint)
        with socket.create_connection((parts.hostname or "", parts.port or 0), GREETING_S) as one:
            one.sendall(GREETING)
            while len(greeting) < MECHANISM_ENDS and (more := one.recv(MECHANISM_ENDS)):
                greeting += more
    except (OSError, ValueError):
        pass
    named = greeting[MECHANISM_BEGINS:MECHANISM_ENDS].rstrip(b"\0")
    return named.decode() if named in (b"NULL", b"CURVE") else ""
