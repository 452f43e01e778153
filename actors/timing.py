"""The times by which nodes and clients notice that a leader is dead, and their relations.

A leader may die without notice: its process stops, or its links drop messages. Then the other
members notice that its heartbeats stop, and one of them takes over. Meanwhile clients notice
that their node does not reply, and ask another one. No lock is granted until both are done,
so the two are derived from one base, the interval of heartbeats, and checked here.
"""

from __future__ import annotations

from dataclasses import dataclass

BEATS_PER_LEASE_MIN = 4
"""A lease outlasts three lost heartbeats. Shorter ones would lapse on a busy machine."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The times that all members and their clients share (ms), in the order in which they pass.

    Raises:
        ValueError: two of them do not fit together; the text names both.

    """

    beat_ms: int = 50
    """Interval between two heartbeats of a leader."""
    lease_ms: int = 250
    """Duration for which an acceptor that received a heartbeat adopts no other leader."""
    isolated_ms: int = 350
    """A leader that no majority answered for this long notifies its clients to use another node."""
    election_ms: int = 700
    """The first follower stands for election when the leader was silent for this long."""
    rank_ms: int = 150
    """Delay between the followers' turns to stand: an election and its syncs fit in."""
    probe_ms: int = 250
    """A client whose request is unanswered for this long sends the node a probe."""
    reply_ms: int = 250
    """A client that gets no reply to it for this long probes the other nodes, and uses one of
    them."""

    def __post_init__(self) -> None:
        """Check that each time leaves room for the events within it."""
        least = BEATS_PER_LEASE_MIN * self.beat_ms
        self._check("lease_ms", self.lease_ms, f"{BEATS_PER_LEASE_MIN} x beat_ms", least)
        least = self.lease_ms + self.beat_ms
        self._check("isolated_ms", self.isolated_ms, "lease_ms + beat_ms", least)
        self._check(
            "election_ms",
            self.election_ms,
            "isolated_ms + beat_ms",
            self.isolated_ms + self.beat_ms,
        )
        self._check("rank_ms", self.rank_ms, "2 x beat_ms", 2 * self.beat_ms)
        self._check("reply_ms", self.reply_ms, "2 x beat_ms", 2 * self.beat_ms)
        least = self.probe_ms + self.reply_ms
        self._check("election_ms", self.election_ms, "probe_ms + reply_ms", least)

    def _check(self, name: str, value: int, limit: str, least: int) -> None:
        if value < least:
            raise ValueError(f"{name} is {value}, but must be at least {limit}, which is {least}")


TIMING = Timing()
"""The times that nodes and clients use."""
