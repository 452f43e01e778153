"""A client's session and semaphores: claims of another kind, and releases of a part."""

from __future__ import annotations

from support.session_harness import ANN, BEN, SessionHarness, of, one

from fencelock.actors.api.message import Abandon, Granted, Reason, Refused, Release, Released
from fencelock.actors.api.name import object_name
from fencelock.actors.api.semaphore import SEMAPHORE, AcquirePermits, ReleasePermits
from fencelock.actors.effect import Send
from fencelock.actors.message import Address, role_of
from fencelock.actors.session.holding import HoldState
from fencelock.actors.session.message import HoldsLost
from fencelock.actors.session.pending import Claim

LOCK = object_name(SEMAPHORE, "S")
CLAIM = Claim(LOCK, "ann")


def acquire(parley: SessionHarness, user: Address = ANN, amount: int = 3) -> list[Send]:
    owner = role_of(user)
    permits = AcquirePermits(semaphore="S", permits=5, amount=amount, owner=owner, request=4)
    return parley.hear(user, permits)


def part(parley: SessionHarness, amount: int, user: Address = ANN) -> list[Send]:
    return parley.hear(user, ReleasePermits(semaphore="S", fence=7, amount=amount, owner="ann"))


def hold(parley: SessionHarness) -> None:
    said = acquire(parley)
    parley.grant(parley.open(said), count=3)


def state(parley: SessionHarness) -> HoldState | None:
    found = parley.role.session_state.holds.get(CLAIM)
    return None if found is None else found.state


def test_a_claim_goes_out_with_session_and_number_and_its_grant_comes_back(
    parley: SessionHarness,
) -> None:
    said = parley.open(acquire(parley))
    sent = one(AcquirePermits, said)
    assert (sent.lock, sent.session, sent.amount, sent.permits) == (LOCK, "c.1", 3, 5)
    granted = one(Granted, parley.grant(said, count=3), ANN)
    assert (granted.lock, granted.count, granted.request) == (LOCK, 3, 4)
    assert state(parley) is HoldState.HELD


def test_a_release_of_a_part_leaves_the_hold(parley: SessionHarness) -> None:
    hold(parley)
    said = part(parley, 2)
    assert state(parley) is HoldState.RELEASING
    assert one(Released, parley.free(said, 1), ANN).count == 1
    assert state(parley) is HoldState.HELD
    assert of(Release, parley.run(1_000)) == []  # The session owes nothing.
    parley.free(part(parley, 1), 0)
    assert state(parley) is None


def test_a_part_without_an_answer_is_repeated_under_its_number(parley: SessionHarness) -> None:
    hold(parley)
    first = one(ReleasePermits, part(parley, 2))
    again = of(ReleasePermits, parley.run(2_000))
    assert again
    assert {(one.request, one.amount) for one in again} == {(first.request, 2)}


def test_parts_are_sent_one_after_the_other_and_each_once(parley: SessionHarness) -> None:
    hold(parley)
    first = part(parley, 1)
    assert of(ReleasePermits, part(parley, 1, BEN)) == []
    then = parley.free(first, 2)
    assert one(Released, then, ANN).count == 2
    assert one(Released, parley.free(then, 1), BEN).count == 1
    assert state(parley) is HoldState.HELD


def test_a_part_that_nobody_waits_for_any_more_still_happens(parley: SessionHarness) -> None:
    hold(parley)
    said = part(parley, 1)
    parley.hear(ANN, Abandon())
    full = Release(lock=LOCK, fence=7, owner="ann")
    assert of(Release, parley.hear(BEN, full)) == []  # It waits for the part, and is not merged.
    then = parley.free(said, 2)
    parley.free(then, 0)
    assert state(parley) is None


def test_too_large_a_part_is_refused_at_once_and_the_hold_stays(parley: SessionHarness) -> None:
    hold(parley)
    refused = one(Refused, parley.refuse(part(parley, 4), Reason.INVALID), ANN)
    assert refused.reason is Reason.INVALID
    assert state(parley) is HoldState.HELD


def test_a_grant_that_nobody_waits_for_is_given_back_whole(parley: SessionHarness) -> None:
    hold(parley)
    release = one(Release, parley.hear(ANN, Abandon()))
    assert (release.lock, release.fence, release.owner) == (LOCK, 7, "ann")


def test_permits_are_lost_with_the_session(parley: SessionHarness) -> None:
    hold(parley)
    lost = one(HoldsLost, parley.run(60_000))
    assert [(loss.lock, loss.fence) for loss in lost.losses] == [(LOCK, 7)]
    refused = one(Refused, part(parley, 1), ANN)
    assert refused.reason is Reason.OWNERSHIP_LOST
    assert refused.detail.startswith("semaphore 'S': ")
