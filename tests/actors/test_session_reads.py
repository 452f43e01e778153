"""A client's session with many reads at once: an endpoint has a bounded number at a time."""

from __future__ import annotations

from support.session_harness import ANN, BEN, A, B, SessionHarness, of

from fencelock.actors.api.map import EntryList, GetEntry
from fencelock.actors.api.message import Abandon, Reason, Refused
from fencelock.actors.api.session_message import Open
from fencelock.actors.effect import Send
from fencelock.actors.message import Address
from fencelock.actors.quota import DEFAULT_QUOTAS
from fencelock.actors.role_message import LinkDown
from fencelock.actors.session.in_flight import READS_MAX
from fencelock.actors.session.pending import ANSWER_MS
from fencelock.actors.session.session import TICK_MS

MANY = 3 * READS_MAX


def read(harness: SessionHarness, count: int, user: Address = ANN) -> list[GetEntry]:
    sends = [
        send
        for number in range(count)
        for send in harness.hear(user, GetEntry(map="m", entry_key=str(number), request=number))
    ]
    return of(GetEntry, sends)


def answer(harness: SessionHarness, asked: GetEntry, endpoint: Address = A) -> list[Send]:
    reply = EntryList(entries=(), session=asked.session, request=asked.request)
    return harness.hear(endpoint, reply)


def test_reads_beyond_the_most_are_sent_in_order_as_earlier_ones_are_answered(
    harness: SessionHarness,
) -> None:
    at_endpoint = read(harness, MANY)
    assert len(at_endpoint) == READS_MAX < DEFAULT_QUOTAS.queries
    order, replies = list(at_endpoint), list[EntryList]()
    while at_endpoint:
        heard = answer(harness, at_endpoint.pop(0))
        replies += of(EntryList, heard, ANN)
        at_endpoint += of(GetEntry, heard, A)
        order += of(GetEntry, heard, A)
        assert len(at_endpoint) <= READS_MAX
    assert [asked.entry_key for asked in order] == [str(number) for number in range(MANY)]
    assert [reply.request for reply in replies] == list(range(MANY))


def test_reads_that_are_held_back_open_no_session(harness: SessionHarness) -> None:
    read(harness, MANY)
    assert of(Open, harness.run(1_000)) == []


def test_reads_that_time_out_make_room_whether_they_were_sent_or_not(
    harness: SessionHarness,
) -> None:
    read(harness, MANY)
    refused = of(Refused, harness.run(ANSWER_MS + 2 * TICK_MS), ANN)
    assert sorted(no.request for no in refused) == list(range(MANY))
    assert {no.reason for no in refused} == {Reason.UNAVAILABLE}
    assert len(read(harness, MANY)) == READS_MAX


def test_reads_that_are_abandoned_make_room_for_those_of_others(harness: SessionHarness) -> None:
    read(harness, MANY)
    assert read(harness, 5, BEN) == []
    sent = of(GetEntry, harness.hear(ANN, Abandon()))
    assert [asked.entry_key for asked in sent] == [str(number) for number in range(5)]


def test_a_lost_endpoint_hands_over_what_it_had_and_no_more(harness: SessionHarness) -> None:
    first = read(harness, MANY)
    moved = of(GetEntry, harness.hear(A, LinkDown(node="a")), B)
    assert [asked.entry_key for asked in moved] == [asked.entry_key for asked in first]
    (following,) = of(GetEntry, answer(harness, moved[0], B), B)
    assert following.entry_key == str(READS_MAX)
