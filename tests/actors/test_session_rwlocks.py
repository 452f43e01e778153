"""A client's session and read/write locks: another acquire, a refused upgrade, a downgrade."""

from __future__ import annotations

from support.session_harness import ANN, SessionHarness, of, one

from fencelock.actors.api.message import Granted, Reason, Refused, Release, Released
from fencelock.actors.api.name import object_name
from fencelock.actors.api.rwlock import RWLOCK, AcquireReadWrite, Downgrade
from fencelock.actors.effect import Send
from fencelock.actors.session.holds import HoldState
from fencelock.actors.session.message import HoldsLost
from fencelock.actors.session.requests import LockKey

CLAIM = LockKey(object_name(RWLOCK, "S"), "ann")


def acquire(harness: SessionHarness, token: int = 4, *, write: bool = True) -> list[Send]:
    asked = AcquireReadWrite(rwlock="S", write=write, owner="ann", request=token)
    return harness.hear(ANN, asked)


def downgrade(harness: SessionHarness) -> list[Send]:
    return harness.hear(ANN, Downgrade(rwlock="S", fence=7, owner="ann"))


def hold(harness: SessionHarness) -> None:
    harness.grant(harness.open(acquire(harness)))


def state(harness: SessionHarness) -> HoldState | None:
    found = harness.role.session_state.holds.get(CLAIM)
    return None if found is None else found.state


def test_a_writer_reads_under_the_same_hold_and_releases_twice(harness: SessionHarness) -> None:
    hold(harness)
    said = acquire(harness, 5, write=False)
    assert one(AcquireReadWrite, said).write is False
    assert one(Granted, harness.grant(said, count=2), ANN).count == 2
    for left in (1, 0):
        said = harness.hear(ANN, Release(lock=CLAIM.lock, fence=7, owner="ann"))
        assert one(Released, harness.free(said, left), ANN).count == left
    assert state(harness) is None


def test_a_refused_upgrade_leaves_the_hold(harness: SessionHarness) -> None:
    hold(harness)
    said = harness.refuse(acquire(harness, 5), Reason.ALREADY_HELD)
    assert one(Refused, said, ANN).reason is Reason.ALREADY_HELD
    assert state(harness) is HoldState.HELD


def test_a_downgrade_keeps_the_hold_and_all_its_levels(harness: SessionHarness) -> None:
    hold(harness)
    harness.grant(acquire(harness, 5, write=False), count=2)
    assert one(Released, harness.free(downgrade(harness), 1), ANN).count == 1
    assert state(harness) is HoldState.HELD
    assert of(Release, harness.run(1_000)) == []  # The session owes nothing.
    for left in (1, 0):
        said = harness.hear(ANN, Release(lock=CLAIM.lock, fence=7, owner="ann"))
        harness.free(said, left)
    assert state(harness) is None


def test_a_downgrade_without_an_answer_is_repeated_under_its_number(
    harness: SessionHarness,
) -> None:
    hold(harness)
    first = one(Downgrade, downgrade(harness))
    again = of(Downgrade, harness.run(2_000))
    assert again
    assert {one.request for one in again} == {first.request}


def test_a_downgrade_of_a_reader_is_refused_and_the_hold_stays(harness: SessionHarness) -> None:
    hold(harness)
    refused = one(Refused, harness.refuse(downgrade(harness), Reason.INVALID), ANN)
    assert refused.reason is Reason.INVALID
    assert state(harness) is HoldState.HELD


def test_a_downgrade_after_the_loss_is_refused_as_lost(harness: SessionHarness) -> None:
    hold(harness)
    assert one(HoldsLost, harness.run(60_000)).losses[0].fence == 7
    refused = one(Refused, downgrade(harness), ANN)
    assert refused.reason is Reason.OWNERSHIP_LOST
    assert refused.detail.startswith("rwlock 'S': ")


def test_a_downgrade_that_the_protocol_does_not_have_leaves_the_hold(
    harness: SessionHarness,
) -> None:
    hold(harness)
    said = harness.refuse(downgrade(harness), Reason.UNSUPPORTED)
    assert one(Refused, said, ANN).reason is Reason.UNSUPPORTED
    assert state(harness) is HoldState.HELD
