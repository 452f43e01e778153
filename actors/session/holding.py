"""The holds of a client: their states, their acquires, and losses that are not yet reported.

The session role is the only writer of `Hold.state`, and moves it only along `MOVES`. The threads
of the client read holds without asking the role; see `Hold`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, cast

from fencelock.actors.message import Address, Instant
from fencelock.actors.session.pending import Claim

LAPSED = "its duration and its grace are over"
UNCONFIRMED = "the cluster did not confirm the session within its TTL"
"""Reasons for a loss that the clock alone decides."""

HOLDS_MAX = 100_000
"""Maximum locks one client may hold at a time; a session in the cluster has the same limit."""


class HoldState(Enum):
    """The state of a lock for one owner. Chubby calls SUSPECT jeopardy."""

    followers: tuple[HoldState, ...]
    """The states to which the session may move a hold next."""

    FREE = "free"
    """This owner neither holds nor lost the lock."""
    HELD = "held"
    """No other owner can hold the lock now."""
    SUSPECT = "suspect"
    """Like HELD, but the cluster has not confirmed the session for half its TTL. It follows from
    the clock: no hold is moved to it."""
    UNLOCKING = "unlocking"
    """Like HELD, but its duration has ended: release or renew it before its grace also ends."""
    RELEASING = "releasing"
    """Like HELD, but a release was requested. It is repeated until the cluster confirms it."""
    RELEASED = "released"
    """Its last release was confirmed. Final."""
    LOST = "lost"
    """Another owner may hold the lock: the hold's time is over, or the cluster ended it. Final."""


MOVES: dict[HoldState, tuple[HoldState, ...]] = {
    HoldState.FREE: (),
    HoldState.HELD: (
        HoldState.UNLOCKING,
        HoldState.RELEASING,
        HoldState.LOST,
    ),
    HoldState.SUSPECT: (),
    HoldState.UNLOCKING: (HoldState.HELD, HoldState.RELEASING, HoldState.LOST),
    HoldState.RELEASING: (HoldState.HELD, HoldState.RELEASED, HoldState.LOST),
    HoldState.RELEASED: (),
    HoldState.LOST: (),
}
"""The moves of a hold. HELD follows UNLOCKING when the hold was renewed, and RELEASING when only
one of several acquires was released, or when no release of it is under way any more."""

for _state, _followers in MOVES.items():
    _state.followers = _followers  # A member is found faster than its entry in a table.

HOLDING = (HoldState.HELD, HoldState.SUSPECT, HoldState.UNLOCKING, HoldState.RELEASING)
"""The states in which no other owner can hold the lock."""


@dataclass(slots=True)
class SessionTrust:
    """A client's trust in one session. There is one object per session, and its times only grow."""

    suspect_at: Instant
    """From this on there is reason to worry: the cluster should have confirmed the session."""
    until: Instant
    """From this on the cluster may have ended the session."""


class Acquisition(NamedTuple):
    """One acquire of a lock by its owner."""

    user: Address
    token: int
    """The number of the user's `Acquire`, by which the user can cancel it."""


new_level: Callable[[type[Acquisition], tuple[Address, int]], Acquisition] = cast(
    "Any", tuple
).__new__
"""Makes one from the class and the fields, in half of the time that the class needs."""


@dataclass(slots=True)
class Lease:
    """Deadlines of a hold, by the client's own clock."""

    ends_at: Instant
    """Before this its duration has certainly not ended."""
    until: Instant
    """From this on another owner may hold the lock."""
    grace_ms: int
    warn_at: Instant | None
    """Time at which the user is notified that the duration is over; None once it was."""

    @property
    def next_at(self) -> Instant:
        """Time of the next action."""
        return self.until if self.warn_at is None else min(self.warn_at, self.until)


