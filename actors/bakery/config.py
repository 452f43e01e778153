"""Times, bounds and addresses that all roles of `bakery` share. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from fencelock.actors.message import NS_PER_MS, Instant, on_each

LEADERS_MAX = 3
"""As in the source: three leaders agree by two, and survive the loss of one."""

OFF = 15
"""The priority of a node that never leads."""

PRIORITY = 14
"""The default priority of a node."""

BEAT_MS = 100
"""Interval between beats to each member (ms)."""

SILENT_MS = 600
"""A member silent for this long is unreachable (ms): five beats may be lost."""

TRUST_MS = 600
"""A leader grants only if a majority of members answered a beat sent within this time (ms)."""

RESEND_MS = 100
"""Timeout after which an unanswered step is sent again (ms)."""

REFRESH_MS = 1_000
"""Interval at which waiting tickets are sent again to the other leaders (ms)."""

COPY_MS = 6_000
"""A waiting ticket that its leader did not repeat for this long is forgotten (ms)."""

HOLDERS_SHOWN_MAX = 100
"""Maximum number of holders that a reply lists for one lock, those with the lowest fences. With the
longest names they have 64 KiB."""

HOLD_MS = 5_000
GRACE_MS = 5_000
OBTENTION_MS = 5_000
TERM_MS_MIN = 3_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Default durations of holds and waits, and the shortest term allowed (ms)."""

    hold_ms: int = HOLD_MS
    grace_ms: int = GRACE_MS
    least_ms: int = TERM_MS_MIN
    """Minimum of a duration or a grace (ms): requests for less are refused."""
    wait_ms: int | None = OBTENTION_MS
    """Default acquire timeout (the source's obtention timeout, ms), or None for no limit."""

    @property
    def lease_ms(self) -> int:
        """The longest lease, unless a longer one is requested (ms)."""
        return self.hold_ms + self.grace_ms


def later(now: Instant, after_ms: int) -> Instant:
    """Return the instant ``after_ms`` milliseconds after ``now``."""
    return Instant(now + after_ms * NS_PER_MS)


def majority(members: int) -> int:
    """Return how many of ``members`` nodes must agree on a decision about leaders."""
    return members // 2 + 1


def quorum(leaders: int) -> int:
    """Return how many of ``leaders`` must agree on a step: 1 of 1, 2 of 2, 2 of 3."""
    return leaders // 2 + 1


def exports_needed(leaders: int) -> int:
    """Return how many tables of former leaders together contain all that any quorum agreed."""
    return leaders - quorum(leaders) + 1


status_of = on_each("cluster")
"""Returns the address of the cluster status of a node."""

election_of = on_each("election")
"""Returns the address of the election coordinator of a node."""

leader_of = on_each("leader")
"""Returns the address of the leader role of a node, whether it leads or not."""

proxy_of = on_each("proxy")
"""Returns the address of the proxy of a node."""

members_of = on_each("members")
"""Returns the address of the role of a node that changes the members."""
