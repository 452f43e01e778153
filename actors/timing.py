"""The times by which nodes and clients notice that a leader is dead, and their relations.

A leader may die without notice: its process stops, or its links drop messages. Then the other
members notice that its heartbeats stop, and one of them takes over. Meanwhile clients notice
that their node does not reply, and ask another one. No lock is granted until both are done,
so the times are derived from one base, the interval of heartbeats, and checked here.
"""

from __future__ import annotations

from typing import NamedTuple

HEARTBEATS_PER_LEASE_MIN = 4
"""A lease outlasts three lost heartbeats. Shorter ones would lapse on a busy machine."""

PROBE_MS = 250
"""A client whose request is unanswered for this long sends the node a probe."""

REPLY_MS = 250
"""A client that gets no reply to a probe for this long probes the other nodes, and uses one."""

RANK_MS_MIN = 150
"""The shortest default of `Timing.rank_ms`: an election takes as long, however quick heartbeats
are."""


class Timing(NamedTuple):
    """The times of the members (ms), in the order in which they pass; see `checked`."""

    heartbeat_ms: int = 50
    """Interval between two heartbeats of a leader."""
    lease_ms: int = 250
    """Duration for which an acceptor that received a heartbeat adopts no other leader."""
    isolated_ms: int = 350
    """A leader that no majority answered for this long notifies its clients to use another node."""
    election_ms: int = 700
    """The first follower stands for election when the leader was silent for this long."""
    rank_ms: int = 150
    """Delay between the followers' elections: an election and its syncs fit in."""

    def checked(self) -> Timing:
        """Return the same times if each leaves room for the events within it.

        Raises:
            ValueError: two of them do not fit together; the text names both, and the limit.

        """
        if self.heartbeat_ms > REPLY_MS // 2:
            raise ValueError(
                f"heartbeat_ms is {self.heartbeat_ms}, but must be at most {REPLY_MS // 2}, half "
                "of the time in which a client expects a reply"
            )
        least = HEARTBEATS_PER_LEASE_MIN
        self._check("lease_ms", f"{least} x {{heartbeat_ms}}", least * self.heartbeat_ms)
        sum_ms = self.lease_ms + self.heartbeat_ms
        self._check("isolated_ms", "{lease_ms} + {heartbeat_ms}", sum_ms)
        sum_ms = self.isolated_ms + self.heartbeat_ms
        self._check("election_ms", "{isolated_ms} + {heartbeat_ms}", sum_ms)
        self._check("rank_ms", "2 x {heartbeat_ms}", 2 * self.heartbeat_ms)
        if self.election_ms < PROBE_MS + REPLY_MS:
            raise ValueError(
                f"election_ms is {self.election_ms}, but must be at least {PROBE_MS + REPLY_MS}, "
                "the time in which a client leaves a dead node"
            )
        return self

    def _check(self, name: str, limit: str, least: int) -> None:
        value: int = getattr(self, name)
        if value < least:
            values = {key: f"{key} ({own})" for key, own in self._asdict().items()}
            text = limit.format_map(values)
            raise ValueError(f"{name} is {value}, but must be at least {text}, which is {least}")

    def differences(self, other: Timing) -> str:
        """Return the values of ``other`` that differ, with those here; empty if none does."""
        return ", ".join(
            f"{name} is {there} there and {here} here"
            for name, here, there in zip(self._fields, self, other, strict=True)
            if here != there
        )


def derived(
    heartbeat_ms: int,
    lease_ms: int | None = None,
    isolated_ms: int | None = None,
    election_ms: int | None = None,
    rank_ms: int | None = None,
) -> Timing:
    """Return the times, with those that are None derived from the others.

    Raises:
        ValueError: as for `Timing.checked`.

    """
    lease_ms = lease_ms or 5 * heartbeat_ms
    isolated_ms = isolated_ms or lease_ms + 2 * heartbeat_ms
    election_ms = election_ms or max(2 * isolated_ms, PROBE_MS + REPLY_MS)
    rank_ms = rank_ms or max(3 * heartbeat_ms, RANK_MS_MIN)
    return Timing(heartbeat_ms, lease_ms, isolated_ms, election_ms, rank_ms).checked()


TIMING = Timing()
"""The times unless the configuration has others."""