@dataclass
class Hold:
    """A lock granted to an owner of this client, once or more often.

    Any thread of the client may read it at any time. That is safe because the session role alone
    writes it, each field with one assignment, and because of two invariants:

        H1  LOST and RELEASED are final, and `state` moves to them only once.
        H2  `trust.until` and `lease.until` only grow. `trust` never changes: a later session has
            its own `Trust`. So a reader that finds a time passed may be too careful, never too
            confident.

    A thread that finds the hold lost by its clock sets `disowned` (`HoldRegistry`). From then on
    all readers find it lost, even if the session receives a confirmation at that moment and keeps
    the hold.
    """

    # One is made for each grant. Rarely set fields default on the class, which is cheaper.
    endpoint: Address
    """The endpoint that granted it. Where the cluster keeps no sessions, only it knows the hold."""
    fence: int
    levels: list[Acquisition]
    """Its acquires without a confirmed release, oldest first."""
    trust: SessionTrust | None
    """The trust in its session; None where the cluster keeps no sessions."""
    state: HoldState = field(init=False, default=HoldState.HELD)
    """HELD, UNLOCKING, RELEASING, RELEASED or LOST. Read `state_at` for all."""
    reason: str = field(init=False, default="")
    """The reason for its loss."""
    owed: int = field(init=False, default=0)
    """Number of further holds at the cluster that no user owns; they are to be released."""
    lease: Lease | None = field(init=False, default=None)
    """Its deadlines, where holds have them."""
    disowned: bool = field(init=False, default=False)
    """Whether a thread of the client found it lost by the clock. The session never reads it."""

    def move(self, to: HoldState) -> None:
        """Enter another state.

        Raises:
            AssertionError: `MOVES` does not allow it.

        """
        if to not in self.state.followers:
            raise AssertionError(f"a hold in state {self.state.value} cannot be {to.value}")
        self.state = to

    def lose(self, reason: str) -> None:
        """Enter LOST; a thread that sees the state also sees the ``reason``."""
        self.reason = reason
        self.move(HoldState.LOST)

    def state_at(self, now: Instant) -> HoldState:
        """Return the state at ``now``; for any thread. A hold is lost once its time is over."""
        state, trust = self.state, self.trust
        if state is HoldState.LOST or state is HoldState.RELEASED:
            return state
        if self.disowned or now >= (trust.until if trust is not None else now + 1):
            return HoldState.LOST
        if (lease := self.lease) is not None and now >= lease.until:
            return HoldState.LOST
        if trust is not None and now >= trust.suspect_at and state is not HoldState.RELEASING:
            return HoldState.SUSPECT
        return state

    def until(self) -> Instant | None:
        """Return until when it is certain, None for without limit; for any thread."""
        trust, lease = self.trust, self.lease
        if trust is None:
            return None if lease is None else lease.until
        return trust.until if lease is None else min(trust.until, lease.until)

    def why(self, now: Instant) -> str:
        """Return the reason for its loss, which `state_at` found at ``now``."""
        if self.state is HoldState.LOST:
            return self.reason
        lease = self.lease
        return LAPSED if lease is not None and now >= lease.until else UNCONFIRMED

    def take(self, found: Acquisition) -> None:
        """Remove that acquire; its hold is now to be released."""
        self.levels.remove(found)
        self.owed += 1

    def freed(self, count: int, *, owed: bool) -> None:
        """Note one confirmed release; ``count`` holds are left at the cluster."""
        if owed:
            self.owed -= 1
        elif self.levels:
            self.levels.pop()
        self.owed = max(0, count - len(self.levels))


@dataclass(slots=True)
class UnreportedLosses:
    """Losses that no release has reported yet: bounded, oldest first."""

    losses: OrderedDict[tuple[Claim, int], tuple[int, str]] = field(
        default_factory=OrderedDict[tuple[Claim, int], tuple[int, str]]
    )
    """Number of holds lost, and the reason, by claim and fence."""

    def add(self, claim: Claim, fence: int, times: int, detail: str) -> None:
        """Remember a loss of ``claim``, which ``times`` releases may still report."""
        if times < 1:
            return
        self.losses[claim, fence] = (times, detail)
        self.losses.move_to_end((claim, fence))
        if len(self.losses) > HOLDS_MAX:
            self.losses.popitem(last=False)

    def knows(self, claim: Claim, fence: int) -> bool:
        """Return whether that hold was lost."""
        return (claim, fence) in self.losses

    def tell(self, claim: Claim, fence: int) -> str | None:
        """Return the reason of that loss, once for each time it was held; None without a loss."""
        times, detail = self.losses.pop((claim, fence), (0, ""))
        if times > 1:
            self.losses[claim, fence] = (times - 1, detail)
        return detail if times else None
