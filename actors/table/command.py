"""Commands that the log applies to the table of locks. Tags 0x80 to 0x8f.

A command carries no time: the log stamps its batch. ``request`` rises with each new command of
a session, for any of its owners, and stays the same when a command is sent again. An owner
does one thing at a time with a lock: it begins the next command about the same lock after it
has received the outcome of the last, or of the `CancelWait` that cancels it. Commands about
other locks are independent.
"""

from __future__ import annotations

from enum import IntEnum

from fencelock.actors.api.name import (
    LOCK_NAME_BYTES_MAX,
    OWNER_BYTES_MAX,
    WAIT_MS_MAX,
    check_lock_name,
    check_owner,
    check_text,
    check_wait,
    is_allowed,
)
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import Message, message

SESSION_BYTES_MAX = 256
"""Room for host, process and boot id, and for the number the table adds."""

LABEL_BYTES_MAX = 256
"""A text for people who look at a lock or a session; it is stored with either."""

TTL_MS_MIN = 100
"""Below this (ms) an ordinary pause of an interpreter would end the session."""

TTL_MS_MAX = 24 * 3_600_000
"""A day (ms): a dead client's locks stay taken for as long."""

FENCE_FLOOR_MAX = 1 << 62
"""Half of all fences: even a wrong floor does not use them up."""

INT_MAX = (1 << 63) - 1
"""The largest request, fence or limit; they cross the wire as signed 64 bits."""


class CloseReason(IntEnum):
    """Reason why a session is closed. Numbers are on the wire and never reused."""

    GRACEFUL = 1
    """The client closes it."""
    EXPIRED = 2
    """The master received nothing for too long; valid only if the version it saw is still
    current."""
    FORCED = 3
    """An operator ends the client's session."""
    IDLE = 4
    """There are no holds or waits; valid only if so, and if the version it saw is still current."""


@message(0x80)
class OpenSession(Message):
    """Open a session. Answered by `SessionOpened` with the id to use from then on.

    ``session`` is the client's own name for it, unique to this life of the client. While
    the session lives, opening it again finds it. After its end the same name gets another
    session, under another id, so that commands under the old id have no effect.
    """

    session: str
    ttl_ms: int
    label: str = ""
    request: int = 0


@message(0x81)
class KeepSession(Message):
    """Keep a session alive. Answered by `SessionKept`."""

    session: str
    request: int = 0


@message(0x82)
class CloseSession(Message):
    """End a session with all its waits and holds. Answered by `SessionClosed`."""

    session: str
    reason: CloseReason
    version: int = 0
    """The session's version that the sender has seen; checked for EXPIRED and IDLE."""
    request: int = 0


@message(0x83)
class ExtendSessions(Message):
    """A new master: no session ends before one of its TTLs from now on. Not answered.

    The master cannot know which sessions were kept alive lately. It must be the first command of
    the first batch of a leadership: it takes effect before what falls due by that batch's time.

    Every later fence is above ``fence_floor``, 0 to `FENCE_FLOOR_MAX`. With a date as the
    floor, a group that keeps nothing on disk, and lost everything, continues above its old fences.
    """

    master: str
    fence_floor: int = 0


@message(0x84)
class AcquireLock(Message):
    """Let ``owner`` hold ``lock``. Answered by `Held` or `Denied`, or by `Queued` and later one.

    ``wait_ms`` is the timeout (ms), 0 for no wait, None for no limit. ``limit`` is the number
    of times that the owner may hold it at once, 0 for no limit, 1 for not reentrant.
    ``label`` is shown after the session's label.
    """

    session: str
    owner: str
    request: int
    lock: str
    wait_ms: int | None = None
    limit: int = 0
    label: str = ""


@message(0x85)
class ReleaseLock(Message):
    """Release one hold of ``lock`` by ``owner``. Answered by `Freed` or `Denied`."""

    session: str
    owner: str
    request: int
    lock: str
    fence: int


