"""A client's session and semaphores: claims of another kind, and releases of a part."""

from __future__ import annotations

from support.session_harness import ANN, BEN, SessionHarness, of, one

from fencelock.actors.api.message import Abandon, Granted, Reason, Refused, Release, Released
from fencelock.actors.api.name import object_name
from fencelock.actors.api.semaphore import SEMAPHORE, AcquirePermits, ReleasePermits
from fencelock.actors.effect import Send
from fencelock.actors.message import Address, role_of
from fencelock.actors.session.holds import HoldState
from fencelock.actors.session.message import HoldsLost
from fencelock.actors.session.requests import LockKey

LOCK = object_name(SEMAPHORE, "S")
CLAIM = LockKey(LOCK, "ann")


def acquire(harness: SessionHarness, user: Address = ANN, amount: int = 3) -> list[Send]:
    owner = role_of(user)
    permits = AcquirePermits(semaphore="S", permits=5, amount=amount, owner=owner, request=4)
    return harness.hear(user, permits)


def part(harness: SessionHarness, amount: int, user: Address = ANN) -> list[Send]:
    return harness.hear(user, ReleasePermits(semaphore="S", fence=7, amount=amount, owner="ann"))


def hold(harness: SessionHarness) -> None:
    said = acquire(harness)
    harness.grant(harness.open(said), count=3)


def state(harness: SessionHarness) -> HoldState | None:
    found = harness.role.session_state.holds.get(CLAIM)
    return None if found is None else found.state


def test_a_claim_goes_out_with_session_and_number_and_its_grant_comes_back(
    harness: SessionHarness,
) -> None:
    said = harness.open(acquire(harness))
    sent = one(AcquirePermits, said)
    assert (sent.lock, sent.session, sent.amount, sent.permits) == (LOCK, "c.1", 3, 5)
    granted = one(Granted, harness.grant(said, count=3), ANN)
    assert (granted.lock, granted.count, granted.request) == (LOCK, 3, 4)
    assert state(harness) is HoldState.HELD


def test_a_release_of_a_part_leaves_the_hold(harness: SessionHarness) -> None:
    hold(harness)
    said = part(harness, 2)
    assert state(harness) is HoldState.RELEASING
    assert one(Released, harness.free(said, 1), ANN).count == 1
    assert state(harness) is HoldState.HELD
    assert of(Release, harness.run(1_000)) == []  # The session owes nothing.
    harness.free(part(harness, 1), 0)
    assert state(harness) is None


def test_a_part_without_an_answer_is_repeated_under_its_number(harness: SessionHarness) -> None:
    hold(harness)
    first = one(ReleasePermits, part(harness, 2))
    again = of(ReleasePermits, harness.run(2_000))
    assert again
    assert {(one.request, one.amount) for one in again} == {(first.request, 2)}


def test_parts_are_sent_one_after_the_other_and_each_once(harness: SessionHarness) -> None:
    hold(harness)
    first = part(harness, 1)
    assert of(ReleasePermits, part(harness, 1, BEN)) == []
    then = harness.free(first, 2)
    assert one(Released, then, ANN).count == 2
    assert one(Released, harness.free(then, 1), BEN).count == 1
    assert state(harness) is HoldState.HELD


def test_a_part_that_nobody_waits_for_any_more_still_happens(harness: SessionHarness) -> None:
    hold(harness)
    said = part(harness, 1)
    harness.hear(ANN, Abandon())
    full = Release(lock=LOCK, fence=7, owner="ann")
    assert of(Release, harness.hear(BEN, full)) == []  # It waits for the part, and is not merged.
    then = harness.free(said, 2)
    harness.free(then, 0)
    assert state(harness) is None


def test_too_large_a_part_is_refused_at_once_and_the_hold_stays(harness: SessionHarness) -> None:
    hold(harness)
    refused = one(Refused, harness.refuse(part(harness, 4), Reason.INVALID), ANN)
    assert refused.reason is Reason.INVALID
    assert state(harness) is HoldState.HELD


def test_a_grant_that_nobody_waits_for_is_given_back_whole(harness: SessionHarness) -> None:
    hold(harness)
    release = one(Release, harness.hear(ANN, Abandon()))
    assert (release.lock, release.fence, release.owner) == (LOCK, 7, "ann")


def test_permits_are_lost_with_the_session(harness: SessionHarness) -> None:
    hold(harness)
    lost = one(HoldsLost, harness.run(60_000))
    assert [(loss.lock, loss.fence) for loss in lost.losses] == [(LOCK, 7)]
    refused = one(Refused, part(harness, 1), ANN)
    assert refused.reason is Reason.OWNERSHIP_LOST
    assert refused.detail.startswith("semaphore 'S': ")
