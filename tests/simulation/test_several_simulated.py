"""Several locks at once under every fault, and bugs planted in them that judges catch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from support.workloads import LOSSES, SEEDS, demand_caught, demand_clean

from fencelock.actors.table.holding import Hold, Pool
from fencelock.actors.table.session import OwnerState
from fencelock.actors.table.table_state import TableState
from fencelock.verification.simulation.several import LOCK_ALL, SeveralJudge


def test_no_seed_breaks_a_promise_and_every_fault_occurred(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together: Counter[int] = Counter()
    enter_all = SeveralJudge._enter_all  # pyright: ignore[reportPrivateUsage]

    def counted(judge: SeveralJudge, delivered: Any, granted: Any) -> None:
        together[granted.count] += 1
        enter_all(judge, delivered, granted)

    monkeypatch.setattr(SeveralJudge, "_enter_all", counted)
    demand_clean(LOCK_ALL, LOSSES)
    assert together[1] > SEEDS
    assert together[2] > SEEDS


def granted_at_the_first_head(table: TableState, owner_state: OwnerState, out: Any) -> None:
    """It is enough to be at the head of one queue whose lock is free."""
    for name in owner_state.objects:
        pool = table.pools.get(name)
        while pool is not None and (wait := pool.next_wait()) is not None:
            for one in wait.owner_state.objects:
                table.pools[one].withdraw(wait)
            next_owner = table._leave_queue(wait)  # pyright: ignore[reportPrivateUsage]
            table.grant_permits(next_owner, wait.label, wait.amount, out)
        if pool is not None and not pool.holds and not pool.queue:
            del table.pools[name]


def unchecked(pool: Pool, hold: Hold, fence: int) -> None:
    pool.free -= hold.amount
    pool.holds[fence] = hold


def only_the_first_is_free(pool: Pool, hold: Hold, fence: int) -> None:
    if fence == hold.fence:
        REMOVE(pool, hold, fence)


def one_fence_for_all(table: TableState, owner_state: OwnerState, *how: Any) -> None:
    GRANT(table, owner_state, *how)
    table.fence -= len(owner_state.locks[1:])


REMOVE, GRANT = Pool.remove, TableState.grant_permits


@pytest.mark.parametrize(
    ("plants", "judge"),
    [
        (
            {(TableState, "serve"): granted_at_the_first_head, (Pool, "add"): unchecked},
            "mutual exclusion",
        ),
        ({(Pool, "remove"): only_the_first_is_free}, "progress"),
        ({(TableState, "grant_permits"): one_fence_for_all}, "fences"),
    ],
    ids=["head of one queue", "frees the first", "one fence"],
)
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch, plants: dict[tuple[object, str], object], judge: str
) -> None:
    demand_caught(monkeypatch, LOCK_ALL, plants, judge)