@message(0x86)
class CancelWait(Message):
    """Undo the `AcquireLock` numbered ``request``, past or future. Answered by `WaitCancelled`.

    If it waits, the wait ends; if it was granted, that hold ends; if the log has not received it
    yet, it will be denied.
    """

    session: str
    owner: str
    request: int
    lock: str


@message(0x87)
class ForceRelease(Message):
    """An operator ends the hold of ``lock`` under ``fence``. Answered by `Forced` or `Denied`.

    The fence makes a repetition harmless: it cannot hit the next holder.
    """

    operator: str
    request: int
    lock: str
    fence: int


SessionCommand = OpenSession | KeepSession | CloseSession
LockCommand = AcquireLock | ReleaseLock | CancelWait
Command = (
    OpenSession
    | KeepSession
    | CloseSession
    | ExtendSessions
    | AcquireLock
    | ReleaseLock
    | CancelWait
    | ForceRelease
)
"""All commands that the log applies to the table."""


_PLAIN_BYTES_MAX = min(LOCK_NAME_BYTES_MAX, OWNER_BYTES_MAX, LABEL_BYTES_MAX)
"""If all texts together are no longer than this, each is within its limit."""


def check_command(command: Command) -> None:
    """Refuse a command that exceeds its limits, at the proxy and again in the table.

    The table answers INVALID, so these limits are part of the replicated state machine:
    members that run together must agree on them.

    Raises:
        InvalidRequestError: naming the field, the value and the limit.

    """
    if _is_plain(command):
        return
    match command:
        case OpenSession():
            check_text("session", command.session, SESSION_BYTES_MAX)
            check_text("label", command.label, LABEL_BYTES_MAX)
            _check_number("ttl_ms", command.ttl_ms, TTL_MS_MIN, TTL_MS_MAX)
        case AcquireLock():
            _check_claim(command)
            check_text("label", command.label, LABEL_BYTES_MAX)
            check_wait(command.wait_ms)
            _check_number("limit", command.limit, 0, INT_MAX)
        case ReleaseLock() | CancelWait():
            _check_claim(command)
        case ForceRelease():
            check_lock_name(command.lock)
            check_text("operator", command.operator, LABEL_BYTES_MAX)
            _check_number("request", command.request, 1, INT_MAX)
        case ExtendSessions():
            _check_number("fence_floor", command.fence_floor, 0, FENCE_FLOOR_MAX)
        case KeepSession() | CloseSession():
            pass  # They find a session or not; nothing of them is stored.


def check_again(command: AcquireLock | ReleaseLock) -> None:
    """Like `check_command`, for an owner and a lock that were found valid before.

    Raises:
        InvalidRequestError: naming the field, the value and the limit.

    """
    unusual = isinstance(command, AcquireLock) and (command.label or not _has_plain_terms(command))
    if unusual or not 1 <= command.request <= INT_MAX:
        check_command(command)


def _is_plain(command: Command) -> bool:
    """Return whether this is a short ASCII claim, as nearly all are: checks all limits at once.

    A command for which it returns False is checked field by field.
    """
    if isinstance(command, AcquireLock):
        texts = command.lock + command.owner + command.label
        if not _has_plain_terms(command):
            return False
    elif isinstance(command, ReleaseLock) or isinstance(command, CancelWait):  # noqa: SIM101
        texts = command.lock + command.owner
    else:
        return False
    return (
        len(texts) <= _PLAIN_BYTES_MAX
        and texts.isascii()
        and is_allowed(texts)
        and bool(command.lock)
        and 1 <= command.request <= INT_MAX
    )


def _has_plain_terms(acquire: AcquireLock) -> bool:
    """Return whether the timeout and the limit of ``acquire`` are valid."""
    wait_ms = acquire.wait_ms
    return 0 <= acquire.limit <= INT_MAX and (wait_ms is None or 0 <= wait_ms <= WAIT_MS_MAX)


def _check_claim(command: LockCommand) -> None:
    check_lock_name(command.lock)
    check_owner(command.owner)
    _check_number("request", command.request, 1, INT_MAX)


def _check_number(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidRequestError(f"{field} is {value}, {least} to {most} are allowed")
