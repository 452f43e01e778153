"""Leader selection: identities, seats, survivors, and the text for an unmet condition."""

from __future__ import annotations

import pytest
from support.electorates import chosen

from fencelock.actors.bakery.config import OFF, PRIORITY
from fencelock.actors.bakery.event import Member
from fencelock.actors.bakery.leader_selection import NO_CHANGE, LeaderSelection, identity_of
from fencelock.actors.bakery.message import NOBODY, Chosen, Seating


def member(name: str, life: int = 5, priority: int = PRIORITY, pid: int = 1) -> Member:
    return Member(name, life, priority, pid, 0, NOBODY, 0, 0)


def seated(*names: str, life: int = 5) -> Seating:
    return Seating(3, tuple(Chosen(name, life) for name in names), 1_000)


def names(choice: LeaderSelection) -> list[str]:
    return [leader.node for leader in choice.leaders]


def test_identities_are_compared_field_by_field_and_not_as_text() -> None:
    ordered = [
        member("z", 900, priority=1),
        member("y", 9, priority=2),
        member("x", 10, priority=2),
        member("a", 7, priority=10),
        member("b", 7, priority=10),
    ]
    shuffled = [ordered[at] for at in (3, 0, 4, 2, 1)]
    assert sorted(shuffled, key=identity_of) == ordered


def test_the_three_best_lead_first() -> None:
    members = [member(f"n{number}", priority=number) for number in (4, 2, 5, 1, 3)]
    assert names(chosen(NOBODY, members, 5)) == ["n1", "n2", "n3"]


def test_a_majority_of_the_configured_members_is_needed() -> None:
    choice = chosen(NOBODY, [member("n1"), member("n2")], 4)
    assert choice.leaders == ()
    assert choice.why_not == "cluster is down: 2 of 4 members are connected, 3 are needed"


@pytest.mark.parametrize(("connected", "configured"), [(1, 1), (2, 2), (2, 3)])
def test_small_clusters_have_fewer_leaders(connected: int, configured: int) -> None:
    members = [member(f"n{number}") for number in range(connected)]
    assert len(chosen(NOBODY, members, configured).leaders) == connected


def test_survivors_stay_though_newcomers_rank_before_them() -> None:
    better = [member("n4", priority=1), member("n5", priority=1)]
    members = [member("n1"), member("n2"), member("n3"), *better]
    assert chosen(seated("n1", "n2", "n3"), members, 5) == NO_CHANGE


def test_one_seat_changes_at_a_time() -> None:
    members = [member("n1"), *(member(f"n{number}", priority=1) for number in (3, 4, 5))]
    members.append(member("n2"))
    assert names(chosen(seated("n1", "n2", "n9"), members, 6)) == ["n1", "n2", "n3"]
    assert names(chosen(seated("n1", "n9"), members, 6)) == ["n1", "n3"]


def test_a_leader_that_lives_anew_has_lost_its_seat() -> None:
    members = [member("n1"), member("n2"), member("n3", life=6)]
    choice = chosen(seated("n1", "n2", "n3"), members, 3)
    assert choice.leaders == (Chosen("n1", 5), Chosen("n2", 5), Chosen("n3", 6))


def test_three_members_go_on_with_two() -> None:
    assert chosen(seated("n1", "n2", "n3"), [member("n1"), member("n2")], 3) == NO_CHANGE


def test_two_lost_leaders_make_room_for_a_whole_new_set() -> None:
    members = [member("n1"), member("n4"), member("n5")]
    assert names(chosen(seated("n1", "n2", "n3"), members, 5)) == ["n1", "n4", "n5"]


def test_off_never_leads_and_is_named_when_too_many_are() -> None:
    off = [member(f"n{number}", priority=OFF) for number in (1, 2)]
    alone = chosen(NOBODY, [*off, member("n3")], 3)
    assert alone.leaders == ()
    assert alone.why_not == (
        "too few candidates: 2 of 3 members have priority off, which leaves 1 for 3 seats"
    )
    assert chosen(NOBODY, [member("n1", priority=OFF)], 1).why_not.startswith("too few candidates")


def test_off_still_counts_for_the_majority() -> None:
    members = [member("n1", priority=OFF), member("n2"), member("n3")]
    assert names(chosen(NOBODY, members, 5)) == ["n2", "n3"]
