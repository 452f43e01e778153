"""Holds of a client's session: their states, and those that a thread sees."""

from __future__ import annotations

import itertools

import pytest
from support.expect import present
from support.session_harness import ANN, BEN, A, SessionHarness, last

from fencelock.actors.api.lock_message import Abandon, Acquire, Granted
from fencelock.actors.message import Instant
from fencelock.actors.session import holds as session_holds
from fencelock.actors.session.holds import (
    MOVES,
    Acquisition,
    ClientHold,
    HoldState,
    Lease,
    UnreportedLosses,
)
from fencelock.actors.session.lease import SessionTrust
from fencelock.actors.session.requests import LockKey


def test_the_table_that_was_given_is_the_sessions_own() -> None:
    """So threads of a client find holds in it."""
    holds: dict[LockKey, ClientHold] = {}
    harness = SessionHarness(holds=holds)
    harness.hold()
    hold = holds[LockKey("x", "ann")]
    assert hold.fence == 7
    assert hold.trust is harness.role.session_state.session_lease.trust


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
    assert hold.state_at(Instant(100)) is HoldState.HELD  # No reply has judged it yet.
    hold.disowned = True
    assert hold.state_at(Instant(100)) is HoldState.LOST
    hold.disowned = False
    hold.move(HoldState.LOST)
    assert hold.state_at(Instant(100)) is HoldState.LOST


def test_a_reader_finds_a_hold_lost_from_its_deadline_on() -> None:
    held = ClientHold(A, 7, (), None, lease=Lease(Instant(50), Instant(100), None))
    seen = [held.state_at(Instant(now)) for now in (99, 100)]
    assert seen == [HoldState.HELD, HoldState.LOST]
    assert ClientHold(A, 7, (), None).state_at(Instant(1 << 62)) is HoldState.HELD


@pytest.mark.parametrize(("warn_at", "next_at"), [(None, 100), (99, 99), (101, 100)])
def test_a_lease_is_judged_at_its_warning_or_its_end(warn_at: int | None, next_at: int) -> None:
    warning = None if warn_at is None else Instant(warn_at)
    assert Lease(Instant(50), Instant(100), warning).next_at == next_at


@pytest.mark.parametrize(
    ("count", "token", "left", "owed"),
    [(1, 1, [2], 0), (1, 3, [1], 0), (3, 2, [1], 2), (0, 1, [2], 0), (2, None, [1, 2], 0)],
)
def test_a_confirmed_release_leaves_what_the_cluster_counts(
    count: int, token: int | None, left: list[int], owed: int
) -> None:
    """Without the acquire that was released, its newest one goes."""
    hold = ClientHold(A, 7, (Acquisition(ANN, 1), Acquisition(ANN, 2)), None, owed=1)
    hold.freed(count, token)
    assert ([acquisition.token for acquisition in hold.acquisitions], hold.owed) == (left, owed)


def test_the_oldest_loss_is_forgotten_first_and_each_is_reported_as_often_as_it_was_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_holds, "HOLDS_MAX", 2)
    x, y, z = (LockKey(lock, "ann") for lock in "xyz")
    unreported = UnreportedLosses()
    for lock_key in (x, y, x, z):
        unreported.add(lock_key, 7, 2, "gone")
    assert unreported.take_reason(y, 7) is None
    assert [unreported.take_reason(x, 7) for _ in range(2)] == ["gone", "gone"]
    assert list(unreported.losses) == [(z, 7)]
    assert unreported.take_reason(x, 7) is None


def test_a_hold_is_lost_at_the_very_instant_of_its_deadline(harness: SessionHarness) -> None:
    sends = harness.open(harness.acquire())
    _, acquire = last(Acquire, sends)
    granted = Granted(**acquire.fields(), fence=7, count=1, hold_ms=5_000, grace_ms=4_000)
    harness.receive(A, granted)
    state = harness.role.session_state
    until = present(state.holds[LockKey("x", "ann")].lease).until
    harness.role.handle(BEN, Abandon(), Instant(until - 1))
    assert state.holds
    harness.role.handle(BEN, Abandon(), until)
    assert (state.holds, state.expires_at) == ({}, None)
