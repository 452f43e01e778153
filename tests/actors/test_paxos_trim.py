"""A journal that stays small: snapshots, the slots that they replace, and crashes around them."""

from __future__ import annotations

from pathlib import Path

from growth import grow
from support.effects import HOST, T0
from support.log_workload import LogCounter
from support.replicas import CONFIG, LISTENER, replica_of_a

from fencelock.actors.effect import Checkpoint, Effects, Observe, Persist, Send, Wake
from fencelock.actors.message import Address, address_of
from fencelock.actors.paxos import event as events
from fencelock.actors.paxos import message as messages
from fencelock.actors.paxos.acceptor import STREAM_BYTES, Acceptor
from fencelock.actors.paxos.config import acceptor_of, catchup_of, replica_of
from fencelock.actors.paxos.journal import Base, Recovered, recover
from fencelock.actors.paxos.log import DecidedSlots
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.paxos.snapshots import (
    PART_PAUSE_MS,
    SNAPSHOT_KEPT_MS,
    CatchUp,
    Snapshots,
    records_of,
)
from fencelock.cluster.storage.record import RECORD_BYTES_MAX
from fencelock.transport.codec import encode

LOW = messages.Ballot(1, address_of("b", "leader"))
COMMANDER = address_of("b", "commander-1")
ACCEPTOR, CATCHUP, REPLICA = acceptor_of("a"), catchup_of("a"), replica_of("a")


def batch(number: int) -> messages.Batch:
    return messages.Batch(time_ms=number, commands=(b"%d" % number,))


def learn(replica: Replica, first: int, count: int) -> Effects:
    slots = tuple((slot, batch(slot)) for slot in range(first, first + count))
    return replica.handle(ACCEPTOR, events.Learned(slots=slots, committed=first + count), T0)


def develop(replica: Replica) -> list[object]:
    """Let the snapshot under way be finished; return the effects that follow."""
    for _ in range(20):
        effects = replica.handle(REPLICA, events.WriteChunk(), T0)
        if effects != (Wake(PART_PAUSE_MS, events.WriteChunk()),):
            return list(effects)
    raise AssertionError("the snapshot is never finished")


def tally_of(count: int) -> LogCounter:
    tally = LogCounter()
    for slot in range(1, count + 1):
        tally.apply(slot, batch(slot).commands)
    return tally


def chunks_of(tally: LogCounter) -> tuple[bytes, ...]:
    return tuple(part for part in tally.snapshot() if part is not None)


def test_when_enough_was_applied_the_state_is_written_as_a_snapshot_step_by_step() -> None:
    replica = replica_of_a(journal_bytes=10 * batch(1).size)
    assert Wake(PART_PAUSE_MS, events.WriteChunk()) not in learn(replica, 1, 9)
    assert Wake(PART_PAUSE_MS, events.WriteChunk()) in learn(replica, 10, 1)
    learn(replica, 11, 2)  # What comes meanwhile is not in the snapshot, but behind it.

    effects = develop(replica)

    chunks = chunks_of(tally_of(10))
    assert effects[0] == Send(
        CATCHUP, events.SnapshotTaken(receivers=(), slot=11, time_ms=10, chunks=chunks)
    )
    written = effects[1]
    assert isinstance(written, Checkpoint)
    assert written.records[-1] == messages.Slots(first=11, batches=(batch(11), batch(12)))
    trimmed = events.Trimmed(slot=13)
    assert effects[2:4] == [Send(ACCEPTOR, trimmed), Send(CATCHUP, trimmed)]
    base = Base(11, 10, chunks)
    assert recover(written.records) == Recovered(base=base, decided=(batch(11), batch(12)))


def test_a_restart_goes_on_from_the_snapshot() -> None:
    recovered = Recovered(
        base=Base(11, 10, chunks_of(tally_of(10))),
        decided=(batch(11),),
        later={14: batch(14)},
    )
    replica = replica_of_a(recovered=recovered, journal_bytes=1_000)
    replica.begin(T0)

    assert replica.log.next == 12
    assert replica.log.machine.digest() == tally_of(11).digest()
    learn(replica, 12, 2)
    assert replica.log.next == 15


