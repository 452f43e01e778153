"""A client's session, turn by turn: what is asked, answered, and refused at once."""

from __future__ import annotations

from copy import deepcopy
from random import Random

import pytest
from support.role_harness import RoleHarness
from support.session_harness import ANN, BEN, ME, A, B, of, one
from support.session_play import UnkeptSession, node_status, refusal

from fencelock.actors.api.message import (
    Acquire,
    Describe,
    Granted,
    Inspect,
    KeepAlive,
    LockStatus,
    NodeStatus,
    Reason,
    Release,
    Released,
)
from fencelock.actors.effect import Send
from fencelock.actors.message import Address
from fencelock.actors.session import admission
from fencelock.actors.session.message import SessionTick
from fencelock.actors.session.session import TICK_MS, ClientSession


def test_a_request_goes_to_the_gate_in_use_under_the_session_and_a_number(
    play: UnkeptSession,
) -> None:
    asked = play.acquire(wait_ms=500, token=99)
    assert asked == Send(A, Acquire(lock="x", session="c", owner="ann", request=1, wait_ms=500))
    assert play.acquire(BEN).message == Acquire(lock="x", session="c", owner="ben", request=2)


def test_the_first_gate_is_drawn_by_chance() -> None:
    def first(seed: int) -> Address:
        play = RoleHarness(
            lambda host: ClientSession(ME, host, session="c", endpoints=(A, B), random=Random(seed))
        )
        return play.role.session_state.endpoints.current

    assert {first(seed) for seed in range(20)} == {A, B}


def test_a_session_greets_every_gate_when_it_begins(play: UnkeptSession) -> None:
    assert [send.to for send in play.begun] == [A, B]
    assert all(isinstance(send.message, KeepAlive) for send in play.begun)


def test_an_answer_reaches_the_user_once_under_the_users_own_number(play: UnkeptSession) -> None:
    asked = play.acquire(token=99)
    answer = Granted(lock="x", fence=7, session="c", owner="ann", request=99)
    assert play.grant(asked) == [Send(ANN, answer)]
    assert play.grant(asked) == []
    assert play.counted[-1] == "client.late_answer_dropped"


def test_answers_of_strangers_and_answers_that_do_not_fit_are_dropped(play: UnkeptSession) -> None:
    play.acquire()
    for unfit in (
        Granted(lock="x", fence=7, session="d", owner="ann", request=1),
        Granted(lock="y", fence=7, session="c", owner="ann", request=1),
        Granted(lock="x", fence=7, session="c", owner="ben", request=1),
        Granted(lock="x", fence=0, session="c", owner="ann", request=1),
        Released(lock="x", session="c", owner="ann", request=1),
        LockStatus(lock="x", holder=None, waiters=(), waits_for=(), session="c", request=1),
    ):
        assert play.hear(A, unfit) == []
    assert play.counted == [
        "client.answer_of_another_session_dropped",
        *["client.unfit_answer_dropped"] * 5,
    ]
    assert len(play.role.session_state.in_flight.pending) == 1


def test_a_user_on_another_node_is_no_user(play: UnkeptSession) -> None:
    assert play.hear(Address("a/ann"), Acquire(lock="x")) == []
    assert play.counted == ["client.stranger_dropped"]


def test_a_request_is_repeated_under_its_number_ever_more_slowly_until_answered(
    play: UnkeptSession,
) -> None:
    asked = play.acquire()
    repeats = of(Acquire, play.run_kept(60_000, A))
    assert set(repeats) == {asked.message}
    assert 15 <= len(repeats) <= 20
    play.grant(asked)
    assert of(Acquire, play.run_kept(10_000, A)) == []


def test_a_repeated_acquire_says_what_is_left_of_its_wait(play: UnkeptSession) -> None:
    play.acquire(wait_ms=2_000)
    waits = [repeat.wait_ms for repeat in of(Acquire, play.run_kept(1_900, A))]
    assert all(wait is not None and wait < 2_000 for wait in waits)
    assert waits == sorted(waits, key=lambda wait: -(wait or 0))


