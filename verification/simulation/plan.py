"""The plan of a run: the numbers of nodes, clients and locks, its length, and its faults.

Plans of the log alone are biased towards rare situations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from random import Random

from fencelock.actors.bakery.config import HOLD_MS, Terms
from fencelock.actors.lease import DRIFT_PPM
from fencelock.cluster.node.topology import ProtocolSettings
from fencelock.verification.simulation.faults import (
    CALM,
    OFF_SHARE,
    FaultKind,
    Faults,
    Survival,
    draw_faults,
    with_disk_faults,
)
from fencelock.verification.simulation.member_changes import LOSE_FOUNDERS_SHARE


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
    """Time at which all faults end (ms)."""
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


SURVIVED = frozenset(FaultKind) - {FaultKind.JUMP}
"""Clocks drift no further than the log assumes, and do not jump: leases rely on that."""

ABSENT_WITH_LEASES = (
    FaultKind.LOSS,
    FaultKind.REPETITION,
    FaultKind.DRIFT,
    FaultKind.CRASH,
    FaultKind.PARTITION,
    FaultKind.PAUSE,
)
"""Faults that runs about leases leave out: the plan itself silences leaders and sets clocks."""

LEASES_MS = ((60, 150), (60, 300), (250, 1_000), (2_000, 600))
"""Leases with election timeouts (ms): leaderships of moments, or leases that outlive them."""


class Focus(Enum):
    """The main subject of a run."""

    SWARM = "anything"
    DUELS = "duels"
    """Leaderships that end with proposals that few have: leaders find each other's votes."""
    LEASES = "leases"
    """Leaders that fall silent and live, with the largest allowed clock errors."""
    MIXED_LEASES = "leases of different lengths"
    """The same, with members that restart with one of two configurations each time."""


FOCUSES = (Focus.SWARM,) * 5 + (Focus.DUELS,) * 3 + (Focus.LEASES,) * 2
"""The subjects to draw from, repeated by weight."""


GAPS_SHARE = 0.5
"""Share of duels about slots that no member reports, between slots that some member does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlan:
    """One run. The phases are: faults, recovery until every request has a reply, equal replicas."""

    nodes: int = 3
    clients: int = 2
    """Nodes with proposers, which are not members."""
    proposers: int = 2
    """Proposers on each of them."""
    rest_ms: int = 20
    read_ms: int = 80
    """Longest time between two reads at a node."""
    ttl_ms: int = 600
    lease_ms: int = 250
    mixed_leases_ms: tuple[int, ...] = ()
    """If not empty, each life of a member draws its lease from these: configurations differ."""
    election_ms: int = 1_000
    drift_ppm: int = 1_000
    """Largest error of a clock's rate that the log assumes (millionths)."""
    log_max: int = 10_000
    """Slots that a replica keeps for others."""
    journal_bytes: int = 1 << 23
    """Bytes written before a replica trims its journal."""
    digest_slots: int = 10_000
    """Number of slots after which members compare their states."""
    chaos_ms: int = 3_000
    answered_ms: int = 30_000
    """Deadline for the last answers, from the end of all faults (ms)."""
    equal_ms: int = 15_000
    """Deadline after that for equal replicas and the end of all sessions (ms). Messages that are
    very late have their time in addition."""
    partial_per_mille: int = 0
    """Share of a leader's proposals that reach only some, after which it is silent for a while."""
    partial_leadership_per_mille: int = 0
    """The same, for the first proposals of a leadership."""
    gap_share: float = 0.0
    """Share of these in which only the next proposals are lost, and the leader then dies."""
    wrong_clocks: bool = False
    """Whether such a leader's clock is then as slow as allowed, and all others as fast; these may
    notice that its link is gone."""
    partial_crash_share: float = 0.0
    """Share of these leaders that also crash."""
    others_crash_share: float = 0.0
    """Share of these in which all others crash, and return while it believes that it leads."""
    crash_at_ballot_per_mille: int = 0
    """Share of syncs of a ballot, a promise or a snapshot in which the node dies."""
    spares: int = 0
    """Nodes that are no members at first."""
    change_every_ms: int = 0
    """Mean interval between changes of the members (ms), or 0 for never."""
    target_members: int = 0
    """Number of members at which leaders keep the group by themselves, or 0 if they do not."""
    replace_after_ms: int = 1_000
    """Time after which they replace a member that does not answer (ms)."""
    lose_founders: bool = False
    """Whether founders lose their disks after members changed; such a run judges safety only."""
    locks: RunPlan | None = None
    """The use of locks beside the list, or None for no locks. It adds no faults."""
    faults: Faults = CALM


def draw_target_plan(seed: int) -> LogPlan:
    """Return the plan of ``seed`` with leaders that change the members, and without operators."""
    random = Random(f"{seed}/target")
    plan = draw_members_plan(seed)
    nodes = random.choice((2, 3, 3, 3, 5))
    return replace(
        plan,
        nodes=nodes,
        spares=random.choice((1, 2, 3)),
        change_every_ms=0,
        target_members=random.choice((3, 3, nodes)),
        replace_after_ms=random.choice((100, 300, 1_000)),
        lose_founders=False,
        chaos_ms=8_000,
        partial_leadership_per_mille=0,
        locks=None,
        faults=replace(plan.faults, down_ms=random.choice((500, 1_500, 3_000))),
    )


