"""The scout: the promises that count, and the batches that a leader must propose then."""

from __future__ import annotations

import pytest
from support.role_harness import HOST, T0, sends, sent
from support.table_scene import config_of

from fencelock.actors.effect import Effects, Observe, Send, Wake
from fencelock.actors.message import address_of
from fencelock.actors.paxos.config import VOTES_MAX, acceptor_of, leader_of
from fencelock.actors.paxos.event import Adopted, ScoutResend
from fencelock.actors.paxos.leader import REPORTED_MAX, Scout
from fencelock.actors.paxos.wire import NO_OP, Ballot, Batch, Preempted, Prepare, Promise, Vote
from fencelock.actors.timing import TIMING

BALLOT = Ballot(3, leader_of("a"))
OLD, OLDER = Ballot(2, leader_of("b")), Ballot(1, leader_of("c"))
A, B, C = (acceptor_of(node) for node in "abc")
ONE, TWO = Batch(time_ms=1, commands=(b"1",)), Batch(time_ms=2, commands=(b"2",))


def scout_of(members: str = "abc") -> tuple[Scout, Effects]:
    config = config_of(members)
    role = Scout(address_of("a", "scout-3"), HOST, node="a", config=config, ballot=BALLOT, first=1)
    return role, role.begin(T0)


@pytest.fixture
def scout() -> Scout:
    return scout_of()[0]


def promise(*votes: Vote, first: int = 1, asked: int = 1, more: int | None = None) -> Promise:
    return Promise(ballot=BALLOT, asked=asked, first=first, votes=votes, more=more)


def asks(effects: Effects) -> list[Send]:
    return [send for send in sends(effects) if isinstance(send.message, Prepare)]


def adopted(effects: Effects) -> list[Adopted]:
    return sent(effects, Adopted)


def test_it_asks_the_others_first_and_itself_when_that_completes_a_majority() -> None:
    scout, first = scout_of()
    prepare = Prepare(ballot=BALLOT, first=1)

    assert asks(first) == [Send(B, prepare), Send(C, prepare)]
    assert asks(scout.handle(B, promise(), T0)) == [Send(A, prepare)]


def test_alone_it_asks_itself() -> None:
    scout, first = scout_of("a")

    assert asks(first) == [Send(A, Prepare(ballot=BALLOT, first=1))]
    assert adopted(scout.handle(A, promise(), T0))


def test_a_vote_counts_however_far_it_is_above_what_its_acceptor_has_applied() -> None:
    """A crash amid the write of another member's snapshot takes the acceptor far back."""
    scout, _ = scout_of()
    scout.handle(B, promise(first=1_000_000), T0)
    done = scout.handle(A, promise(Vote(5, OLDER, TWO), Vote(1_000_000, OLD, ONE)), T0)

    (found,) = adopted(done)
    assert (found.floor, found.batches) == (1_000_000, (ONE,))


def test_an_acceptor_with_votes_without_end_is_not_counted(scout: Scout) -> None:
    asked, pages = 1, 0
    while True:
        votes = tuple(Vote(slot, OLD, ONE) for slot in range(asked, asked + 1_000))
        page = promise(*votes, asked=asked, more=asked + 1_000, first=asked)
        if not asks(scout.handle(B, page, T0)):
            break
        asked, pages = asked + 1_000, pages + 1
    assert VOTES_MAX <= pages * 1_000 <= REPORTED_MAX
    assert B not in scout.complete
    assert adopted([*scout.handle(C, promise(), T0), *scout.handle(A, promise(), T0)])


@pytest.mark.parametrize(("members", "others"), [("ab", 1), ("abc", 1), ("abcd", 2), ("abcde", 2)])
def test_more_than_half_must_promise(members: str, others: int) -> None:
    scout, _ = scout_of(members)
    for node in members[1 : others + 1]:
        assert not adopted(scout.handle(acceptor_of(node), promise(), T0))

    assert adopted(scout.handle(A, promise(), T0))


def test_a_promise_that_comes_twice_counts_once(scout: Scout) -> None:
    scout.handle(B, promise(), T0)

    again = scout.handle(B, promise(), T0)

    assert again == (Observe("paxos.promise_ignored"),)


