"""Several locks at once under every fault, and bugs planted in them that judges catch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from support.planted_bugs import taken_unchecked
from support.workloads import LOSSES, SEEDS, demand_caught, demand_clean

from fencelock.actors.table.resource import ClaimDetails, Resource, TableHold
from fencelock.actors.table.state import TableState
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


def granted_at_the_first_head(table: TableState, objects: tuple[str, ...], out: Any) -> None:
    """It is enough to be at the head of one queue whose lock is free."""
    for name in objects:
        resource = table.resources.get(name)
        while resource is not None and (wait := resource.next_wait()) is not None:
            for one in wait.objects:
                table.resources[one].withdraw(wait)
            next_owner = table._leave_queue(wait)  # pyright: ignore[reportPrivateUsage]
            table.grant(next_owner, wait.details, wait.amount, 1, wait.granted_count, out)
        if resource is not None and not resource.holds and not resource.queue:
            del table.resources[name]


def only_the_first_is_free(resource: Resource, hold: TableHold, fence: int) -> None:
    if fence == hold.fence:
        REMOVE(resource, hold, fence)


def one_fence_for_all(table: TableState, owner: Any, details: ClaimDetails, *how: Any) -> None:
    GRANT(table, owner, details, *how)
    table.fence -= len(details.locks[1:])


REMOVE, GRANT = Resource.remove, TableState.grant


@pytest.mark.parametrize(
    ("plants", "judge"),
    [
        (
            {(TableState, "serve"): granted_at_the_first_head, (Resource, "add"): taken_unchecked},
            "mutual exclusion",
        ),
        ({(Resource, "remove"): only_the_first_is_free}, "progress"),
        ({(TableState, "grant"): one_fence_for_all}, "fences"),
    ],
    ids=["head of one queue", "frees the first", "one fence"],
)
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch, plants: dict[tuple[object, str], object], judge: str
) -> None:
    demand_caught(monkeypatch, LOCK_ALL, plants, judge)
