"""The master lease, seen from both sides, each with its own clock. Pure.

An acceptor that answers a heartbeat adopts no other leader's ballot for `LEASE_MS` from
then. The master counts from when it *sent* the heartbeat, which was earlier, and subtracts
the drift of two clocks: the acceptor's may run fast and its own slow, so the master
relies on ``lease * (1 - drift) / (1 + drift)`` only.

Source: Cary Gray and David Cheriton, "Leases", SOSP 1989; Chandra, Griesemer and
Redstone, "Paxos Made Live", PODC 2007, section 5.2 (master leases).
"""

from __future__ import annotations

from fencelock.actors.message import NS_PER_MS, Address, Instant

_PPM = 1_000_000


class LeasePromise:
    """An acceptor's side: the leader that it promised to follow, and until when."""

    def __init__(self) -> None:
        self.leader = Address("")
        self.until = Instant(0)

    def give(self, leader: Address, now: Instant, lease_ms: int) -> None:
        """Adopt only ``leader`` for ``lease_ms`` from ``now``."""
        self.leader = leader
        self.until = Instant(now + lease_ms * NS_PER_MS)

    def forbids(self, leader: Address, now: Instant) -> bool:
        """Return whether a ballot of ``leader`` must not be adopted at ``now``."""
        return leader != self.leader and now < self.until


class MasterLease:
    """The master's side.

    Args:
        majority: number of acceptors that must have promised.
        lease_ms: duration of each promise (ms).
        drift_ppm: largest deviation of a clock's rate (millionths, below 1,000,000).

    """

    def __init__(self, majority: int, lease_ms: int, drift_ppm: int) -> None:
        assert 0 <= drift_ppm < _PPM
        self.majority = majority
        self.length = lease_ms * NS_PER_MS * (_PPM - drift_ppm) // (_PPM + drift_ppm)
        self.asked: dict[str, Instant] = {}
        """Send time of the last heartbeat that each member answered."""

    def acknowledge(self, member: str, asked: Instant) -> None:
        """Note that ``member`` answered the heartbeat sent at ``asked``."""
        self.asked[member] = max(asked, self.asked.get(member, asked))

    def confirmed(self) -> Instant | None:
        """Return the latest instant after which a majority answered; None if none ever did."""
        if len(self.asked) < self.majority:
            return None
        return sorted(self.asked.values(), reverse=True)[self.majority - 1]

    def until(self) -> Instant | None:
        """Return when the lease ends, None if it never began."""
        confirmed = self.confirmed()
        return None if confirmed is None else Instant(confirmed + self.length)

    def holds(self, now: Instant) -> bool:
        """Return whether no other node can be master at ``now``."""
        until = self.until()
        return until is not None and now < until
