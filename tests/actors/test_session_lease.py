"""Holds with a deadline, in a session played by hand: start of the lease, and notices."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.expect import present
from support.session_harness import ANN, BEN, WATCHER, A, B, SessionHarness, of, one

from fencelock.actors.api.lock_message import (
    Abandon,
    Acquire,
    Cancel,
    Granted,
    HoldLost,
    Reason,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Unlocking,
    refused,
)
from fencelock.actors.effect import Send
from fencelock.actors.message import NS_PER_MS, Instant
from fencelock.actors.session.event import HoldsLost
from fencelock.actors.session.holds import HoldState

TTL_MS = 600_000
"""So long that the session is no matter here."""
HOLD_MS, GRACE_MS = 10_000, 4_000
FENCE = 7
SURE = (1_000_000 - 1_000) / (1_000_000 + 1_000)
"""The rest of a duration when two clocks have drifted apart."""


@pytest.fixture
def harness() -> SessionHarness:
    return SessionHarness(TTL_MS)


def ns(ms: float) -> Instant:
    return Instant(int(ms * NS_PER_MS))


def grant(asked: Acquire, fence: int = FENCE, hold_ms: int = HOLD_MS) -> Granted:
    return Granted(**asked.fields(), fence=fence, hold_ms=hold_ms, grace_ms=GRACE_MS)


def renewed(asked: Renew, hold_ms: int = HOLD_MS) -> Renewed:
    return Renewed(**asked.fields(), fence=asked.fence, hold_ms=hold_ms, grace_ms=GRACE_MS)


def wanted(harness: SessionHarness) -> Acquire:
    """Let ann request the lock; return the messages to endpoint A."""
    return one(Acquire, harness.open(harness.acquire()), A)


def held(harness: SessionHarness, after_ms: int = 0) -> list[Send]:
    """Let ann hold the lock, granted ``after_ms`` later; return the messages sent then."""
    asked = wanted(harness)
    harness.run_kept(after_ms, A)
    return harness.receive(A, grant(asked))


def user_renews(harness: SessionHarness, hold_ms: int = 0) -> list[Send]:
    return harness.receive(
        ANN, Renew(lock="x", fence=FENCE, owner="ann", hold_ms=hold_ms, request=3)
    )


def unlocking(harness: SessionHarness, fence: int = FENCE) -> list[Send]:
    notice = Unlocking(
        lock="x", fence=fence, grace_ms=GRACE_MS, session=harness.assigned, owner="ann"
    )
    return harness.receive(A, notice)


def test_a_lease_counts_from_when_the_lock_was_asked_for(harness: SessionHarness) -> None:
    asked_ms = harness.now_ms
    held(harness, 1_000)
    leased = present(harness.ann_holds.lease)
    assert leased.until <= ns(asked_ms + (HOLD_MS + GRACE_MS) * SURE)
    assert leased.until >= ns(asked_ms + (HOLD_MS + GRACE_MS) * SURE - 1)


def test_a_hold_without_a_deadline_has_no_lease(harness: SessionHarness) -> None:
    sends = harness.receive(A, grant(wanted(harness), hold_ms=0))
    assert one(Granted, sends, ANN).fence == FENCE
    assert harness.ann_holds.lease is None
    assert of(HoldsLost, harness.run_kept(TTL_MS // 2, A)) == []


@pytest.mark.parametrize(("after_ms", "late"), [(0, False), (4_900, False), (5_000, True)])
def test_a_grant_that_took_more_than_half_its_duration_is_renewed_before_the_user_gets_it(
    harness: SessionHarness, after_ms: int, *, late: bool
) -> None:
    sends = held(harness, after_ms)
    assert bool(of(Renew, sends, A)) == late
    assert bool(of(Granted, sends, ANN)) != late


def test_a_late_grant_is_passed_on_and_lasts_as_its_renewal_states(harness: SessionHarness) -> None:
    sends = held(harness, 9_000)
    at_ms = harness.now_ms
    harness.run(100)
    answer = harness.receive(A, renewed(one(Renew, sends, A), 20_000))
    granted = one(Granted, answer, ANN)
    assert (granted.fence, granted.hold_ms, granted.grace_ms) == (FENCE, 20_000, GRACE_MS)
    until = harness.until()
    assert ns(at_ms + 24_000 * SURE - 1) <= until <= ns(at_ms + 24_000 * SURE)


def test_a_late_grant_over_at_the_cluster_is_asked_for_anew(harness: SessionHarness) -> None:
    renew = one(Renew, held(harness, 9_000), A)
    no = refused(renew, Reason.NOT_HELD, "over")
    assert of(Refused, harness.receive(A, no), ANN) == []
    again = of(Acquire, harness.run(1_000), A)[0]
    assert again.request > renew.request
    assert one(Granted, harness.receive(A, grant(again, FENCE + 1)), ANN).fence == FENCE + 1


def entered_again(harness: SessionHarness, after_ms: int = 0) -> Acquire:
    """Let ann acquire the lock again that she has held for ``after_ms``; return the request."""
    first = one(Acquire, harness.open(harness.acquire(limit=0)), A)
    harness.receive(A, grant(first))
    harness.run_kept(after_ms, A)
    return one(Acquire, harness.acquire(limit=0, token=5), A)


def test_acquiring_again_leaves_the_deadline_as_it_is(harness: SessionHarness) -> None:
    again = entered_again(harness, 3_000)
    harness.run_kept(HOLD_MS, A)  # The grant comes late.
    until = harness.until()
    sends = harness.receive(A, replace(grant(again, hold_ms=60_000), count=2))
    assert one(Granted, sends, ANN).count == 2
    assert (harness.until(), of(Renew, sends)) == (until, [])
    assert one(HoldsLost, harness.run_kept(GRACE_MS, A), WATCHER).losses[0].fence == FENCE


def test_all_acquires_of_a_lost_hold_are_released_one_by_one(harness: SessionHarness) -> None:
    """Otherwise the next acquire would join what is left of the lost hold."""
    again = entered_again(harness, 3_000)
    harness.receive(A, replace(grant(again, hold_ms=7_000), count=2))
    sends = harness.run_kept(HOLD_MS + GRACE_MS, A)
    assert of(HoldsLost, sends, WATCHER)
    release = of(Release, sends, A)[0]
    assert of(Acquire, harness.acquire(limit=0, token=6), A) == []  # It waits for the releases.
    for left in (1, 0):
        done = Released(
            lock="x", session=release.session, owner="ann", request=release.request, count=left
        )
        sends = harness.receive(A, done)
        if left:
            release = one(Release, sends, A)
    assert one(Acquire, sends, A).limit == 0


def test_a_second_acquire_of_a_forgotten_hold_begins_what_is_left(harness: SessionHarness) -> None:
    asked = wanted(harness)
    left = Granted(**asked.fields(), fence=FENCE, count=2, hold_ms=500, grace_ms=100)
    sent_ms = harness.now_ms
    harness.receive(A, left)
    assert harness.until() <= ns(sent_ms + 600 * SURE)


def test_a_renewal_of_another_hold_does_not_count(harness: SessionHarness) -> None:
    asked = one(Renew, (held(harness), user_renews(harness))[1], A)
    until = harness.until()
    harness.receive(A, replace(renewed(asked), fence=FENCE + 1))
    assert harness.until() == until


def test_a_user_is_notified_once_that_its_duration_ended(harness: SessionHarness) -> None:
    held(harness)
    sends = harness.run_kept(HOLD_MS, A)
    assert one(Unlocking, sends, WATCHER).fence == FENCE
    assert of(Unlocking, unlocking(harness), WATCHER) == []
    assert (of(HoldsLost, sends), of(Release, sends), of(Renew, sends)) == ([], [], [])


def test_the_clusters_notice_comes_first_where_its_clock_is_faster(harness: SessionHarness) -> None:
    held(harness)
    harness.run_kept(HOLD_MS - 100, A)
    harness.run(90)
    notice = one(Unlocking, unlocking(harness), WATCHER)
    assert 0 < notice.grace_ms <= GRACE_MS
    assert of(Unlocking, harness.run_kept(1_000, A), WATCHER) == []


@pytest.mark.parametrize("fence", [FENCE, FENCE + 1])
def test_a_notice_about_another_duration_or_hold_is_dropped(
    harness: SessionHarness, fence: int
) -> None:
    held(harness)
    harness.run_kept(HOLD_MS - 2_000, A)
    assert of(Unlocking, unlocking(harness, fence), WATCHER) == []


def test_a_renewal_begins_the_duration_anew_from_when_it_was_sent(harness: SessionHarness) -> None:
    held(harness)
    harness.run_kept(5_000, A)
    asked = one(Renew, user_renews(harness), A)
    at_ms = harness.now_ms
    harness.run(500)
    sends = harness.receive(A, renewed(asked))
    assert one(Renewed, sends, ANN).request == 3
    until = harness.until()
    assert ns(at_ms + (HOLD_MS + GRACE_MS) * SURE - 1) <= until
    assert until <= ns(at_ms + (HOLD_MS + GRACE_MS) * SURE)
    assert of(Unlocking, harness.run_kept(HOLD_MS - 1_000, A), WATCHER) == []
    assert of(Unlocking, harness.run_kept(1_000, A), WATCHER)


def test_a_renewal_that_is_confirmed_late_ends_the_notice_and_brings_the_next_one_sooner(
    harness: SessionHarness,
) -> None:
    held(harness)
    harness.run_kept(HOLD_MS, A)
    states = [harness.ann_holds.state]
    asked = one(Renew, user_renews(harness), A)
    at_ms = harness.now_ms
    harness.run_kept(GRACE_MS - 1_000, A)
    harness.receive(A, renewed(asked))
    assert [*states, harness.ann_holds.state] == [HoldState.UNLOCKING, HoldState.HELD]
    assert present(harness.ann_holds.lease).warn_at == ns(at_ms + HOLD_MS + GRACE_MS // 2)


def test_a_hold_is_lost_at_the_very_instant_of_its_deadline(harness: SessionHarness) -> None:
    held(harness)
    state, until = harness.role.session_state, harness.until()
    late = Abandon()
    harness.role.handle(BEN, late, Instant(until - 1))
    assert state.holds
    harness.role.handle(BEN, late, until)
    assert (state.holds, state.expires_at) == ({}, None)


def test_a_release_under_way_counts_among_those_of_a_lost_hold(harness: SessionHarness) -> None:
    again = entered_again(harness, 3_000)
    harness.receive(A, replace(grant(again, hold_ms=7_000), count=2))
    harness.ann_holds.owed = 1
    harness.run_kept(HOLD_MS - 3_000, A)
    asked = one(Release, harness.release(), A)
    sends = harness.run_kept(GRACE_MS, A)
    assert one(Refused, sends, ANN).reason is Reason.OWNERSHIP_LOST
    pending = harness.role.session_state.in_flight.pending
    assert [type(each.request) for each in pending.values()] == [Release] * 3
    assert min(pending) == asked.request


def test_a_renewal_makes_no_lease_shorter(harness: SessionHarness) -> None:
    held(harness)
    until = harness.until()
    asked = one(Renew, user_renews(harness, 1_000), A)
    harness.receive(A, renewed(asked, 1_000))
    assert harness.until() == until


def test_a_hold_is_lost_after_the_grace_and_also_given_back(harness: SessionHarness) -> None:
    held(harness)
    sends = harness.run_kept(HOLD_MS + GRACE_MS, A)
    lost = one(HoldsLost, sends, WATCHER)
    assert (lost.losses[0].lock, lost.losses[0].fence) == ("x", FENCE)
    assert "its duration and its grace are over" in lost.detail
    assert of(Release, sends, A)
    assert one(Refused, user_renews(harness), ANN).reason is Reason.OWNERSHIP_LOST


def test_a_renewal_that_is_confirmed_after_the_loss_saves_nothing(harness: SessionHarness) -> None:
    held(harness)
    harness.run_kept(HOLD_MS, A)
    asked = one(Renew, user_renews(harness), A)
    sends = harness.run_kept(GRACE_MS, A)
    assert one(Refused, sends, ANN).reason is Reason.OWNERSHIP_LOST
    harness.receive(A, renewed(asked))
    assert harness.role.session_state.holds == {}
    assert of(Renew, harness.run_kept(5_000, A)) == []


def test_the_first_lease_that_ends_is_judged_first(harness: SessionHarness) -> None:
    held(harness)
    harness.run_kept(3_000, A)
    other = one(Acquire, harness.acquire(BEN, "y"), A)
    harness.receive(A, grant(other, 9, 1_000))
    sends = harness.run_kept(1_000 + GRACE_MS, A)
    assert [loss.lock for lost in of(HoldsLost, sends) for loss in lost.losses] == ["y"]
    assert harness.role.session_state.expires_at == present(harness.ann_holds.lease).next_at
    sends = harness.run_kept(HOLD_MS, A)
    assert [loss.lock for lost in of(HoldsLost, sends) for loss in lost.losses] == ["x"]


@pytest.mark.parametrize(
    ("fence", "owner", "reason"),
    [(FENCE + 1, "ann", Reason.NOT_HELD), (FENCE, "ben", Reason.NOT_HELD)],
)
def test_a_lock_that_is_not_held_is_not_renewed(
    harness: SessionHarness, fence: int, owner: str, reason: Reason
) -> None:
    held(harness)
    sends = harness.receive(ANN, Renew(lock="x", fence=fence, owner=owner, request=3))
    assert one(Refused, sends, ANN).reason is reason
    assert of(Renew, sends, A) == []


def test_a_hold_without_a_deadline_is_not_renewed(harness: SessionHarness) -> None:
    harness.receive(A, grant(wanted(harness), hold_ms=0))
    no = one(Refused, user_renews(harness), ANN)
    assert no.reason is Reason.UNSUPPORTED
    assert "every hold on bakery has one, and on paxos every hold with a duration" in no.detail


@pytest.mark.parametrize("decided", [True, False])
def test_a_loss_before_the_deadline_is_believed_if_the_cluster_has_decided_it(
    harness: SessionHarness, decided: bool
) -> None:
    """On `bakery`, a leader's clock may be fast; on `paxos`, the cluster has decided the loss."""
    held(harness)
    lost = HoldLost(
        lock="x",
        fence=FENCE,
        session=harness.assigned,
        owner="ann",
        detail="taken",
        decided=decided,
    )
    assert bool(of(HoldsLost, harness.receive(A, lost), WATCHER)) == decided
    assert ("client.early_loss_dropped" in harness.counted) != decided


