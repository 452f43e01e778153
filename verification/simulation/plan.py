"""The plan of a run: the numbers of nodes, clients and locks, its length, and its faults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from fencelock.actors.bakery.config import HOLD_MS, Terms
from fencelock.cluster.node.topology import ProtocolSettings
from fencelock.verification.simulation.faults import CALM, Faults, draw_faults, with_disk_faults
from fencelock.verification.simulation.promise import Survival


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One run. The phases are: faults, recovery until every client is served, drain."""

    nodes: int = 3
    clients: int = 3
    """Client nodes, each with one session."""
    owners: int = 1
    """Contenders behind each session."""
    locks: int = 2
    safety_only: bool = False
    """Whether the run ends soon after the faults, without any demand that clients are served."""
    dated: bool = True
    """Whether logical clocks begin at the date, as on real nodes, which keeps fences rising
    when no node is left that remembers. If not, they begin at 0, only the last node may
    crash, and fences rely on the memory of the others."""
    late_start_ms: int = 0
    """Largest delay of a node's first start (ms)."""
    chaos_ms: int = 3_000
    served_ms: int = 90_000
    """Deadline for serving every contender, from the end of all faults (ms)."""
    drained_ms: int = 60_000
    """Deadline after that for the proxies to forget all waits and holds (ms). A client stops
    waiting when it learns of silence, but its session continues to cancel."""
    grants_min: int = 0
    """Least number of grants, besides the last grant of each contender. A run with fewer proves
    nothing, and fails."""
    ttl_ms: int = 2_500
    """Time that a session outlives its client's last message, where there are sessions (ms)."""
    deaths_ms: tuple[int, ...] = ()
    """Times at which clients die, the first, the second and so on; others replace them."""
    closings_ms: tuple[int, ...] = ()
    """Times at which clients close, even while they wait or hold; others replace them."""
    strikes_every_ms: int = 0
    """Mean interval at which a client that holds a lock is cut off or paused (ms), or 0 for
    never."""
    hunts_every_ms: int = 0
    """Mean interval at which leaders of `bakery` are struck in particular (ms), or 0 for never."""
    unawaited_share: float = 0.0
    """Share of releases for which a contender does not wait."""
    retain_ms: tuple[int, ...] = ()
    """Times for which the clients, in turn, retain a lock that is idle (ms), 0 for not at all."""
    cohort: int = 0
    """The number of local owners that may have a retained lock after its recall."""
    faults: Faults = CALM
    audit: bool = True
    """Whether proxies are asked to describe themselves at the end."""


def draw_plan(seed: int, promise: Survival) -> RunPlan:
    """Return the plan of ``seed`` for a protocol that promises ``promise``."""
    random = Random(f"{seed}/plan")
    nodes = random.choice((1, 2, 3, 3, 3, 4, 5))
    plan = RunPlan(
        nodes=nodes,
        dated=random.choice((True, False)) or nodes == 1,
        clients=random.randint(1, 4),
        owners=random.choice((1, 1, 2, 3)),
        locks=random.choice((1, 1, 2, 3)),
        late_start_ms=random.choice((0, 100, 1_000)),
        chaos_ms=random.choice((2_000, 4_000, 8_000)),
        unawaited_share=Random(f"{seed}/unawaited").choice(UNAWAITED_SHARES),
        faults=draw_faults(random, promise.survives),
    )
    if promise.holds_by_session:
        plan = replace(plan, closings_ms=_closings(plan, Random(f"{seed}/closings")))
    if promise.sessions:
        plan = _with_sessions(plan, random, promise, seed)
    disks = with_disk_faults(plan.faults, Random(f"{seed}/disks"), promise.survives)
    return replace(plan, faults=disks)


def _closings(plan: RunPlan, random: Random) -> tuple[int, ...]:
    """Return the times at which clients close; mostly there are none."""
    closings = random.randint(0, plan.clients) if random.random() < DEATH_SHARE else 0
    return tuple(random.randrange(plan.chaos_ms) for _ in range(closings))


UNAWAITED_SHARES = (0.0, 0.0, 0.3, 1.0)
"""Shares of releases for which contenders do not wait, of which one is drawn."""

RETAIN_MS = ((), (), (50,), (20_000,), (500, 0), (20_000, 500))
"""Times for which clients retain a lock that is idle, of which one tuple is drawn (ms). The longest
are so long that a recall alone ends them while others wait."""

COHORTS = (0, 0, 1, 3)
"""Numbers of local owners that may follow a recall, of which one is drawn."""

HUNTS_EVERY_MS = (0, 0, 1_500, 4_000)
"""Mean intervals between strikes at leaders, of which one is drawn (ms)."""

DEATH_SHARE = 0.5
"""Share of runs in which clients die; then up to all of them."""

OUTLASTING_SHARE = 0.5
"""Share of runs whose partitions outlast sessions."""

TRUE_CLOCKS_SHARE = 0.7
"""Share of runs whose clocks keep to their declared bounds, so that more than fences is judged."""


def _with_sessions(plan: RunPlan, random: Random, promise: Survival, seed: int) -> RunPlan:
    """Return ``plan`` with deaths of clients, short sessions, and mostly true clocks."""
    faults = plan.faults
    if random.random() < TRUE_CLOCKS_SHARE:
        drift_ppm = min(faults.drift_ppm, promise.drift_ppm)
        faults = replace(faults, drift_ppm=drift_ppm, jump_every_ms=0)
    ttl_ms = random.choice((500, 1_000, 3_000))
    if random.random() < OUTLASTING_SHARE:
        faults = replace(faults, cut_ms=2 * ttl_ms)
    hunts = Random(f"{seed}/hunts").choice(HUNTS_EVERY_MS) if promise.leases else 0
    deaths = random.randint(0, plan.clients) if random.random() < DEATH_SHARE else 0
    if promise.table:
        plan = _with_retained(plan, Random(f"{seed}/retaining"))
    return replace(
        plan,
        ttl_ms=ttl_ms,
        hunts_every_ms=hunts,
        strikes_every_ms=random.choice((0, ttl_ms, 2 * ttl_ms)),
        deaths_ms=tuple(random.randrange(plan.chaos_ms) for _ in range(deaths)),
        faults=faults,
    )


def _with_retained(plan: RunPlan, random: Random) -> RunPlan:
    """Return ``plan`` with locks that clients retain, which then mostly have several owners."""
    retain_ms, cohort = random.choice(RETAIN_MS), random.choice(COHORTS)
    owners = max(plan.owners, random.choice((1, 2, 3)) if retain_ms else 1)
    return replace(plan, retain_ms=retain_ms, cohort=cohort, owners=owners)


TERMS_MS = ((200, 100), (800, 400), (3_000, 1_000))
"""Durations and graces to draw from (ms). With the shortest most holds end by their deadline."""


def with_terms(settings: ProtocolSettings, seed: int) -> ProtocolSettings:
    """Return ``settings`` with durations drawn from ``seed``, unless they set some.

    Requests without a timeout wait without limit, so that a judge sees whether all are served.
    """
    if settings.bakery_terms.hold_ms != HOLD_MS:
        return settings
    hold_ms, grace_ms = Random(f"{seed}/terms").choice(TERMS_MS)
    terms = Terms(hold_ms=hold_ms, grace_ms=grace_ms, least_ms=1, wait_ms=None)
    return replace(settings, bakery_terms=terms)
