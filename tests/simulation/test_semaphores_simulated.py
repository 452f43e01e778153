"""Semaphores end to end under every fault, and bugs planted in them that judges catch."""

from __future__ import annotations

import pytest
from support.planted_bugs import taken_unchecked
from support.workloads import LOSSES, SEEDS, demand_caught, demand_clean

from fencelock.actors.api.message import Granted
from fencelock.actors.table.resource import Resource, TableHold, Wait
from fencelock.verification.simulation.semaphores import SEMAPHORES, LogOrder

MET = ("contender.gives_back_a_part", *LOSSES)


def test_no_seed_breaks_a_promise_and_every_fault_occurred(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[str] = []
    judge = LogOrder._judge_grant  # pyright: ignore[reportPrivateUsage]

    def counted(order: LogOrder, granted: Granted, key: object, queue: list[object]) -> None:
        waited.extend([granted.lock] * bool(queue))
        judge(order, granted, key, queue)  # type: ignore[arg-type]

    monkeypatch.setattr(LogOrder, "_judge_grant", counted)
    demand_clean(SEMAPHORES, MET)
    assert len(waited) > SEEDS


def overtaking(resource: Resource) -> Wait | None:
    """A smaller claim is granted while a larger one waits at the head of the queue."""
    fitting = [wait for wait in resource.waits if wait.amount <= resource.free]
    return fitting[0] if fitting else None


def one_too_many(resource: Resource, amount: int) -> bool:
    """The free permits are compared with one less than the amount."""
    return not resource.queue and amount <= resource.free + 1


def one_is_freed(resource: Resource, hold: TableHold, fence: int) -> None:
    """The end of a hold frees one permit, however many it had."""
    REMOVE(resource, hold, fence)
    resource.free -= hold.amount - 1


def twice(hold: TableHold) -> Granted:
    """The outcome of a repeated acquire counts its permits again."""
    granted = ANSWER(hold)
    hold.granted_count += hold.granted_count
    return granted


ANSWER, REMOVE = TableHold.answer, Resource.remove


@pytest.mark.parametrize(
    ("plants", "judge"),
    [
        ({(Resource, "next_wait"): overtaking}, "order"),
        ({(Resource, "admits"): one_too_many, (Resource, "add"): taken_unchecked}, "capacity"),
        ({(Resource, "remove"): one_is_freed}, "progress"),
        ({(TableHold, "answer"): twice}, "was granted"),
    ],
    ids=["overtakes", "one too many", "frees one", "counts twice"],
)
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch, plants: dict[tuple[object, str], object], judge: str
) -> None:
    demand_caught(monkeypatch, SEMAPHORES, plants, judge)
