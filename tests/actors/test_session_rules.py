"""Rules of holding and waiting as the client's session keeps them."""

from __future__ import annotations

import pytest
from support.session_harness import ANN, BEN, WATCHER, A, SessionHarness, of, one

from fencelock.actors.api import message as api
from fencelock.actors.api.session_message import Ended, Open
from fencelock.actors.session.message import HoldsLost, Loss


def test_a_repetition_keeps_its_number_and_a_new_call_has_a_new_one(
    harness: SessionHarness,
) -> None:
    said = harness.open(harness.acquire())
    repeats = of(api.Acquire, harness.run_kept(5_000, A))
    assert {repeat.request for repeat in repeats} == {one(api.Acquire, said).request}
    harness.hear(ANN, api.Abandon())
    harness.undo(harness.run(1_000))
    assert one(api.Acquire, harness.acquire()).request > repeats[0].request


def test_to_acquire_opens_a_session_and_asks_in_it_under_a_number(
    harness: SessionHarness,
) -> None:
    said = harness.acquire(token=9)
    assert one(Open, said) == Open(
        session="c", ttl_ms=15_000, label="here:1", request=one(Open, said).request
    )
    assert of(api.Acquire, said) == []
    asked = harness.open(said)
    assert one(api.Acquire, asked, A).session == "c.1"
    assert one(api.Granted, harness.grant(asked), ANN).request == 9


def test_a_session_that_is_refused_ends_the_acquire_at_once(
    harness: SessionHarness,
) -> None:
    said = harness.refuse(harness.acquire(), api.Reason.OVERLOADED)
    assert one(api.Refused, said, ANN).reason is api.Reason.OVERLOADED
    assert "session" in one(api.Refused, said, ANN).detail
    assert of(Open, harness.run(20_000)) == []
    assert one(Open, harness.acquire()).session == "c~2"


def test_an_acquire_in_an_expired_session_goes_on_in_the_next_one_under_its_number(
    harness: SessionHarness,
) -> None:
    asked = harness.open(harness.acquire())
    said = harness.refuse(asked, api.Reason.SESSION_EXPIRED)
    assert of(api.Refused, said) == []
    assert one(Open, said).session == "c~2"
    again = one(api.Acquire, harness.open(said))
    assert again.session == "c~2.2"
    assert again.request == one(api.Acquire, asked).request


def test_to_enter_again_what_the_session_lost_is_refused_as_lost(
    harness: SessionHarness,
) -> None:
    harness.hold(limit=0)
    said = harness.refuse(harness.acquire(limit=0), api.Reason.SESSION_EXPIRED)
    assert one(api.Refused, said, ANN).reason is api.Reason.OWNERSHIP_LOST
    assert one(HoldsLost, said, WATCHER).losses == (Loss("x", "ann", 7),)
    assert of(Open, said) == []


def test_a_wait_goes_on_in_the_next_session_for_what_is_left_of_its_time(
    harness: SessionHarness,
) -> None:
    asked = harness.open(harness.acquire(wait_ms=5_000))
    harness.run(2_000)
    again = one(api.Acquire, harness.open(harness.refuse(asked, api.Reason.SESSION_EXPIRED)))
    assert again.wait_ms == 3_000


def test_a_wait_that_the_cluster_gave_up_is_asked_for_anew(harness: SessionHarness) -> None:
    asked = harness.open(harness.acquire())
    assert harness.refuse(asked, api.Reason.CANCELLED) == []
    assert one(api.Acquire, harness.run(300)).request > one(api.Acquire, asked).request


def test_an_acquire_refused_otherwise_is_refused_and_leaves_nothing(
    harness: SessionHarness,
) -> None:
    asked = harness.open(harness.acquire())
    said = harness.refuse(asked, api.Reason.INVALID)
    assert one(api.Refused, said, ANN).reason is api.Reason.INVALID
    assert of(api.Cancel, harness.run(20_000)) == []
    again = harness.open(harness.acquire()) or harness.acquire(BEN)
    assert of(api.Acquire, again)


def test_a_copy_that_may_be_queued_is_withdrawn_when_another_copy_is_refused(
    harness: SessionHarness,
) -> None:
    asked = harness.open(harness.acquire())
    harness.run(1_000)  # It was repeated: one copy may wait in the log.
    said = harness.refuse(asked, api.Reason.OVERLOADED)
    assert one(api.Refused, said, ANN).reason is api.Reason.OVERLOADED
    assert one(api.Cancel, said).request == one(api.Acquire, asked).request


@pytest.mark.parametrize("fence", [7, 8])
def test_a_release_of_what_is_not_held_is_refused_without_asking(
    harness: SessionHarness, fence: int
) -> None:
    assert one(api.Refused, harness.release(fence=7), ANN).reason is api.Reason.NOT_HELD
    harness.hold(BEN)
    said = harness.release(fence=fence)
    assert one(api.Refused, said, ANN).reason is api.Reason.NOT_HELD
    assert of(api.Release, said) == []


