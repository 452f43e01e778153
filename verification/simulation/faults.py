"""The faults of a run, one knob for each, and those that each protocol promises to survive.

A new kind needs a `FaultKind`, a field of `Faults`, and in `Nemesis` its strike (`begin`) and its
end (`heal`). Draw it from a stream of its own, as `with_disk_faults` does: one more `knob` would
change what all seeds draw.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import Enum
from random import Random
from typing import Any

from fencelock.actors.error import ConfigError
from fencelock.actors.lease import DRIFT_PPM
from fencelock.cluster.node.topology import ProtocolSettings

PPM = 1_000_000
"""The rate of a true clock, in millionths."""


OFF_SHARE = 0.4
"""Share of runs from which a kind is left out. Bugs hide behind faults that are always on: a run
that loses every tenth message never shows what happens when thousands arrive (swarm testing,
Groce et al., ISSTA 2012)."""


class FaultKind(Enum):
    """A kind of fault that a protocol promises to survive, or does not."""

    LOSS = "loss"
    REPETITION = "repetition"
    REORDERING = "reordering"
    LATENESS = "very late messages"
    PARTITION = "partitions"
    ONE_WAY = "one-way partitions"
    PAUSE = "pauses"
    CRASH = "crashes"
    TAIL = "loss of the unsynced disk"
    DRIFT = "clock drift"
    JUMP = "clock jumps"
    DISK_LOSS = "loss of a whole disk"
    OLD_COPY = "an old copy of a disk"
    SLOW_DISK = "slow disks"


DISKS = frozenset({FaultKind.DISK_LOSS, FaultKind.OLD_COPY, FaultKind.SLOW_DISK})
"""Faults of whole disks: survived where journals are registered and starts are compared."""


def knob(kind: FaultKind | None, *values: Any, default: Any = 0) -> Any:
    """Return a field of `Faults` that is drawn from ``values``, and only if ``kind`` is on."""
    return field(default=default, metadata={"kind": kind, "values": values})


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The knobs. ``_every_ms`` is a mean interval over the whole cluster, or 0 for never."""

    loss_per_mille: int = knob(FaultKind.LOSS, 10, 50, 100, 300)
    repeat_per_mille: int = knob(FaultKind.REPETITION, 10, 100, 300, 500)
    delay_us: int = knob(None, 200, 2_000, 10_000, default=300)
    """Mean one-way delay of a frame."""
    reordering: bool = knob(FaultKind.REORDERING, default=False)
    """Whether delays are drawn anew for each frame; else a link keeps order."""
    late_per_mille: int = knob(FaultKind.LATENESS, 2, 5, 20)
    """Frames that arrive very late, up to `late_ms`."""
    late_ms: int = knob(None, 500, 5_000, 30_000, default=5_000)
    cut_every_ms: int = knob(FaultKind.PARTITION, 500, 1_000, 3_000)
    cut_ms: int = knob(None, 50, 300, 1_000, default=800)
    """Mean length of a partition."""
    cut_one_way: bool = knob(FaultKind.ONE_WAY, default=False)
    """Whether some partitions stop only one direction."""
    pause_every_ms: int = knob(FaultKind.PAUSE, 500, 1_000, 3_000)
    pause_ms: int = knob(None, 20, 200, 1_500, default=300)
    crash_every_ms: int = knob(FaultKind.CRASH, 700, 1_500, 4_000)
    down_ms: int = knob(None, 5, 100, 600, default=300)
    """Mean time from a crash to the restart."""
    crash_in_sync_per_mille: int = knob(FaultKind.CRASH, 2, 10, 30)
    """Share of disk syncs during which the node crashes."""
    tail_lost: bool = knob(FaultKind.TAIL, default=False)
    """Whether a crash loses unsynced records; else it leaves them all."""
    sync_us: int = knob(None, 100, 2_000, 20_000, default=1_000)
    """Mean time to make records durable."""
    drift_every_ms: int = knob(FaultKind.DRIFT, 300, 1_000)
    drift_ppm: int = knob(None, 1_000, 100_000, 500_000, default=200_000)
    """Largest error of a clock's rate, either way (millionths, below 1,000,000)."""
    jump_every_ms: int = knob(FaultKind.JUMP, 700, 2_000)
    jump_ms: int = knob(None, 100, 2_000, 60_000, 3_600_000, default=2_000)
    lose_disk_every_ms: int = 0
    """Mean interval at which a member loses its disk; never a majority of them."""
    old_copy_every_ms: int = 0
    """Mean interval at which a disk is copied, or replaced by its copy; never for a majority."""
    slow_disk_every_ms: int = 0
    slow_disk_ms: int = 2_000
    """Mean time for which a disk is slow."""

    def without(self, *kinds: FaultKind) -> Faults:
        """Return these faults without the ``kinds``; `knob` declares their knobs."""
        knobs = [one for one in fields(self) if one.metadata.get("kind") in kinds]
        defaults: dict[str, Any] = {one.name: one.default for one in knobs}
        return replace(self, **defaults)


CALM = Faults()
"""No faults; frames take their time, and keep their order."""


def draw_faults(random: Random, survived: frozenset[FaultKind]) -> Faults:
    """Draw knobs: each kind in ``survived`` is on in about 60 % of the draws.

    A kind that is left out is drawn too, and then ignored, so that other knobs keep their values.
    """
    drawn: dict[str, Any] = {}
    for one in fields(Faults):
        if "kind" in one.metadata:
            kind, values = one.metadata["kind"], one.metadata["values"]
            value = random.choice(values) if values else True
            is_on = kind is None or (random.random() >= OFF_SHARE) & (kind in survived)
            drawn[one.name] = value if is_on else one.default
    return Faults(**drawn)


def with_disk_faults(faults: Faults, random: Random, survived: frozenset[FaultKind]) -> Faults:
    """Return ``faults`` with faults of whole disks, if these are ``survived``."""
    lose, copy = random.choice((700, 2_000)), random.choice((300, 1_000))
    loses, copies = random.random() >= OFF_SHARE, random.random() >= OFF_SHARE
    slow = random.choice((1_000, 3_000)) if random.random() >= OFF_SHARE else 0
    return replace(
        faults,
        lose_disk_every_ms=lose if loses and FaultKind.DISK_LOSS in survived else 0,
        old_copy_every_ms=copy if copies and FaultKind.OLD_COPY in survived else 0,
        slow_disk_every_ms=slow if FaultKind.SLOW_DISK in survived else 0,
    )


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
    not know yet; its fence is lower than any later one, which is what stops it."""
    sessions: bool = False
    """Whether the cluster keeps sessions of clients, so that a client that dies frees its
    locks, and a holder knows of its loss before another is granted the lock."""
    leases: bool = False
    """Whether each hold has its own deadline, after which its holder knows of its loss. Sessions
    then matter to a client only, and no proxy has a table of locks."""
    drift_ppm: int = PPM
    """Largest clock error for that (millionths). Above it holds overlap, and fences come late."""

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
    return ", ".join(kind.value for kind in FaultKind if kind in promise.survives)
