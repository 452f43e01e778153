"""The faults that each protocol promises to survive: it is judged under these and no others."""

from __future__ import annotations

from dataclasses import dataclass

from fencelock.actors.error import ConfigError
from fencelock.actors.lease import DRIFT_PPM
from fencelock.cluster.node.topology import ProtocolSettings
from fencelock.verification.simulation.drift import PPM
from fencelock.verification.simulation.faults import DISKS, FaultKind, Faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """The faults that a protocol survives, and the effect of a crash on holds."""

    survives: frozenset[FaultKind]
    spares_server: bool = False
    """Whether the first node by name, or the configured server, never crashes: it would forget."""
    holds_by_session: bool = False
    """Whether a hold belongs to its client's session, whichever nodes restart meanwhile, and lasts
    until that client releases it or ends its session, however long it is silent."""
    hold_ends_with_node: bool = False
    """Whether a lock granted through a node is free again when that node crashes. Its holder does
    not
    know yet; its fence is lower than any later one, which is what stops it."""
    sessions: bool = False
    """Whether the cluster keeps sessions of clients, so that a client that dies frees its
    locks, and a holder knows of its loss before another is granted the lock."""
    leases: bool = False
    """Whether each hold has its own deadline, after which its holder knows of its loss. Sessions
    then matter to a client only, and no proxy has a table of locks."""
    drift_ppm: int = PPM
    """Largest clock error for that (millionths); above it only fences are judged."""

    @property
    def table(self) -> bool:
        """Whether every proxy can list all held locks of the cluster."""
        return self.sessions and not self.leases

    def clocks_true(self, faults: Faults) -> bool:
        """Return whether clocks keep to the bounds that the protocol declares."""
        drifts = faults.drift_every_ms > 0 and faults.drift_ppm > self.drift_ppm
        return not self.sessions or not (drifts or faults.jump_every_ms > 0)


EVERYTHING = frozenset(FaultKind)
KEEPS_DISKS = EVERYTHING - DISKS
NO_CRASH = KEEPS_DISKS - {FaultKind.CRASH, FaultKind.TAIL}


def promise_of(protocol: str, settings: ProtocolSettings) -> Survival:
    """Return the promise of ``protocol``, under which it is judged.

    `bakery` survives everything, two leaders lost at once only after a while. A hold ends with
    its lease, which its client counts by its own clock. `lamport` survives everything, as
    long as every node comes back. `central` survives everything but crashes of the server's
    node, and with a journal also those; a hold lasts until its client's session ends it. `paxos`
    survives everything; a hold belongs to its client's session, and ends when that does. The judge
    checks that its holder knows of the end first, while every clock is within its declared error.

    Raises:
        ConfigError: there is no such protocol.

    """
    match protocol:
        case "bakery":
            return Survival(survives=EVERYTHING, sessions=True, leases=True, drift_ppm=DRIFT_PPM)
        case "lamport":
            return Survival(survives=KEEPS_DISKS, hold_ends_with_node=True)
        case "paxos":
            return Survival(survives=EVERYTHING, sessions=True, drift_ppm=DRIFT_PPM)
        case "central":
            return Survival(
                survives=KEEPS_DISKS,
                spares_server=not settings.central_journal,
                holds_by_session=True,
            )
        case _:
            raise ConfigError(
                f"protocol is {protocol!r}, one of bakery, central, lamport, paxos is allowed"
            )


def in_words(promise: Survival) -> str:
    """Return the survived faults, in one line."""
    return ", ".join(kind.value for kind in FaultKind if kind in promise.survives)
