"""Messages between a node's proxy and the leaders. Tags 0xc0-0xcf."""

from enum import IntEnum

from fencelock.actors.api.message import Contender
from fencelock.actors.bakery.ticket import Who
from fencelock.actors.message import Int64, Message


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


class Lock(Message, tag=0xC0):
    """Source: LOCK. ``wait_ms`` is the time left to obtain the lock (ms), or None for no limit."""

    lock: str
    who: Who
    request: Int64
    wait_ms: Int64 | None
    hold_ms: Int64
    grace_ms: Int64
    label: str
    shared: bool = False
    """Whether it may hold the lock beside other shared requests."""


class Locked(Message, tag=0xC1):
    """Source: LOCKED. No other owner is granted the lock for ``hold_ms + grace_ms`` from now.

    If the request is shared, other owners may still be granted shared requests.
    """

    lock: str
    who: Who
    request: Int64
    fence: Int64
    hold_ms: Int64
    grace_ms: Int64


class LockFailed(Message, tag=0xC2):
    """Source: LOCK_FAILED. The request waits no more, and holds nothing."""

    lock: str
    who: Who
    request: Int64
    error: Error
    detail: str


class Unlock(Message, tag=0xC3):
    """Source: UNLOCK. Drop the request, named by number or by fence (the other is 0)."""

    lock: str
    who: Who
    request: Int64
    fence: Int64
    number: Int64
    """The proxy's number, for the reply."""
    waiting: bool
    """Drop it only if it waits: the proxy stopped waiting, but another may have granted it
    meanwhile."""


class Unlocked(Message, tag=0xC4):
    """Source: UNLOCKED. Enough leaders have dropped it; ``found`` if any of them ever knew it."""

    number: Int64
    found: bool


class NotLeading(Message, tag=0xC5):
    """I do not serve. ``owner`` is the leader that has this request, or empty if none is known."""

    lock: str
    who: Who
    owner: str


class Unlocking(Message, tag=0xC6):
    """Source: UNLOCKING. The duration is over; after ``grace_ms`` the lock is taken away."""

    lock: str
    who: Who
    request: Int64
    fence: Int64
    grace_ms: Int64


class Expired(Message, tag=0xC7):
    """Source: UNLOCKED with an error. The grace is also over: the next owner gets the lock."""

    lock: str
    who: Who
    request: Int64
    fence: Int64


class RenewHold(Message, tag=0xC8):
    """Let the duration of the hold under ``fence`` begin anew, with ``hold_ms``."""

    lock: str
    who: Who
    fence: Int64
    hold_ms: Int64
    """The new duration (ms), 0 for the same as before."""
    number: Int64
    missed: tuple[str, ...] = ()
    """Leaders that replied that they do not have the hold: the renewal is not left to them."""


class HoldRenewed(Message, tag=0xC9):
    """It began anew after this was requested; or, if ``fence`` is 0, I do not have the hold.

    Another leader may have it: a proxy reports a loss only once no quorum can have it.
    """

    number: Int64
    fence: Int64
    hold_ms: Int64
    grace_ms: Int64
    invalid: str = ""
    """Reason why the renewal is refused, although the hold exists; empty if it is not."""


class Query(Message, tag=0xCA):
    """Report the holder and the waiters of ``lock``.

    Sent to all leaders, and answered only by those that may grant locks now.
    """

    lock: str
    number: Int64
    nonce: Int64 = 0
    """Of one round of asking; the answer repeats it."""


class QueryResult(Message, tag=0xCB):
    """State of a lock in this leader's table; waiters in the order of their tickets."""

    lock: str
    number: Int64
    holders: tuple[Contender, ...]
    """The holders for which the leader voted, in the order of their fences: one at most, unless the
    lock has shared holders."""
    waiters: tuple[Contender, ...]
    waiting: Int64
    """Number of waiters, of which only some may be listed."""
    epoch: Int64 = 0
    """The epoch in which the leader serves."""
    nonce: Int64 = 0
    """The nonce of the `Query`."""
    expired_ms: Int64 | None = None
    """Time since a vote for a holder of this lock last expired here (ms), or None if none ever
    did."""


class UnlockAll(Message, tag=0xCC):
    """Drop every request of ``session``: its client is gone. Answered by `Unlocked`."""

    session: str
    number: Int64


ToLeader = Lock | Unlock | UnlockAll | RenewHold | Query
"""What a proxy sends to leaders."""

ToProxy = (
    Locked | LockFailed | Unlocked | NotLeading | Unlocking | Expired | HoldRenewed | QueryResult
)
"""What a leader sends to proxies."""
