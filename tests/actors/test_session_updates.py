"""A client's session with requests that change or await an object, and hold nothing."""

from __future__ import annotations

import pytest
from support.local_callers import ONE, TWO, LocalCallers
from support.session_harness import ANN, BEN, A, B, SessionHarness, of, one

from fencelock.actors.api.latch import LATCH, AwaitLatch, CountDown, CountedDown, LatchPassed
from fencelock.actors.api.map import EntryChanged, PutEntry
from fencelock.actors.api.message import Abandon, Acquire, Cancel, KeepAlive, Reason, Refused
from fencelock.actors.api.name import object_name
from fencelock.actors.api.session_message import CloseSession, Open
from fencelock.actors.effect import Send
from fencelock.actors.message import Address
from fencelock.actors.role_message import LinkDown
from fencelock.actors.session.lease import LINGER_MS
from fencelock.actors.session.message import Close
from fencelock.actors.table.latch import Latch

LOCK = object_name(LATCH, "L")


def count_down(harness: SessionHarness, user: Address = ANN, owner: str = "") -> list[Send]:
    return harness.hear(user, CountDown(latch="L", count=3, owner=owner, request=4))


def wait(harness: SessionHarness, wait_ms: int | None = None, user: Address = ANN) -> list[Send]:
    return harness.hear(user, AwaitLatch(latch="L", count=3, wait_ms=wait_ms, request=5))


def counted(harness: SessionHarness, said: list[Send], left: int = 2) -> list[Send]:
    asked = next(send for send in reversed(said) if isinstance(send.message, CountDown))
    assert isinstance(asked.message, CountDown)
    return harness.hear(asked.to, CountedDown(**asked.message.fields(), left=left))


def refuse(harness: SessionHarness, sent: CountDown, reason: Reason) -> Refused:
    no = Refused(**sent.fields(), reason=reason, detail="no")
    return one(Refused, harness.hear(A, no), ANN)


def test_an_update_goes_out_with_session_and_number_and_its_reply_comes_back(
    harness: SessionHarness,
) -> None:
    said = harness.open(count_down(harness))
    sent = one(CountDown, said)
    assert (sent.lock, sent.session, sent.owner, sent.count) == (LOCK, "c.1", "ann", 3)
    reply = one(CountedDown, counted(harness, said), ANN)
    assert (reply.left, reply.request, reply.owner) == (2, 4, "")
    assert harness.role.session_state.holds == {}


def test_an_update_without_a_reply_is_repeated_under_its_number_and_answered_once(
    harness: SessionHarness,
) -> None:
    said = harness.open(count_down(harness))
    again = harness.run(2_000)
    assert {sent.request for sent in of(CountDown, again)} == {one(CountDown, said).request}
    assert of(CountedDown, counted(harness, said)) != []
    assert counted(harness, said) == []


def test_an_update_moves_to_the_next_endpoint_under_its_number(harness: SessionHarness) -> None:
    first = one(CountDown, harness.open(count_down(harness)))
    moved = [send for send in harness.hear(A, LinkDown(node="a")) if send.to == B]
    assert one(CountDown, moved).request == first.request


def test_a_reply_of_another_kind_is_dropped(harness: SessionHarness) -> None:
    sent = one(CountDown, harness.open(count_down(harness)))
    assert of(LatchPassed, harness.hear(A, LatchPassed(**sent.fields()))) == []


def test_an_owner_sends_one_update_at_a_time(harness: SessionHarness) -> None:
    harness.open(count_down(harness, owner="o"))
    refused = one(Refused, count_down(harness, BEN, owner="o"), BEN)
    assert refused.reason is Reason.ALREADY_HELD
    assert of(CountDown, count_down(harness, BEN)) != []


def test_an_update_that_nobody_answers_ends_with_an_unknown_outcome(
    harness: SessionHarness,
) -> None:
    harness.open(count_down(harness))
    said = harness.run_kept(12_000, A, B)
    refused = one(Refused, said, ANN)
    assert refused.reason is Reason.UNAVAILABLE
    assert "it is unknown whether the request took effect" in refused.detail
    assert of(Cancel, said) != []


def test_an_update_that_was_never_sent_says_that_no_node_could_be_asked(
    harness: SessionHarness,
) -> None:
    count_down(harness)
    refused = one(Refused, harness.run(12_000), ANN)
    assert "no node could be asked for it" in refused.detail
    assert "unknown" not in refused.detail


def test_a_session_that_ends_leaves_the_outcome_of_a_sent_update_unknown(
    harness: SessionHarness,
) -> None:
    sent = one(CountDown, harness.open(count_down(harness)))
    refused = refuse(harness, sent, Reason.SESSION_EXPIRED)
    assert refused.reason is Reason.SESSION_EXPIRED
    assert refused.detail.startswith("latch 'L': the session ended (")
    assert refused.detail.endswith("it is unknown whether the request took effect")
    assert of(CountDown, harness.run(5_000)) == []


def test_an_update_that_was_not_sent_goes_on_in_the_next_session(harness: SessionHarness) -> None:
    first = harness.open(count_down(harness))
    harness.hear(ANN, Abandon())  # While its cancel is unanswered, no other request is sent.
    blocked = count_down(harness)
    assert of(CountDown, blocked) == []
    sent = one(CountDown, first)
    no = Refused(**sent.fields(), reason=Reason.SESSION_EXPIRED, detail="no")
    said = harness.open(harness.hear(A, no))
    assert one(CountDown, said).session.endswith(".2")


