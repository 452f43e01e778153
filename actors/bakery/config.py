"""Times, bounds and addresses that all roles of `bakery` share. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fencelock.actors.message import NS_PER_MS, Address, Instant, address_of

LEADERS_MAX = 3
"""As in the source: three leaders agree by two, and survive the loss of one."""

OFF = 15
"""The priority of a node that never leads."""

PRIORITY = 14
"""The priority of a node that was told nothing."""

BEAT_MS = 100
"""Between two beats to each member (ms)."""

SILENT_MS = 600
"""A member silent for so long is unreachable (ms): five beats may be lost."""

TRUST_MS = 600
"""A leader grants only if a majority of the members answered a beat it said within this (ms)."""

RESEND_MS = 100
"""After so long without an answer a step is said again (ms)."""

REFRESH_MS = 1_000
"""How often the tickets that wait are said again to the other leaders (ms)."""

COPY_MS = 6_000
"""A waiting ticket that its leader did not repeat for so long is forgotten (ms)."""

DRIFT_PPM = 1_000
"""How far a clock's rate may be from true (millionths). Quartz stays within 100."""

HOLD_MS = 5_000
GRACE_MS = 5_000
OBTENTION_MS = 5_000
TERM_MS_MIN = 3_000

_PPM = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How long locks are held where nobody says otherwise, and how short a term may be (ms)."""

    hold_ms: int = HOLD_MS
    grace_ms: int = GRACE_MS
    least_ms: int = TERM_MS_MIN
    """No duration and no grace is shorter: who asks for one is refused."""
    wait_ms: int | None = OBTENTION_MS
    """The obtention timeout of those who say none; None for without limit."""


@dataclass(frozen=True, slots=True)
class Voting:
    """The journals that vote, and whether this node's is one of them."""

    voters: Mapping[Address, int]
    """The id that votes of each member's coordinator name, as of now."""
    voter: int
    """The id of this node's."""
    votes: bool
    """Whether it is the registered one, and no old copy."""

    def registers(self, member: str, voter: int) -> bool:
        """Return whether ``member`` votes under the id ``voter``."""
        return self.voters.get(election_of(member)) == voter


def later(now: Instant, after_ms: int) -> Instant:
    """Return the instant ``after_ms`` milliseconds after ``now``."""
    return Instant(now + after_ms * NS_PER_MS)


def majority(members: int) -> int:
    """Return how many of ``members`` nodes any decision about leaders takes."""
    return members // 2 + 1


def quorum(leaders: int) -> int:
    """Return how many of ``leaders`` a step takes: 1 of 1, 2 of 2, 2 of 3."""
    return leaders // 2 + 1


def exports_needed(leaders: int) -> int:
    """Return how many tables of former leaders together know all that any quorum agreed."""
    return leaders - quorum(leaders) + 1


def surely_over(ms: int) -> int:
    """Return how long to wait on this clock until ``ms`` have passed on any other (ms)."""
    return -(-ms * (_PPM + DRIFT_PPM) // (_PPM - DRIFT_PPM))


def status_of(node: str) -> Address:
    """Return where the cluster status of ``node`` is."""
    return address_of(node, "cluster")


def election_of(node: str) -> Address:
    """Return where the election coordinator of ``node`` is."""
    return address_of(node, "election")


def leader_of(node: str) -> Address:
    """Return where the leader of ``node`` is, whether it leads or not."""
    return address_of(node, "leader")


def door_of(node: str) -> Address:
    """Return where the door of ``node`` is."""
    return address_of(node, "proxy")
