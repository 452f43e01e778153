"""One owner's hold in a client: its state, and the callbacks to notify when it changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from fencelock.actors.error import FencelockError, LockOwnershipLostError
from fencelock.actors.message import Instant

if TYPE_CHECKING:
    from fencelock.cluster.calls import ReleaseCall


class HoldState(Enum):
    """The state of a lock for one owner. Chubby calls SUSPECT jeopardy.

    FREE becomes HELD by an acquire. HELD becomes SUSPECT when the cluster has not confirmed
    the session for half its TTL, and HELD again when it does. Either becomes LOST at the
    latest when the cluster may end the session, or when it reports that an operator took the
    lock or that the session is gone. LOST becomes FREE when an error of `release`, of the end
    of ``with``, or of `acquire` has reported it. Then the same object may acquire again.
    """

    FREE = "free"
    """This owner neither holds nor lost the lock."""
    HELD = "held"
    """Nobody else can hold it now."""
    SUSPECT = "suspect"
    """Like HELD, but the cluster is silent: it is time to finish, or to stop at a safe point."""
    UNLOCKING = "unlocking"
    """Like HELD, but its duration has ended: release or renew it before its grace ends, too."""
    LOST = "lost"
    """Somebody else may hold it, and no error has reported that to this owner yet."""


HOLDING = frozenset({HoldState.HELD, HoldState.SUSPECT, HoldState.UNLOCKING})
"""The states in which nobody else can hold the lock."""

LAPSED = "its duration and its grace are over"
UNCONFIRMED = "the cluster did not confirm the session within its TTL"
"""The reason for a loss that nothing else explains: the session may have ended."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A change of a hold, given to callbacks."""

    lock: str
    owner: str
    fence: int
    state: HoldState
    """SUSPECT, UNLOCKING or LOST."""
    detail: str
    """The reason, in words."""


Callback = Callable[[Notice], object]


@dataclass(slots=True, eq=False)
class Listeners:
    """The callbacks of one lock object, or of a client for all its locks."""

    lost: list[Callback] = field(default_factory=list[Callback])
    unlocking: list[Callback] = field(default_factory=list[Callback])
    suspect: list[Callback] = field(default_factory=list[Callback])


@dataclass(eq=False)
class LocalHold:
    """One owner's hold of one lock, until its release is confirmed or its loss reported.

    Fields that most holds never change default on the class, which makes construction cheaper.
    """

    lock: str
    owner: str
    fence: int
    tokens: list[int]
    """The tokens of the acquires that make up the hold; the session knows each by its token."""
    listeners: list[Listeners]
    """The listeners of the lock objects through which it was acquired."""
    count: int = field(init=False, default=1)
    """The number of holds, without those whose release has begun."""
    leaving: ReleaseCall | None = field(init=False, default=None)
    """The release that has begun and is not confirmed; one at a time."""
    until: Instant | None = field(init=False, default=None)
    """The deadline after which it is lost, if it has one, by the session's clock."""
    unlocking: bool = field(init=False, default=False)
    """Whether its duration has ended and its grace has not, as far as the session reported."""
    lost: str | None = field(init=False, default=None)
    """The reason for its loss; None unless it was lost."""
    known: bool = field(init=False, default=False)
    """Whether the session knows of the loss; if not, it must still be told to release."""
    told: bool = field(init=False, default=False)
    """Whether the loss was reported to the user."""


def not_held(lock: str, owner: str) -> str:
    """Return the text for a release by an owner that holds nothing."""
    return f"lock {lock!r}: owner {owner!r} does not hold it"


def loss_error(grip: LocalHold) -> LockOwnershipLostError:
    """Return the error that reports the loss of ``grip``."""
    lock = f"lock {grip.lock!r}: "
    why = (grip.lost or "").removeprefix(lock)
    return LockOwnershipLostError(
        f"{lock}owner {grip.owner!r} lost its hold under fence {grip.fence}: {why}"
    )


def note_of(name: str, failure: FencelockError) -> str:
    """Return the note for an error of a ``with`` body whose lock could not be released."""
    if isinstance(failure, LockOwnershipLostError):
        return f"and the lock was lost before: {failure}"
    return f"lock {name!r} could not be released either: {type(failure).__name__}: {failure}"