def test_a_grant_without_a_waiting_user_is_given_back(harness: SessionHarness) -> None:
    """The proxy reported a timeout while a leader granted."""
    asked = wanted(harness)
    no = refused(asked, Reason.TIMED_OUT, "late")
    assert one(Refused, harness.receive(A, no), ANN).reason is Reason.TIMED_OUT
    cancel = one(Cancel, harness.receive(A, grant(asked)), A)
    assert (cancel.request, cancel.session) == (asked.request, asked.session)
    assert "client.stray_grant_returned" in harness.counted


def test_a_hold_is_not_given_back_for_being_granted_again(harness: SessionHarness) -> None:
    asked = wanted(harness)
    harness.receive(A, grant(asked))
    for endpoint in (A, B):
        assert of(Cancel, harness.receive(endpoint, grant(asked))) == []
        assert of(Cancel, harness.receive(endpoint, grant(asked, FENCE + 1))) == []


def test_a_renewal_that_came_after_its_own_lease_is_over_is_no_grant_and_is_given_back(
    harness: SessionHarness,
) -> None:
    """The cluster may still have the hold: acquiring again would not restart its duration."""
    renew = one(Renew, held(harness, 9_000), A)
    harness.run_kept(HOLD_MS + GRACE_MS, A)
    sends = harness.receive(A, renewed(renew))
    assert of(Granted, sends, ANN) == []
    assert {cancel.request for cancel in of(Cancel, sends, A)} == {renew.request}
    assert "client.wait_renewed" in harness.counted
    assert of(Acquire, harness.run_kept(1_000, A)) == []
    again = one(Acquire, harness.undo(sends), A)
    assert again.request > renew.request


