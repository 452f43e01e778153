"""A client's trust in its session: trusted, suspect, lost; and the fate of its waits."""

from __future__ import annotations

import pytest
from support.session_harness import ANN, BEN, WATCHER, A, B, SessionHarness, of, one

from fencelock.actors.api import message as api
from fencelock.actors.api.session_message import End, HoldLost, Open
from fencelock.actors.effect import Send
from fencelock.actors.lease import DRIFT_PPM
from fencelock.actors.message import NS_PER_MS, Instant
from fencelock.actors.role_message import LinkDown
from fencelock.actors.session import holding
from fencelock.actors.session.message import Close, HoldsLost, Loss, Suspected, Trusted
from fencelock.actors.session.session_lease import SessionLease

TTL_MS = 15_000
SURE_MS = TTL_MS * (1_000_000 - DRIFT_PPM) / (1_000_000 + DRIFT_PPM)


def ms(instant: Instant) -> float:
    return instant / NS_PER_MS


def test_the_watcher_hears_how_long_holds_are_certain_from_when_it_was_said(
    parley: SessionHarness,
) -> None:
    said = parley.acquire()
    parley.now_ms += 400
    trusted = one(Trusted, parley.open(said), WATCHER)
    assert ms(trusted.until) == pytest.approx(1_000 + SURE_MS)
    assert ms(trusted.suspect_at) == pytest.approx(1_000 + TTL_MS / 2)


def test_a_second_attempt_to_open_counts_from_when_it_was_made(parley: SessionHarness) -> None:
    first = parley.acquire()
    later = [send for send in parley.run(700) if isinstance(send.message, Open)]
    trusted = one(Trusted, parley.open(later), WATCHER)
    assert ms(trusted.until) > 1_000 + SURE_MS
    assert parley.open(first) == []


def test_trust_grows_with_every_confirmed_keep_alive_from_when_it_was_sent(
    parley: SessionHarness,
) -> None:
    parley.hold()
    (keep,) = [s for s in parley.run(3_100) if isinstance(s.message, api.KeepAlive)]
    sent_ms = 4_000
    parley.now_ms += 2_000
    trusted = one(Trusted, parley.alive(keep), WATCHER)
    assert ms(trusted.until) == pytest.approx(sent_ms + SURE_MS, abs=150)


def test_a_confirmed_command_counts_as_a_keep_alive(parley: SessionHarness) -> None:
    parley.hold()
    parley.now_ms += 5_000
    said = parley.release()
    parley.now_ms += 300
    trusted = one(Trusted, parley.free(said), WATCHER)
    assert ms(trusted.until) == pytest.approx(6_000 + SURE_MS)


def test_a_grant_after_a_long_wait_proves_only_what_was_so_when_it_was_asked(
    parley: SessionHarness,
) -> None:
    asked = parley.open(parley.acquire())
    parley.run_kept(9_000, A)
    until = parley.role.session_state.session_lease.until
    assert of(Trusted, parley.grant(asked)) == []
    assert parley.role.session_state.session_lease.until == until > asked_until()


def asked_until() -> Instant:
    return SessionLease.trusted_until(Instant(1_000 * NS_PER_MS), TTL_MS)


def test_the_watcher_is_not_told_of_every_small_progress(parley: SessionHarness) -> None:
    parley.hold()
    told = 0
    for fence in range(8, 28):
        parley.now_ms += 10
        told += len(of(Trusted, parley.free(parley.release(fence=fence - 1))))
        told += len(of(Trusted, parley.hold(fence=fence)))
    assert told == 0


def test_without_confirmation_a_session_is_suspect_at_half_its_ttl_and_lost_at_its_end(
    parley: SessionHarness,
) -> None:
    parley.hold()
    assert of(Suspected, parley.run(7_400)) == []
    suspected = one(Suspected, parley.run(200), WATCHER)
    assert 7_400 <= suspected.silent_ms <= 7_700
    assert 7_200 <= suspected.left_ms <= 7_500
    assert of(HoldsLost, parley.run(7_200)) == []
    said = parley.run(300)
    assert one(HoldsLost, said, WATCHER).losses == (Loss("x", "ann", 7),)
    assert "15 s" in one(HoldsLost, said, WATCHER).detail
    assert {end.session for end in of(End, said)} == {"c.1"}


def test_a_suspect_session_is_trusted_again_when_it_is_confirmed(parley: SessionHarness) -> None:
    parley.hold()
    said = parley.run(8_000)
    assert of(Suspected, said, WATCHER)
    greeting = [send for send in said if isinstance(send.message, api.KeepAlive)][-1]
    assert of(Trusted, parley.alive(greeting), WATCHER)
    assert of(HoldsLost, parley.run(7_000)) == []


def test_what_is_lost_stays_lost_whatever_is_said_later(parley: SessionHarness) -> None:
    parley.hold()
    said = parley.run(14_800)
    greeting = [send for send in said if isinstance(send.message, api.KeepAlive)][-1]
    parley.now_ms += 5_000  # The process was paused; the answer was there all the time.
    late = parley.alive(greeting)
    assert one(HoldsLost, late, WATCHER).losses == (Loss("x", "ann", 7),)
    assert of(Trusted, late) == []
    assert one(api.Refused, parley.release(), ANN).reason is api.Reason.OWNERSHIP_LOST


def test_nothing_held_is_no_reason_to_worry_the_watcher(parley: SessionHarness) -> None:
    parley.open(parley.acquire())
    said = parley.run(16_000)
    assert of(Suspected, said) == []
    assert of(HoldsLost, said) == []


