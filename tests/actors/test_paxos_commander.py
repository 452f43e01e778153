"""The commander: slots, votes, window, resending, and the reports of decisions."""

from __future__ import annotations

import pytest
from support.role_harness import HOST, T0, at, sent
from support.table_scene import config_of

from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import Address, address_of
from fencelock.actors.paxos import wire as messages
from fencelock.actors.paxos.commander import EXPLORE, LATE_SLOT_MS, NEWS_MS, Commander
from fencelock.actors.paxos.config import WINDOW, acceptor_of, leader_of, replica_of
from fencelock.actors.paxos.event import (
    CommanderResend,
    Decided,
    Order,
    SendHeartbeat,
    SpreadDecisions,
)
from fencelock.actors.timing import TIMING

BALLOT = messages.Ballot(3, leader_of("a"))
A, B, C = (acceptor_of(node) for node in "abc")
HERE, REPLICA = address_of("a", "commander-3"), replica_of("a")
ONE = messages.Batch(time_ms=1, commands=(b"1",))
NEWS = Wake(LATE_SLOT_MS, SpreadDecisions())
SOON, LATER = at(LATE_SLOT_MS), at(NEWS_MS)


def commander_of(
    members: str = "abc", first: int = 1, batches: tuple[messages.Batch, ...] = ()
) -> tuple[Commander, Effects]:
    config = config_of(members)
    role = Commander(
        HERE, HOST, node="a", config=config, ballot=BALLOT, first=first, batches=batches
    )
    return role, role.begin(T0)


@pytest.fixture
def commander() -> Commander:
    return commander_of()[0]


def order(role: Commander, slot: int, batch: messages.Batch = ONE) -> Effects:
    return role.handle(REPLICA, Order(slot=slot, batch=batch), T0)


def vote(
    role: Commander, acceptor: Address, slot: int, ballot: messages.Ballot = BALLOT
) -> Effects:
    return role.handle(acceptor, messages.Accepted(ballot=ballot, slot=slot), T0)


def asked(
    slot: int, batch: messages.Batch = ONE, committed: int = 1, to: str = "abc"
) -> list[Effect]:
    accept = messages.Accept(ballot=BALLOT, slot=slot, batch=batch, committed=committed)
    return [Send(acceptor_of(node), accept) for node in to]


def test_an_order_goes_to_every_acceptor_at_once(commander: Commander) -> None:
    assert order(commander, 1) == [*asked(1), Wake(TIMING.reply_ms, CommanderResend())]
    assert order(commander, 2) == asked(2)


def test_votes_that_phase_one_found_are_proposed_first() -> None:
    commander, first = commander_of(first=5, batches=(ONE, messages.NO_OP))

    assert first[:6] == [*asked(5, committed=5), *asked(6, messages.NO_OP, committed=5)]
    assert order(commander, 7) == asked(7, committed=5)


@pytest.mark.parametrize(("members", "needed"), [("a", 1), ("ab", 2), ("abc", 2), ("abcd", 3)])
def test_a_slot_is_decided_by_more_than_half(members: str, needed: int) -> None:
    commander, _ = commander_of(members)
    order(commander, 1)
    for node in members[: needed - 1]:
        assert vote(commander, acceptor_of(node), 1) == ()

    decided = vote(commander, acceptor_of(members[needed - 1]), 1)

    assert decided == [Send(REPLICA, Decided(slot=1, batch=ONE)), NEWS]
    assert commander.committed == 2


def test_each_acceptor_counts_once_strangers_and_other_ballots_never(commander: Commander) -> None:
    order(commander, 1)
    vote(commander, B, 1)

    assert vote(commander, B, 1) == ()
    assert vote(commander, C, 1, messages.Ballot(2, leader_of("a"))) == ()
    stranger = address_of("z", "acceptor")
    assert vote(commander, stranger, 1) == (Observe("paxos.stranger_votes"),)
    assert vote(commander, A, 2) == ()
    assert commander.committed == 1


def test_slots_decided_out_of_order_are_committed_without_a_gap(commander: Commander) -> None:
    for slot in (1, 2):
        order(commander, slot)
    for acceptor in (A, B):
        vote(commander, acceptor, 2)
    assert commander.committed == 1

    for acceptor in (A, B):
        vote(commander, acceptor, 1)

    assert commander.committed == 3
    assert order(commander, 3) == asked(3, committed=3, to="ab")


def test_at_most_a_window_is_undecided_and_the_rest_follows() -> None:
    commander, first = commander_of(batches=(ONE,) * (WINDOW + 1))

    slots = {accept.slot for accept in sent(first, messages.Accept)}
    assert slots == set(range(1, WINDOW + 1))
    vote(commander, A, 1)
    assert vote(commander, B, 1)[1:3] == asked(WINDOW + 1, committed=2, to="ab")


def decide(role: Commander, slot: int, voters: tuple[Address, ...] = (A, B)) -> Effects:
    order(role, slot)
    return [effect for voter in voters for effect in vote(role, voter, slot)]


def test_followers_learn_of_the_last_decision_when_nothing_follows(commander: Commander) -> None:
    assert decide(commander, 1)[-1] == NEWS
    effects = commander.handle(HERE, SpreadDecisions(), T0)

    commit = messages.Commit(ballot=BALLOT, committed=2)
    assert effects == [Send(B, commit), Send(C, commit)]
    assert commander.handle(HERE, SpreadDecisions(), SOON) == (NEWS,)
    assert commander.handle(HERE, SpreadDecisions(), LATER) == []


