"""Trimmed logs, and members that catch up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from growth import measure
from msgspec.structs import replace
from support.expect import present
from support.log_workload import LogCounter
from support.role_harness import HOST, T0, at, sends, sent
from support.table_scene import CONFIG, LISTENER, config_of, finish_snapshot, replica_of_a

from fencelock.actors.effect import (
    Checkpoint,
    CheckpointEnd,
    CheckpointPart,
    Effects,
    Observe,
    Persist,
    Send,
    Wake,
)
from fencelock.actors.message import Address, Instant, address_of, node_of
from fencelock.actors.paxos import event as events
from fencelock.actors.paxos import wire as messages
from fencelock.actors.paxos.acceptor import STREAM_BYTES, Acceptor
from fencelock.actors.paxos.config import acceptor_of, catchup_of, log_part, monitor_of, replica_of
from fencelock.actors.paxos.journal import Base, Recovered, recover
from fencelock.actors.paxos.log import DecidedSlots
from fencelock.actors.paxos.machine import Part
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.paxos.snapshots import (
    DIVIDE_PAUSE_MS,
    MAKING_MS,
    PROGRESS_MS,
    SILENT_SOURCE_MS,
    SNAPSHOT_KEPT_MS,
    CatchUp,
    Snapshots,
    pages_of,
    records_of,
)
from fencelock.actors.role_message import RoleNotice
from fencelock.cluster.node.storage.record import RECORD_BYTES_MAX
from fencelock.transport.codec import encode

LOW = messages.Ballot(1, address_of("b", "leader"))
COMMANDER = address_of("b", "commander-1")
ACCEPTOR, CATCHUP, REPLICA = acceptor_of("a"), catchup_of("a"), replica_of("a")


def batch(number: int) -> messages.Batch:
    return messages.Batch(time_ms=number, commands=(b"%d" % number,))


def learn(replica: Replica, first: int, count: int) -> Effects:
    slots = tuple((slot, batch(slot)) for slot in range(first, first + count))
    return replica.handle(ACCEPTOR, events.Learned(slots=slots, committed=first + count), T0)


def tally_of(count: int) -> LogCounter:
    tally = LogCounter()
    for slot in range(1, count + 1):
        tally.apply(slot, batch(slot).commands)
    return tally


def chunks_of(tally: LogCounter) -> tuple[bytes, ...]:
    return tuple(part.encoded() for part in tally.snapshot() if part is not None)


def test_the_state_is_written_as_a_snapshot_step_by_step_when_enough_was_applied() -> None:
    replica = replica_of_a(journal_bytes=10 * batch(1).size)
    assert Wake(DIVIDE_PAUSE_MS, events.WriteChunk()) not in learn(replica, 1, 9)
    assert Wake(DIVIDE_PAUSE_MS, events.WriteChunk()) in learn(replica, 10, 1)
    learn(replica, 11, 2)  # What comes meanwhile is not in the snapshot, but beside it.

    effects = finish_snapshot(replica)

    written = [effect for effect in effects if isinstance(effect, CheckpointPart)]
    assert [part.first for part in written] == [True] + [False] * (len(written) - 1)
    records = [record for part in written for record in part.records]
    assert records[0] == messages.Slots(first=11, batches=(batch(11), batch(12)))
    trimmed = events.Trimmed(slot=13)
    end = effects.index(CheckpointEnd())
    assert effects[end + 1 : end + 3] == [Send(ACCEPTOR, trimmed), Send(CATCHUP, trimmed)]
    assert not [effect for effect in effects[end:] if isinstance(effect, CheckpointPart)]
    base = Base(11, 10, (*chunks_of(tally_of(10)), log_part((), messages.NO_BALLOT)))
    assert recover(records) == Recovered(base=base, decided=(batch(11), batch(12)))


def test_a_crash_amid_a_checkpoint_leaves_the_former_snapshot() -> None:
    def parts_of(slot: int) -> tuple[messages.SnapshotChunk, ...]:
        return tuple(
            record
            for record in records_of(slot, slot, chunks_of(tally_of(slot - 1)))
            if isinstance(record, messages.SnapshotChunk)
        )

    former, later = parts_of(4), parts_of(9)
    assert len(later) > 1
    for written in range(len(later)):
        assert recover([*former, *later[:written]]).base == recover(former).base
        again = recover([*former, *later[:written], *later])
        assert again.base == recover(later).base


def test_at_most_one_part_of_a_snapshot_is_encoded_at_a_time() -> None:
    encoded: list[int] = []

    class CountedPart(NamedTuple):
        number: int

        def encoded(self) -> bytes:
            encoded.append(self.number)
            return b"x" * 1_000

    class ManyParts(LogCounter):
        def snapshot(self) -> Iterator[Part | None]:
            return iter([None, *map(CountedPart, range(100)), None])

    replica = replica_of_a(machine=ManyParts(), journal_bytes=10 * batch(1).size)
    learn(replica, 1, 10)
    slot, steps = 11, 0
    while (steps := steps + 1) < 1_000:
        before = len(encoded)
        effects = replica.handle(REPLICA, events.WriteChunk(), T0)
        assert len(encoded) - before <= 1
        records = [r for e in effects if isinstance(e, CheckpointPart) for r in e.records]
        assert sum(len(encode(record)) for record in records) < 2_000
        if CheckpointEnd() in effects:
            break
        learn(replica, slot, 1)  # Batches do not collect, either.
        slot += 1
        writer = present(replica.log.snapshots.writer)
        assert len(writer.since) < 5
    assert encoded == [*range(100)]


def test_a_restart_goes_on_from_the_snapshot() -> None:
    recovered = Recovered(
        base=Base(11, 10, chunks_of(tally_of(10))),
        decided=(batch(11),),
        later={14: batch(14)},
    )
    replica = replica_of_a(recovered=recovered, journal_bytes=1_000)
    replica.begin(T0)

    assert replica.decided.next == 12
    assert replica.log.machine.digest() == tally_of(11).digest()
    learn(replica, 12, 2)
    assert replica.decided.next == 15


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


def test_an_acceptor_that_writes_much_although_nothing_is_decided_reports_it() -> None:
    role = acceptor_of_a()
    large = messages.Batch(time_ms=1, commands=(b"x" * (16 << 10),) * 2)
    sent_messages: list[Send] = []
    for number in range(1, STREAM_BYTES // large.size + 2):
        ballot = messages.Ballot(number, LOW.leader)
        accept = messages.Accept(ballot=ballot, slot=1, batch=large, committed=1)
        sent_messages += sends(role.handle(COMMANDER, accept, T0))

    written = large.size * (STREAM_BYTES // large.size + 1)
    assert sent_messages.count(Send(REPLICA, events.LogFull(written=written))) == 1


def test_a_snapshot_is_made_when_the_acceptor_needs_it() -> None:
    replica = replica_of_a(journal_bytes=1 << 20)
    learn(replica, 1, 2)

    assert replica.handle(ACCEPTOR, events.LogFull(written=2 * batch(1).size), T0) == ()
    assert Wake(DIVIDE_PAUSE_MS, events.WriteChunk()) in replica.handle(
        ACCEPTOR, events.LogFull(written=9 * batch(1).size), T0
    )


def test_a_state_taken_over_is_written_and_its_listener_is_notified() -> None:
    replica = replica_of_a(journal_bytes=1_000)
    chunks = chunks_of(tally_of(10))

    effects = list(replica.handle(CATCHUP, events.Restore(base=Base(11, 10, chunks)), T0))

    assert replica.log.machine.digest() == tally_of(10).digest()
    assert Send(ACCEPTOR, events.Applied(slot=11)) in effects
    assert Send(LISTENER, events.Skipped(slot=11)) in effects
    assert not any(isinstance(effect, Checkpoint | CheckpointEnd) for effect in effects)
    later = finish_snapshot(replica)
    parts = [effect for effect in later if isinstance(effect, CheckpointPart)]
    assert recover([r for part in parts for r in part.records]).base == Base(11, 10, chunks)
    assert Send(ACCEPTOR, events.Trimmed(slot=11)) in later


def test_records_that_are_no_state_are_not_taken_over() -> None:
    replica = replica_of_a(journal_bytes=1_000)
    unusable = (Observe("paxos.snapshot_unusable"),)

    assert replica.handle(CATCHUP, events.Restore(base=Base(9, 1, (b"?",))), T0) == unusable
    assert replica.decided.next == 1


def test_a_node_without_a_journal_takes_snapshots_only_for_others() -> None:
    replica = replica_of_a(journal_bytes=0)
    learn(replica, 1, 50)

    assert not replica.log.snapshots.under_way


def test_followers_are_staggered_and_a_leader_waits_longest() -> None:
    plans = [Snapshots(8_000, place, 3) for place in range(3)]
    for plan in plans:
        plan.grown = 9_000

    assert [plan.is_due(leading=False) for plan in plans] == [True, True, False]
    assert [plan.is_due(leading=True) for plan in plans] == [False, False, False]


def test_a_large_state_has_snapshots_less_often() -> None:
    plan = Snapshots(1_000, 0, 1)
    plan.cut(10_000)
    plan.grown = 4_999
    assert not plan.is_due(leading=False)
    plan.grown = 5_000
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


def test_a_replica_gives_slots_a_new_snapshot_or_the_last_one_until_it_expires() -> None:
    asker, other = catchup_of("b"), catchup_of("c")
    replica = replica_of_a(journal_bytes=1 << 20)
    learn(replica, 1, messages.PAGE + 4)
    fetch = messages.Fetch(first=1, slot=0, chunk=0)
    page = replica.handle(asker, fetch, T0)
    assert page == (
        Send(
            asker, messages.Slots(first=1, batches=tuple(map(batch, range(1, messages.PAGE + 1))))
        ),
    )
    replica.log.decided.trim(10)

    making = messages.SnapshotChunk(
        slot=messages.PAGE + 5, time_ms=messages.PAGE + 4, chunk=0, count=0, content=b""
    )
    assert replica.handle(asker, fetch, T0) == [
        Wake(DIVIDE_PAUSE_MS, events.WriteChunk()),
        Observe("paxos.snapshot_begun"),
        Send(asker, making),
    ]
    assert replica.handle(other, fetch, T0) == [Send(other, making)]
    done = finish_snapshot(replica)
    chunks = (*chunks_of(tally_of(messages.PAGE + 4)), log_part((), messages.NO_BALLOT))
    first = replace(making, count=len(chunks), content=chunks[0])
    assert sends(done) == [Send(asker, first), Send(other, first)]
    assert done[-1] == Wake(SNAPSHOT_KEPT_MS, events.ExpireSnapshot(use=2))

    assert replica.handle(asker, fetch, T0) == (Send(asker, first),)
    later = messages.Fetch(first=1, slot=messages.PAGE + 5, chunk=1)
    second = replace(first, chunk=1, content=chunks[1])
    assert replica.handle(asker, later, T0) == (Send(asker, second),)
    assert replica.handle(asker, replace(later, chunk=len(chunks)), T0) == (
        Observe("paxos.impossible_slot"),
    )

    assert replica.handle(REPLICA, events.ExpireSnapshot(use=2), T0) == [
        Wake(SNAPSHOT_KEPT_MS, events.ExpireSnapshot(use=4))
    ]
    assert replica.handle(REPLICA, events.ExpireSnapshot(use=4), T0) == ()
    assert replica.handle(asker, later, T0) == ()


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
    pages = pages_of(1, (large,) * count)
    assert all(len(encode(page)) < RECORD_BYTES_MAX for page in pages)
    assert [
        slot for page in pages for slot in range(page.first, page.first + len(page.batches))
    ] == [*range(1, count + 1)]


def test_the_stamps_of_leftovers_do_not_count() -> None:
    """A lost majority, and went on stamping; B led without it; C finds the batches of both."""
    of_a, of_b = (messages.Ballot(n, Address(f"{node}/leader")) for n, node in ((2, "a"), (6, "b")))
    times = [(20, of_a), (30, of_b), (0, messages.NO_BALLOT), (900, of_a), (40, of_b)]
    decided, seen = DecidedSlots(log_max=100), list[int]()
    for slot, (time_ms, origin) in enumerate(times, start=1):
        decided.take(slot, messages.Batch(time_ms=time_ms, commands=(), origin=origin))
        decided.advance()
        seen.append(decided.time_ms)
    assert seen == [20, 30, 30, 30, 40]

    restored = DecidedSlots(log_max=100)
    restored.jump(6, decided.time_ms, decided.origin)
    restored.take(6, messages.Batch(time_ms=950, commands=(), origin=of_a))
    restored.advance()
    assert restored.time_ms == 40


def test_the_journal_of_real_members_stays_small_and_is_read_fast(tmp_path: Path) -> None:
    journal_bytes = 70_000
    growth = measure(tmp_path, 6_000, journal_bytes, 50)

    assert growth["bytes_max"] < 8 * journal_bytes
    assert growth["read_s"] < 3


# Catch-up of a lagging member: which member is asked, and what operators see of it


PAGE = messages.PAGE


@pytest.fixture
def role() -> CatchUp:
    config = config_of()
    return CatchUp(catchup_of("a"), HOST, node="a", config=config)


def lack(
    role: CatchUp, first: int, target: int, *, leader: str = "b", now: Instant = T0
) -> Effects:
    event = events.Lacking(first=first, target=target, leader=leader)
    return role.handle(replica_of("a"), event, now)


def send_slots(role: CatchUp, first: int, count: int, now: Instant = T0) -> Effects:
    slots = messages.Slots(first=first, batches=(messages.NO_OP,) * count)
    return role.handle(catchup_of(role.source), slots, now)


def asked(effects: Effects) -> list[str]:
    fetches = [send for send in sends(effects) if isinstance(send.message, messages.Fetch)]
    return [node_of(fetch.to) for fetch in fetches]


def notices(effects: Effects) -> list[str]:
    return [notice.text for notice in sent(effects, RoleNotice)]


def expire(role: CatchUp) -> Effects:
    return role.handle(role.address, events.FetchRetry(attempt=role.attempt), T0)


@pytest.mark.parametrize(("leader", "follower"), [("b", "c"), ("c", "b"), ("", "b")])
def test_slots_are_fetched_from_a_follower(role: CatchUp, leader: str, follower: str) -> None:
    assert asked(lack(role, 1, 40, leader=leader)) == [follower]
    assert asked(send_slots(role, 1, PAGE)) == [follower]


def test_the_leader_is_asked_at_once_for_what_no_follower_has(role: CatchUp) -> None:
    assert asked(lack(role, 1, 40)) == ["c"]
    assert asked(send_slots(role, 1, 0)) == ["b"]
    assert asked(send_slots(role, 1, PAGE)) == ["c"]  # It may have applied more meanwhile.


def test_the_leader_is_asked_if_the_follower_is_silent_and_stays_the_source_for_a_while(
    role: CatchUp,
) -> None:
    lack(role, 1, 3)
    assert asked(expire(role)) == ["b"]
    send_slots(role, 1, 2)

    assert asked(lack(role, 3, 5, now=at(SILENT_SOURCE_MS - 1))) == ["b"]
    send_slots(role, 3, 2)
    assert asked(lack(role, 5, 7, now=at(SILENT_SOURCE_MS))) == ["c"]


def test_a_member_known_to_have_the_slots_is_asked_first(role: CatchUp) -> None:
    lacking = events.Lacking(first=1, target=9, source="c")

    assert asked(role.handle(address_of("a", "leader"), lacking, T0)) == ["c"]


def test_no_member_is_asked_in_circles_for_slots_that_no_member_has(role: CatchUp) -> None:
    lack(role, 1, 9)
    assert asked(send_slots(role, 1, 0)) == ["b"]
    assert asked(send_slots(role, 1, 0)) == []

    assert asked(expire(role)) == ["c"]


def test_a_follower_that_is_making_its_snapshot_is_waited_for(role: CatchUp) -> None:
    lack(role, 1, 9_000)
    making = messages.SnapshotChunk(slot=9_000, time_ms=7, chunk=0, count=0, content=b"")
    for _ in range(3):
        attempt = role.attempt + 1
        assert role.handle(replica_of("c"), making, T0) == (
            Wake(MAKING_MS, events.FetchRetry(attempt=attempt)),
        )
        assert asked(expire(role)) == ["c"]

    part = messages.SnapshotChunk(slot=9_000, time_ms=7, chunk=0, count=1, content=b"x")
    effects = role.handle(catchup_of("c"), part, T0)
    restore = events.Restore(base=Base(9_000, 7, (b"x",)))
    assert Send(replica_of("a"), restore) in effects


def test_another_member_cannot_delay_a_catch_up(role: CatchUp) -> None:
    lack(role, 1, 9_000)
    making = messages.SnapshotChunk(slot=9_000, time_ms=7, chunk=0, count=0, content=b"")

    role.handle(replica_of("b"), making, T0)

    assert not role.making


def test_a_large_catch_up_is_described_and_reported_now_and_then(role: CatchUp) -> None:
    begun = notices(lack(role, 1, 3_201))
    assert begun == ["a catches up from c: 0 of 3200 slots, 0 bytes"]
    assert notices(send_slots(role, 1, PAGE, at(PROGRESS_MS - 1))) == []

    (text,) = notices(send_slots(role, 17, PAGE, at(PROGRESS_MS)))

    size = 2 * PAGE * messages.NO_OP.size
    assert text == f"a catches up from c: 32 of 3200 slots, {size} bytes, about 495 s left"
    assert ("received", f"32 of 3200 slots, {size} bytes") in role.summary()
    last: list[str] = []
    for first in range(33, 3_200, PAGE):
        last = notices(send_slots(role, first, PAGE, at(PROGRESS_MS)))
    size = 3_200 * messages.NO_OP.size
    words = f"3200 of 3200 slots, {size} bytes in {PROGRESS_MS} ms"
    assert last == [f"a has caught up, last from c: {words}"]
    assert ("received", "nothing") in role.summary()

    assert notices(lack(role, 3_201, 5_201)) == ["a catches up from c: 0 of 2000 slots, 0 bytes"]


def test_the_parts_of_a_snapshot_are_counted(role: CatchUp) -> None:
    lack(role, 1, 500)
    for chunk in range(3):
        part = messages.SnapshotChunk(slot=500, time_ms=7, chunk=chunk, count=4, content=b"xy")
        effects = role.handle(catchup_of("c"), part, at(2_000 * chunk))
        if chunk == 0:
            assert notices(effects) == [
                "a catches up from c: 0 of 499 slots, 1 of 4 parts of a snapshot, 2 bytes"
            ]

        left = 2 * (3 - chunk)
        assert Send(monitor_of("a"), events.Fetched(bytes_left=left)) in effects
    words = "0 of 499 slots, 3 of 4 parts of a snapshot, 6 bytes"
    assert ("received", words) in role.summary()


def test_a_small_catch_up_is_not_reported(role: CatchUp) -> None:
    assert notices(lack(role, 1, 17)) == []
    assert notices(send_slots(role, 1, PAGE)) == []


def test_a_member_that_is_left_alone_while_it_fetches_does_not_stop(role: CatchUp) -> None:
    lack(role, 1, 9)
    role.config.members = ("a",)

    assert asked(expire(role)) == ["c"]
