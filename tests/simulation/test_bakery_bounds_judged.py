"""Long leases and deaf leaders of `bakery`, with the judges of both; and bugs planted in them."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from typing import Any

import pytest

from fencelock.actors.bakery import leader_selection
from fencelock.actors.bakery.max_lease import OwnBound
from fencelock.actors.bakery.table import TicketTable
from fencelock.verification.simulation.bakery_nemesis import Blow
from fencelock.verification.simulation.bakery_run import LONG_LOCKS, run_bakery_seed, run_deaf_seed

FIRST_SEED, SEEDS_MOST = 3, 20


def all_work(leaders: Any, members: Any, electorate: Any) -> tuple[int, int]:
    """Take leaders that do not reach each other for ones that work."""
    del members, electorate
    return len(leaders), 0


BUGS: dict[str, tuple[Any, str, Any]] = {
    "a bound is lowered while its leases live": (TicketTable, "longest_ms", lambda *_: 0),
    "a vote does not wait for its bound": (OwnBound, "wait_for", lambda *_, serving: []),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_lease_beyond_what_the_members_know_is_seen(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    monkeypatch.setattr(*BUGS[bug])
    monkeypatch.setattr("fencelock.actors.bakery.max_lease.RECENT_MS", 200)
    monkeypatch.setattr("fencelock.actors.bakery.leader.SWEEP_MS", 200)
    judged = frozenset({"longest-lease-known"})
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS_MOST):
        report = run_bakery_seed(seed, judged=judged, workload=LONG_LOCKS)
        if ": longest-lease-known, " in (report.violation or ""):
            return
    pytest.fail(f"not seen in {SEEDS_MOST} seeds")


def test_leaders_that_stay_deaf_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_selection, "working", all_work)
    reports = (run_deaf_seed(seed) for seed in range(SEEDS_MOST))
    assert any(": deaf-leaders-replaced, " in (report.violation or "") for report in reports)


@pytest.mark.parametrize("seed", range(2))
def test_long_leases_are_known_while_two_leaders_are_lost(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("fencelock.actors.bakery.max_lease.RECENT_MS", 200)
    monkeypatch.setattr("fencelock.actors.bakery.leader.SWEEP_MS", 200)
    blows = (Blow.TWO_LOST, Blow.ONE_LOST, Blow.DEAF)
    assert run_bakery_seed(seed, blows=blows, workload=LONG_LOCKS).violation is None


def test_deaf_leaders_are_replaced_once() -> None:
    report = run_deaf_seed(0)
    assert report.violation is None
    assert report.faults[Blow.DEAF.value] > 0