def test_each_slot_adopts_the_vote_of_the_highest_ballot_holes_are_filled(scout: Scout) -> None:
    scout.handle(B, promise(Vote(1, OLD, ONE), Vote(3, OLDER, ONE)), T0)

    effects = scout.handle(C, promise(Vote(1, OLDER, TWO), Vote(3, OLD, TWO)), T0)

    assert adopted(effects) == [
        Adopted(ballot=BALLOT, floor=1, source="b", batches=(ONE, NO_OP, TWO))
    ]


def test_slots_that_one_of_the_majority_has_applied_are_not_proposed_again(scout: Scout) -> None:
    scout.handle(B, promise(Vote(1, OLDER, ONE), Vote(2, OLDER, ONE)), T0)

    effects = scout.handle(C, promise(Vote(2, OLD, TWO), first=2), T0)

    assert adopted(effects) == [Adopted(ballot=BALLOT, floor=2, source="c", batches=(TWO,))]


def test_an_acceptor_counts_when_it_has_reported_the_last_page(scout: Scout) -> None:
    page = scout.handle(B, promise(Vote(1, OLD, ONE), more=2), T0)
    scout.handle(C, promise(), T0)

    assert asks(page) == [Send(B, Prepare(ballot=BALLOT, first=2))]
    effects = scout.handle(B, promise(Vote(2, OLD, TWO), asked=2, first=2), T0)
    assert adopted(effects)[0].batches == (ONE, TWO)


def test_slots_that_were_applied_between_two_pages_are_not_proposed_again(scout: Scout) -> None:
    scout.handle(B, promise(Vote(1, OLD, ONE), more=2), T0)
    scout.handle(C, promise(), T0)

    effects = scout.handle(B, promise(Vote(3, OLD, TWO), asked=2, first=3), T0)

    assert adopted(effects) == [Adopted(ballot=BALLOT, floor=3, source="b", batches=(TWO,))]


def test_those_that_have_not_answered_are_asked_again(scout: Scout) -> None:
    scout.handle(B, promise(), T0)

    effects = scout.handle(scout.address, ScoutResend(), T0)

    assert [send.to for send in asks(effects)] == [C, A]
    assert effects[-1] == Wake(TIMING.round_trip_ms, ScoutResend())


def test_nobody_is_asked_again_once_votes_are_adopted(scout: Scout) -> None:
    scout.handle(B, promise(), T0)
    assert adopted(scout.handle(A, promise(), T0))
    assert not scout.handle(scout.address, ScoutResend(), T0)


def test_a_higher_ballot_is_reported_to_the_leader_and_a_strangers_message_is_not(
    scout: Scout,
) -> None:
    higher = Preempted(ballot=Ballot(4, leader_of("b")))

    assert scout.handle(B, higher, T0) == (Send(leader_of("a"), higher),)
    ignored = (Observe("paxos.preemption_ignored"),)
    assert scout.handle(address_of("z", "acceptor"), higher, T0) == ignored
    assert scout.handle(B, Preempted(ballot=OLD), T0) == ignored


@pytest.mark.parametrize(
    "wrong",
    [
        promise(Vote(2, OLD, ONE), Vote(1, OLD, ONE)),
        promise(Vote(1, OLD, ONE), first=2),
        promise(Vote(2, OLD, ONE), more=2),
        promise(Vote(1, BALLOT, ONE)),
    ],
)
def test_a_promise_that_contradicts_itself_is_dropped(scout: Scout, wrong: Promise) -> None:
    assert scout.handle(B, wrong, T0)[0] == Observe("paxos.impossible_promise")
    assert scout.complete == {}


def test_a_promise_of_another_ballot_or_of_a_stranger_is_not_counted(scout: Scout) -> None:
    other = Promise(ballot=OLD, asked=1, first=1, votes=(), more=None)

    assert scout.handle(B, other, T0) == (Observe("paxos.promise_ignored"),)
    stranger = address_of("z", "acceptor")
    assert scout.handle(stranger, promise(), T0) == (Observe("paxos.promise_ignored"),)
