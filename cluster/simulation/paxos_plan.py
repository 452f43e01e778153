"""What a run of the log alone consists of, drawn from a seed, biased towards what is rare."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from holdfast.cluster.simulation.misfortune import (
    CALM,
    OFF_SHARE,
    Kind,
    Misfortune,
    draw_misfortune,
)

SURVIVED = frozenset(Kind) - {Kind.JUMP}
"""Clocks drift no further than the log is told, and do not jump: leases rest on that."""

LEASES_MS = ((60, 150), (60, 300), (250, 1_000), (2_000, 600))
"""Pairs of a lease and an election timeout (ms): reigns of moments, and leases that outlive them."""


DUEL_SHARE = 0.3
"""How many runs are about reigns that end before anything is decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlan:
    """One run. The phases are: chaos, healed until everybody is answered, replicas equal."""

    nodes: int = 3
    clients: int = 2
    """Nodes with proposers, which are no members."""
    proposers: int = 2
    """On each."""
    rest_ms: int = 20
    ttl_ms: int = 600
    lease_ms: int = 250
    election_ms: int = 1_000
    drift_ppm: int = 1_000
    """How far clocks may be from true, as the log is told (millionths)."""
    log_max: int = 10_000
    """Slots that a replica keeps for others."""
    journal_bytes: int = 1 << 23
    """What is written before a replica trims its journal."""
    chaos_ms: int = 3_000
    answered_ms: int = 30_000
    """How long after all misfortune ended everybody must have been answered (ms)."""
    equal_ms: int = 15_000
    """How long after that the replicas must be equal and all sessions over (ms)."""
    partial_per_mille: int = 0
    """How often a leader's proposals reach only some, and then nothing of it for a while."""
    partial_reign_per_mille: int = 0
    """The same, for the first proposals of a reign."""
    partial_crash_share: float = 0.0
    """How often a leader that this happens to crashes, too."""
    crash_at_ballot_per_mille: int = 0
    """How often a node dies while it makes a ballot, a promise or a snapshot durable."""
    misfortune: Misfortune = CALM


def draw_log_plan(seed: int) -> LogPlan:
    """Return the plan of ``seed``: each kind of misfortune is left out of about 40 %."""
    random = Random(f"{seed}/log")
    drift_ppm = random.choice((1_000, 1_000, 50_000, 200_000))
    misfortune = draw_misfortune(random, SURVIVED)
    misfortune = replace(
        misfortune,
        drift_ppm=drift_ppm,
        crash_every_ms=misfortune.crash_every_ms and random.choice((200, 600, 1_500)),
        cut_every_ms=misfortune.cut_every_ms and random.choice((300, 1_000)),
        delay_us=random.choice((100, 300, 2_000, 10_000)),
    )
    lease_ms, election_ms = random.choice(LEASES_MS)
    crashes = misfortune.crash_every_ms > 0

    def on() -> bool:
        return random.random() >= OFF_SHARE

    plan = LogPlan(
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
        partial_reign_per_mille=random.choice((100, 400, 700)) * on(),
        partial_crash_share=0.5 * crashes,
        crash_at_ballot_per_mille=random.choice((50, 300)) * crashes,
        misfortune=misfortune,
    )
    return _duel(random, plan) if random.random() < DUEL_SHARE else plan


def _duel(random: Random, plan: LogPlan) -> LogPlan:
    """Let reigns be short and end with proposals that few have: leaders find each other's votes."""
    lease_ms, election_ms = LEASES_MS[0]
    return replace(
        plan,
        nodes=random.choice((3, 3, 4, 5)),
        lease_ms=lease_ms,
        election_ms=election_ms,
        chaos_ms=5_000,
        partial_reign_per_mille=random.choice((600, 900)),
        partial_crash_share=random.choice((0.2, 0.8)),
        misfortune=replace(
            plan.misfortune,
            delay_us=300,
            down_ms=random.choice((5, 100)),
            late_per_mille=0,
            cut_every_ms=0,
            pause_every_ms=0,
        ),
    )