def test_an_acquire_that_entered_a_lost_hold_has_its_deadline(harness: SessionHarness) -> None:
    again = entered_again(harness)
    at_ms = harness.now_ms
    sends = harness.run_kept(HOLD_MS + GRACE_MS, A)
    assert of(HoldsLost, sends, WATCHER)
    assert one(Refused, harness.release(), ANN).reason is Reason.OWNERSHIP_LOST
    left = Granted(**again.fields(), fence=FENCE, count=2, hold_ms=HOLD_MS, grace_ms=GRACE_MS)
    renew = one(Renew, harness.receive(A, left), A)  # The grant came too late to be relied on.
    assert of(Granted, harness.receive(A, refused(renew, Reason.NOT_HELD, "over")), ANN) == []
    assert harness.role.session_state.holds == {}
    assert harness.now_ms >= at_ms + HOLD_MS + GRACE_MS


def test_a_grant_of_a_lost_hold_that_is_being_released_is_a_loss(harness: SessionHarness) -> None:
    """The release in flight would also release the new acquire."""
    again = entered_again(harness)
    assert of(Release, harness.release()) == []  # It waits for the reply to the acquire.
    assert of(HoldsLost, harness.run_kept(HOLD_MS + GRACE_MS, A), WATCHER)
    assert one(Refused, harness.release(), ANN).reason is Reason.OWNERSHIP_LOST
    left = Granted(**again.fields(), fence=FENCE, count=2, hold_ms=60_000, grace_ms=GRACE_MS)
    sends = harness.receive(A, left)
    assert one(Refused, sends, ANN).reason is Reason.OWNERSHIP_LOST
    harness.free(sends, count=1)
    assert harness.role.session_state.holds == {}


def test_a_release_is_not_sent_under_the_number_of_another_holds(harness: SessionHarness) -> None:
    """The release of a lost hold may still be in flight when its owner holds the lock again."""
    again = entered_again(harness)
    harness.run_kept(HOLD_MS + GRACE_MS, A)
    earlier = one(Release, harness.receive(A, grant(again, FENCE + 1, 60_000)), A)
    assert earlier.fence == FENCE
    assert of(Release, harness.release(fence=FENCE + 1)) == []
    (hold,) = harness.role.session_state.holds.values()
    assert hold.state is HoldState.RELEASING
    no = Refused(**earlier.fields(), reason=Reason.NOT_HELD, detail="it is over")
    later = one(Release, harness.receive(A, no), A)
    assert (later.fence, later.request > earlier.request) == (FENCE + 1, True)
