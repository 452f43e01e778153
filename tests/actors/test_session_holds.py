"""The states of a hold, as the session moves them and as a thread of the client reads them."""

from __future__ import annotations

import itertools

import pytest
from support.session_harness import A, SessionHarness

from fencelock.actors.api.message import Granted, Reason
from fencelock.actors.api.session_message import HoldLost, Unlocking
from fencelock.actors.message import NS_PER_MS, Instant
from fencelock.actors.session.holds import HOLDING, MOVES, ClientHold, HoldState
from fencelock.actors.session.lease import SessionTrust
from fencelock.actors.session.requests import LockKey
from fencelock.actors.session.session import TTL_MS

X = LockKey("x", "ann")


@pytest.fixture
def harness() -> SessionHarness:
    return SessionHarness()


def hold_of(harness: SessionHarness) -> ClientHold:
    return harness.role.session_state.holds[X]


def test_a_hold_is_held_then_releasing_then_released(harness: SessionHarness) -> None:
    harness.hold()
    hold = hold_of(harness)
    states = [hold.state]
    said = harness.release()
    states.append(hold.state)
    harness.free(said)
    assert [*states, hold.state] == [HoldState.HELD, HoldState.RELEASING, HoldState.RELEASED]
    assert X not in harness.role.session_state.holds


def test_a_hold_of_two_acquires_is_held_again_when_one_is_released(harness: SessionHarness) -> None:
    harness.hold(limit=0)
    harness.grant(harness.acquire(token=2, limit=0), fence=7, count=2)
    hold = hold_of(harness)
    said = harness.release()
    states = [hold.state]
    harness.free(said, count=1)
    states.append(hold.state)
    harness.free(harness.release())
    assert [*states, hold.state] == [HoldState.RELEASING, HoldState.HELD, HoldState.RELEASED]


def test_a_release_that_is_refused_as_not_held_ends_the_hold(harness: SessionHarness) -> None:
    harness.hold()
    hold = hold_of(harness)
    harness.refuse(harness.release(), Reason.NOT_HELD)
    assert hold.state is HoldState.RELEASED


def test_an_unconfirmed_release_stays_releasing_though_its_user_gives_up(
    harness: SessionHarness,
) -> None:
    harness.hold()
    hold = hold_of(harness)
    harness.release()
    harness.run(11_000)
    assert hold.state is HoldState.RELEASING


def test_a_hold_that_was_taken_away_is_lost_for_the_reason_given(harness: SessionHarness) -> None:
    harness.hold()
    hold = hold_of(harness)
    word = HoldLost(lock="x", fence=7, session=harness.assigned, owner="ann", detail="by root")
    harness.hear(A, word)
    assert (hold.state, hold.reason) == (HoldState.LOST, "by root")


def test_all_holds_of_a_session_are_lost_with_it(harness: SessionHarness) -> None:
    harness.hold()
    hold = hold_of(harness)
    harness.run(TTL_MS)
    assert hold.state is HoldState.LOST
    assert "15 s" in hold.reason


def test_a_hold_is_unlocking_when_its_duration_is_over() -> None:
    harness = SessionHarness(600_000)
    asked = harness.open(harness.acquire())[-1].message
    harness.hear(
        A,
        Granted(
            lock="x",
            fence=7,
            session=harness.assigned,
            owner="ann",
            request=getattr(asked, "request"),  # noqa: B009  # Of whatever it asked.
            hold_ms=1_000,
            grace_ms=5_000,
        ),
    )
    hold = hold_of(harness)
    states = [hold.state]
    harness.run_kept(1_500, A)
    word = Unlocking(lock="x", fence=7, grace_ms=5_000, session=harness.assigned, owner="ann")
    harness.hear(A, word)
    states.append(hold.state)
    harness.run_kept(5_000, A)
    assert [*states, hold.state] == [HoldState.HELD, HoldState.UNLOCKING, HoldState.LOST]


def test_the_table_that_was_given_is_the_sessions_own() -> None:
    """So threads of a client find holds in it."""
    holds: dict[LockKey, ClientHold] = {}
    harness = SessionHarness(holds=holds)
    harness.hold()
    assert holds[X].fence == 7
    assert holds[X].trust is harness.role.session_state.session_lease.trust


@pytest.mark.parametrize(("state", "to"), list(itertools.product(HoldState, HoldState)))
def test_a_move_that_the_table_does_not_have_raises(state: HoldState, to: HoldState) -> None:
    hold = ClientHold(A, 7, (), None)
    hold.state = state
    if to in MOVES[state]:
        hold.move(to)
        assert hold.state is to
    else:
        with pytest.raises(AssertionError, match=f"in state {state.value} cannot be {to.value}"):
            hold.move(to)
        assert hold.state is state


def test_lost_and_released_are_final() -> None:
    assert MOVES[HoldState.LOST] == MOVES[HoldState.RELEASED] == ()


def test_a_reader_judges_by_the_clock_and_its_verdict_stays() -> None:
    trust = SessionTrust(Instant(50), Instant(100))
    hold = ClientHold(A, 7, (), trust)
    seen = [hold.state_at(Instant(now)) for now in (49, 50, 99, 100)]
    assert seen == [HoldState.HELD, HoldState.SUSPECT, HoldState.SUSPECT, HoldState.LOST]
    trust.suspect_at, trust.until = Instant(150), Instant(200)
    assert hold.state_at(Instant(100)) is HoldState.HELD  # Nobody has judged it yet.
    hold.disowned = True
    assert hold.state_at(Instant(100)) is HoldState.LOST


def test_a_reader_between_any_two_steps_of_a_loss_is_never_too_confident() -> None:
    """The session ends and another is opened; a reader may look before and after each step."""
    times = [Instant(n * NS_PER_MS) for n in (90, 100, 101, 150)]
    for now in times:
        old, new = SessionTrust(Instant(0), Instant(100 * NS_PER_MS)), None
        hold = ClientHold(A, 7, (), old)
        assert (hold.state_at(now) in HOLDING) == (now < 100 * NS_PER_MS)
        hold.reason = "over"
        assert (hold.state_at(now) in HOLDING) == (now < 100 * NS_PER_MS)
        hold.move(HoldState.LOST)
        assert hold.state_at(now) is HoldState.LOST
        new = SessionTrust(Instant(0), Instant(1_000 * NS_PER_MS))
        assert hold.trust is not new
        assert hold.state_at(now) is HoldState.LOST
