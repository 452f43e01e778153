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
from fencelock.actors.session import holds
from fencelock.actors.session.lease import SessionLease
from fencelock.actors.session.message import Close, HoldsLost, Loss, Suspected

TTL_MS = 15_000
SURE_MS = TTL_MS * (1_000_000 - DRIFT_PPM) / (1_000_000 + DRIFT_PPM)


def ms(instant: Instant) -> float:
    return instant / NS_PER_MS


def test_trust_in_a_session_counts_from_when_it_was_asked_for(
    harness: SessionHarness,
) -> None:
    said = harness.acquire()
    harness.now_ms += 400
    harness.open(said)
    assert ms(harness.trust.until) == pytest.approx(1_000 + SURE_MS)
    assert ms(harness.trust.suspect_at) == pytest.approx(1_000 + TTL_MS / 2)


def test_a_second_attempt_to_open_counts_from_when_it_was_made(harness: SessionHarness) -> None:
    first = harness.acquire()
    later = [send for send in harness.run(700) if isinstance(send.message, Open)]
    harness.open(later)
    assert ms(harness.trust.until) > 1_000 + SURE_MS
    assert harness.open(first) == []


def test_trust_grows_with_every_confirmed_keep_alive_from_when_it_was_sent(
    harness: SessionHarness,
) -> None:
    harness.hold()
    (keep,) = [s for s in harness.run(3_100) if isinstance(s.message, api.KeepAlive)]
    sent_ms = 4_000
    harness.now_ms += 2_000
    harness.alive(keep)
    assert ms(harness.trust.until) == pytest.approx(sent_ms + SURE_MS, abs=150)


def test_a_confirmed_command_counts_as_a_keep_alive(harness: SessionHarness) -> None:
    harness.hold()
    harness.now_ms += 5_000
    said = harness.release()
    harness.now_ms += 300
    harness.free(said)
    assert ms(harness.trust.until) == pytest.approx(6_000 + SURE_MS)


def test_a_grant_after_a_long_wait_proves_only_what_was_so_when_it_was_asked(
    harness: SessionHarness,
) -> None:
    asked = harness.open(harness.acquire())
    harness.run_kept(9_000, A)
    until = harness.trust.until
    harness.grant(asked)
    assert harness.trust.until == until > asked_until()


def asked_until() -> Instant:
    return SessionLease.trusted_until(Instant(1_000 * NS_PER_MS), TTL_MS)


def test_the_watcher_receives_nothing_while_all_is_well(harness: SessionHarness) -> None:
    sends = harness.hold()
    sends += harness.run_kept(TTL_MS, A)
    sends += harness.free(harness.release())
    assert [send for send in sends if send.to == WATCHER] == []


def test_without_confirmation_a_session_is_suspect_at_half_its_ttl_and_lost_at_its_end(
    harness: SessionHarness,
) -> None:
    harness.hold()
    assert of(Suspected, harness.run(7_400)) == []
    suspected = one(Suspected, harness.run(200), WATCHER)
    assert 7_400 <= suspected.silent_ms <= 7_700
    assert 7_200 <= suspected.left_ms <= 7_500
    assert of(HoldsLost, harness.run(7_200)) == []
    said = harness.run(300)
    assert one(HoldsLost, said, WATCHER).losses == (Loss("x", "ann", 7),)
    assert "15 s" in one(HoldsLost, said, WATCHER).detail
    assert {end.session for end in of(End, said)} == {"c.1"}


def test_a_suspect_session_is_trusted_again_when_it_is_confirmed(harness: SessionHarness) -> None:
    harness.hold()
    said = harness.run(8_000)
    assert of(Suspected, said, WATCHER)
    greeting = [send for send in said if isinstance(send.message, api.KeepAlive)][-1]
    harness.alive(greeting)
    assert harness.trust.suspect_at > harness.now_ms * NS_PER_MS
    assert of(HoldsLost, harness.run(7_000)) == []


def test_what_is_lost_stays_lost_whatever_is_said_later(harness: SessionHarness) -> None:
    harness.hold()
    said = harness.run(14_800)
    greeting = [send for send in said if isinstance(send.message, api.KeepAlive)][-1]
    harness.now_ms += 5_000  # The process was paused; the answer was there all the time.
    trust = harness.trust
    late = harness.alive(greeting)
    assert one(HoldsLost, late, WATCHER).losses == (Loss("x", "ann", 7),)
    assert trust.until < harness.now_ms * NS_PER_MS
    assert one(api.Refused, harness.release(), ANN).reason is api.Reason.OWNERSHIP_LOST


def test_nothing_held_is_no_reason_to_worry_the_watcher(harness: SessionHarness) -> None:
    harness.open(harness.acquire())
    said = harness.run(16_000)
    assert of(Suspected, said) == []
    assert of(HoldsLost, said) == []


def test_a_wait_goes_on_under_its_number_when_its_session_can_not_be_believed_any_more(
    harness: SessionHarness,
) -> None:
    asked = harness.open(harness.acquire(token=4))
    said = harness.run(16_000)
    assert of(api.Refused, said) == []
    assert {end.session for end in of(End, said)} == {"c.1"}
    opening = [send for send in said if isinstance(send.message, Open)]
    again = harness.open(opening)
    assert one(api.Acquire, again).request == one(api.Acquire, asked).request
    assert of(api.Granted, harness.grant(asked)) == []
    assert one(api.Granted, harness.grant(again, fence=8), ANN).fence == 8