def test_a_wait_that_may_happen_twice_goes_on_in_the_next_session(harness: SessionHarness) -> None:
    sent = one(AwaitLatch, harness.open(wait(harness)))
    no = Refused(**sent.fields(), reason=Reason.SESSION_EXPIRED, detail="no")
    said = harness.hear(A, no)
    assert of(Refused, said, ANN) == []
    assert one(AwaitLatch, harness.open(said)).session.endswith(".2")


def test_a_wait_takes_what_is_left_of_its_time_along(harness: SessionHarness) -> None:
    wait(harness, 3_000)
    harness.now_ms += 1_000
    said = harness.run(700)
    sent = one(AwaitLatch, harness.open([s for s in said if isinstance(s.message, Open)]))
    assert sent.wait_ms is not None
    assert 1_000 < sent.wait_ms <= 2_000


def test_a_wait_that_is_abandoned_is_cancelled(harness: SessionHarness) -> None:
    sent = one(AwaitLatch, harness.open(wait(harness)))
    cancel = one(Cancel, harness.hear(ANN, Abandon()))
    assert (cancel.lock, cancel.owner, cancel.request) == (LOCK, sent.owner, sent.request)


@pytest.mark.parametrize("reason", [Reason.OVERLOADED, Reason.UNAVAILABLE])
def test_a_node_that_refuses_a_copy_says_nothing_about_an_earlier_one(
    harness: SessionHarness, reason: Reason
) -> None:
    said = harness.open(count_down(harness))
    assert "unknown" not in refuse(harness, one(CountDown, said), reason).detail
    said = count_down(harness)
    harness.run(700)
    assert "unknown" in refuse(harness, one(CountDown, said), reason).detail


def test_a_client_that_closes_leaves_the_outcome_unknown(harness: SessionHarness) -> None:
    harness.open(count_down(harness))
    refused = one(Refused, harness.hear(BEN, Close()), ANN)
    assert "unknown" in refused.detail


# The tests below use a real proxy and table.

C = CountDown(latch="L", count=2)
W = AwaitLatch(latch="L", count=2)


def left(callers: LocalCallers) -> int:
    latch = callers.table.objects[LOCK]
    assert isinstance(latch, Latch)
    return latch.left


def test_a_lost_reply_and_a_repetition_count_once() -> None:
    callers = LocalCallers()
    callers.do(ONE, Acquire(lock="a"))
    callers.silent = True  # The log applies the command, but its outcome is lost.
    callers.do(TWO, C)
    callers.table.apply(callers.ms, callers.commands[-1])
    assert left(callers) == 1
    callers.silent = False
    callers.pass_time(5_000)
    assert [one.left for one in callers.heard(TWO, CountedDown)] == [1]
    assert left(callers) == 1
    assert len([one for one in callers.commands if isinstance(one, CountDown)]) > 1


def test_a_wait_passes_when_the_count_is_0() -> None:
    callers = LocalCallers()
    callers.do(ONE, W)
    callers.do(TWO, C)
    assert callers.heard(ONE, LatchPassed) == []
    callers.do(TWO, C)
    assert len(callers.heard(ONE, LatchPassed)) == 1
    assert callers.is_idle()


def test_a_wait_that_times_out_and_one_that_is_cancelled_leave_nothing_in_the_queue() -> None:
    callers = LocalCallers()
    callers.do(ONE, AwaitLatch(latch="L", count=2, wait_ms=1_000))
    callers.do(TWO, W)
    assert callers.table.objects[LOCK].waiting == 2
    callers.do(TWO, Abandon())
    callers.pass_time(2_000)
    assert callers.reason(ONE) is Reason.TIMED_OUT
    (refused,) = callers.heard(ONE, Refused)
    assert refused.detail == "latch 'L': waited 1000 ms; its count is 2 of 2"
    assert LOCK not in callers.table.objects
    assert callers.table.claims == 0
    assert callers.is_idle()


def test_an_update_whose_session_has_ended_at_the_cluster_is_answered_once() -> None:
    callers = LocalCallers()
    callers.do(ONE, Acquire(lock="a"))
    callers.silent = True
    callers.do(TWO, C)
    (session,) = callers.table.sessions.by_id
    close = CloseSession(handle=session, operator="eve", request=1)
    ended = callers.table.apply(callers.ms, close)
    callers.silent = False
    callers.happens(ended)
    callers.pass_time(5_000)
    (refused,) = callers.heard(TWO, Refused)
    assert refused.reason is Reason.SESSION_EXPIRED
    assert "unknown" in refused.detail
    assert LOCK not in callers.table.objects


def test_a_copy_that_the_table_has_forgotten_says_that_its_outcome_is_unknown() -> None:
    callers = LocalCallers()
    callers.do(ONE, Acquire(lock="a"))
    callers.silent = True
    callers.do(TWO, C)
    sent = callers.commands[-1]
    assert isinstance(sent, CountDown)
    callers.happens([Refused(**sent.fields(), reason=Reason.FORGOTTEN, detail="no")])
    (refused,) = callers.heard(TWO, Refused)
    assert refused.reason is Reason.UNAVAILABLE
    assert "unknown" in refused.detail


@pytest.mark.parametrize("ephemeral", [False, True])
def test_only_an_entry_that_ends_with_the_session_keeps_an_idle_session_alive(
    harness: SessionHarness, ephemeral: bool
) -> None:
    put = PutEntry(map="m", entry_key="k", value=b"v", ephemeral=ephemeral, request=4)
    sent = one(PutEntry, harness.open(harness.hear(ANN, put)))
    assert one(EntryChanged, harness.hear(A, EntryChanged(**sent.fields(), version=1)), ANN)
    harness.run_kept(LINGER_MS + 1_000, A, B)
    kept = [send for send in harness.run_kept(20_000, A, B) if send.to == A]
    assert bool(of(KeepAlive, kept)) == ephemeral