def test_a_release_without_an_answer_goes_on_and_can_be_waited_for_again(
    harness: SessionHarness,
) -> None:
    harness.hold()
    harness.release()
    said = harness.run_kept(10_200, A)
    assert one(api.Refused, said, ANN).reason is api.Reason.UNAVAILABLE
    again = harness.release(token=4)
    assert one(api.Released, harness.free(again), ANN).request == 4
    assert harness.role.session_state.holds == {}


@pytest.mark.parametrize("way", ["expired", "ended"])
def test_a_release_after_the_session_ended_is_refused_as_lost_once(
    harness: SessionHarness, way: str
) -> None:
    harness.hold()
    if way == "expired":
        said = harness.refuse(harness.run(3_100), api.Reason.SESSION_EXPIRED)
    else:
        said = harness.hear(A, Ended(session="c.1", detail="expired"))
    assert one(HoldsLost, said, WATCHER).losses == (Loss("x", "ann", 7),)
    assert one(api.Refused, harness.release(), ANN).reason is api.Reason.OWNERSHIP_LOST
    assert one(api.Refused, harness.release(), ANN).reason is api.Reason.NOT_HELD


def test_a_release_under_way_when_the_session_ends_is_refused_as_lost(
    harness: SessionHarness,
) -> None:
    harness.hold()
    said = harness.refuse(harness.release(token=3), api.Reason.SESSION_EXPIRED)
    answer = one(api.Refused, said, ANN)
    assert (answer.reason, answer.request) == (api.Reason.OWNERSHIP_LOST, 3)
    assert "fence 7" in answer.detail


def test_what_was_lost_stays_lost_though_another_owner_holds_in_a_new_session(
    harness: SessionHarness,
) -> None:
    harness.hold()
    harness.hear(A, Ended(session="c.1", detail="expired"))
    harness.hold(BEN, fence=9)
    assert harness.assigned == "c~2.2"
    assert one(api.Refused, harness.release(), ANN).reason is api.Reason.OWNERSHIP_LOST
    assert one(api.Released, harness.free(harness.release(BEN, fence=9)), BEN).lock == "x"


def test_a_loss_is_remembered_apart_from_a_later_hold_of_the_same_owner(
    harness: SessionHarness,
) -> None:
    harness.hold()
    harness.hear(A, Ended(session="c.1", detail="expired"))
    harness.hold(fence=9)
    assert one(api.Refused, harness.release(fence=7), ANN).reason is api.Reason.OWNERSHIP_LOST
    assert one(api.Released, harness.free(harness.release(fence=9)), ANN)


def test_a_limit_that_is_reached_is_told_and_changes_nothing(
    harness: SessionHarness,
) -> None:
    harness.hold(limit=2)
    harness.hold(limit=2, count=2)
    said = harness.refuse(harness.acquire(limit=2), api.Reason.LIMIT_REACHED)
    assert one(api.Refused, said, ANN).reason is api.Reason.LIMIT_REACHED
    assert one(api.Released, harness.free(harness.release(), count=1), ANN).count == 1
    assert one(api.Released, harness.free(harness.release()), ANN).count == 0
    assert one(api.Refused, harness.release(), ANN).reason is api.Reason.NOT_HELD


def test_without_reentrancy_a_second_acquire_is_refused_without_asking(
    harness: SessionHarness,
) -> None:
    harness.hold()
    said = harness.acquire()
    assert one(api.Refused, said, ANN).reason is api.Reason.ALREADY_HELD
    assert of(api.Acquire, said) == []


def test_an_owner_that_waits_is_not_done_out_of_its_wait_by_its_other_threads(
    harness: SessionHarness,
) -> None:
    harness.open(harness.acquire(limit=0))
    assert one(api.Refused, harness.acquire(limit=0), ANN).reason is api.Reason.ALREADY_HELD
    assert one(api.Refused, harness.release(), ANN).reason is api.Reason.NOT_HELD
    assert len(harness.role.session_state.in_flight.waits) == 1


def test_a_cancel_after_a_grant_takes_back_that_one_entry(harness: SessionHarness) -> None:
    harness.hold(limit=0, token=1)
    harness.hold(limit=0, token=2, count=2)
    cancel = api.Cancel(lock="x", session="", owner="ann", request=2)
    said = harness.hear(ANN, cancel)
    assert of(api.Cancelled, said, ANN)
    harness.free(said, count=1)
    assert one(api.Released, harness.free(harness.release()), ANN).count == 0
    assert harness.role.session_state.holds == {}