def test_the_end_of_a_session_given_up_is_repeated_until_confirmed(harness: SessionHarness) -> None:
    harness.hold()
    ends = [s for s in harness.run(16_000) if isinstance(s.message, End)]
    assert len(ends) > 1
    assert harness.end(ends) == []
    assert of(End, harness.run(60_000)) == []
    assert harness.alarms == []


def test_the_end_of_a_session_given_up_is_not_repeated_for_ever(harness: SessionHarness) -> None:
    harness.hold()
    assert 8 <= len(of(End, harness.run(120_000))) <= 20
    assert harness.alarms == []


def test_an_operators_eviction_loses_that_hold_alone(harness: SessionHarness) -> None:
    harness.hold()
    harness.hold(BEN, lock="y", fence=8)
    word = HoldLost(lock="x", fence=7, session="c.1", owner="ann", detail="by ops")
    said = harness.hear(A, word)
    assert one(HoldsLost, said, WATCHER) == HoldsLost(
        losses=(Loss("x", "ann", 7),), detail="by ops"
    )
    assert one(api.Refused, harness.release(), ANN).reason is api.Reason.OWNERSHIP_LOST
    assert of(api.Release, harness.release(BEN, lock="y", fence=8))
    assert harness.hear(A, word) == []


def test_an_eviction_that_overtakes_its_grant_is_told_instead_of_it(
    harness: SessionHarness,
) -> None:
    asked = harness.open(harness.acquire())
    harness.hear(A, HoldLost(lock="x", fence=7, session="c.1", owner="ann", detail="by ops"))
    said = harness.grant(asked)
    assert of(api.Granted, said) == []
    assert one(api.Refused, said, ANN).reason is api.Reason.OWNERSHIP_LOST
    assert harness.role.session_state.holds == {}


def test_an_eviction_that_was_not_heard_of_is_learned_from_the_release(
    harness: SessionHarness,
) -> None:
    harness.hold()
    said = harness.refuse(harness.release(), api.Reason.OWNERSHIP_LOST)
    assert one(api.Refused, said, ANN).reason is api.Reason.OWNERSHIP_LOST
    assert one(HoldsLost, said, WATCHER).losses == (Loss("x", "ann", 7),)
    assert harness.role.session_state.holds == {}


def test_each_of_several_levels_is_told_of_the_loss_once(harness: SessionHarness) -> None:
    harness.hold(limit=0)
    harness.hold(limit=0, count=2)
    harness.run(16_000)
    reasons = [one(api.Refused, harness.release(), ANN).reason for _ in range(3)]
    assert reasons == [api.Reason.OWNERSHIP_LOST, api.Reason.OWNERSHIP_LOST, api.Reason.NOT_HELD]


def test_memory_of_losses_is_bounded(
    harness: SessionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holds, "HOLDS_MAX", 1)
    harness.hold()
    harness.hold(lock="y", fence=8)
    harness.run(16_000)
    assert one(api.Refused, harness.release(), ANN).reason is api.Reason.NOT_HELD
    assert (
        one(api.Refused, harness.release(lock="y", fence=8), ANN).reason
        is api.Reason.OWNERSHIP_LOST
    )


def test_a_short_session_is_moved_to_another_endpoint_in_time(harness: SessionHarness) -> None:
    harness = SessionHarness(ttl_ms=2_000)
    harness.hold()
    said: list[Send] = []
    for _ in range(100):  # Endpoint A does not answer any more.
        said += harness.run_kept(100, B)
    assert of(HoldsLost, said) == []
    assert of(Suspected, said) == []
    assert of(api.KeepAlive, said, B)


def test_the_session_is_confirmed_at_once_through_another_endpoint_when_a_link_breaks(
    harness: SessionHarness,
) -> None:
    harness.hold()
    harness.run(100)
    (keep,) = of(api.KeepAlive, harness.hear(harness.role.address, LinkDown(node="a")), B)
    assert keep.session == "c.1"


def test_a_release_that_was_done_before_an_eviction_is_confirmed_after_it(
    harness: SessionHarness,
) -> None:
    harness.hold(limit=0)
    harness.hold(limit=0, count=2)
    leaving = harness.release(token=3)
    harness.hear(A, HoldLost(lock="x", fence=7, session="c.1", owner="ann", detail="by ops"))
    assert one(api.Released, harness.free(leaving, count=1), ANN).request == 3
    assert one(api.Refused, harness.release(), ANN).reason is api.Reason.OWNERSHIP_LOST


def test_a_session_that_nobody_waits_for_any_more_is_not_opened_for_ever(
    harness: SessionHarness,
) -> None:
    harness.acquire()
    harness.hear(ANN, api.Abandon())
    assert of(Open, harness.run(60_000))
    assert harness.run(60_000) == []
    assert harness.alarms == []


def test_a_session_whose_end_was_not_confirmed_is_not_kept_alive(harness: SessionHarness) -> None:
    harness.hold()
    harness.hear(BEN, Close())
    harness.run(2_500)
    assert harness.run(60_000) == []
    assert harness.alarms == []
