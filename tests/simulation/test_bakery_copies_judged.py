"""`bakery` while a minority of the members is lost at once, and bugs planted in its copies."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import pytest
from support.judged import assert_seen, clean
from support.long import with_long

from fencelock.actors.bakery.config import exports_needed
from fencelock.actors.bakery.election import ElectionCoordinator
from fencelock.actors.bakery.epochs import EpochState
from fencelock.actors.bakery.state_transfer import Import, StateTransfer
from fencelock.actors.message import Instant
from fencelock.verification.simulation.bakery_run import run_copies_seed, run_survivors_seed
from fencelock.verification.simulation.report import RunReport

SEEDS_MOST = 20
"""In so many runs each bug is seen at least once."""

FIRST = {
    "tables of fewer than a majority are merged": 9,
    "who was restarted never gets the copies": 9,
}
"""The first seeds of searches, which keep them short."""


class CopiesMutant(NamedTuple):
    """A bug, and the judge that is to see it."""

    judge: str
    owner: Any
    name: str
    value: Any


def leaders_only(epoch_state: EpochState, confirmed: Collection[str]) -> bool:
    """Count what a quorum of the leaders has agreed on, as without copies."""
    return epoch_state.is_voted(confirmed)


def two_tables(arriving: Import) -> bool:
    """Take as many tables as contain what a quorum of three leaders agreed."""
    whole = arriving.own + sum(arrival.whole for arrival in arriving.arrivals.values())
    return arriving.lead.empty or whole >= exports_needed(len(arriving.lead.former.leaders))


def forgets(transfer: StateTransfer, now: Instant) -> None:
    """Forget everything where this member only keeps copies."""
    clear: Callable[[], None] = getattr(transfer, "_clear")  # noqa: B009
    clear()


def never(*_: object) -> bool:
    return False


MUTANTS = {
    "a grant counts without the copies": CopiesMutant(
        "kept-by-quorum", EpochState, "is_agreed", leaders_only
    ),
    "tables of fewer than a majority are merged": CopiesMutant(
        "merged-tables-complete", Import, "complete", property(two_tables)
    ),
    "who does not lead keeps nothing": CopiesMutant(
        "merged-tables-complete", StateTransfer, "_leave_to_leaders", forgets
    ),
    "who was restarted never gets the copies": CopiesMutant(
        "survivors-suffice", ElectionCoordinator, "_has_newcomers", never
    ),
}


@pytest.mark.parametrize("bug", with_long(MUTANTS, "who does not lead keeps nothing"))
def test_a_bug_in_the_copies_is_seen_by_the_judge_named_for_it(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    judge, owner, name, value = MUTANTS[bug]
    monkeypatch.setattr(owner, name, value)

    def run(seed: int, judged: frozenset[str]) -> RunReport:
        return run_survivors_seed(seed, judged=judged)

    first = FIRST.get(bug, 0)
    assert_seen(judge, range(first, first + SEEDS_MOST), run)


@pytest.mark.long
def test_a_majority_knows_every_hold_whichever_members_were_lost() -> None:
    seen = clean(map(run_survivors_seed, (0, 7)))
    assert {"2 members are lost at once", "3 members are lost at once"} <= seen.keys()


def test_a_hold_that_is_taken_over_counts_at_leaders_whose_lease_of_it_lasts() -> None:
    assert clean([run_copies_seed(950397)])["grants"] > 0


@pytest.mark.long
def test_leaders_lost_while_they_are_elected_are_replaced_without_a_wait_for_leases() -> None:
    assert clean([run_survivors_seed(4013)])["grants"] > 0
