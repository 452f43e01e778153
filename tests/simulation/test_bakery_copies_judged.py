"""`bakery` while a minority of the members is lost at once, and bugs planted in its copies."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest
from support.expect import with_long
from support.judged import PlantedBug, clean
from support.planted_bugs import instead, returning

from fencelock.actors.bakery.config import exports_needed
from fencelock.actors.bakery.election import ElectionCoordinator
from fencelock.actors.bakery.epochs import EpochState
from fencelock.actors.bakery.state_transfer import Import, StateTransfer
from fencelock.actors.message import Instant
from fencelock.verification.simulation.bakery_run import run_copies_seed, run_survivors_seed

SEEDS_MOST = 20
"""In so many runs each bug is seen at least once."""


def leaders_only(epoch_state: EpochState, confirmed: Collection[str]) -> bool:
    """Count what a quorum of the leaders has agreed on, as without copies."""
    return epoch_state.is_voted(confirmed)


def two_tables(arriving: Import) -> bool:
    """Take as many tables as contain what a quorum of three leaders agreed."""
    whole = arriving.own + len(arriving.whole)
    return arriving.lead.empty or whole >= exports_needed(len(arriving.lead.former.leaders))


def forgets(transfer: StateTransfer, now: Instant) -> None:
    """Forget everything where this member only keeps copies."""
    clear: Callable[[], None] = getattr(transfer, "_clear")  # noqa: B009
    clear()


MUTANTS = {
    "a grant counts without the copies": PlantedBug(
        "kept-by-quorum", ((EpochState, "is_agreed", instead(leaders_only)),)
    ),
    "tables of fewer than a majority are merged": PlantedBug(
        "merged-tables-complete", ((Import, "complete", instead(property(two_tables))),), first=9
    ),
    "who does not lead keeps nothing": PlantedBug(
        "merged-tables-complete", ((StateTransfer, "_leave_to_leaders", instead(forgets)),)
    ),
    "who was restarted never gets the copies": PlantedBug(
        "survivors-suffice", ((ElectionCoordinator, "_has_newcomers", returning(False)),), first=9
    ),
}


@pytest.mark.parametrize("bug", with_long(MUTANTS, "who does not lead keeps nothing"))
def test_a_bug_in_the_copies_is_seen_by_the_judge_named_for_it(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    MUTANTS[bug].assert_seen(monkeypatch, run_survivors_seed, SEEDS_MOST)


@pytest.mark.long
def test_a_majority_knows_every_hold_whichever_members_were_lost() -> None:
    seen = clean(map(run_survivors_seed, (0, 7)))
    assert {"2 members are lost at once", "3 members are lost at once"} <= seen.keys()


def test_a_hold_that_is_taken_over_counts_at_leaders_whose_lease_of_it_lasts() -> None:
    assert clean([run_copies_seed(950397)])["grants"] > 0


@pytest.mark.long
def test_leaders_lost_while_they_are_elected_are_replaced_without_a_wait_for_leases() -> None:
    assert clean([run_survivors_seed(4013)])["grants"] > 0
