"""Rules of a session's life and of lost majorities, as the client keeps them: ``rules.md``."""

from __future__ import annotations

from support.session_harness import ANN, BEN, WATCHER, A, SessionHarness, of, one

from fencelock.actors.api import message as api
from fencelock.actors.api.session_message import End, Ended, Evict, ListLocks, Open
from fencelock.actors.session.message import Close, Closed, HoldsLost, Loss


def test_rule_71_no_session_is_opened_by_questions_that_need_none(parley: SessionHarness) -> None:
    for question in (
        api.Describe(),
        api.Inspect(lock="x"),
        ListLocks(),
        Evict(lock="x", fence=1, operator="me"),
    ):
        (sent,) = parley.hear(ANN, question)
        assert getattr(sent.message, "session", None) == "c"
    assert of(Open, parley.run(5_000)) == []


def test_rule_72_73_later_needs_find_the_session_that_the_first_one_opened(
    parley: SessionHarness,
) -> None:
    parley.hold()
    said = parley.acquire(BEN, lock="y")
    assert of(Open, said) == []
    assert one(api.Acquire, said).session == "c.1"


def test_rule_74_needs_at_the_same_time_share_one_open(parley: SessionHarness) -> None:
    said = [*parley.acquire(ANN), *parley.acquire(BEN), *parley.acquire(BEN, lock="y")]
    assert len(of(Open, said)) == 1
    asked = of(api.Acquire, parley.open(said))
    assert [(a.lock, a.owner, a.session) for a in asked] == [
        ("x", "ann", "c.1"),
        ("x", "ben", "c.1"),
        ("y", "ben", "c.1"),
    ]


def test_rule_75_to_close_what_never_was_opened_does_nothing(parley: SessionHarness) -> None:
    said = parley.hear(ANN, Close())
    assert [send.message for send in said] == [Closed(unanswered=0)]


def test_rule_76_there_are_no_keep_alives_without_use_and_regular_ones_with_it(
    parley: SessionHarness,
) -> None:
    parley.run(1_000)
    assert of(api.KeepAlive, parley.run(60_000)) == []
    parley.hold()
    said = parley.run_kept(60_000, A)
    assert {alive.session for alive in of(api.KeepAlive, said)} == {"c.1"}
    assert 19 <= len(of(api.KeepAlive, said)) <= 21
    parley.free(parley.release())
    assert 9 <= len(of(api.KeepAlive, parley.run_kept(31_000, A))) <= 11
    assert of(api.KeepAlive, parley.run(60_000)) == []
    assert parley.alarms == []


def test_rule_77_those_who_held_hear_of_the_loss_and_others_get_a_new_session(
    parley: SessionHarness,
) -> None:
    parley.hold()
    said = parley.hear(A, Ended(session="c.1", detail="expired"))
    assert of(HoldsLost, said, WATCHER)
    assert of(Open, said) == []
    assert one(Open, parley.acquire(BEN)).session == "c~2"


def test_rule_78_an_unused_session_that_may_have_expired_is_left_without_a_word(
    parley: SessionHarness,
) -> None:
    parley.hold()
    parley.free(parley.release())
    said = parley.run_kept(60_000, A)
    assert of(HoldsLost, said) == []
    assert of(End, said) == []
    assert one(Open, parley.acquire()).session == "c~2"


def test_rule_79_90_to_close_ends_the_session_with_all_that_is_in_it(
    parley: SessionHarness,
) -> None:
    parley.hold()
    parley.acquire(BEN)
    said = parley.hear(ANN, Close())
    assert one(End, said, A).session == "c.1"
    assert one(api.Refused, said, BEN).reason is api.Reason.CANCELLED
    assert of(Closed, said) == []
    done = parley.end(said)
    assert [send.message for send in done if send.to == ANN] == [Closed(unanswered=0)]
    assert one(api.Refused, parley.acquire(), ANN).reason is api.Reason.CANCELLED


def test_rule_79_a_close_that_nobody_confirms_ends_all_the_same(parley: SessionHarness) -> None:
    parley.hold()
    said = [*parley.hear(ANN, Close()), *parley.run(2_200)]
    assert len(of(End, said)) > 1
    assert one(Closed, said, ANN).unanswered == 1


def test_rule_79_a_release_under_way_at_the_close_is_done_by_it(parley: SessionHarness) -> None:
    parley.hold()
    parley.release(token=5)
    done = parley.end(parley.hear(BEN, Close()))
    assert one(api.Released, done, ANN).request == 5


def test_rule_92_a_session_outlives_its_client_by_15_s_and_is_kept_alive_every_3_s(
    parley: SessionHarness,
) -> None:
    assert one(Open, parley.hold()).ttl_ms == 15_000
    assert len(of(api.KeepAlive, parley.run_kept(31_000, A))) == 10


def test_rule_93_a_wait_lasts_for_as_long_as_it_takes_without_a_word_to_its_user(
    parley: SessionHarness,
) -> None:
    asked = parley.open(parley.acquire(token=8))
    said = parley.run_kept(600_000, A)
    assert of(api.Refused, said) == []
    assert one(api.Granted, parley.grant(asked), ANN).request == 8


def test_rule_94_a_wait_that_no_majority_hears_of_is_unavailable_and_leaves_nothing(
    parley: SessionHarness,
) -> None:
    parley.acquire(wait_ms=2_000)
    said = parley.run(7_000)
    assert one(api.Refused, said, ANN).reason is api.Reason.UNAVAILABLE
    opening = [send for send in said if isinstance(send.message, Open)]
    assert of(api.Acquire, parley.open(opening)) == []


def test_rule_95_a_wait_that_the_majority_stops_answering_is_never_said_to_have_timed_out(
    parley: SessionHarness,
) -> None:
    asked = parley.open(parley.acquire(wait_ms=2_000))
    said = parley.run(7_000)
    assert one(api.Refused, said, ANN).reason is api.Reason.UNAVAILABLE
    cancel = of(api.Cancel, said)[-1]
    assert cancel.request == one(api.Acquire, asked).request
    assert of(api.Granted, parley.grant(asked)) == []


def test_rule_96_a_split_is_told_to_holders_as_a_loss_and_to_others_as_unavailable(
    parley: SessionHarness,
) -> None:
    parley.hold()
    parley.acquire(BEN, lock="y", wait_ms=1_000)
    said = parley.run(16_000)
    assert one(api.Refused, said, BEN).reason is api.Reason.UNAVAILABLE
    assert one(HoldsLost, said, WATCHER).losses == (Loss("x", "ann", 7),)
    held = parley.hold(fence=9)  # The split is over.
    assert one(api.Granted, held, ANN).fence == 9
