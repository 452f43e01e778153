"""Rules of a session's life and of lost majorities, as the client keeps them."""

from __future__ import annotations

from support.session_harness import ANN, BEN, WATCHER, A, SessionHarness, of, one

from fencelock.actors.api import message as api
from fencelock.actors.api.session_message import End, Ended, Evict, ListLocks, Open
from fencelock.actors.session.message import Close, Closed, HoldsLost, Loss


def test_no_session_is_opened_by_questions_that_need_none(harness: SessionHarness) -> None:
    for question in (
        api.Describe(),
        api.Inspect(lock="x"),
        ListLocks(),
        Evict(lock="x", fence=1, operator="me"),
    ):
        (sent,) = harness.hear(ANN, question)
        assert getattr(sent.message, "session", None) == "c"
    assert of(Open, harness.run(5_000)) == []


def test_later_needs_find_the_session_that_the_first_one_opened(
    harness: SessionHarness,
) -> None:
    harness.hold()
    said = harness.acquire(BEN, lock="y")
    assert of(Open, said) == []
    assert one(api.Acquire, said).session == "c.1"


def test_needs_at_the_same_time_share_one_open(harness: SessionHarness) -> None:
    said = [*harness.acquire(ANN), *harness.acquire(BEN), *harness.acquire(BEN, lock="y")]
    assert len(of(Open, said)) == 1
    asked = of(api.Acquire, harness.open(said))
    assert [(a.lock, a.owner, a.session) for a in asked] == [
        ("x", "ann", "c.1"),
        ("x", "ben", "c.1"),
        ("y", "ben", "c.1"),
    ]


def test_to_close_what_never_was_opened_does_nothing(harness: SessionHarness) -> None:
    said = harness.hear(ANN, Close())
    assert [send.message for send in said] == [Closed(unanswered=0)]


def test_there_are_no_keep_alives_without_use_and_regular_ones_with_it(
    harness: SessionHarness,
) -> None:
    harness.run(1_000)
    assert of(api.KeepAlive, harness.run(60_000)) == []
    harness.hold()
    said = harness.run_kept(60_000, A)
    assert {alive.session for alive in of(api.KeepAlive, said)} == {"c.1"}
    assert 19 <= len(of(api.KeepAlive, said)) <= 21
    harness.free(harness.release())
    assert 9 <= len(of(api.KeepAlive, harness.run_kept(31_000, A))) <= 11
    assert of(api.KeepAlive, harness.run(60_000)) == []
    assert harness.alarms == []


def test_those_who_held_hear_of_the_loss_and_others_get_a_new_session(
    harness: SessionHarness,
) -> None:
    harness.hold()
    said = harness.hear(A, Ended(session="c.1", detail="expired"))
    assert of(HoldsLost, said, WATCHER)
    assert of(Open, said) == []
    assert one(Open, harness.acquire(BEN)).session == "c~2"


def test_an_unused_session_that_may_have_expired_is_left_without_a_word(
    harness: SessionHarness,
) -> None:
    harness.hold()
    harness.free(harness.release())
    said = harness.run_kept(60_000, A)
    assert of(HoldsLost, said) == []
    assert of(End, said) == []
    assert one(Open, harness.acquire()).session == "c~2"


def test_to_close_ends_the_session_with_all_that_is_in_it(
    harness: SessionHarness,
) -> None:
    harness.hold()
    harness.acquire(BEN)
    said = harness.hear(ANN, Close())
    assert one(End, said, A).session == "c.1"
    assert one(api.Refused, said, BEN).reason is api.Reason.CANCELLED
    assert of(Closed, said) == []
    done = harness.end(said)
    assert [send.message for send in done if send.to == ANN] == [Closed(unanswered=0)]
    assert one(api.Refused, harness.acquire(), ANN).reason is api.Reason.CANCELLED


def test_a_close_that_nobody_confirms_ends_all_the_same(harness: SessionHarness) -> None:
    harness.hold()
    said = [*harness.hear(ANN, Close()), *harness.run(2_200)]
    assert len(of(End, said)) > 1
    assert one(Closed, said, ANN).unanswered == 1


def test_a_release_under_way_at_the_close_is_done_by_it(harness: SessionHarness) -> None:
    harness.hold()
    harness.release(token=5)
    done = harness.end(harness.hear(BEN, Close()))
    assert one(api.Released, done, ANN).request == 5


def test_a_session_outlives_its_client_by_15_s_and_is_kept_alive_every_3_s(
    harness: SessionHarness,
) -> None:
    assert one(Open, harness.hold()).ttl_ms == 15_000
    assert len(of(api.KeepAlive, harness.run_kept(31_000, A))) == 10


def test_a_wait_lasts_for_as_long_as_it_takes_without_a_word_to_its_user(
    harness: SessionHarness,
) -> None:
    asked = harness.open(harness.acquire(token=8))
    said = harness.run_kept(600_000, A)
    assert of(api.Refused, said) == []
    assert one(api.Granted, harness.grant(asked), ANN).request == 8


def test_a_wait_that_no_majority_hears_of_is_unavailable_and_leaves_nothing(
    harness: SessionHarness,
) -> None:
    harness.acquire(wait_ms=2_000)
    said = harness.run(7_000)
    assert one(api.Refused, said, ANN).reason is api.Reason.UNAVAILABLE
    opening = [send for send in said if isinstance(send.message, Open)]
    assert of(api.Acquire, harness.open(opening)) == []


def test_a_wait_that_the_majority_stops_answering_is_never_said_to_have_timed_out(
    harness: SessionHarness,
) -> None:
    asked = harness.open(harness.acquire(wait_ms=2_000))
    said = harness.run(7_000)
    assert one(api.Refused, said, ANN).reason is api.Reason.UNAVAILABLE
    cancel = of(api.Cancel, said)[-1]
    assert cancel.request == one(api.Acquire, asked).request
    assert of(api.Granted, harness.grant(asked)) == []


def test_a_split_is_told_to_holders_as_a_loss_and_to_others_as_unavailable(
    harness: SessionHarness,
) -> None:
    harness.hold()
    harness.acquire(BEN, lock="y", wait_ms=1_000)
    said = harness.run(16_000)
    assert one(api.Refused, said, BEN).reason is api.Reason.UNAVAILABLE
    assert one(HoldsLost, said, WATCHER).losses == (Loss("x", "ann", 7),)
    held = harness.hold(fence=9)  # The split is over.
    assert one(api.Granted, held, ANN).fence == 9
