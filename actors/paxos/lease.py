"""The master lease, seen from both sides, each with its own clock. Pure.

An acceptor that answers a heartbeat adopts no other leader's ballot for `LEASE_MS` from
then. The master counts from when it *asked*, which was earlier, and gives away what two
clocks may drift apart: the acceptor's may run fast and its own slow, so the master
believes for ``lease * (1 - drift) / (1 + drift)`` only.

Source: Cary Gray and David Cheriton, "Leases", SOSP 1989; Chandra, Griesemer and
Redstone, "Paxos Made Live", PODC 2007, section 5.2 (master leases).
"""

from __future__ import annotations

from fencelock.actors.message import NS_PER_MS, Address, Instant

_PPM = 1_000_000


class LeasePromise:
    """An acceptor's side: whom it promised to follow, and until when."""

    def __init__(self) -> None:
        self.leader = Address("")
        self.until = Instant(0)

    def give(self, leader: Address, now: Instant, lease_ms: int) -> None:
        """Adopt nobody but ``leader`` for ``lease_ms`` from ``now``."""
        self.leader = leader
        self.until = Instant(now + lease_ms * NS_PER_MS)

    def forbids(self, leader: Address, now: Instant) -> bool:
        """Return whether a ballot of ``leader`` must not be adopted at ``now``."""
        return leader != self.leader and now < self.until


class MasterLease:
    """The master's side.

    Args:
        majority: how many acceptors must have promised.
        lease_ms: what each promises.
        drift_ppm: how far a clock's rate may be from true (millionths, below 1,000,000).

    """

    def __init__(self, majority: int, lease_ms: int, drift_ppm: int) -> None:
        assert 0 <= drift_ppm < _PPM
        self.majority = majority
        self.length = lease_ms * NS_PER_MS * (_PPM - drift_ppm) // (_PPM + drift_ppm)
        self.asked: dict[str, Instant] = {}
        """When the question was asked that a member answered last."""

    def acknowledge(self, member: str, asked: Instant) -> None:
        """Note that ``member`` answered what was asked at ``asked``."""
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
        """Return whether nobody else can be master at ``now``."""
        until = self.until()
        return until is not None and now < until
