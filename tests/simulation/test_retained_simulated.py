"""Clients that retain locks, under all faults, and planted bugs that judges catch."""

from __future__ import annotations

from typing import Any

import pytest
from support.expect import with_long
from support.judged import PlantedBug, clean, seen_in
from support.planted_bugs import UNREPLAYED, as_plant, instead, nothing

from fencelock.actors.message import Instant
from fencelock.actors.session import retainer
from fencelock.actors.session.retained import (
    WITH_LOCK,
    Act,
    GiveBack,
    LockAct,
    RetainedLock,
    RetainedLocks,
    RetainedState,
)
from fencelock.actors.table import rules
from fencelock.actors.table import state as table_state
from fencelock.actors.table.retained import add_span
from fencelock.verification.simulation.faults import Faults
from fencelock.verification.simulation.plan import RunPlan
from fencelock.verification.simulation.run import run_seed
from fencelock.verification.simulation.semaphores import RWLOCKS

CONTENDED = RunPlan(
    nodes=3,
    clients=2,
    owners=2,
    locks=1,
    chaos_ms=4_000,
    ttl_ms=500,
    retain_ms=(20_000,),
    strikes_every_ms=500,
    faults=Faults(loss_per_mille=100),
)
"""Clients that retain a lock until the other wants it, and are cut off or paused meanwhile."""

BRIEF = RunPlan(nodes=3, clients=2, owners=3, locks=2, chaos_ms=4_000, retain_ms=(50,), cohort=1)
"""Clients that retain a lock for a moment."""

LOSSY = RunPlan(
    nodes=3,
    clients=2,
    owners=2,
    locks=1,
    chaos_ms=4_000,
    ttl_ms=3_000,
    retain_ms=(20_000,),
    faults=Faults(loss_per_mille=300),
)
"""Clients whose messages are often lost, but whose sessions live."""

MET = (
    "client.recalled",
    "owners.admitted",
    "owners.diverted",
    "owners.lost",
)


def test_no_seed_breaks_a_promise_and_every_move_occurred() -> None:
    plans = enumerate((CONTENDED, CONTENDED, BRIEF))
    seen = clean(run_seed("paxos", seed, plan=plan) for seed, plan in plans)
    assert [name for name in MET if not seen[name]] == []


def test_a_span_that_is_used_up_goes_back_and_the_next_one_is_acquired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retainer, "SPAN", 2)
    for seed in range(2):
        assert clean([run_seed("paxos", seed, plan=BRIEF)])["owners.admitted"]


def test_clients_retain_read_write_locks_for_readers_and_for_writers() -> None:
    plans = enumerate((CONTENDED, BRIEF))
    seen = clean(run_seed("paxos", seed, plan=plan, workload=RWLOCKS) for seed, plan in plans)
    assert seen["owners.admitted"]
    assert seen["owners.downgrade"]


HELD_BY_A_CUT = 910_623
"""A cut holds back the frames to a waiting client until long after all faults have ended."""


def test_a_waiter_behind_what_a_cut_held_is_not_connected() -> None:
    clean([run_seed("paxos", HELD_BY_A_CUT)])


def trusted_to_the_end(lock: RetainedLock, now: Instant) -> bool:
    """Admit a local owner while the session is suspect."""
    return lock.trust is not None and now < lock.trust.until


@as_plant
def recalled_idle(sound: Any, lock: RetainedLock, fence: int, now: Instant) -> Any:
    """Ignore the recall of a lock that a local owner has."""
    return [] if lock.state is RetainedState.HELD else sound(lock, fence, now)


@as_plant
def recalled_from_its_owner(sound: Any, lock: RetainedLock, fence: int, now: Instant) -> list[Act]:
    """Give a lock back at its recall, although a local owner has it."""
    is_used = lock.state is RetainedState.HELD and fence == lock.fence
    acts = sound(lock, fence, now)
    return [*acts, GiveBack(fence)] if is_used else acts


def expire_all(locks: RetainedLocks, now: Instant) -> list[LockAct]:
    """Give back each lock that became idle long enough ago, although a local owner may have it."""
    acts: list[LockAct] = []
    for key, lock in locks.by_key.items():
        if lock.state in WITH_LOCK and now >= lock.idle_until:
            acts.append((key, GiveBack(lock.fence)))
    locks.due_at = min((lock.idle_until for lock in locks.by_key.values()), default=None)
    return acts


MUTANTS = {
    "a local owner is admitted while the session is suspect": PlantedBug(
        "admitted-in-trust",
        ((RetainedLock, "_is_trusted", instead(trusted_to_the_end)),),
        plan=CONTENDED,
    ),
    "a local owner is admitted after the recall": PlantedBug(
        "strict-recall", ((RetainedLock, "recall", recalled_idle),), plan=CONTENDED
    ),
    "the fences of a span are granted again": PlantedBug(
        "fences",
        ((table_state, "begin_span", instead(add_span)), UNREPLAYED),
        plan=CONTENDED,
    ),
    "the fences of a span are granted again, in the log": PlantedBug(
        "fences-rise",
        ((table_state, "begin_span", instead(add_span)),),
        plan=CONTENDED,
        seen_as=" ms: fences-rise, ",
    ),
    "a lost recall is not repeated": PlantedBug(
        "recalls-answered", ((rules, "recall_again", instead(nothing)),), plan=LOSSY, first=5
    ),
    "a lock is given back while a local owner has it": PlantedBug(
        "released-unused", ((RetainedLock, "recall", recalled_from_its_owner),), plan=CONTENDED
    ),
    "a lock expires while a local owner has it": PlantedBug(
        "released-unused", ((RetainedLocks, "expire", instead(expire_all)),), plan=BRIEF
    ),
}


@pytest.mark.parametrize("bug", with_long(MUTANTS, "a lost recall is not repeated"))
def test_a_planted_bug_is_caught(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    planted = MUTANTS[bug]
    planted.plant(monkeypatch)
    seeds = range(planted.first, planted.first + 20)
    reports = (run_seed("paxos", seed, plan=planted.plan) for seed in seeds)
    assert seen_in(planted.seen_as or f" ms: {planted.judge}: ", reports)
