"""Electorates of `bakery`: quorums that share a member, refusals, and late coordinators."""

from __future__ import annotations

from itertools import combinations

import pytest
from support.expect import present
from support.leader_trio import begun_coordinator, linked, member, registry, seats
from support.role_harness import only_sent

from fencelock.actors.bakery.config import election_of
from fencelock.actors.bakery.election import ElectionCoordinator
from fencelock.actors.bakery.electorate import (
    ELECTORATE_NUMBER_MAX,
    FOUNDERS,
    Electorate,
    can_follow,
    is_sound,
)
from fencelock.actors.bakery.event import Connected, ElectionDue
from fencelock.actors.bakery.wire import Chosen, Install, Promised, Propose, Seating
from fencelock.actors.membership import MEMBERS_MAX, Member
from fencelock.actors.message import NS_PER_MS, Instant

NAMES = tuple("abcde")
NEW = Member("x", "tcp://127.0.0.1:4040", 9)


def quorums(electorate: Electorate) -> list[frozenset[str]]:
    everyone = electorate.everyone
    sets = (frozenset(one) for n in range(len(everyone) + 1) for one in combinations(everyone, n))
    return [one for one in sets if electorate.is_quorum(one)]


def next_of(electorate: Electorate) -> list[Electorate]:
    """Return all that may follow a settled electorate by one change."""
    other = Member("y", "", 10)
    added = [electorate.with_member(one) for one in (NEW, other) if one not in electorate.members]
    return [*added, *(electorate.without(name) for name in electorate.names if name != "a")]


@pytest.mark.parametrize("count", range(1, len(NAMES) + 1))
def test_all_that_may_follow_a_seating_in_force_share_a_member_in_any_two_quorums(
    count: int,
) -> None:
    settled = Electorate(0, seats(*NAMES[:count]))
    families = [[settled, *next_of(settled)]]
    for joint in next_of(settled):
        families.append([joint, joint.settled(), *next_of(joint.settled())])
    for family in families:
        for one, other in combinations(family, 2):
            assert all(a & b for a in quorums(one) for b in quorums(other)), (one, other)


def test_a_change_needs_majorities_of_both() -> None:
    joint = Electorate(0, seats("a", "b", "c", "d")).without("d")
    assert not joint.is_quorum({"a", "b"})
    assert joint.is_quorum({"a", "b", "d"})
    assert joint.settled().is_quorum({"a", "b"})
    assert joint.reached({"a": 5, "b": 4, "c": 1}) == 1


def test_only_a_settled_electorate_is_changed_and_by_one_member_at_a_time() -> None:
    three = Electorate(0, seats("a", "b", "c"))
    four = three.with_member(NEW)
    assert four.is_next_of(three)
    assert not four.settled().with_member(NEW).is_next_of(four)
    assert not four.settled().without("a").is_next_of(three)


@pytest.mark.parametrize(
    "wrong",
    [
        Electorate(0, seats("a")),
        Electorate(1, ()),
        Electorate(-1, seats("a")),
        Electorate(1, (Member("b", "", 1), Member("a", "", 2))),
        Electorate(1, (Member("a/b", "", 1),)),
        Electorate(1, (Member("a", "nowhere", 1),)),
        Electorate(1, (Member("a", "", -1),)),
        Electorate(1, seats("a", "b", "c"), seats("a")),
        Electorate(1, tuple(Member(f"n{number:03}", "", 1) for number in range(65))),
        Electorate(1, (Member("a", "", 1), Member("a", "", 2))),
        Electorate(1, (Member("a", "", ELECTORATE_NUMBER_MAX << 1),)),
        Electorate(ELECTORATE_NUMBER_MAX, seats("a")),
    ],
)
def test_an_impossible_electorate_of_a_peer_is_refused(wrong: Electorate) -> None:
    assert not is_sound(wrong)
    assert is_sound(FOUNDERS)
    assert is_sound(Electorate(1, seats("a", "b"), seats("a")))
    most = tuple(Member(f"n{number:03}", "", 0) for number in range(MEMBERS_MAX))
    assert is_sound(Electorate(ELECTORATE_NUMBER_MAX - 1, most))


