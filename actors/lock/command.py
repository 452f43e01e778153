"""What the log can say to the table of locks. Tags 0x80 to 0x8f.

A command carries no time: the log stamps the batch it travels in. ``request`` rises with
each new command of a session, whichever of its owners speaks, and stays the same when a
command is sent again. An owner does one thing at a time with a lock: it has heard the
answer of a command, or of the `CancelWait` that withdraws it, before it begins the next
about the same lock. What it does with other locks goes on beside it.
"""

from __future__ import annotations

from enum import IntEnum

from fencelock.actors.error import InvalidRequestError
from fencelock.actors.lock.name import (
    LOCK_NAME_BYTES_MAX,
    OWNER_BYTES_MAX,
    WAIT_MS_MAX,
    check_lock_name,
    check_owner,
    check_text,
    check_wait,
    is_allowed,
)
from fencelock.actors.message import Message, message

SESSION_BYTES_MAX = 256
"""Room for host, process and boot id, and for the number the table adds."""

LABEL_BYTES_MAX = 256
"""A word for people who look at a lock or a session; it is stored with either."""

TTL_MS_MIN = 100
"""Below this (ms) an ordinary pause of an interpreter would end the session."""

TTL_MS_MAX = 24 * 3_600_000
"""A day (ms): a dead client's locks stay taken for so long."""

FENCE_FLOOR_MAX = 1 << 62
"""Half of all fences: a floor, however wrong, does not use them up."""

INT_MAX = (1 << 63) - 1
"""The largest request, fence or limit; they cross the wire as signed 64 bits."""


class CloseReason(IntEnum):
    """Why a session is closed. Numbers are on the wire and never reused."""

    GRACEFUL = 1
    """The client goes."""
    EXPIRED = 2
    """The master heard nothing for too long; holds only if the version it saw still stands."""
    FORCED = 3
    """An operator ends the client's session."""
    IDLE = 4
    """Nothing is held or waited for; holds only if that and the version it saw still stand."""


@message(0x80)
class OpenSession(Message):
    """Open a session. Answered by `SessionOpened`, which tells the id to use from then on.

    ``session`` is the name the client gives itself, unique to this life of it. While
    the session lives, opening it again finds it; after its end the same name gets another
    session, under another id, so that nothing said under the old id can take effect.
    """

    session: str
    ttl_ms: int
    label: str = ""
    request: int = 0


@message(0x81)
class KeepSession(Message):
    """The client is there. Answered by `SessionKept`."""

    session: str
    request: int = 0


@message(0x82)
class CloseSession(Message):
    """End a session with all its waits and holds. Answered by `SessionClosed`."""

    session: str
    reason: CloseReason
    version: int = 0
    """The session's version that whoever asks has seen; counts for EXPIRED and IDLE."""
    request: int = 0


@message(0x83)
class ExtendSessions(Message):
    """A new master: no session ends before one of its TTLs from now on. Not answered.

    The master cannot know who was heard lately. It must be the first command of the
    first batch of a reign: it takes effect before what falls due by that batch's time.

    Every later fence is above ``fence_floor``, 0 to `FENCE_FLOOR_MAX`: a group that keeps
    nothing on disk, and lost all, goes on above its old fences if the floor is a date.
    """

    master: str
    fence_floor: int = 0


@message(0x84)
class AcquireLock(Message):
    """Let ``owner`` hold ``lock``. Answered by `Held` or `Denied`, or by `Queued` and later one.

    ``wait_ms`` is how long to wait, 0 for not at all, None for without limit. ``limit``
    is how often the owner may hold it at once, 0 without limit, 1 for not reentrant.
    ``label`` is shown after what the session says of itself.
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
    """``owner`` is done with one hold of ``lock``. Answered by `Freed` or `Denied`."""

    session: str
    owner: str
    request: int
    lock: str
    fence: int


@message(0x86)
class CancelWait(Message):
    """Undo the `AcquireLock` numbered ``request``, come or still to come: `WaitCancelled`.

    If it waits it waits no more; if it was granted that hold is taken back; if the log
    has not seen it yet it will be denied.
    """

    session: str
    owner: str
    request: int
    lock: str


@message(0x87)
class ForceRelease(Message):
    """An operator takes ``lock`` from whoever holds it under ``fence``: `Forced` or `Denied`.

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
"""Everything the log can say to the table."""


_PLAIN_BYTES_MAX = min(LOCK_NAME_BYTES_MAX, OWNER_BYTES_MAX, LABEL_BYTES_MAX)
"""What is no longer than this together is within the limit of each."""


def check_command(command: Command) -> None:
    """Refuse what is out of its limits, at the door and again in the table.

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
            pass  # They find something or they do not; nothing of them is stored.


def check_again(command: AcquireLock | ReleaseLock) -> None:
    """Do what `check_command` does, for an owner and a lock that it found within limits before.

    Raises:
        InvalidRequestError: naming the field, the value and the limit.

    """
    unusual = isinstance(command, AcquireLock) and (command.label or not _has_plain_terms(command))
    if unusual or not 1 <= command.request <= INT_MAX:
        check_command(command)


def _is_plain(command: Command) -> bool:
    """Return whether this is a short ASCII claim as nearly all are: all limits in one go.

    What it cannot say for sure is judged field by field, by name.
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
    """Return whether how long and how often a lock is wanted is within limits."""
    wait_ms = acquire.wait_ms
    return 0 <= acquire.limit <= INT_MAX and (wait_ms is None or 0 <= wait_ms <= WAIT_MS_MAX)


def _check_claim(command: LockCommand) -> None:
    check_lock_name(command.lock)
    check_owner(command.owner)
    _check_number("request", command.request, 1, INT_MAX)


def _check_number(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidRequestError(f"{field} is {value}, {least} to {most} are allowed")
