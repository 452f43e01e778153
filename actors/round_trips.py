"""Round trips to other members, compared with the longest that the configured times allow."""

from __future__ import annotations

from collections.abc import Collection

from fencelock.actors.message import NS_PER_MS
from fencelock.actors.timing import ROUND_TRIP_MS_MAX

SAMPLES = 20
"""Answers of a member that are compared at a time. The quickest of them counts: others may have
waited for a busy processor or a slow disk. A leader of `paxos` sends as many heartbeats in a
second, a member of `bakery` as many beats in two."""

TOLERANCE_PERCENT = 110
"""Round trips may be a tenth longer than configured: the times have that much in reserve."""

STEP_MS = 50
"""The advice is rounded up to a multiple of this (ms)."""


class RoundTrips:
    """Compares the round trips that its owner measures, and warns if they are too long.

    Args:
        section: the section of the configuration that has ``round_trip_ms``.
        round_trip_ms: the longest round trip that the times of this node allow.

    """

    def __init__(self, section: str, round_trip_ms: int) -> None:
        self._section = section
        self._round_trip_ms = round_trip_ms
        self._samples: dict[str, list[int]] = {}
        """The last round trips to each member (ns), fewer than `SAMPLES`."""
        self._long: dict[str, int] = {}
        """Members whose round trips are too long, with the first one that was measured (ms)."""

    def measure(self, member: str, took_ns: int) -> bool:
        """Note one round trip; return whether the warning may have changed."""
        samples = self._samples.setdefault(member, [])
        samples.append(took_ns)
        if len(samples) < SAMPLES:
            return False
        least_ms = -(-min(samples) // NS_PER_MS)
        samples.clear()
        if 100 * least_ms > TOLERANCE_PERCENT * self._round_trip_ms:
            known = member in self._long
            self._long.setdefault(member, least_ms)
            return not known
        return self._long.pop(member, None) is not None

    def keep(self, members: Collection[str]) -> None:
        """Forget the nodes that are not among ``members``."""
        for known in (self._samples, self._long):
            for member in known.keys() - members:
                del known[member]

    def warning(self) -> str:
        """Return which members are too far away, and what to do; empty if none is."""
        if not self._long:
            return ""
        longest = max(self._long.values())
        far = ", ".join(f"{member} {self._long[member]} ms" for member in sorted(self._long))
        text = (
            f"round trips take longer than [{self._section}] round_trip_ms = "
            f"{self._round_trip_ms} allows ({far}): leaders may be lost and locks granted late; "
        )
        if longest > ROUND_TRIP_MS_MAX:
            return f"{text}at most {ROUND_TRIP_MS_MAX} ms can be configured"
        wanted = min(ROUND_TRIP_MS_MAX, -(-longest // STEP_MS) * STEP_MS)
        return f"{text}set round_trip_ms to {wanted} or more on all nodes and restart them"
