"""What a run consists of: how many nodes, clients and locks, how long, and how bad."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from fencelock.cluster.simulation.faults import (
    CALM,
    Faults,
    draw_misfortune,
    with_disk_faults,
)
from fencelock.cluster.simulation.promise import Promise


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run. The phases are: chaos, healed until everybody is served, drain."""

    nodes: int = 3
    clients: int = 3
    """Client nodes, each with one session."""
    owners: int = 1
    """Contenders behind each session."""
    locks: int = 2
    dated: bool = True
    """Whether logical clocks begin at the date, as on real nodes, which keeps fences rising
    when no node is left that remembers. If not, they begin at 0, only the last node may
    crash, and what the others remember must do."""
    late_start_ms: int = 0
    """How much later than others a node may be switched on (ms)."""
    chaos_ms: int = 3_000
    served_ms: int = 90_000
    """How long after all misfortune ended everybody must have been served (ms)."""
    drained_ms: int = 60_000
    """How long after that the gates must have forgotten all waits and holds (ms).
    A client that is told of silence gives up, but its session goes on cancelling."""
    grants_min: int = 0
    """With fewer grants in all, besides the last one of each contender, the run proves
    nothing, which is a failure."""
    ttl_ms: int = 2_500
    """How long a session outlives the last word of its client, where there are such."""
    deaths_ms: tuple[int, ...] = ()
    """When clients die, the first, the second and so on; others come in their place."""
    closings_ms: tuple[int, ...] = ()
    """When clients close, whatever they wait for or hold; others come in their place."""
    strikes_every_ms: int = 0
    """Mean interval at which a client that holds a lock is cut off or paused (ms), 0 for never."""
    hunts_every_ms: int = 0
    """Mean interval at which leaders of `bakery` are struck in particular (ms), 0 for never."""
    misfortune: Faults = CALM
    audit: bool = True
    """Whether gates are asked to describe themselves when all is over."""


def draw_plan(seed: int, promise: Promise) -> Plan:
    """Return the plan of ``seed`` for a protocol that promises ``promise``."""
    random = Random(f"{seed}/plan")
    nodes = random.choice((1, 2, 3, 3, 3, 4, 5))
    plan = Plan(
        nodes=nodes,
        dated=random.choice((True, False)) or nodes == 1,
        clients=random.randint(1, 4),
        owners=random.choice((1, 1, 2, 3)),
        locks=random.choice((1, 1, 2, 3)),
        late_start_ms=random.choice((0, 100, 1_000)),
        chaos_ms=random.choice((2_000, 4_000, 8_000)),
        misfortune=draw_misfortune(random, promise.survives),
    )
    if promise.holds_by_session:
        plan = replace(plan, closings_ms=_closings(plan, Random(f"{seed}/closings")))
    if promise.sessions:
        plan = _with_sessions(plan, random, promise, seed)
    disks = with_disk_faults(plan.misfortune, Random(f"{seed}/disks"), promise.survives)
    return replace(plan, misfortune=disks)


def _closings(plan: Plan, random: Random) -> tuple[int, ...]:
    """Let some clients close, more often than not none."""
    closings = random.randint(0, plan.clients) if random.random() < DEATH_SHARE else 0
    return tuple(random.randrange(plan.chaos_ms) for _ in range(closings))


HUNTS_EVERY_MS = (0, 0, 1_500, 4_000)
"""Mean intervals between strikes at leaders, of which one is drawn (ms)."""

DEATH_SHARE = 0.5
"""How often clients die at all; then up to all of them."""

OUTLASTING_SHARE = 0.5
"""How often partitions outlast sessions."""

TRUE_CLOCKS_SHARE = 0.7
"""How often clocks keep to what is declared of them, so that more than fences is judged."""


def _with_sessions(plan: Plan, random: Random, promise: Promise, seed: int) -> Plan:
    """Let some clients die, sessions be short, and clocks be true more often than not."""
    misfortune = plan.misfortune
    if random.random() < TRUE_CLOCKS_SHARE:
        drift_ppm = min(misfortune.drift_ppm, promise.drift_ppm)
        misfortune = replace(misfortune, drift_ppm=drift_ppm, jump_every_ms=0)
    ttl_ms = random.choice((500, 1_000, 3_000))
    if random.random() < OUTLASTING_SHARE:
        misfortune = replace(misfortune, cut_ms=2 * ttl_ms)
    hunts = Random(f"{seed}/hunts").choice(HUNTS_EVERY_MS) if promise.leases else 0
    deaths = random.randint(0, plan.clients) if random.random() < DEATH_SHARE else 0
    return replace(
        plan,
        ttl_ms=ttl_ms,
        hunts_every_ms=hunts,
        strikes_every_ms=random.choice((0, ttl_ms, 2 * ttl_ms)),
        deaths_ms=tuple(random.randrange(plan.chaos_ms) for _ in range(deaths)),
        misfortune=misfortune,
    )