def test_a_proposal_that_follows_soon_carries_what_is_decided(commander: Commander) -> None:
    decide(commander, 1)
    assert order(commander, 2) == asked(2, committed=2, to="ab")

    assert commander.handle(HERE, SpreadDecisions(), T0) == asked(2, committed=2, to="c")


def test_those_who_decided_are_asked_at_once_others_notified_together(commander: Commander) -> None:
    decide(commander, 1, (A, C))
    assert asked(2, committed=2, to="ac") == order(commander, 2)[:2]
    for voter in (C, A):
        vote(commander, voter, 2)
    decide(commander, 3, (A, C))

    effects = commander.handle(HERE, SpreadDecisions(), T0)

    late = [*asked(2, committed=3, to="b"), *asked(3, committed=4, to="b")]
    commit = messages.Commit(ballot=BALLOT, committed=4)
    assert effects == [*late, Send(C, commit)]  # The last proposal carried the same to B.


def test_a_silent_acceptor_leaves_the_quorum_once_the_spared_decided(commander: Commander) -> None:
    decide(commander, 1, (A, B))
    order(commander, 2)
    vote(commander, A, 2)
    commander.handle(HERE, SpreadDecisions(), T0)
    vote(commander, C, 2)

    assert order(commander, 3)[:2] == asked(3, committed=3, to="ac")


def test_news_is_sent_once_an_interval_under_load(commander: Commander) -> None:
    decide(commander, 1)
    commander.handle(HERE, SpreadDecisions(), T0)
    decide(commander, 2)

    assert commander.handle(HERE, SpreadDecisions(), SOON) == (NEWS,)
    assert [*asked(2, committed=3, to="c")] == commander.handle(HERE, SpreadDecisions(), LATER)[:1]


def test_the_spared_are_asked_soon_about_a_slot_that_stays_undecided(commander: Commander) -> None:
    decide(commander, 1)
    commander.handle(HERE, SpreadDecisions(), T0)
    order(commander, 2)
    decide(commander, 3)

    assert commander.handle(HERE, SpreadDecisions(), SOON)[:1] == asked(2, committed=2, to="c")


def test_everybody_is_asked_now_and_then_to_find_the_quickest() -> None:
    commander, _ = commander_of(first=EXPLORE - 2)
    decide(commander, EXPLORE - 2)
    decide(commander, EXPLORE - 1)

    assert order(commander, EXPLORE) == asked(EXPLORE, committed=EXPLORE)


def test_the_spared_are_asked_before_a_heartbeat_reaches_them(commander: Commander) -> None:
    decide(commander, 1)
    decide(commander, 2)

    effects = commander.handle(address_of("a", "monitor"), pulse(4), T0)

    assert effects[0] == asked(2, committed=3, to="c")[0]
    assert len(effects) == 4


def test_both_members_of_a_group_of_two_are_needed_and_asked() -> None:
    commander, _ = commander_of("ab")
    decide(commander, 1)

    assert order(commander, 2) == asked(2, committed=2, to="ab")


def test_votes_that_do_not_come_are_asked_for_again(commander: Commander) -> None:
    order(commander, 1)
    vote(commander, B, 1)
    resend = CommanderResend()
    again = Wake(TIMING.reply_ms, resend)

    assert commander.handle(HERE, resend, T0) == [again]
    late = commander.handle(HERE, resend, T0)

    assert late == [*asked(1, to="ac"), Observe("paxos.accept_resent"), again]
    vote(commander, A, 1)
    assert commander.handle(HERE, resend, T0) == []


def pulse(number: int) -> SendHeartbeat:
    return SendHeartbeat(number=number, min_applied=1, acked=(3, 2, 0), confirmed=2, view=0)


def test_a_heartbeat_reports_to_all_what_is_decided(commander: Commander) -> None:
    effects = commander.handle(address_of("a", "monitor"), pulse(4), T0)

    beat = messages.Heartbeat(ballot=BALLOT, number=4, committed=1, min_applied=1, confirmed=2)
    assert effects == [Send(A, beat), Send(B, beat), Send(C, beat)]


def test_a_heartbeat_proves_nothing_until_the_first_slot_of_the_leadership_is_decided() -> None:
    role, _ = commander_of(batches=(ONE,))
    monitor = address_of("a", "monitor")
    order(role, 2)
    for acceptor in (A, B):
        vote(role, acceptor, 1)
    early = role.handle(monitor, pulse(4), T0)
    for acceptor in (A, B):
        vote(role, acceptor, 2)
    late = role.handle(monitor, pulse(5), T0)

    beats = sent((early[0], late[0]), messages.Heartbeat)
    assert [beat.acked for beat in beats] == [(), (3, 2, 0)]


def test_a_higher_ballot_is_reported_to_the_leader(commander: Commander) -> None:
    higher = messages.Preempted(ballot=messages.Ballot(4, leader_of("b")))

    assert commander.handle(B, higher, T0) == (Send(leader_of("a"), higher),)
    lower = messages.Preempted(ballot=messages.Ballot(1, leader_of("b")))
    assert commander.handle(B, lower, T0) == (Observe("paxos.preemption_ignored"),)
