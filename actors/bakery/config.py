"""Times, bounds and addresses that all roles of `bakery` share. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fencelock.actors.bakery.ticket import TERM_MS_MAX
from fencelock.actors.message import on_each
from fencelock.actors.timing import ROUND_TRIP_MS, ROUND_TRIP_MS_MAX

LEADERS_MAX = 3
"""As in the source: three leaders agree by two, and survive the loss of one."""

COPIES_FROM = 5
"""With fewer members no majority survives the loss of two leaders, so there is nothing to copy."""

OFF = 15
"""The priority of a node that never leads."""

PRIORITY = 14
"""The default priority of a node."""

BEAT_MS = 100
"""Interval between beats to each member (ms)."""

REFRESH_MS = 1_000
"""Interval at which waiting tickets are sent again to the other leaders (ms)."""

COPY_AFTER_MS = 20
"""Time for which a leader waits for votes where copies would do as well (ms)."""

COPY_MS = 6_000
"""A waiting ticket that its leader did not repeat for this long is forgotten (ms)."""

HOLDERS_SHOWN_MAX = 100
"""Maximum number of holders that a reply lists for one lock, those with the lowest fences. With the
longest names they have 64 KiB."""

HOLD_MS = 5_000
GRACE_MS = 5_000
OBTENTION_MS = 5_000
TERM_MS_MIN = 3_000

BAKERY_LEASE_MS = 600_000
"""Default maximum of duration and grace together (ms). When two leaders are lost at once, nothing
is granted until the longest lease is over, so this bounds that pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Default durations of holds and waits, and the shortest term allowed (ms)."""

    hold_ms: int = HOLD_MS
    grace_ms: int = GRACE_MS
    least_ms: int = TERM_MS_MIN
    """Minimum of a duration or a grace (ms): requests for less are refused."""
    wait_ms: int | None = OBTENTION_MS
    """Default acquire timeout (the source's obtention timeout, ms), or None for no limit."""

    max_ms: int = BAKERY_LEASE_MS
    """Maximum of duration and grace together (ms): requests for more are refused."""

    @property
    def lease_ms(self) -> int:
        """The longest lease, unless a longer one is requested (ms)."""
        return self.hold_ms + self.grace_ms

    def why_invalid(self, hold_ms: int, grace_ms: int) -> str:
        """Return why a duration and a grace are refused, or an empty text if they are not.

        Args:
            hold_ms: the duration, or 0 for an unchanged one.
            grace_ms: the grace, or 0 for an unchanged one.

        """
        for name, term_ms in (("duration", hold_ms), ("grace", grace_ms)):
            if term_ms and not self.least_ms <= term_ms <= TERM_MS_MAX:
                allowed = f"{self.least_ms} to {min(self.max_ms, TERM_MS_MAX)} ms are allowed"
                return f"{name} is {term_ms} ms, {allowed}"
        if hold_ms + grace_ms > self.max_ms:
            return (
                f"duration {hold_ms} ms and grace {grace_ms} ms are {hold_ms + grace_ms} ms "
                f"together, and {self.max_ms} ms are allowed: max_hold under [bakery] in the "
                "configuration. Take the lock for less, and renew it"
            )
        return ""


class BakeryTiming(NamedTuple):
    """The times for which members wait for each other (ms); each has the round trips in it."""

    round_trip_ms: int = ROUND_TRIP_MS
    """Longest round trip between two members."""

    @property
    def silent_ms(self) -> int:
        """Return the time after which a silent member is unreachable: five beats may be lost."""
        return 550 + self.round_trip_ms

    @property
    def trust_ms(self) -> int:
        """Return how long ago a leader that grants sent the beats that a majority answered."""
        return 550 + self.round_trip_ms

    @property
    def resend_ms(self) -> int:
        """Return the time after which an unanswered step is sent again."""
        return 50 + self.round_trip_ms

    @property
    def stall_ms(self) -> int:
        """Return the time after which a seating that no majority accepts is replaced."""
        return 350 + self.round_trip_ms

    @property
    def patience_ms(self) -> int:
        """Return the time for which a coordinator that starts waits for a leader to show."""
        return 250 + self.round_trip_ms

    @property
    def phase_ms(self) -> int:
        """Return the time after which a phase of an election is given up."""
        return 950 + self.round_trip_ms

    @property
    def backoff_ms(self) -> int:
        """Return the range over which coordinators that outbid each other spread proposals."""
        return 250 + self.round_trip_ms

    @property
    def repeat_ms(self) -> int:
        """Return the time after which a proxy sends a request to the next leader."""
        return 50 + 3 * self.round_trip_ms


BAKERY_TIMING = BakeryTiming()
"""The times unless the configuration has others."""

TRUST_MS_MAX = BakeryTiming(ROUND_TRIP_MS_MAX).trust_ms
"""The longest `BakeryTiming.trust_ms` that any member can have. Whoever waits for the leases of
others waits for this, so that members with different configurations are safe, too."""


def quorum(voters: int) -> int:
    """Return how many of ``voters`` must agree: 1 of 1, 2 of 2, 2 of 3."""
    return voters // 2 + 1


def exports_needed(leaders: int) -> int:
    """Return how many tables of former leaders together contain all that any quorum agreed."""
    return leaders - quorum(leaders) + 1


status_of = on_each("cluster")
election_of = on_each("election")
leader_of = on_each("leader")
proxy_of = on_each("proxy")
members_of = on_each("members")
