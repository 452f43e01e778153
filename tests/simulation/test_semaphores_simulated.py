"""Semaphores end to end under every fault, and bugs planted in them that judges catch."""

from __future__ import annotations

import pytest
from support.workloads import LOSSES, SEEDS, demand_caught, demand_clean

from fencelock.actors.api.message import Granted
from fencelock.actors.table.holding import Hold, Pool, Wait
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


def overtaking(pool: Pool) -> Wait | None:
    """A smaller claim is granted while a larger one waits at the head of the queue."""
    fitting = [wait for wait in pool.waits if wait.amount <= pool.free]
    return fitting[0] if fitting else None


def one_too_many(pool: Pool, amount: int) -> bool:
    """The free permits are compared with one less than the amount."""
    return not pool.queue and amount <= pool.free + 1


def unchecked(pool: Pool, hold: Hold, fence: int) -> None:
    pool.free -= hold.amount
    pool.holds[fence] = hold


def one_is_freed(pool: Pool, hold: Hold, fence: int) -> None:
    """The end of a hold frees one permit, however many it had."""
    del pool.holds[fence]
    pool.free += min(hold.amount, 1)


def twice(hold: Hold) -> Granted:
    """The outcome of a repeated acquire counts its permits again."""
    granted = ANSWER(hold)
    hold.level += hold.level
    return granted


ANSWER = Hold.answer


@pytest.mark.parametrize(
    ("plants", "judge"),
    [
        ({(Pool, "next_wait"): overtaking}, "order"),
        ({(Pool, "admits"): one_too_many, (Pool, "add"): unchecked}, "capacity"),
        ({(Pool, "remove"): one_is_freed}, "progress"),
        ({(Hold, "answer"): twice}, "was granted"),
    ],
    ids=["overtakes", "one too many", "frees one", "counts twice"],
)
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch, plants: dict[tuple[object, str], object], judge: str
) -> None:
    demand_caught(monkeypatch, SEMAPHORES, plants, judge)
