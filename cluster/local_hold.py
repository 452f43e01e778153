"""What one owner of a client holds, how sure that is, and who wants to know when it is not."""

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
    """How an owner stands to a lock. Chubby calls SUSPECT jeopardy.

    FREE becomes HELD by an acquire. HELD becomes SUSPECT when the cluster has not confirmed
    the session for half its TTL, and HELD again when it does. Either becomes LOST at the
    latest when the cluster may end the session, or when it says that an operator took the
    lock or that the session is gone. LOST becomes FREE when it was told: by an error of
    `release`, of the end of ``with``, or of `acquire`. Then the same object may acquire again.
    """

    FREE = "free"
    """This owner has nothing to do with the lock."""
    HELD = "held"
    """Nobody else can hold it now."""
    SUSPECT = "suspect"
    """As HELD, but the cluster is silent: it is time to finish, or to stop at a safe point."""
    UNLOCKING = "unlocking"
    """As HELD, but its duration is over: release or renew it before its grace is, too."""
    LOST = "lost"
    """Somebody else may hold it, and this owner has not been told yet."""


HOLDING = frozenset({HoldState.HELD, HoldState.SUSPECT, HoldState.UNLOCKING})
"""The states in which nobody else can hold the lock."""

LAPSED = "its duration and its grace are over"
UNCONFIRMED = "the cluster did not confirm the session within its TTL"
"""Why a hold is lost that nobody took."""


@dataclass(frozen=True, slots=True)
class Notice:
    """What became of a hold: given to callbacks."""

    lock: str
    owner: str
    fence: int
    state: HoldState
    """SUSPECT, UNLOCKING or LOST."""
    detail: str
    """Why, in words."""


Callback = Callable[[Notice], object]


@dataclass(slots=True, eq=False)
class Listeners:
    """The callbacks of one lock object, or of a client for all its locks."""

    lost: list[Callback] = field(default_factory=list[Callback])
    unlocking: list[Callback] = field(default_factory=list[Callback])
    suspect: list[Callback] = field(default_factory=list[Callback])


@dataclass(eq=False)
class LocalHold:
    """What one owner of this client holds, until its release was confirmed or its loss told.

    Each acquire makes one: what most of them change late or never they have of their class.
    """

    lock: str
    owner: str
    fence: int
    tokens: list[int]
    """Of the acquires that made what it holds, by which the session knows each."""
    listeners: list[Listeners]
    """Of the objects through which it was acquired."""
    count: int = field(init=False, default=1)
    """How often it is held, without those whose release has begun."""
    leaving: ReleaseCall | None = field(init=False, default=None)
    """The answer of a release that has begun and is not confirmed; one at a time."""
    until: Instant | None = field(init=False, default=None)
    """When it is lost, if it has a deadline, by the session's clock."""
    unlocking: bool = field(init=False, default=False)
    """Whether its duration is over and its grace is not, as far as was told."""
    lost: str | None = field(init=False, default=None)
    """Why it is no longer held, once it is not."""
    known: bool = field(init=False, default=False)
    """Whether the session knows of the loss: else it must be told that nobody holds here."""
    told: bool = field(init=False, default=False)
    """Whether the user was told of the loss."""


def not_held(lock: str, owner: str) -> str:
    """Return the words for a release by somebody who holds nothing."""
    return f"lock {lock!r}: owner {owner!r} does not hold it"


def loss_error(grip: LocalHold) -> LockOwnershipLostError:
    """Return the error that tells of the loss of ``grip``."""
    lock = f"lock {grip.lock!r}: "
    why = (grip.lost or "").removeprefix(lock)
    return LockOwnershipLostError(
        f"{lock}owner {grip.owner!r} lost its hold under fence {grip.fence}: {why}"
    )


def note_of(name: str, failure: FencelockError) -> str:
    """Return what an error of a ``with`` body is told of its lock, which was not released."""
    if isinstance(failure, LockOwnershipLostError):
        return f"and the lock was lost before: {failure}"
    return f"lock {name!r} could not be released either: {type(failure).__name__}: {failure}"
