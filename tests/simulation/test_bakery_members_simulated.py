"""`bakery` while its members change, under every fault; and bugs planted in the changes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from support.expect import with_long
from support.judged import PlantedBug, clean
from support.planted_bugs import as_plant, instead, returning

from fencelock.actors.bakery.election import ElectionCoordinator
from fencelock.actors.bakery.electorate import Electorate
from fencelock.actors.bakery.epochs import VoterRegistry, VotingRole
from fencelock.actors.bakery.invariants import INVARIANTS
from fencelock.actors.bakery.reconfigurer import SeatingChanges
from fencelock.actors.membership import Member, Membership
from fencelock.verification.simulation.bakery_judge_votes import MembersJudge
from fencelock.verification.simulation.bakery_run import run_members_seed
from fencelock.verification.simulation.violation import ViolationError, ViolationReport

SEEDS = range(4)
SEEDS_MOST = 30
"""In so many runs each bug is seen at least once."""


def in_force_at_once(electorate: Electorate, membership: Membership) -> Electorate:
    """Leave out the members before: a majority of the new ones suffices."""
    return Electorate(membership.number, membership.members)


@as_plant
def settled_by_itself(
    sound: Any, role: ElectionCoordinator, seating: Any, sent: Electorate, now: Any
) -> Any:
    """Take a change for one in force as soon as this node knows it."""
    return sound(role, seating, sent.settled(), now)


def by_count(electorate: Electorate, nodes: Collection[str]) -> bool:
    """Count every voter, a member or not."""
    return len(nodes) > len(electorate.members) // 2


@as_plant
def ever_known(
    sound: Any, registry: VoterRegistry, member: str, voter: int, electorate: Electorate
) -> Any:
    """Count the founders forever."""
    return sound(registry, member, voter, electorate) or sound(
        registry, member, voter, registry.founders
    )


@as_plant
def never_dropped(sound: Any, registry: VoterRegistry, *electorates: Electorate) -> None:
    """Keep the ids of the founders."""
    sound(registry, registry.founders, *electorates)


MUTANTS = {
    "a change is done before a majority has stored it": PlantedBug(
        "changes-stored", ((SeatingChanges, "_has_stored", returning(True)),), first=53
    ),
    "a change is in force at once": PlantedBug(
        "one-change-at-a-time",
        (
            (Electorate, "_next", instead(in_force_at_once)),
            (Electorate, "is_next_of", returning(True)),
        ),
    ),
    "a change is in force before others know it": PlantedBug(
        "one-change-at-a-time", ((ElectionCoordinator, "_learn", settled_by_itself),)
    ),
    "a removed node still counts": PlantedBug(
        "seating-known-by-majority",
        (
            (VoterRegistry, "names", ever_known),
            (VoterRegistry, "register", never_dropped),
            (Electorate, "is_quorum", instead(by_count)),
        ),
    ),
    "any node that promises counts": PlantedBug(
        "seating-known-by-majority",
        (
            (VoterRegistry, "registers", returning(True)),
            (VotingRole, "is_voter", instead(property(lambda role: role.may_vote))),
            (Electorate, "is_quorum", instead(by_count)),
        ),
    ),
}


@pytest.mark.parametrize(
    "bug", with_long(MUTANTS, "a change is in force at once", "any node that promises counts")
)
def test_every_planted_bug_is_seen_by_the_judge_named_for_it(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    MUTANTS[bug].assert_seen(monkeypatch, run_members_seed, SEEDS_MOST)


def test_no_lock_is_lost_while_the_members_change_under_every_fault() -> None:
    seen = clean(map(run_members_seed, SEEDS))
    assert not seen["notice.error"]  # No member is accused.
    assert min(seen["asked to join"], seen["asked to leave"], seen["asked to replace"]) > 0


def test_a_turn_that_a_leader_drew_alone_may_be_sent_when_there_are_two() -> None:
    """In this seed, n1 grants alone, restarts, and takes its hold over from the second leader."""
    assert run_members_seed(820014).violation is None


def test_a_cancel_that_a_leader_ignores_drops_nothing() -> None:
    """In this seed, a cancel comes from a node that the leader does not know yet."""
    assert run_members_seed(870836).violation is None


def test_messages_that_a_node_sent_while_it_was_cut_off_may_take_many_turns() -> None:
    """In this seed, the receiver had removed that node, and takes its frames as a client's."""
    assert run_members_seed(600).violation is None


def test_a_later_epoch_with_the_members_of_before_a_change_is_seen() -> None:
    seats = tuple(Member(f"n{number}", "", number) for number in range(1, 5))
    judge = MembersJudge(ViolationReport(INVARIANTS), lambda member, since: True)
    judge.hear(1, Electorate(0, seats[:3]))
    judge.hear(6, Electorate(1, seats))
    with pytest.raises(
        ViolationError, match=r"one-change-at-a-time, .* epoch 11 has the members of change 0"
    ):
        judge.hear(11, Electorate(0, seats[:3]))