def test_pauses_vary_with_the_chance_given() -> None:
    def pause(seed: int) -> int | None:
        play = UnkeptSession()
        play.role.session_state.in_flight.random = Random(seed)
        play.acquire()
        play.run(TICK_MS)
        return play.role.session_state.in_flight.pending[1].resend_at

    assert len({pause(seed) for seed in range(10)}) > 5
    assert pause(3) == pause(3)


def test_an_idle_session_sets_no_timer(play: UnkeptSession) -> None:
    play.run(10_000)
    assert play.alarms == []
    asked = play.held()
    play.hear(ANN, Release(lock="x", owner="ann", fence=7))
    play.hear(asked.to, Released(lock="x", session="c", owner="ann", request=2))
    play.run(10_000)
    assert play.alarms == []


def test_what_a_session_remembers_can_be_copied(play: UnkeptSession) -> None:
    play.held()
    play.acquire(BEN)
    copy = deepcopy(play.role.state())
    assert list(copy["session_state"].holds) == list(play.role.session_state.holds)


def test_a_stale_tick_does_nothing(play: UnkeptSession) -> None:
    play.acquire()
    play.now_ms += 60_000
    assert play.hear(ME, SessionTick(round=play.role.round - 1)) == []
    assert play.hear(ME, SessionTick(round=play.role.round)) != []


def test_inspect_and_describe_are_answered_with_the_gates_words(play: UnkeptSession) -> None:
    (asked,) = play.hear(ANN, Inspect(lock="x", request=5))
    assert asked == Send(A, Inspect(lock="x", session="c", request=1))
    status = LockStatus(lock="x", holder=None, waiters=(), waits_for=(), session="c", request=1)
    assert one(LockStatus, play.hear(A, status), ANN).request == 5
    (asked,) = play.hear(ANN, Describe())
    assert asked == Send(A, Describe(session="c", request=2))
    assert of(NodeStatus, play.hear(A, node_status("a", 2)), ANN)


@pytest.mark.parametrize(
    ("question", "word"),
    [
        (Acquire(lock=""), "lock name"),
        (Acquire(lock="x" * 300), "256"),
        (Acquire(lock="x", owner="o" * 300), "owner"),
        (Acquire(lock="x", owner="\ud800"), "has U+D800"),
        (Acquire(lock="x", wait_ms=-1), "wait_ms is -1"),
        (Release(lock="\n", fence=1), "has U+000A"),
        (Inspect(lock=""), "lock name"),
    ],
)
def test_a_field_out_of_its_limits_is_refused_at_once(
    play: UnkeptSession, question: Acquire | Release | Inspect, word: str
) -> None:
    answer = refusal(play.hear(ANN, question))
    assert answer.reason is Reason.INVALID
    assert word in answer.detail


def test_an_owner_that_waits_is_refused_a_second_wait(play: UnkeptSession) -> None:
    play.acquire()
    answer = refusal(play.hear(ANN, Acquire(lock="x", owner="ann")))
    assert answer.reason is Reason.ALREADY_HELD
    assert "waits" in answer.detail


def test_an_owner_that_holds_is_refused_until_its_release_is_confirmed(play: UnkeptSession) -> None:
    play.held()
    answer = refusal(play.hear(ANN, Acquire(lock="x", owner="ann")))
    assert answer.reason is Reason.ALREADY_HELD
    assert "fence 7" in answer.detail
    (release,) = play.hear(ANN, Release(lock="x", owner="ann", fence=7))
    answer = refusal(play.hear(BEN, Acquire(lock="x", owner="ann")), BEN)
    assert "not confirmed by a yet" in answer.detail
    play.hear(A, Released(lock="x", session="c", owner="ann", request=2))
    assert release.to == A
    assert isinstance(play.acquire().message, Acquire)


def test_requests_beyond_the_limit_are_refused_as_overload(
    play: UnkeptSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "PENDING_MAX", 2)
    play.acquire(lock="1")
    play.acquire(lock="2")
    answer = refusal(play.hear(ANN, Acquire(lock="3")))
    assert answer.reason is Reason.OVERLOADED
    assert "2" in answer.detail
    monkeypatch.setattr(admission, "HOLDS_MAX", 0)
    assert refusal(play.hear(ANN, Acquire(lock="3"))).reason is Reason.OVERLOADED