def draw_members_plan(seed: int) -> LogPlan:
    """Return the plan of ``seed`` with locks, and changes of the members.

    Disks are lost only together with a change that replaces them.
    """
    random = Random(f"{seed}/members")
    plan = draw_log_plan(seed)
    kept = replace(plan.faults, lose_disk_every_ms=0, old_copy_every_ms=0)
    true = random.random() < TRUE_CLOCKS_SHARE
    drift_ppm = min(plan.drift_ppm, DRIFT_PPM) if true else plan.drift_ppm
    return replace(
        plan,
        drift_ppm=drift_ppm,
        read_ms=300,
        nodes=random.choice((1, 2, 3, 3, 3, 4, 5)),
        spares=random.choice((1, 2, 3)),
        change_every_ms=random.choice((20, 100, 400)),
        lose_founders=Random(f"{seed}/founders").random() < LOSE_FOUNDERS_SHARE,
        locks=_draw_locks(seed, plan.chaos_ms),
        faults=replace(kept, drift_ppm=drift_ppm),
    )


def _draw_locks(seed: int, chaos_ms: int) -> RunPlan:
    """Draw the clients of a run whose faults last for ``chaos_ms``."""
    plan = draw_plan(seed, Survival(survives=SURVIVED, sessions=True))
    within = tuple(min(ms, chaos_ms - 1) for ms in plan.deaths_ms)
    return replace(plan, late_start_ms=0, deaths_ms=within, faults=CALM)


def draw_log_plan(seed: int, focus: Focus | None = None) -> LogPlan:
    """Return the plan of ``seed``: each kind of fault is left out of about 40 %.

    Its main subject ``focus`` is drawn as well if it is None.
    """
    random = Random(f"{seed}/log")
    drawn = random.choice(FOCUSES)
    digest_slots = Random(f"{seed}/digests").choice((20, 100, 10_000))
    plan = replace(_swarm(random), digest_slots=digest_slots)
    match focus or drawn:
        case Focus.SWARM:
            disks = with_disk_faults(plan.faults, Random(f"{seed}/disks"), SURVIVED)
            return replace(plan, faults=disks)
        case Focus.DUELS:
            return _duels(random, plan)
        case Focus.LEASES:
            return _leases(random, plan)
        case Focus.MIXED_LEASES:
            return _mixed_leases(random, plan)


def _swarm(random: Random) -> LogPlan:
    drift_ppm = random.choice((1_000, 1_000, 50_000, 200_000))
    faults = draw_faults(random, SURVIVED)
    faults = replace(
        faults,
        drift_ppm=drift_ppm,
        crash_every_ms=faults.crash_every_ms and random.choice((200, 600, 1_500)),
        cut_every_ms=faults.cut_every_ms and random.choice((300, 1_000)),
        delay_us=random.choice((100, 300, 2_000, 10_000)),
    )
    lease_ms, election_ms = random.choice(LEASES_MS)
    crashes = faults.crash_every_ms > 0

    def on() -> bool:
        return random.random() >= OFF_SHARE

    return LogPlan(
        nodes=random.choice((1, 2, 3, 3, 3, 4, 4, 5, 5)),
        clients=random.randint(1, 3),
        proposers=random.choice((1, 2, 6)),
        rest_ms=random.choice((0, 5, 50)),
        ttl_ms=random.choice((150, 600, 2_000)),
        lease_ms=lease_ms,
        election_ms=election_ms,
        drift_ppm=drift_ppm,
        log_max=random.choice((1, 3, 20, 10_000)),
        journal_bytes=random.choice((2_000, 20_000, 1 << 23)),
        chaos_ms=random.choice((2_000, 4_000)),
        partial_per_mille=random.choice((5, 30)) * on(),
        partial_leadership_per_mille=random.choice((100, 400, 700)) * on(),
        partial_crash_share=0.5 * crashes,
        crash_at_ballot_per_mille=random.choice((50, 300)) * crashes,
        faults=faults,
    )


def _duels(random: Random, plan: LogPlan) -> LogPlan:
    gaps = random.random() < GAPS_SHARE
    lease_ms, election_ms = LEASES_MS[0]
    return replace(
        plan,
        nodes=random.choice((3, 3, 4, 5)),
        lease_ms=lease_ms,
        election_ms=election_ms,
        proposers=6 if gaps else random.choice((1, 2)),
        rest_ms=50 if gaps else 5,
        chaos_ms=5_000,
        partial_leadership_per_mille=random.choice((600, 900)),
        partial_crash_share=random.choice((0.2, 0.8)),
        gap_share=0.6 if gaps else 0.0,
        faults=replace(
            plan.faults.without(FaultKind.LATENESS, FaultKind.PARTITION, FaultKind.PAUSE),
            delay_us=300,
            down_ms=random.choice((5, 100)),
        ),
    )


def _leases(random: Random, plan: LogPlan) -> LogPlan:
    lease_ms = random.choice((500, 1_500))
    drift_ppm = random.choice((1_000, 200_000))
    late_per_mille = random.choice((0, 200))
    return replace(
        plan,
        nodes=random.choice((3, 3, 4)),
        lease_ms=lease_ms,
        election_ms=lease_ms * random.choice((1, 2, 2)),
        clients=3,
        proposers=2,
        rest_ms=50,
        drift_ppm=drift_ppm,
        chaos_ms=8_000,
        partial_per_mille=25,
        partial_leadership_per_mille=0,
        partial_crash_share=0.0,
        others_crash_share=random.choice((0.0, 0.5)),
        wrong_clocks=True,
        faults=replace(
            plan.faults.without(*ABSENT_WITH_LEASES),
            delay_us=100,
            drift_ppm=drift_ppm,
            down_ms=5,
            late_per_mille=late_per_mille,
            late_ms=lease_ms,
        ),
    )


def _mixed_leases(random: Random, plan: LogPlan) -> LogPlan:
    plan = _leases(random, plan)
    return replace(
        plan,
        lease_ms=800,
        mixed_leases_ms=(800, 60),
        election_ms=800,
        partial_per_mille=50,
        others_crash_share=0.6,
        faults=replace(plan.faults.without(FaultKind.LATENESS), sync_us=100),
    )