def test_a_journal_cut_in_one_stream_and_not_yet_in_the_other_is_read_right() -> None:
    chunks = chunks_of(tally_of(3))
    cut = [
        messages.SnapshotChunk(slot=4, time_ms=3, chunk=index, count=len(chunks), content=chunk)
        for index, chunk in enumerate(chunks)
    ]
    votes = [
        messages.Accept(ballot=LOW, slot=slot, batch=batch(slot), committed=slot)
        for slot in range(1, 7)
    ]

    recovered = recover([*votes, *cut])

    assert recovered.base == Base(4, 3, chunks)
    assert recovered.decided == (batch(4), batch(5))
    assert recovered.votes == {6: messages.Vote(6, LOW, batch(6))}


def acceptor_of_a() -> Acceptor:
    return Acceptor(ACCEPTOR, HOST, node="a", config=CONFIG, recovered=Recovered())


def test_the_acceptor_writes_anew_its_promise_and_the_votes_that_still_count() -> None:
    role = acceptor_of_a()
    for slot in range(1, 5):
        role.handle(
            COMMANDER, messages.Accept(ballot=LOW, slot=slot, batch=messages.NO_OP, committed=1), T0
        )
    role.handle(REPLICA, events.Applied(slot=4), T0)

    effects = role.handle(REPLICA, events.Trimmed(slot=4), T0)

    vote = messages.Accept(ballot=LOW, slot=4, batch=messages.NO_OP, committed=4)
    assert effects == (
        Checkpoint((vote, messages.Pledged(pledge=messages.Pledge.PROMISED, ballot=LOW))),
    )
    again = recover([vote, messages.Pledged(pledge=messages.Pledge.PROMISED, ballot=LOW)])
    assert (again.promised, list(again.votes)) == (LOW, [4])