def test_members_that_honest_changes_lead_to_can_follow() -> None:
    known = Electorate(3, seats("a", "b", "c"))
    for joint in next_of(known):
        settled = joint.settled()
        for later in (joint, settled, *next_of(settled)):
            assert can_follow(later, known, 9)
            assert can_follow(later, joint, 9)
        for sibling in next_of(known):  # The first one was given up.
            assert can_follow(sibling, joint, 9)
    assert can_follow(known, known, 3)


@pytest.mark.parametrize(
    ("later", "epoch"),
    [
        (Electorate(4, seats("a", "b", "c", "d")), 3),
        (Electorate(1 << 61, seats("c")), 1_000),
        (Electorate(4, seats("c")), 9),
        (Electorate(4, seats("x", "y", "z")), 9),
        (Electorate(3, seats("a", "b")), 9),
        (Electorate(2, seats("a", "b")), 9),
        (FOUNDERS, 9),
    ],
    ids=["more changes than epochs", "far", "two left", "others", "same", "earlier", "founders"],
)
def test_members_that_no_honest_changes_lead_to_cannot(later: Electorate, epoch: int) -> None:
    assert not can_follow(later, Electorate(3, seats("a", "b", "c")), epoch)


# A coordinator that proposed before it learned of other members


JOURNALS = {f"n{number}": number for number in range(1, 6)}
FIRST = tuple(Chosen(name, 1) for name in ("n1", "n2", "n3"))
FOUNDED = Seating(1, FIRST, 1_000)
LATER = Seating(6, (Chosen("n2", 1), Chosen("n3", 2), Chosen("n4", 1)), 1_000)
GROWN = Electorate(2, seats(*JOURNALS))
BEGAN = Instant(10**12)


def coordinator(seating: Seating, electorate: Electorate) -> ElectionCoordinator:
    """Return the coordinator of n1, which knows ``seating``."""
    voting = registry({name: JOURNALS[name] for name in ("n1", "n2", "n3")}, 1)
    return begun_coordinator(voting, Install(seating=seating, electorate=electorate), began=BEGAN)


def connected(*members: tuple[str, Seating, Electorate]) -> Connected:
    """Return the members as beats describe them; n3 has a second life."""
    described = [
        member(
            name,
            life=2 if name == "n3" else 1,
            promised=seating.epoch,
            seating=seating,
            electorate=electorate,
            voter=JOURNALS[name],
        )
        for name, seating, electorate in members
    ]
    return Connected(members=linked(*described))


def after(ms: int) -> Instant:
    return Instant(BEGAN + ms * NS_PER_MS)


@pytest.mark.parametrize("informed", [True, False])
def test_a_proposal_does_not_go_on_with_members_that_changed_meanwhile(informed: bool) -> None:
    role = coordinator(FOUNDED, FOUNDERS)
    role.highest = 10
    role.handle(
        election_of("n1"),
        connected(*((name, FOUNDED, FOUNDERS) for name in ("n1", "n2", "n3"))),
        BEGAN,
    )
    role.handle(election_of("n1"), ElectionDue(), after(400))
    election = present(role.election)
    assert election.electorate.names == ("n1", "n2", "n3")
    effects = role.handle(election_of("n1"), election.proposal, after(400))
    own = only_sent(effects, Promised)
    role.handle(election_of("n1"), own, after(400))
    if informed:  # By a beat: two changes came into force without n1.
        seen = [("n1", FOUNDED, FOUNDERS), ("n2", LATER, GROWN), ("n3", LATER, GROWN)]
        role.handle(election_of("n1"), connected(*seen), after(500))
    former = Install(seating=LATER, electorate=GROWN)
    promised = Promised(epoch=election.epoch, former=former, quiet_ms=0, voter=2)
    role.handle(election_of("n2"), promised, after(500))
    assert role.election is None
    assert role.electorate == GROWN


def test_a_node_does_not_promise_the_members_of_before_a_change_that_it_knows() -> None:
    role = coordinator(LATER, GROWN)
    assert role.handle(election_of("n2"), Propose(epoch=11, leaders=FIRST), BEGAN)
    assert role.promises.promised == LATER.epoch


def test_a_seating_with_the_members_of_before_a_change_does_not_undo_the_change() -> None:
    role = coordinator(LATER, GROWN)
    seen = [("n1", LATER, GROWN), ("n2", LATER, GROWN), ("n3", LATER, FOUNDERS)]
    role.handle(election_of("n1"), connected(*seen), BEGAN)
    assert role.electorate == GROWN
