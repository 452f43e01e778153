"""The acceptor: the sizes of votes and reports, and its recovery of earlier lives.

Its promises, votes and leases stand in `transcripts/paxos-acceptor.txt`.
"""

from __future__ import annotations

import pytest
from support.role_harness import HOST, T0, only_sent
from support.table_scene import config_of

from fencelock.actors.effect import Observe, Persist
from fencelock.actors.message import NS_PER_MS, Instant, address_of
from fencelock.actors.paxos import wire as messages
from fencelock.actors.paxos.acceptor import Acceptor
from fencelock.actors.paxos.config import LEADER_LEASE_MS, leader_of, replica_of
from fencelock.actors.paxos.event import Applied
from fencelock.actors.paxos.journal import Recovered, find_impossible, recover
from fencelock.transport.cbor import FRAME_BYTES_MAX
from fencelock.transport.codec import encode

ACCEPTOR = address_of("a", "acceptor")
REPLICA = replica_of("a")
COMMANDER = address_of("b", "commander-1")
OTHER = address_of("c", "scout-2")
LOW, HIGH = messages.Ballot(1, leader_of("b")), messages.Ballot(2, leader_of("c"))
AFTER_LEASE = Instant(LEADER_LEASE_MS * NS_PER_MS)
BATCH = messages.Batch(time_ms=5, commands=(b"one", b"two"))


@pytest.fixture
def acceptor() -> Acceptor:
    role = Acceptor(ACCEPTOR, HOST, node="a", config=config_of(), recovered=Recovered())
    assert role.begin(T0) == ()
    return role


def prepare(first: int = 1) -> messages.Prepare:
    return messages.Prepare(ballot=HIGH, first=first)


def accept(
    slot: int, batch: messages.Batch = BATCH, ballot: messages.Ballot = LOW, committed: int = 1
) -> messages.Accept:
    return messages.Accept(ballot=ballot, slot=slot, batch=batch, committed=committed)


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


def test_a_decision_of_others_is_no_win_of_the_ballot_before(acceptor: Acceptor) -> None:
    acceptor.handle(COMMANDER, accept(1), T0)  # Lost: another batch was decided, elsewhere.
    acceptor.handle(address_of("a", "replica"), Applied(slot=2), T0)

    effects = acceptor.handle(OTHER, prepare(), AFTER_LEASE)

    promised = messages.Pledged(pledge=messages.Pledge.PROMISED, ballot=HIGH)
    assert effects[0] == Persist(promised)
    journal = [accept(1), *(e.record for e in effects if isinstance(e, Persist))]
    assert recover(journal).decided == ()


def page(acceptor: Acceptor, first: int) -> messages.Promise:
    """Return the report of votes from slot ``first`` on."""
    effects = acceptor.handle(OTHER, prepare(first), T0)
    return only_sent(effects, messages.Promise, OTHER)


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


def test_batches_that_no_leader_proposes_are_dropped(acceptor: Acceptor) -> None:
    many = messages.Batch(time_ms=1, commands=(b"",) * (messages.BATCH_COMMANDS_MAX + 1))
    large = messages.Batch(time_ms=1, commands=(b"x" * (16 << 10), b"x" * (16 << 10), b"x"))
    for batch in (many, large):
        effects = acceptor.handle(COMMANDER, accept(1, batch), T0)
        assert effects[0] == Observe("paxos.impossible_batch")
        assert not [effect for effect in effects if isinstance(effect, Persist)]


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