def test_an_acceptor_that_writes_much_although_nothing_is_decided_says_so() -> None:
    role = acceptor_of_a()
    large = messages.Batch(time_ms=1, commands=(b"x" * (16 << 10),) * 2)
    said: list[object] = []
    for number in range(1, STREAM_BYTES // large.size + 2):
        ballot = messages.Ballot(number, LOW.leader)
        word = messages.Accept(ballot=ballot, slot=1, batch=large, committed=1)
        said += [e for e in role.handle(COMMANDER, word, T0) if isinstance(e, Send)]

    assert said.count(Send(REPLICA, events.LogFull())) == 1


def test_a_snapshot_is_made_when_the_acceptor_needs_it() -> None:
    replica = replica_of_a(journal_bytes=1 << 20)
    learn(replica, 1, 2)

    assert Wake(PART_PAUSE_MS, events.WriteChunk()) in replica.handle(
        ACCEPTOR, events.LogFull(), T0
    )


def test_a_state_taken_over_is_written_and_its_listener_is_told() -> None:
    replica = replica_of_a(journal_bytes=1_000)
    chunks = chunks_of(tally_of(10))

    effects = list(replica.handle(CATCHUP, events.Restore(slot=11, time_ms=10, chunks=chunks), T0))

    assert replica.log.machine.digest() == tally_of(10).digest()
    assert Send(ACCEPTOR, events.Applied(slot=11)) in effects
    records = next(e.records for e in effects if isinstance(e, Checkpoint))
    assert recover(records).base == Base(11, 10, chunks)
    assert Send(LISTENER, events.Skipped(slot=11)) in effects


def test_what_is_no_state_is_not_taken_over() -> None:
    replica = replica_of_a(journal_bytes=1_000)
    unusable = (Observe("paxos.snapshot_unusable"),)

    assert (
        replica.handle(CATCHUP, events.Restore(slot=9, time_ms=1, chunks=(b"?",)), T0) == unusable
    )
    assert replica.log.next == 1


def test_a_node_without_a_journal_takes_snapshots_only_for_others() -> None:
    replica = replica_of_a(journal_bytes=0)
    learn(replica, 1, 50)

    assert not replica.log.snapshots.under_way


def test_followers_are_staggered_and_a_master_waits_longest() -> None:
    plans = [Snapshots(8_000, place, 3) for place in range(3)]
    for plan in plans:
        plan.grown = 9_000

    assert [plan.is_due(leading=False) for plan in plans] == [True, True, False]
    assert [plan.is_due(leading=True) for plan in plans] == [False, False, False]


def test_a_large_state_has_snapshots_less_often() -> None:
    plan = Snapshots(1_000, 0, 1)
    plan.replace(9, (b"x" * 5_000,))
    plan.grown = 9_999
    assert not plan.is_due(leading=False)
    plan.grown = 10_000
    assert plan.is_due(leading=False)


def catchup_of_a() -> CatchUp:
    return CatchUp(CATCHUP, HOST, node="a", config=CONFIG)


def test_fetched_slots_are_forgotten_only_when_all_are_covered() -> None:
    role = catchup_of_a()
    role.handle(REPLICA, events.Lacking(first=1, target=9, source="b"), T0)
    slots = messages.Slots(first=1, batches=(messages.NO_OP,) * 8)
    assert Persist(slots) in role.handle(catchup_of("b"), slots, T0)

    assert role.handle(REPLICA, events.Trimmed(slot=8), T0) == ()
    assert role.handle(REPLICA, events.Trimmed(slot=9), T0) == (Checkpoint(()),)
    assert role.handle(REPLICA, events.Trimmed(slot=9), T0) == ()


def test_a_snapshot_is_sent_to_later_members_and_expires() -> None:
    role, asker = catchup_of_a(), catchup_of("b")
    shot = events.SnapshotTaken(receivers=(asker,), slot=5, time_ms=4, chunks=(b"1", b"2"))
    first = messages.SnapshotChunk(slot=5, time_ms=4, chunk=0, count=2, content=b"1")
    given = role.handle(REPLICA, shot, T0)
    assert given == [Send(asker, first), Wake(SNAPSHOT_KEPT_MS, events.ExpireSnapshot(use=1))]
    other = catchup_of("c")
    assert role.handle(REPLICA, events.ResendChunk(receiver=other), T0) == (Send(other, first),)

    assert role.handle(CATCHUP, events.ExpireSnapshot(use=1), T0) == [
        Wake(SNAPSHOT_KEPT_MS, events.ExpireSnapshot(use=2))
    ]
    assert role.handle(CATCHUP, events.ExpireSnapshot(use=2), T0) == ()
    assert role.handle(other, messages.Fetch(first=1, slot=5, chunk=1), T0) == ()


def test_a_replica_gives_slots_an_old_snapshot_or_a_new_one() -> None:
    asker: Address = catchup_of("b")
    replica = replica_of_a(journal_bytes=1 << 20)
    learn(replica, 1, messages.PAGE + 4)
    excerpt = events.FetchSlots(receiver=asker, first=1, slot=0)
    page = replica.handle(CATCHUP, excerpt, T0)
    assert page == (
        Send(
            asker, messages.Slots(first=1, batches=tuple(map(batch, range(1, messages.PAGE + 1))))
        ),
    )
    replica.log.decided.trim(10)

    assert Wake(PART_PAUSE_MS, events.WriteChunk()) in replica.handle(CATCHUP, excerpt, T0)
    shot = develop(replica)[0]
    assert isinstance(shot, Send)
    assert isinstance(shot.message, events.SnapshotTaken)
    assert shot.message.receivers == (asker,)
    again = events.FetchSlots(receiver=asker, first=1, slot=messages.PAGE + 5)
    assert replica.handle(CATCHUP, again, T0) == (
        Send(CATCHUP, events.ResendChunk(receiver=asker)),
    )


def test_large_slots_are_fetched_and_written_in_shorter_pages() -> None:
    large = messages.Batch(time_ms=1, commands=(b"x" * messages.COMMAND_BYTES_MAX,))
    decided, count = DecidedSlots(log_max=100), 2 * messages.PAGE
    for slot in range(1, count + 1):
        decided.take(slot, large)
        decided.advance()
    asked = 1
    while page := decided.page(asked):
        assert len(encode(messages.Slots(first=asked, batches=page))) < RECORD_BYTES_MAX
        asked += len(page)
    assert asked == count + 1
    records = records_of(1, 1, (), (large,) * count)
    pages = [record for record in records if isinstance(record, messages.Slots)]
    assert all(len(encode(page)) < RECORD_BYTES_MAX for page in pages)
    assert [
        slot for page in pages for slot in range(page.first, page.first + len(page.batches))
    ] == [*range(1, count + 1)]


def test_the_journal_of_real_members_stays_small_and_is_read_fast(tmp_path: Path) -> None:
    journal_bytes = 100_000
    growth = grow(10_000, journal_bytes, tmp_path, kept=50)

    assert growth.bytes_max < 8 * journal_bytes
    assert growth.restart_s < 3
