"""The times by which nodes and clients notice that a leader is dead, and their relations.

A leader may die without notice: its process stops, or its links drop messages. Then the other
members notice that its heartbeats stop, and one of them takes over. Meanwhile clients notice
that their node does not reply, and ask another one. No lock is granted until both are done,
so the times are derived from two bases, the interval of heartbeats and the longest round trip
between two members, and checked here.

Whatever waits for another member takes a round trip ``R`` longer on a slow network, and each wait
below has ``R`` once for each round trip in it:

    lease     4 heartbeats + R    A leader renews it with each heartbeat, and each renewal arrives
                                  R after the heartbeat was sent. Three may be lost.
    isolated  lease + 2 heartbeats
    election  isolated + 7 heartbeats
    rank      2 heartbeats + R    A candidate's `Prepare` and the promises take R. By then the next
                                  follower has received the `Prepare`, and waits again.
    answer    R + 50 ms           Afterwards a vote or a fetch is requested again: a round trip and
                                  a sync of a slow disk.

A leader is lost on its own if round trips take longer than `lease_ms` less a heartbeat. The
failure detector measures them on heartbeats, and warns if they exceed ``R`` (`round_trips.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from fencelock.actors.message import Int64

HEARTBEATS_PER_LEASE_MIN = 4
"""A lease outlasts three lost heartbeats. Shorter ones would expire on a busy machine."""

PROBE_AFTER_MS = 250
"""A client whose request is unanswered for this long sends the node a probe."""

REPLY_MS = 250
"""A client that gets no reply to a probe for this long probes the other nodes, and uses one."""

ROUND_TRIP_MS = 50
"""Longest round trip between two members unless the configuration says otherwise (ms): within a
data centre or between neighbouring ones, with room for a busy machine."""

ROUND_TRIP_MS_MAX = 1_000
"""Longest round trip that can be configured (ms). Links are given up when a peer is silent for 2 s,
and a handshake with keys takes four round trips."""

TIMING_MS_MAX = 10_000
"""The longest lease or election that can be configured (ms); sessions live for 15 s by default."""

SYNC_MS = 50
"""Duration of a sync on a slow disk (ms), which an answer may need beyond its round trip."""

RANK_MS_MIN = 150
"""The shortest default of `Timing.rank_ms`: an election takes as long, however quick the network
is."""


class Timing(NamedTuple):
    """The times of the members (ms), in the order in which they pass; see `checked`."""

    heartbeat_ms: Int64 = 50
    """Interval between two heartbeats of a leader."""
    lease_ms: Int64 = 250
    """Duration for which an acceptor that received a heartbeat adopts no other leader."""
    isolated_ms: Int64 = 350
    """A leader that no majority answered for this long notifies its clients to use another node."""
    election_ms: Int64 = 700
    """The first follower stands for election when the leader was silent for this long."""
    rank_ms: Int64 = 150
    """Delay between the followers' elections: an election and its syncs fit in."""
    round_trip_ms: Int64 = ROUND_TRIP_MS
    """Longest round trip between two members. The times above include it."""

    @property
    def reply_ms(self) -> int:
        """Return the time in which a member answers: a round trip and a sync (ms)."""
        return self.round_trip_ms + SYNC_MS

    @property
    def startup_ms(self) -> int:
        """Return the time for which a starting node waits for a leader before an election (ms)."""
        return self.heartbeat_ms + self.round_trip_ms

    @property
    def outcome_ms(self) -> int:
        """Return the time in which the log decides a request of a node that does not lead (ms).

        The request takes a round trip to the leader and back, the decision another one. The
        rest is for syncs, and for slots that are ahead.
        """
        return 2 * self.round_trip_ms + 8 * SYNC_MS

    @property
    def extra_ms(self) -> int:
        """Return how much longer a round trip takes than by default (ms, 0 or more)."""
        return max(0, self.round_trip_ms - ROUND_TRIP_MS)

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
        beats = HEARTBEATS_PER_LEASE_MIN
        least = beats * self.heartbeat_ms + self.extra_ms
        beyond = f" + {{round_trip_ms}} - {ROUND_TRIP_MS}" if self.extra_ms else ""
        self._check("lease_ms", f"{beats} x {{heartbeat_ms}}{beyond}", least)
        sum_ms = self.lease_ms + self.heartbeat_ms
        self._check("isolated_ms", "{lease_ms} + {heartbeat_ms}", sum_ms)
        sum_ms = self.isolated_ms + self.heartbeat_ms
        self._check("election_ms", "{isolated_ms} + {heartbeat_ms}", sum_ms)
        least = 2 * self.heartbeat_ms + self.extra_ms
        self._check("rank_ms", f"2 x {{heartbeat_ms}}{beyond}", least)
        if self.election_ms < (left_ms := PROBE_AFTER_MS + REPLY_MS):
            raise ValueError(
                f"election_ms is {self.election_ms}, but must be at least {left_ms}, "
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
    round_trip_ms: int = ROUND_TRIP_MS,
) -> Timing:
    """Return the times, with those that are None derived from the others, as described above.

    Raises:
        ValueError: as for `Timing.checked`.

    """
    lease_ms = lease_ms or HEARTBEATS_PER_LEASE_MIN * heartbeat_ms + round_trip_ms
    isolated_ms = isolated_ms or lease_ms + 2 * heartbeat_ms
    election_ms = election_ms or max(isolated_ms + 7 * heartbeat_ms, PROBE_AFTER_MS + REPLY_MS)
    rank_ms = rank_ms or max(2 * heartbeat_ms + round_trip_ms, RANK_MS_MIN)
    times = (heartbeat_ms, lease_ms, isolated_ms, election_ms, rank_ms, round_trip_ms)
    return Timing(*times).checked()


TIMING = Timing()
"""The times unless the configuration has others."""
