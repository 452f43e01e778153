"""The facts of a refusal, of a hold that was taken, and of an entry of the audit.

Every member keeps them, in outcomes, snapshots and digests. The node that answers writes the
sentences: `fencelock.actors.table.sentences`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from fencelock.actors.message import Int64


class Cause(IntEnum):
    """The subject of a sentence. Numbers are in snapshots and on the wire, and never reused."""

    INVALID = 1
    """A field exceeds its limits, as the request's own check says."""
    OBSTRUCTED = 2
    """An object is held or awaited by others, see `Why.obstacle`."""
    TIMED_OUT = 3
    """Numbers: the time waited (ms). The object is held or awaited by others."""
    GIVEN_UP = 4
    """The owner gave its wait up."""
    TAKEN = 5
    """Texts: the operator who took the hold."""
    DEADLINE = 6
    """The duration and the grace of the hold were over."""
    LOST = 7
    """The owner had lost the hold. The object may be held by others."""
    WRONG_FENCE = 8
    """Numbers: the fence that was shown, under which the object is not held."""
    GUARD = 9
    """Numbers: the fence under which the guard, the object of the obstacle, is not held."""
    NO_DEADLINE = 10
    """The hold has no deadline."""
    LATER_REQUEST = 11
    """Its session has sent a later request."""
    AT_LIMIT = 12
    """Numbers: how often the owner holds it, the fence, and how often it may."""
    TOO_FEW = 13
    """Numbers: the amount that was requested, the amount that the owner has, and the fence."""
    TOO_MANY = 14
    """Numbers: the amount that was released, the amount that the owner has, and the fence."""
    OTHER_SIZE = 15
    """Numbers: the size of the object, and the size that the request names."""
    SESSION_ENDED = 16
    """Texts: the session of the request."""
    NO_SESSION = 17
    """Texts: the handle of which no session is open."""
    SESSION_CLAIMS = 18
    """Numbers: the holds and waits of the session, and the limit."""
    CLAIMS = 19
    """Numbers: the holds and waits of all sessions, and the limit."""
    SESSIONS = 20
    """Numbers: the limit of open sessions."""
    OBJECTS = 21
    """Numbers: the objects that nobody can hold, other than maps, and the limit."""
    ENTRIES = 22
    """Numbers: the entries of all maps, and the limit."""
    MAP_BYTES = 23
    """Numbers: the bytes of all maps, and the limit."""
    QUOTA = 24
    """Texts: the key, and what is charged to it. Numbers: what it has, its quota, how many more."""
    PARTY_LEFT = 25
    """Numbers: the generation of the barrier, and its parties."""
    PARTY_DID_NOT_WAIT = 26
    """Numbers: the generation of the barrier, and its parties."""
    DELETED = 27
    """Texts: the operator. Numbers: those of a barrier, or none."""
    BUG = 28
    """Texts: the type of the command that raised."""
    SKIPPED = 29
    """An operator skipped the command."""
    QUOTA_SET = 30
    """In the audit. Texts: what was limited. Numbers: the limit of each of these."""
    PURGED = 31
    """In the audit. Numbers: whether only objects of that very name were removed. Texts: the
    beginning of the keys that were removed, and the key to which they were charged, if one was
    named."""
    HELD_AGAIN = 32
    """Numbers: how often the owner holds the lock, which it would detach."""
    NOT_DETACHED = 33
    """The lock is not detached with the secret that was shown."""
    SESSION_WAITS = 34
    """Numbers: the waits of the session, and the limit."""
    QUEUE = 35
    """Numbers: the waits for an object, and the limit. Texts: the object."""


class Obstacle(NamedTuple):
    """An object that a claim cannot have now; its holder is the first one, if there are several."""

    lock: str
    holders: Int64 = 0
    free: Int64 = 0
    """The free part of ``capacity``; of a latch, the present count."""
    capacity: Int64 = 0
    """Of a barrier, the number of parties."""
    waiting: Int64 = 0
    """Of a barrier, the parties that have arrived."""
    fence: Int64 = 0
    session: str = ""
    owner: str = ""
    label: str = ""


class Why(NamedTuple):
    """The cause of a refusal or of a loss, or what an operator did, with its arguments."""

    cause: Cause
    numbers: tuple[Int64, ...] = ()
    texts: tuple[str, ...] = ()
    obstacle: Obstacle | None = None
