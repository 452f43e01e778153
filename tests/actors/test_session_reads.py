"""A client's session with many reads at once: an endpoint has a bounded number at a time."""

from __future__ import annotations

import pytest
from support.session_harness import ANN, BEN, A, B, SessionHarness, of

from fencelock.actors.api.changes import ReadChanges
from fencelock.actors.api.cluster_message import Describe
from fencelock.actors.api.lock_message import Abandon, Reason, Refused, refused
from fencelock.actors.api.map import EntryList, GetEntry
from fencelock.actors.effect import Send
from fencelock.actors.message import Address
from fencelock.actors.quota import DEFAULT_QUOTAS
from fencelock.actors.session.event import Close
from fencelock.actors.session.requests import (
    BOUNDED_READS_SENT_MAX,
    READS_SENT_MAX,
    UNANSWERED_MS,
    ReadWindow,
    windows,
)
from fencelock.actors.session.session import SESSION_TICK_MS

MANY = 3 * READS_SENT_MAX


def read(
    harness: SessionHarness, count: int, user: Address = ANN, age_ms: int | None = None
) -> list[Send]:
    """Let ``user`` read the keys 0 to ``count`` - 1; return the sends."""
    asked = [
        GetEntry(map="m", entry_key=str(number), request=number, age_ms=age_ms)
        for number in range(count)
    ]
    return [send for one in asked for send in harness.receive(user, one)]


def answer(harness: SessionHarness, asked: GetEntry, endpoint: Address = A) -> list[Send]:
    reply = EntryList(entries=(), session=asked.session, request=asked.request)
    return harness.receive(endpoint, reply)


def answer_all(harness: SessionHarness, sends: list[Send]) -> list[GetEntry]:
    """Answer the reads in ``sends`` and those that follow; return all of them, in order."""
    waiting = of(GetEntry, sends, A)
    done: list[GetEntry] = []
    while waiting:
        assert len(waiting) <= READS_SENT_MAX
        done.append(waiting.pop(0))
        waiting += of(GetEntry, answer(harness, done[-1]), A)
    return done


def keys(reads: list[GetEntry]) -> list[int]:
    return [int(one.entry_key) for one in reads]


def test_reads_beyond_the_limit_are_sent_as_others_are_answered(harness: SessionHarness) -> None:
    sends = read(harness, MANY)
    assert len(of(GetEntry, sends, A)) == READS_SENT_MAX
    assert keys(answer_all(harness, sends)) == list(range(MANY))
    assert keys(answer_all(harness, read(harness, MANY))) == list(range(MANY))


def test_all_reads_of_a_client_fit_into_the_quota_of_a_node() -> None:
    assert DEFAULT_QUOTAS.queries > READS_SENT_MAX + BOUNDED_READS_SENT_MAX


def test_each_user_gets_one_reply(harness: SessionHarness) -> None:
    waiting = of(GetEntry, read(harness, MANY), A)
    replies: list[EntryList] = []
    while waiting:
        received = answer(harness, waiting.pop())
        replies += of(EntryList, received, ANN)
        waiting += of(GetEntry, received, A)
    assert sorted(reply.request for reply in replies) == list(range(MANY))


def test_reads_with_a_maximum_age_do_not_wait_for_others(harness: SessionHarness) -> None:
    read(harness, MANY)
    bounded = read(harness, MANY, BEN, age_ms=1_000)
    assert len(of(GetEntry, bounded, A)) == BOUNDED_READS_SENT_MAX


def test_other_requests_do_not_wait_for_reads(harness: SessionHarness) -> None:
    read(harness, MANY)
    assert of(Describe, harness.receive(BEN, Describe()), A) != []
    watch = ReadChanges(lock="election:e", after=0)
    assert of(ReadChanges, harness.receive(BEN, watch), A) != []


def test_reads_that_time_out_make_room_for_the_others(harness: SessionHarness) -> None:
    read(harness, READS_SENT_MAX)
    harness.run_kept(UNANSWERED_MS - 5 * SESSION_TICK_MS, A)
    assert of(GetEntry, read(harness, MANY, BEN)) == []
    done = keys(answer_all(harness, harness.run(6 * SESSION_TICK_MS)))
    assert done == list(range(MANY))


def test_a_tick_that_is_late_starts_no_read_twice(harness: SessionHarness) -> None:
    read(harness, READS_SENT_MAX)
    harness.run_kept(UNANSWERED_MS - 5 * SESSION_TICK_MS, A)
    assert of(GetEntry, read(harness, MANY, BEN)) == []
    harness.now_ms += 6 * SESSION_TICK_MS
    assert keys(answer_all(harness, harness.run(SESSION_TICK_MS))) == list(range(MANY))
    assert keys(answer_all(harness, read(harness, MANY))) == list(range(MANY))


def test_a_read_that_was_never_sent_reports_it_when_it_times_out(harness: SessionHarness) -> None:
    read(harness, MANY)
    refusals = of(Refused, harness.run(UNANSWERED_MS + 2 * SESSION_TICK_MS), ANN)
    assert sorted(no.request for no in refusals) == list(range(MANY))
    assert {no.reason for no in refusals} == {Reason.UNAVAILABLE}
    unsent = [no.request for no in refusals if "not sent within 10" in no.detail]
    assert sorted(unsent) == list(range(READS_SENT_MAX, MANY))


def test_reads_that_are_abandoned_make_room_for_those_of_others(harness: SessionHarness) -> None:
    read(harness, MANY)
    assert of(GetEntry, read(harness, 5, BEN)) == []
    assert keys(of(GetEntry, harness.receive(ANN, Abandon()))) == list(range(5))


def test_a_read_that_is_refused_makes_room(harness: SessionHarness) -> None:
    first, *_ = of(GetEntry, read(harness, MANY), A)
    no = refused(first, Reason.OVERLOADED, "no")
    assert keys(of(GetEntry, harness.receive(A, no))) == [READS_SENT_MAX]


@pytest.mark.parametrize("kept", [False, True])
def test_a_lost_endpoint_hands_over_what_it_had(harness: SessionHarness, kept: bool) -> None:
    if kept:
        harness.hold(BEN)
    first = of(GetEntry, read(harness, MANY), A)
    moved = of(GetEntry, harness.lose_link("a"), B)
    assert keys(moved) == keys(first)
    following = of(GetEntry, answer(harness, moved[0], B), B)
    assert keys(following) == [READS_SENT_MAX]


def test_a_client_that_closes_ends_all_reads(harness: SessionHarness) -> None:
    read(harness, MANY)
    refusals = of(Refused, [*harness.receive(BEN, Close()), *harness.run(UNANSWERED_MS)], ANN)
    assert sorted(no.request for no in refusals) == list(range(MANY))


def test_callers_inside_a_node_have_no_limit() -> None:
    for window in windows(local=True):
        assert all(window.admit(number) for number in range(MANY))


def test_a_number_is_sent_or_held_back_until_it_is_dropped() -> None:
    window = ReadWindow(1)
    assert [window.admit(number) for number in (1, 2, 3, 1)] == [True, False, False, True]
    assert window.next() is None
    window.drop(2)
    window.drop(1)
    assert window.next() == 3
    assert window.admit(3)
    assert (window.sent, [*window.held_back]) == ({3}, [])
