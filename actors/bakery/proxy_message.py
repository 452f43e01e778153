"""The words between a node's door and the leaders. Tags 0xc0-0xcf."""

from __future__ import annotations

from enum import IntEnum

from fencelock.actors.bakery.ticket import Who
from fencelock.actors.lock.message import Contender
from fencelock.actors.message import Message, message


class Error(IntEnum):
    """Why a request failed. Numbers are on the wire and never reused."""

    TIMED_OUT = 1
    """The time in which the lock was to be obtained is over."""
    INVALID = 2
    """A field is out of its limits, such as a duration."""
    DUPLICATE = 3
    """The same owner's later request for this lock is known already."""
    OVERFLOW = 4
    """A queue, or a counter, is at its limit."""
    FAILED = 5
    """The leaders could not agree, and nothing more is known."""


@message(0xC0)
class Lock(Message):
    """Source: LOCK. ``wait_ms`` is what is left to obtain the lock, None for no limit."""

    lock: str
    who: Who
    request: int
    wait_ms: int | None
    hold_ms: int
    grace_ms: int
    label: str


@message(0xC1)
class Locked(Message):
    """Source: LOCKED. Nobody else is granted the lock for ``hold_ms + grace_ms`` from now."""

    lock: str
    who: Who
    request: int
    fence: int
    hold_ms: int
    grace_ms: int


@message(0xC2)
class LockFailed(Message):
    """Source: LOCK_FAILED. The request waits no more, and holds nothing."""

    lock: str
    who: Who
    request: int
    error: Error
    detail: str


@message(0xC3)
class Unlock(Message):
    """Source: UNLOCK. Drop the request, named by number or by fence (the other is 0)."""

    lock: str
    who: Who
    request: int
    fence: int
    number: int
    """The door's, for the answer."""
    waiting: bool
    """Only if it waits: the door gave up, and the client may have been let in through another."""


@message(0xC4)
class Unlocked(Message):
    """Source: UNLOCKED. Enough leaders have dropped it; ``found`` if any ever knew it."""

    number: int
    found: bool


@message(0xC5)
class NotLeading(Message):
    """I do not serve. ``owner`` is the leader that has this request, empty if none is known."""

    lock: str
    who: Who
    owner: str


@message(0xC6)
class Unlocking(Message):
    """Source: UNLOCKING. The duration is over; after ``grace_ms`` the lock is taken away."""

    lock: str
    who: Who
    request: int
    fence: int
    grace_ms: int


@message(0xC7)
class Expired(Message):
    """Source: UNLOCKED with an error. The grace is over, too: the lock is the next one's."""

    lock: str
    who: Who
    request: int
    fence: int


@message(0xC8)
class RenewHold(Message):
    """Let the duration of what is held under ``fence`` begin anew, with ``hold_ms``."""

    lock: str
    who: Who
    fence: int
    hold_ms: int
    """0 for what it was."""
    number: int
    missed: tuple[str, ...] = ()
    """Leaders that said they do not hold it: nobody leaves the renewal to one of these."""


@message(0xC9)
class HoldRenewed(Message):
    """It began anew after this was asked; or, if ``fence`` is 0, I do not hold it.

    Another leader may: a door tells nobody of a loss before no quorum can hold it.
    """

    number: int
    fence: int
    hold_ms: int
    grace_ms: int


@message(0xCA)
class Query(Message):
    """Tell me who holds ``lock``, and who waits.

    Sent to all leaders, and answered only by those that may grant locks now.
    """

    lock: str
    number: int
    nonce: int = 0
    """Of one round of asking; the answer repeats it."""


@message(0xCB)
class QueryResult(Message):
    """What this leader's table says; waiters in the order of their tickets."""

    lock: str
    number: int
    holder: Contender | None
    waiters: tuple[Contender, ...]
    waiting: int
    """How many wait, of which some are told."""
    epoch: int = 0
    """In which the leader serves."""
    nonce: int = 0
    """Of the `Query`."""
    lapsed_ms: int | None = None
    """How long ago a vote for a holder of this lock ended here by its lease; None for never."""


@message(0xCC)
class UnlockAll(Message):
    """Drop every request of ``session``: its client is gone. Answered by `Unlocked`."""

    session: str
    number: int
