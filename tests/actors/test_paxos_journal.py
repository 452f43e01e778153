"""Journals of `paxos` with what no honest member can have: found, mended, or to be replaced."""

from __future__ import annotations

import pytest

from fencelock.actors.message import Message, address_of
from fencelock.actors.paxos.config import GROWTH_MAX, ROUND_KEPT_MAX, latest_ms
from fencelock.actors.paxos.journal import REACH_SLOTS, find_impossible, why_unusable, without_votes
from fencelock.actors.paxos.wire import (
    CHUNKS_MAX,
    PAXOS_NUMBER_MAX,
    Accept,
    Ballot,
    Batch,
    Pledge,
    Pledged,
    Slots,
    SnapshotChunk,
)
from fencelock.actors.timing import TIMING_MS_MAX

LEADER = address_of("b", "leader")
BALLOT = Ballot(3, LEADER)
SLOT = 5
LATEST_MS = latest_ms(1, 0, SLOT)


def vote(slot: int = SLOT, time_ms: int = 1, *, round: int = 3, first_round: int = 3) -> Accept:
    batch = Batch(time_ms=time_ms, commands=(), origin=Ballot(first_round, LEADER))
    return Accept(ballot=Ballot(round, LEADER), slot=slot, batch=batch, committed=1)


def pledged(pledge: Pledge, number: int) -> Pledged:
    return Pledged(pledge=pledge, ballot=Ballot(number, LEADER))


def lease(ms: int) -> Pledged:
    return pledged(Pledge.LEASE, ms)


def applied(slot: int) -> Pledged:
    return pledged(Pledge.APPLIED, slot)


def chunk(number: int, count: int, slot: int = SLOT, time_ms: int = 3) -> SnapshotChunk:
    return SnapshotChunk(slot=slot, time_ms=time_ms, chunk=number, count=count, content=b"")


def slots(first: int, *times_ms: int) -> Slots:
    return Slots(first=first, batches=tuple(Batch(time_ms=ms, commands=()) for ms in times_ms))


@pytest.mark.parametrize(
    "records",
    [
        [lease(0), lease(TIMING_MS_MAX), pledged(Pledge.LED, TIMING_MS_MAX + 1)],
        [applied(0), applied(1 + GROWTH_MAX)],
        [slots(1, 1, 1), applied(3 + GROWTH_MAX)],
        [vote(REACH_SLOTS), vote(SLOT, 0), vote(SLOT, LATEST_MS), vote(round=4)],
        [applied(100), vote(99 + REACH_SLOTS)],
        [slots(1, *[0] * SLOT), vote(SLOT, -1)],  # What was decided does not count.
    ],
)
def test_a_record_of_an_honest_member_is_left_as_it_is(records: list[Message]) -> None:
    assert find_impossible(records) == []
    assert without_votes(records, []) == records
    assert why_unusable(records) == ""


@pytest.mark.parametrize(
    ("record", "why", "mended"),
    [
        (lease(-1), "a lease of -1 ms", [lease(TIMING_MS_MAX)]),
        (lease(TIMING_MS_MAX + 1), f"at most {TIMING_MS_MAX} ms can", [lease(TIMING_MS_MAX)]),
        (applied(-1), "slots up to -1 are applied", []),
        (applied(2 + GROWTH_MAX), "although the journal has those up to 1", []),
        (vote(1 + REACH_SLOTS), "although slots from 1 on are undecided", [BALLOT]),
        (vote(SLOT, -1), "slot 5, with log time -1 ms", [BALLOT]),
        (vote(SLOT, LATEST_MS + 1), f"must be 0 to {LATEST_MS} ms", [BALLOT]),
        (vote(first_round=4), "first proposed in round 4", [BALLOT]),
    ],
)
def test_a_vote_is_removed_and_its_promise_kept(
    record: Message, why: str, mended: list[Pledged | Ballot]
) -> None:
    records = [lease(250), record, vote()]
    (found,) = find_impossible(records)
    assert found.why.startswith(f"{LEADER}: ")
    assert why in found.why
    kept = [
        Pledged(pledge=Pledge.PROMISED, ballot=one) if isinstance(one, Ballot) else one
        for one in mended
    ]
    assert without_votes(records, [found]) == [lease(250), *kept, vote()]


def test_slots_that_cannot_be_applied_let_no_vote_reach_further() -> None:
    forged, far = applied(2 + GROWTH_MAX), vote(1 + REACH_SLOTS)
    assert [one.record for one in find_impossible([forged, far])] == [forged, far]


@pytest.mark.parametrize(
    "records",
    [
        [vote(round=ROUND_KEPT_MAX), *(pledged(one, ROUND_KEPT_MAX) for one in Pledge)],
        [pledged(Pledge.LEASE, ROUND_KEPT_MAX + 1), pledged(Pledge.APPLIED, -1)],  # Mended.
        [slots(SLOT - 1, 0, LATEST_MS), slots(PAXOS_NUMBER_MAX - 1, 0)],
        [chunk(0, 2), chunk(1, 2), chunk(0, 2), chunk(1, 2)],  # Begun again.
        [chunk(0, CHUNKS_MAX)],
        [chunk(0, 1, 1, 0), chunk(0, 1, time_ms=LATEST_MS), chunk(0, 1, PAXOS_NUMBER_MAX - 1)],
    ],
)
def test_what_a_member_may_have_applied_and_promised_is_usable(records: list[Message]) -> None:
    assert why_unusable(records) == ""


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([vote(round=-1, first_round=-2)], "round -1, "),
        ([vote(round=ROUND_KEPT_MAX + 1)], f"and {ROUND_KEPT_MAX} is the last possible"),
        ([pledged(Pledge.PROMISED, ROUND_KEPT_MAX + 1)], f"round {ROUND_KEPT_MAX + 1}"),
        ([pledged(Pledge.LED, -1)], "round -1, "),
        ([slots(SLOT - 1, 0, LATEST_MS + 1)], "a decision for slot 5 with log time"),
        ([slots(0, 0)], "a decision for slot 0, "),
        (
            [slots(PAXOS_NUMBER_MAX - 1, 0, 0)],
            f"slot {PAXOS_NUMBER_MAX}, {PAXOS_NUMBER_MAX - 1} is the last",
        ),
        ([chunk(0, 1), chunk(1, 1)], "part 1 of 1"),
        ([chunk(0, 3), chunk(2, 3)], "part 2 of 3"),
        ([chunk(1, 2)], "part 1 of 2"),
        ([chunk(0, CHUNKS_MAX + 1)], f"part 0 of {CHUNKS_MAX + 1}"),
        ([chunk(0, 1, 0)], "of slot 0"),
        ([chunk(0, 1, PAXOS_NUMBER_MAX)], f"of slot {PAXOS_NUMBER_MAX}"),
        ([chunk(0, 1, time_ms=-1)], "at log time -1 ms"),
        ([chunk(0, 1, time_ms=LATEST_MS + 1)], f"of slot 5 at log time {LATEST_MS + 1} ms"),
    ],
)
def test_ballots_decisions_and_snapshots_cannot_be_mended(records: list[Message], why: str) -> None:
    assert why in why_unusable(records)
