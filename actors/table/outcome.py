"""Outcomes of commands, and their receivers. Tags 0x90 to 0x99.

An outcome is addressed by (session, owner, request, lock), as in the command that it
answers. One command may have outcomes for others too: a release has one for the next holder.
"""

from __future__ import annotations

from enum import IntEnum

from fencelock.actors.message import Message, message
from fencelock.actors.table.command import (
    AcquireLock,
    CancelWait,
    CloseReason,
    CloseSession,
    Command,
    ExtendSessions,
    ForceRelease,
    KeepSession,
    OpenSession,
    ReleaseLock,
)


class Denial(IntEnum):
    """Reason why a command had no effect. Numbers are on the wire and never reused."""

    TIMED_OUT = 1
    """The wait timed out, or was not wanted, while another owner held the lock."""
    NOT_HELD = 2
    """The owner does not hold the lock under the fence shown."""
    OWNERSHIP_LOST = 3
    """The owner did hold it, until an operator took it."""
    LIMIT_REACHED = 4
    """The owner holds it as many times as it may."""
    CANCELLED = 5
    """The wait was cancelled, or a later request of its owner replaced it."""
    SESSION_EXPIRED = 6
    """The session has ended: its holds are lost, and its requests are not done."""
    SUPERSEDED = 7
    """The owner has sent a later request about the lock; this one has no effect now."""
    FORGOTTEN = 8
    """The owner neither holds the lock nor waits for it, and this request will not change that.

    Its number is not above those of an owner that was forgotten. An acquire, done or not,
    holds nothing: it may be sent anew, under a new number. A release has nothing left to
    release; it is only unknown whether this one did that.
    """
    OVERLOADED = 9
    """A table is at its limit."""
    INVALID = 10
    """A field exceeds its limits."""


@message(0x90)
class SessionOpened(Message):
    """The session opened under the name ``session`` has the id ``assigned`` from now on."""

    session: str
    assigned: str
    ttl_ms: int
    version: int
    request: int = 0


@message(0x91)
class SessionKept(Message):
    """The session lives for at least another TTL; also the answer to a close that came too late."""

    session: str
    version: int
    request: int = 0


@message(0x92)
class SessionClosed(Message):
    """The session has ended, its waits have ended and its holds are free."""

    session: str
    reason: CloseReason
    request: int = 0


@message(0x93)
class Held(Message):
    """``owner`` holds ``lock`` under ``fence``, ``count`` times at once."""

    session: str
    owner: str
    request: int
    lock: str
    fence: int
    count: int


@message(0x94)
class Freed(Message):
    """``owner`` has released one hold of ``lock``; it has ``count`` left."""

    session: str
    owner: str
    request: int
    lock: str
    count: int


@message(0x95)
class Queued(Message):
    """``owner`` waits for ``lock``; the log has the request, so it need not be repeated."""

    session: str
    owner: str
    request: int
    lock: str


@message(0x96)
class Denied(Message):
    """Denied for ``reason``. For an operator ``session`` is empty and ``owner`` is the operator."""

    session: str
    owner: str
    request: int
    lock: str
    reason: Denial
    detail: str = ""
    """Text that adds to ``reason``."""


@message(0x97)
class WaitCancelled(Message):
    """The `AcquireLock` numbered ``request`` neither waits nor holds, and never will."""

    session: str
    owner: str
    request: int
    lock: str


@message(0x98)
class Forced(Message):
    """``operator`` took ``lock`` from ``owner``, who held it under ``fence``."""

    operator: str
    request: int
    lock: str
    fence: int
    session: str
    owner: str
    label: str
    """Labels of its session and of its hold."""
    time_ms: int
    """Log time of the eviction, for the audit."""


@message(0x99)
class Lost(Message):
    """To a former owner: ``operator`` ended its hold under ``fence``."""

    session: str
    owner: str
    lock: str
    fence: int
    operator: str


Outcome = (
    SessionOpened
    | SessionKept
    | SessionClosed
    | Held
    | Freed
    | Queued
    | Denied
    | WaitCancelled
    | Forced
    | Lost
)
"""All outcomes of commands, or of time."""


def denied(command: Command, reason: Denial, detail: str = "") -> Denied:
    """Return the denial of ``command``, addressed to its sender."""
    session, owner, request, lock = "", "", 0, ""
    match command:
        case OpenSession() | KeepSession() | CloseSession():
            session, request = command.session, command.request
        case AcquireLock() | ReleaseLock() | CancelWait():
            session, owner = command.session, command.owner
            request, lock = command.request, command.lock
        case ForceRelease():
            owner, request, lock = command.operator, command.request, command.lock
        case ExtendSessions():
            owner = command.master
    return Denied(
        session=session,
        owner=owner,
        request=request,
        lock=lock,
        reason=reason,
        detail=detail,
    )
