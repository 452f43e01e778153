"""Who votes on which slot, and the times and bounds that all members share. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fencelock.actors.message import Address, address_of
from fencelock.actors.timing import TIMING

WINDOW = 16
"""Slots that may be undecided at a time. A membership decided in slot ``s`` is in force from
slot ``s + WINDOW`` (Lamport's rule), so all members must have the same."""

LEASE_MS = TIMING.lease_ms
"""How long an acceptor that heard the master adopts no other (ms): most of a failover."""

BEAT_MS = TIMING.beat_ms
"""Between two heartbeats (ms): four may be lost before a lease ends."""

ELECTION_MS = TIMING.election_ms
"""A master silent for so long is suspected (ms)."""

DRIFT_PPM = 1_000
"""How far a clock's rate may be from true (millionths). Quartz stays within 100."""

VOTES_MAX = 10_000
"""Slots of which an acceptor remembers a vote while its replica lags; then it votes no more."""

VOTES_BYTES_MAX = 64 << 20
"""The same in bytes of commands (64 MiB)."""

LOG_MAX = 10_000
"""Decided slots a replica keeps for others; whoever lacks older ones gets a snapshot."""

LOG_BYTES_MAX = 32 << 20
"""The same in bytes of commands (32 MiB)."""


@dataclass(frozen=True, slots=True)
class View:
    """One membership: ``number`` changes led to it."""

    number: int
    members: tuple[str, ...]
    """Sorted, without repetition, never empty."""
    voters: Mapping[Address, int] | None = field(default=None, repr=False, compare=False)
    """The id that votes of each acceptor name, as of now; 0 for all if it is left out."""

    acceptors: tuple[Address, ...] = field(init=False, repr=False, compare=False)
    """Where its members' acceptors are."""
    replicas: tuple[Address, ...] = field(init=False, repr=False, compare=False)
    """Where its members' replicas are."""
    registered: Mapping[Address, int] = field(init=False, repr=False, compare=False)
    """The same: `Promise.voter` and its like must name it."""

    def __post_init__(self) -> None:
        """Work out, once, what is asked for with every vote."""
        members = self.members
        assert members
        assert list(members) == sorted(set(members))
        object.__setattr__(self, "acceptors", tuple(acceptor_of(one) for one in members))
        object.__setattr__(self, "replicas", tuple(replica_of(one) for one in members))
        registered = dict.fromkeys(self.acceptors, 0) if self.voters is None else self.voters
        object.__setattr__(self, "registered", registered)

    @property
    def majority(self) -> int:
        """Return how many members any other majority must share one with."""
        return len(self.members) // 2 + 1


@dataclass(frozen=True, slots=True)
class Config:
    """Which view is in force at which slot. For now there is one, and it never changes."""

    view: View

    def at(self, slot: int) -> View:
        """Return the view whose members decide ``slot``, which is 1 or more."""
        assert slot >= 1
        return self.view


def acceptor_of(node: str) -> Address:
    """Return where the acceptor of ``node`` is."""
    return address_of(node, "acceptor")


def leader_of(node: str) -> Address:
    """Return where the leader of ``node`` is; it is the name in its ballots."""
    return address_of(node, "leader")


def replica_of(node: str) -> Address:
    """Return where the replica of ``node`` is."""
    return address_of(node, "replica")


def monitor_of(node: str) -> Address:
    """Return where the monitor of ``node`` is."""
    return address_of(node, "monitor")


def catchup_of(node: str) -> Address:
    """Return where the catch-up of ``node`` is."""
    return address_of(node, "catchup")
