"""The faults of a run, one knob for each, and the drawing of the knobs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import Enum
from random import Random
from typing import Any

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

    Leaving a kind out changes no other, since its knobs are drawn all the same.
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
