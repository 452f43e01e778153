"""The master lease, seen from both sides, each with its own clock. Pure.

An acceptor that answers a heartbeat adopts no other leader's ballot for `LEASE_MS` from
then. The master counts from when it sent the heartbeat (see `fencelock.actors.lease`).

Source: Chandra, Griesemer and Redstone, "Paxos Made Live", PODC 2007, section 5.2.
"""

from __future__ import annotations

from fencelock.actors.lease import PPM, relied_ns
from fencelock.actors.message import NS_PER_MS, Address, Instant


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
        assert 0 <= drift_ppm < PPM
        self.majority = majority
        self.length = relied_ns(lease_ms, drift_ppm)
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
