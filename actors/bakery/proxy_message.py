"""Messages between a node's proxy and the leaders. Tags 0xc0-0xcf."""

from __future__ import annotations

from enum import IntEnum

from fencelock.actors.api.message import Contender
from fencelock.actors.bakery.ticket import Who
from fencelock.actors.message import Message, message


class Error(IntEnum):
    """Reason why a request failed. Numbers are on the wire and never reused."""

    TIMED_OUT = 1
    """The obtention timeout of the lock has passed."""
    INVALID = 2
    """A field exceeds its limits, such as a duration."""
    DUPLICATE = 3
    """A later request of the same owner for this lock is already known."""
    OVERFLOW = 4
    """A queue, or a counter, is at its limit."""
    FAILED = 5
    """The leaders could not agree, and nothing more is known."""
    HELD = 6
    """In this leader's table, the owner holds the lock for an earlier request."""


@message(0xC0)
class Lock(Message):
    """Source: LOCK. ``wait_ms`` is the time left to obtain the lock (ms), or None for no limit."""

    lock: str
    who: Who
    request: int
    wait_ms: int | None
    hold_ms: int
    grace_ms: int
    label: str
    shared: bool = False
    """Whether it may hold the lock beside other shared requests."""


@message(0xC1)
class Locked(Message):
    """Source: LOCKED. No other owner is granted the lock for ``hold_ms + grace_ms`` from now.

    If the request is shared, other owners may still be granted shared requests.
    """

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
    """The proxy's number, for the reply."""
    waiting: bool
    """Drop it only if it waits: the proxy stopped waiting, but another may have granted it
    meanwhile."""


@message(0xC4)
class Unlocked(Message):
    """Source: UNLOCKED. Enough leaders have dropped it; ``found`` if any of them ever knew it."""

    number: int
    found: bool


@message(0xC5)
class NotLeading(Message):
    """I do not serve. ``owner`` is the leader that has this request, or empty if none is known."""

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
    """Source: UNLOCKED with an error. The grace is also over: the next owner gets the lock."""

    lock: str
    who: Who
    request: int
    fence: int


@message(0xC8)
class RenewHold(Message):
    """Let the duration of the hold under ``fence`` begin anew, with ``hold_ms``."""

    lock: str
    who: Who
    fence: int
    hold_ms: int
    """The new duration (ms), 0 for the same as before."""
    number: int
    missed: tuple[str, ...] = ()
    """Leaders that replied that they do not have the hold: the renewal is not left to them."""


@message(0xC9)
class HoldRenewed(Message):
    """It began anew after this was requested; or, if ``fence`` is 0, I do not have the hold.

    Another leader may have it: a proxy reports a loss only once no quorum can have it.
    """

    number: int
    fence: int
    hold_ms: int
    grace_ms: int
    invalid: str = ""
    """Reason why the renewal is refused, although the hold exists; empty if it is not."""


@message(0xCA)
class Query(Message):
    """Report the holder and the waiters of ``lock``.

    Sent to all leaders, and answered only by those that may grant locks now.
    """

    lock: str
    number: int
    nonce: int = 0
    """Of one round of asking; the answer repeats it."""


@message(0xCB)
class QueryResult(Message):
    """State of a lock in this leader's table; waiters in the order of their tickets."""

    lock: str
    number: int
    holder: Contender | None
    waiters: tuple[Contender, ...]
    waiting: int
    """Number of waiters, of which only some may be listed."""
    epoch: int = 0
    """The epoch in which the leader serves."""
    nonce: int = 0
    """The nonce of the `Query`."""
    lapsed_ms: int | None = None
    """Time since a vote for a holder of this lock last lapsed here (ms), or None if none ever
    did."""
    holders: tuple[Contender, ...] = ()
    """All holders for which the leader voted, in the order of their fences, if the lock has shared
    holders. ``holder`` is the first of them."""


@message(0xCC)
class UnlockAll(Message):
    """Drop every request of ``session``: its client is gone. Answered by `Unlocked`."""

    session: str
    number: int
