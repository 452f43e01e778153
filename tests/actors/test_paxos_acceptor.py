"""The acceptor: its promises, votes and records, and its recovery of earlier lives."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.role_harness import HOST, T0, only_sent, sent
from support.table_scene import config_of

from fencelock.actors.bootstrap_message import StartVoting
from fencelock.actors.effect import Effect, Effects, Observe, Persist, Send
from fencelock.actors.message import NS_PER_MS, Address, Instant, address_of
from fencelock.actors.paxos import wire as messages
from fencelock.actors.paxos.acceptor import VERSION_HEARTBEATS, Acceptor
from fencelock.actors.paxos.config import LEADER_LEASE_MS, WINDOW, leader_of, replica_of
from fencelock.actors.paxos.event import Applied, BallotSeen, Learned
from fencelock.actors.paxos.journal import Recovered, find_impossible, recover
from fencelock.actors.table.wire import LOG_VERSION
from fencelock.transport.cbor import FRAME_BYTES_MAX
from fencelock.transport.codec import encode

CONFIG = config_of()
ACCEPTOR = address_of("a", "acceptor")
REPLICA = replica_of("a")
SCOUT, COMMANDER = address_of("b", "scout-1"), address_of("b", "commander-1")
OTHER = address_of("c", "scout-2")
LOW, HIGH = messages.Ballot(1, leader_of("b")), messages.Ballot(2, leader_of("c"))
AFTER_LEASE = Instant(LEADER_LEASE_MS * NS_PER_MS)
BATCH = messages.Batch(time_ms=5, commands=(b"one", b"two"))


@pytest.fixture
def acceptor() -> Acceptor:
    return made(Recovered())


def made(recovered: Recovered) -> Acceptor:
    role = Acceptor(ACCEPTOR, HOST, node="a", config=CONFIG, recovered=recovered)
    assert role.begin(T0) == ()
    return role


def prepare(ballot: messages.Ballot, first: int = 1) -> messages.Prepare:
    return messages.Prepare(ballot=ballot, first=first)


def accept(
    slot: int, batch: messages.Batch = BATCH, ballot: messages.Ballot = LOW, committed: int = 1
) -> messages.Accept:
    return messages.Accept(ballot=ballot, slot=slot, batch=batch, committed=committed)


def beat(number: int = 1) -> messages.Heartbeat:
    return messages.Heartbeat(ballot=LOW, number=number, committed=1, min_applied=0)


def promise(
    ballot: messages.Ballot, *votes: messages.Vote, asked: int = 1, first: int = 1
) -> messages.Promise:
    return messages.Promise(ballot=ballot, asked=asked, first=first, votes=votes, more=None)


def promised(ballot: messages.Ballot) -> Persist:
    return Persist(messages.Pledged(pledge=messages.Pledge.PROMISED, ballot=ballot))


def words(effects: Effects) -> list[Effect]:
    return [e for e in effects if not isinstance(e, Send) or not isinstance(e.message, BallotSeen)]


def test_a_promise_is_written_and_then_sent(acceptor: Acceptor) -> None:
    effects = acceptor.handle(SCOUT, prepare(LOW), T0)

    assert words(effects) == [promised(LOW), Send(SCOUT, promise(LOW))]


def test_votes_after_a_snapshot_that_the_journal_has_not_yet_are_possible() -> None:
    config = config_of()
    acceptor = Acceptor(ACCEPTOR, HOST, node="a", config=config, recovered=Recovered())
    effects = [*acceptor.handle(COMMANDER, accept(5), T0)]
    far = 1 << 20
    config.applied, config.time_ms = far, 5  # The replica restores a snapshot.
    effects += acceptor.handle(REPLICA, Applied(slot=far), T0)
    for slot in range(far, far + 3):
        effects += acceptor.handle(COMMANDER, accept(slot, committed=slot), T0)

    written = [effect.record for effect in effects if isinstance(effect, Persist)]
    assert find_impossible(written) == []
    assert recover(written).next == 1
    applied = messages.Ballot(far, ACCEPTOR)
    assert written.count(messages.Pledged(pledge=messages.Pledge.APPLIED, ballot=applied)) == 1


def test_a_repeated_question_is_answered_without_writing_again(acceptor: Acceptor) -> None:
    acceptor.handle(SCOUT, prepare(LOW), T0)

    again = acceptor.handle(SCOUT, prepare(LOW), T0)

    assert again == (Send(SCOUT, promise(LOW)),)


def test_a_lower_ballot_is_notified_of_the_higher_one(acceptor: Acceptor) -> None:
    acceptor.handle(OTHER, prepare(HIGH), T0)
    no = (Send(SCOUT, messages.Preempted(ballot=HIGH)),)

    assert acceptor.handle(SCOUT, prepare(LOW), T0) == no
    assert acceptor.handle(SCOUT, accept(1), T0) == no
    assert acceptor.handle(SCOUT, beat(), T0) == no
    assert acceptor.votes.by_slot == {}


def test_an_acceptor_writes_nothing_below_its_promise_before_it_knows_that_it_votes() -> None:
    """After a restart it may not know the view that counts it yet. Its vote must still stand."""
    vote = messages.Vote(3, HIGH, BATCH)
    recovered = Recovered(promised=HIGH, votes={3: vote})
    acceptor = Acceptor(ACCEPTOR, HOST, node="a", config=CONFIG, recovered=recovered, votes=False)

    assert acceptor.handle(COMMANDER, accept(3), T0) == []

    acceptor.handle(ACCEPTOR, StartVoting(), T0)
    assert acceptor.votes.at(3) == vote


def test_a_vote_is_written_then_sent_and_reported_to_the_next_leader(acceptor: Acceptor) -> None:
    acceptor.handle(SCOUT, prepare(LOW), T0)

    effects = acceptor.handle(COMMANDER, accept(3), T0)

    assert effects == [Persist(accept(3)), Send(COMMANDER, messages.Accepted(ballot=LOW, slot=3))]
    later = acceptor.handle(OTHER, prepare(HIGH), T0)
    reported = promise(HIGH, messages.Vote(3, LOW, BATCH))
    assert words(later) == [promised(HIGH), Send(OTHER, reported)]


def test_a_repeated_vote_is_not_written_again_and_never_changed(acceptor: Acceptor) -> None:
    acceptor.handle(COMMANDER, accept(1), T0)

    again = acceptor.handle(COMMANDER, accept(1), T0)
    changed = acceptor.handle(COMMANDER, accept(1, messages.NO_OP), T0)

    assert again == (Send(COMMANDER, messages.Accepted(ballot=LOW, slot=1)),)
    assert changed == (Observe("paxos.two_batches_of_one_ballot"),)
    assert acceptor.votes.by_slot[1].batch == BATCH


def test_a_vote_under_a_ballot_never_promised_promises_it(acceptor: Acceptor) -> None:
    effects = acceptor.handle(COMMANDER, accept(1), T0)

    assert effects[:2] == [promised(LOW), Persist(accept(1))]
    assert acceptor.promised == LOW


def test_applied_slots_are_left_out_of_a_promise_naming_the_next(acceptor: Acceptor) -> None:
    for slot in (1, 2, 3):
        acceptor.handle(COMMANDER, accept(slot, committed=slot), T0)
    acceptor.handle(address_of("a", "replica"), Applied(slot=3), T0)

    effects = acceptor.handle(OTHER, prepare(HIGH, 2), T0)

    assert words(effects) == [
        Persist(messages.Commit(ballot=LOW, committed=3)),
        promised(HIGH),
        Send(OTHER, promise(HIGH, messages.Vote(3, LOW, BATCH), asked=2, first=3)),
    ]


def test_a_decision_of_others_is_no_win_of_the_ballot_before(acceptor: Acceptor) -> None:
    acceptor.handle(COMMANDER, accept(1), T0)  # Lost: another batch was decided, elsewhere.
    acceptor.handle(address_of("a", "replica"), Applied(slot=2), T0)

    effects = acceptor.handle(OTHER, prepare(HIGH), AFTER_LEASE)

    assert words(effects)[0] == promised(HIGH)
    journal = [accept(1), *(e.record for e in effects if isinstance(e, Persist))]
    assert recover(journal).decided == ()


def page(acceptor: Acceptor, first: int) -> messages.Promise:
    """Return the report of votes from slot ``first`` on."""
    effects = acceptor.handle(OTHER, prepare(HIGH, first), T0)
    return only_sent(effects, messages.Promise, OTHER)


def test_a_long_report_comes_in_pages(acceptor: Acceptor) -> None:
    for slot in range(1, messages.PAGE + 3):
        acceptor.handle(COMMANDER, accept(slot, messages.NO_OP, committed=3), T0)

    first, second = page(acceptor, 1), page(acceptor, messages.PAGE + 1)

    assert [vote.slot for vote in first.votes] == list(range(1, messages.PAGE + 1))
    assert first.more == messages.PAGE + 1
    assert [vote.slot for vote in second.votes] == [messages.PAGE + 1, messages.PAGE + 2]
    assert second.more is None


def test_a_report_of_large_slots_has_shorter_pages(acceptor: Acceptor) -> None:
    large = messages.Batch(time_ms=1, commands=(b"x" * messages.COMMAND_BYTES_MAX,))
    for slot in range(1, messages.PAGE + 1):
        acceptor.handle(COMMANDER, accept(slot, large), T0)
    asked, seen = 1, list[int]()
    while asked:
        promise = page(acceptor, asked)
        assert len(encode(promise)) < FRAME_BYTES_MAX - (64 << 10)
        seen += [vote.slot for vote in promise.votes]
        asked = promise.more or 0
    assert seen == list(range(1, messages.PAGE + 1))


@pytest.mark.parametrize(
    ("sizes", "votes"),
    [
        ([messages.COMMAND_BYTES_MAX], 1),
        ([messages.COMMAND_BYTES_MAX + 1], 0),
        ([messages.BATCH_BYTES_MAX, 1], 0),
        ([messages.BATCH_BYTES_MAX - 1, 1], 1),
    ],
)
def test_a_slot_has_one_large_command_or_several_small_ones(
    acceptor: Acceptor, sizes: list[int], votes: int
) -> None:
    batch = messages.Batch(time_ms=1, commands=tuple(b"x" * size for size in sizes))
    effects = acceptor.handle(COMMANDER, accept(1, batch), T0)
    assert effects.count(Persist(accept(1, batch))) == votes
    assert (Observe("paxos.impossible_batch") in effects) is not bool(votes)


def test_no_other_leader_is_promised_while_the_lease_lasts(acceptor: Acceptor) -> None:
    acceptor.handle(COMMANDER, beat(), T0)

    just_before = Instant(AFTER_LEASE - 1)
    kept = acceptor.handle(OTHER, prepare(HIGH), just_before)
    own = acceptor.handle(SCOUT, prepare(messages.Ballot(2, LOW.leader)), just_before)
    over = acceptor.handle(OTHER, prepare(HIGH), AFTER_LEASE)

    assert kept == (Observe("paxos.lease_kept"),)
    assert own[0] == promised(messages.Ballot(2, LOW.leader))
    assert over[0] == promised(HIGH)


def test_a_heartbeat_is_answered_once_its_ballot_is_durable(acceptor: Acceptor) -> None:
    effects = acceptor.handle(COMMANDER, beat(7), T0)

    ack = messages.HeartbeatAck(
        ballot=LOW, number=7, applied=1, view=0, log_version=LOG_VERSION, stored=1
    )
    assert words(effects) == [promised(LOW), Send(address_of("b", "monitor"), ack)]


def test_some_heartbeats_are_answered_with_the_version() -> None:
    role = Acceptor(ACCEPTOR, HOST, node="a", config=CONFIG, recovered=Recovered(), version="1.2")

    numbers = range(1, 2 * VERSION_HEARTBEATS + 1)
    effects = [one for number in numbers for one in role.handle(COMMANDER, beat(number), T0)]
    with_version = [
        ack.number for ack in sent(effects, messages.HeartbeatAck) if ack.version == "1.2"
    ]
    assert with_version == [VERSION_HEARTBEATS, 2 * VERSION_HEARTBEATS]


def test_a_restarted_acceptor_keeps_the_lease_it_may_have_given() -> None:
    role = made(Recovered(promised=LOW))

    assert role.handle(OTHER, prepare(HIGH), T0) == (Observe("paxos.lease_kept"),)
    assert role.handle(OTHER, prepare(HIGH), AFTER_LEASE)[0] == promised(HIGH)


def test_only_its_own_leader_on_a_member_sends_for_a_ballot(acceptor: Acceptor) -> None:
    stranger = (Observe("paxos.stranger_leads"),)
    forged = prepare(HIGH)
    outside = messages.Ballot(1, leader_of("z"))

    assert acceptor.handle(SCOUT, forged, T0) == stranger
    assert acceptor.handle(address_of("z", "x"), prepare(outside), T0) == stranger
    assert acceptor.handle(SCOUT, prepare(messages.Ballot(0, LOW.leader)), T0) == stranger
    assert acceptor.promised == messages.NO_BALLOT


def test_impossible_messages_of_a_leader_are_dropped(acceptor: Acceptor) -> None:
    many = messages.Batch(time_ms=1, commands=(b"",) * (messages.BATCH_COMMANDS_MAX + 1))
    large = messages.Batch(time_ms=1, commands=(b"x" * (16 << 10), b"x" * (16 << 10), b"x"))
    reasons = {
        "paxos.impossible_slot": [accept(0), accept(1 + WINDOW)],
        "paxos.impossible_batch": [
            accept(1, many),
            accept(1, large),
            accept(1, replace(BATCH, time_ms=-1)),
        ],
    }

    for counter, wrong in reasons.items():
        for one in wrong:
            effects = acceptor.handle(COMMANDER, one, T0)
            assert effects[0] == Observe(counter)
            assert not [effect for effect in effects if isinstance(effect, Persist)]


def test_a_leader_may_say_that_nothing_is_decided_yet(acceptor: Acceptor) -> None:
    assert acceptor.handle(COMMANDER, messages.Commit(ballot=LOW, committed=0), T0) == ()


def test_the_replica_learns_which_votes_have_won(acceptor: Acceptor) -> None:
    acceptor.handle(COMMANDER, accept(1), T0)
    acceptor.handle(COMMANDER, accept(3), T0)

    commit = acceptor.handle(COMMANDER, messages.Commit(ballot=LOW, committed=3), T0)
    late = acceptor.handle(COMMANDER, accept(2, messages.NO_OP), T0)

    replica = address_of("a", "replica")
    assert commit == (Send(replica, Learned(slots=((1, BATCH),), committed=3)),)
    assert late[-1] == Send(replica, Learned(slots=((2, messages.NO_OP),), committed=3))


def test_a_vote_of_another_ballot_is_not_taken_for_the_winner(acceptor: Acceptor) -> None:
    acceptor.handle(COMMANDER, accept(1), T0)
    commander = Address("c/commander-2")

    effects = acceptor.handle(commander, messages.Commit(ballot=HIGH, committed=2), T0)

    assert effects == (Send(address_of("a", "replica"), Learned(slots=(), committed=2)),)


def test_the_journal_gives_back_promise_votes_round_and_what_had_won() -> None:
    records = (
        messages.Pledged(pledge=messages.Pledge.LED, ballot=messages.Ballot(4, leader_of("a"))),
        messages.Pledged(pledge=messages.Pledge.PROMISED, ballot=LOW),
        accept(1),
        accept(2, messages.NO_OP),
        accept(4, committed=3),
        messages.Pledged(pledge=messages.Pledge.PROMISED, ballot=HIGH),
        messages.Slots(first=6, batches=(messages.NO_OP,)),
    )

    assert recover(records) == Recovered(
        promised=HIGH,
        led=4,
        votes={4: messages.Vote(4, LOW, BATCH)},
        decided=(BATCH, messages.NO_OP),
        later={6: messages.NO_OP},
    )


def test_the_journal_of_another_leaders_commit_proves_nothing_of_older_votes() -> None:
    records = (accept(1), accept(2, ballot=HIGH, committed=2))

    assert recover(records).decided == ()
    assert list(recover(records).votes) == [1, 2]