def test_a_wait_goes_on_under_its_number_when_its_session_can_not_be_believed_any_more(
    parley: SessionHarness,
) -> None:
    asked = parley.open(parley.acquire(token=4))
    said = parley.run(16_000)
    assert of(api.Refused, said) == []
    assert {end.session for end in of(End, said)} == {"c.1"}
    opening = [send for send in said if isinstance(send.message, Open)]
    again = parley.open(opening)
    assert one(api.Acquire, again).request == one(api.Acquire, asked).request
    assert of(api.Granted, parley.grant(asked)) == []
    assert one(api.Granted, parley.grant(again, fence=8), ANN).fence == 8


def test_the_end_of_a_session_given_up_is_repeated_until_confirmed(parley: SessionHarness) -> None:
    parley.hold()
    ends = [s for s in parley.run(16_000) if isinstance(s.message, End)]
    assert len(ends) > 1
    assert parley.end(ends) == []
    assert of(End, parley.run(60_000)) == []
    assert parley.alarms == []


def test_the_end_of_a_session_given_up_is_not_repeated_for_ever(parley: SessionHarness) -> None:
    parley.hold()
    assert 8 <= len(of(End, parley.run(120_000))) <= 20
    assert parley.alarms == []


def test_an_operators_eviction_loses_that_hold_alone(parley: SessionHarness) -> None:
    parley.hold()
    parley.hold(BEN, lock="y", fence=8)
    word = HoldLost(lock="x", fence=7, session="c.1", owner="ann", detail="by ops")
    said = parley.hear(A, word)
    assert one(HoldsLost, said, WATCHER) == HoldsLost(
        losses=(Loss("x", "ann", 7),), detail="by ops"
    )
    assert one(api.Refused, parley.release(), ANN).reason is api.Reason.OWNERSHIP_LOST
    assert of(api.Release, parley.release(BEN, lock="y", fence=8))
    assert parley.hear(A, word) == []


def test_an_eviction_that_overtakes_its_grant_is_told_instead_of_it(parley: SessionHarness) -> None:
    asked = parley.open(parley.acquire())
    parley.hear(A, HoldLost(lock="x", fence=7, session="c.1", owner="ann", detail="by ops"))
    said = parley.grant(asked)
    assert of(api.Granted, said) == []
    assert one(api.Refused, said, ANN).reason is api.Reason.OWNERSHIP_LOST
    assert parley.role.session_state.holds == {}


def test_an_eviction_that_was_not_heard_of_is_learned_from_the_release(
    parley: SessionHarness,
) -> None:
    parley.hold()
    said = parley.refuse(parley.release(), api.Reason.OWNERSHIP_LOST)
    assert one(api.Refused, said, ANN).reason is api.Reason.OWNERSHIP_LOST
    assert one(HoldsLost, said, WATCHER).losses == (Loss("x", "ann", 7),)
    assert parley.role.session_state.holds == {}


def test_each_of_several_levels_is_told_of_the_loss_once(parley: SessionHarness) -> None:
    parley.hold(limit=0)
    parley.hold(limit=0, count=2)
    parley.run(16_000)
    reasons = [one(api.Refused, parley.release(), ANN).reason for _ in range(3)]
    assert reasons == [api.Reason.OWNERSHIP_LOST, api.Reason.OWNERSHIP_LOST, api.Reason.NOT_HELD]


def test_memory_of_losses_is_bounded(
    parley: SessionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "HOLDS_MAX", 1)
    parley.hold()
    parley.hold(lock="y", fence=8)
    parley.run(16_000)
    assert one(api.Refused, parley.release(), ANN).reason is api.Reason.NOT_HELD
    assert (
        one(api.Refused, parley.release(lock="y", fence=8), ANN).reason is api.Reason.OWNERSHIP_LOST
    )


def test_a_short_session_is_moved_to_another_gate_in_time(parley: SessionHarness) -> None:
    parley = SessionHarness(ttl_ms=2_000)
    parley.hold()
    said: list[Send] = []
    for _ in range(100):  # Gate a says nothing any more.
        said += parley.run_kept(100, B)
    assert of(HoldsLost, said) == []
    assert of(Suspected, said) == []
    assert of(api.KeepAlive, said, B)


def test_the_session_is_confirmed_at_once_through_another_gate_when_a_link_breaks(
    parley: SessionHarness,
) -> None:
    parley.hold()
    parley.run(100)
    (keep,) = of(api.KeepAlive, parley.hear(parley.role.address, LinkDown(node="a")), B)
    assert keep.session == "c.1"


def test_a_release_that_was_done_before_an_eviction_is_confirmed_after_it(
    parley: SessionHarness,
) -> None:
    parley.hold(limit=0)
    parley.hold(limit=0, count=2)
    leaving = parley.release(token=3)
    parley.hear(A, HoldLost(lock="x", fence=7, session="c.1", owner="ann", detail="by ops"))
    assert one(api.Released, parley.free(leaving, count=1), ANN).request == 3
    assert one(api.Refused, parley.release(), ANN).reason is api.Reason.OWNERSHIP_LOST


def test_a_session_that_nobody_waits_for_any_more_is_not_opened_for_ever(
    parley: SessionHarness,
) -> None:
    parley.acquire()
    parley.hear(ANN, api.Abandon())
    assert of(Open, parley.run(60_000))
    assert parley.run(60_000) == []
    assert parley.alarms == []


def test_a_session_whose_end_was_not_confirmed_is_not_kept_alive(parley: SessionHarness) -> None:
    parley.hold()
    parley.hear(BEN, Close())
    parley.run(2_500)
    assert parley.run(60_000) == []
    assert parley.alarms == []
