"""Messages about a client's session: its beginning, its signs of life, its end.

Tags 0x15, 0x16 and 0x60 to 0x63.

A client is named after its node: ``me``, or ``me~2`` after its first session was lost
or given up. Where the cluster keeps sessions, it assigns an id for all further requests,
which is never given again (``me~2.17``): messages under an ended session have no effect.
"""

from enum import IntEnum
from typing import NamedTuple

from fencelock.actors.api.name import (
    LABEL_BYTES_MAX,
    SESSION_BYTES_MAX,
    SESSION_TTL_MS_MAX,
    SESSION_TTL_MS_MIN,
    check_number,
    check_text,
    client_of,
    quoted,
)
from fencelock.actors.api.request import Command, Outcome
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import Int64, TtlMs


class CloseReason(IntEnum):
    """Reason why a session has ended. Numbers are on the wire and never reused."""

    GRACEFUL = 1
    """The client closes it."""
    EXPIRED = 2
    """Nothing was received from the client for the TTL of the session."""
    FORCED = 3
    """An operator ends the client's session."""


class Open(Command, tag=0x60):
    """Keep a session for me. Answered by `Opened`; a repetition finds the same session.

    ``session`` is the client's name for it, ``ttl_ms`` the time by which the session outlives
    its last message (ms), ``label`` a text for people (host and process).
    """

    ttl_ms: Int64
    label: str = ""

    def check(self) -> None:
        check_text("session", self.session, SESSION_BYTES_MAX)
        check_text("label", self.label, LABEL_BYTES_MAX)
        check_number("ttl_ms", self.ttl_ms, SESSION_TTL_MS_MIN, SESSION_TTL_MS_MAX)

    def check_new(self) -> None:
        """Refuse what `check` does, and a name that could be mistaken for a session's id.

        A node's own is ``n1/5f3a``; the proxy refuses the like to every client.
        """
        session = self.session
        if "." in session.rpartition("/")[2] or not client_of(session):
            raise InvalidRequestError(
                f"session {quoted(session[:80])}: a name like 'me' or 'me~2' is wanted, without '.'"
            )
        self.check()


class NodeAddress(NamedTuple):
    """A node, and where other nodes and clients reach it."""

    node: str
    endpoint: str


class Opened(Outcome, tag=0x61):
    """Use ``assigned`` as session from now on.

    With ``ttl_ms`` 0 the cluster keeps no sessions: ``assigned`` is the client's id, and only the
    node that granted a hold knows it. ``node`` and the fields after ``request`` are as in `Alive`.
    """

    assigned: str
    ttl_ms: TtlMs
    node: str
    leader: str = ""
    view: Int64 = 0
    members: tuple[NodeAddress, ...] = ()

    REPLIES_TO = (Open,)


class KeepAlive(Command, tag=0x15):
    """The client ``session`` is alive. Answered by `Alive`."""

    EASES = True


class Alive(Outcome, tag=0x16):
    """The node is alive and serves ``session``.

    Where the cluster keeps sessions, this one lives for its TTL from when it was kept.
    ``leader`` is the node that replies soonest, if known. Clients may connect to the ``members``.
    Of two lists the one with the higher ``view`` is newer, and an empty one says nothing.
    ``excuse`` is why the node can get no request decided, empty if it can, or does not know. The
    table leaves ``node`` and the fields after ``request`` empty: the proxy fills them in.
    """

    node: str
    leader: str = ""
    view: Int64 = 0
    members: tuple[NodeAddress, ...] = ()
    excuse: str = ""

    REPLIES_TO = (KeepAlive,)


class End(Command, tag=0x62):
    """End the session ``session`` with all its holds and waits. Answered by `Ended`."""

    EASES = True


class Ended(Outcome, tag=0x63):
    """The session has ended, and holds nothing. Also sent without a request, when it expires.

    ``operator`` is who ended it, as `OperatorCommand.by`, if the reason is FORCED.
    """

    detail: str
    reason: CloseReason = CloseReason.GRACEFUL
    operator: str = ""

    REPLIES_TO = (End,)


def ended(session: str, reason: CloseReason, request: int = 0, operator: str = "") -> Ended:
    """Return the table's notice that ``session`` has ended; the proxy that sends it adds a text."""
    return Ended(session=session, detail="", request=request, reason=reason, operator=operator)
