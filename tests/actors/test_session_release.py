"""Releases and cancels in a client's session, and holds that an endpoint asks about."""

from __future__ import annotations

import pytest
from support.session_harness import ANN, BEN, A, B, SessionHarness, UnkeptSession, of, one, refusal

from fencelock.actors.api import lock_message as api
from fencelock.actors.api.lock_message import (
    Acquire,
    Cancel,
    ConfirmHold,
    DisownHold,
    Granted,
    Reason,
    Refused,
)
from fencelock.actors.api.session_message import KeepAlive
from fencelock.actors.effect import Send
from fencelock.actors.error import UnavailableError
from fencelock.actors.message import Address
from fencelock.actors.session.event import ReleaseUnawaited
from fencelock.actors.session.requests import UNANSWERED_MS, LockKey


def test_a_release_goes_to_the_endpoint_that_granted_even_when_another_is_in_use(
    unkept: UnkeptSession,
) -> None:
    unkept.held()
    unkept.lose_link("a")
    unkept.regain_link("a")
    assert unkept.acquire(BEN).to == B
    sends = unkept.release(token=4)
    assert [send.to for send in sends] == [A]
    assert one(api.Released, unkept.free(sends), ANN).request == 4


@pytest.mark.parametrize("fence", [0, 8])
def test_a_release_under_another_fence_is_refused_here(unkept: UnkeptSession, fence: int) -> None:
    unkept.held()
    (sent,) = unkept.release(fence=fence)
    assert refusal([sent]).reason is api.Reason.NOT_HELD
    assert "fence 7" in refusal([sent]).detail


def test_an_unconfirmed_release_is_reported_and_goes_on(unkept: UnkeptSession) -> None:
    unkept.held()
    released = unkept.release()
    sends = unkept.run(10_500)
    answer = refusal(sends)
    assert answer.reason is api.Reason.UNAVAILABLE
    assert "a (silent for" in answer.detail
    assert "background" in answer.detail
    assert isinstance(answer.error(), UnavailableError)
    assert of(api.Release, unkept.run(30_000), A)
    unkept.free(released)
    assert unkept.role.session_state.holds == {}
    assert of(api.Release, unkept.run(30_000)) == []


def test_a_release_can_be_waited_for_again_while_it_goes_on(unkept: UnkeptSession) -> None:
    unkept.held()
    unkept.release()
    answer = refusal(unkept.receive(BEN, api.Release(lock="x", owner="ann", fence=7)), BEN)
    assert answer.reason is api.Reason.NOT_HELD
    assert "already" in answer.detail
    unkept.run(10_500)
    (sent,) = unkept.receive(BEN, api.Release(lock="x", owner="ann", fence=7, request=3))
    assert sent.message == api.Release(lock="x", owner="ann", fence=7, session="c", request=2)
    assert one(api.Released, unkept.free([sent]), BEN).request == 3


def test_an_unawaited_release_has_no_timeout(unkept: UnkeptSession) -> None:
    unkept.held()
    release = api.Release(lock="x", owner="ann", fence=7, request=4)
    unkept.receive(ANN, ReleaseUnawaited(release=release))
    sends = unkept.run(60_000)
    assert of(api.Refused, sends) == []
    assert len(of(api.Release, sends, A)) > 5
    assert one(api.Released, unkept.free(sends), ANN).request == 4


def test_an_unawaited_release_that_is_asked_for_again_is_sent_once(unkept: UnkeptSession) -> None:
    unkept.held()
    release = api.Release(lock="x", owner="ann", fence=7)
    unkept.receive(ANN, ReleaseUnawaited(release=release))
    answer = refusal(unkept.receive(BEN, release), BEN)
    assert answer.reason is api.Reason.NOT_HELD
    assert "already" in answer.detail


def test_a_release_joins_one_that_gives_an_acquire_back_and_has_its_own_timeout(
    harness: SessionHarness,
) -> None:
    harness.hold(limit=0, token=1)
    harness.grant(harness.acquire(token=2, limit=0), fence=7, count=2)
    cancel = Cancel(lock="x", owner="ann", request=2)
    given = one(api.Release, harness.receive(ANN, cancel), A)
    in_flight, lock_key = harness.role.session_state.in_flight, LockKey("x", "ann")
    assert in_flight.releases_of(lock_key) == []
    harness.run_kept(1_000, A)
    assert one(api.Release, harness.release(token=5), A) == given
    assert len(in_flight.releases_of(lock_key)) == 1
    assert of(Refused, harness.run_kept(UNANSWERED_MS - 100, A)) == []
    assert one(Refused, harness.run_kept(300, A), ANN).request == 5


def test_the_next_acquire_is_sent_right_after_an_unawaited_release(unkept: UnkeptSession) -> None:
    unkept.held()
    release = api.Release(lock="x", owner="ann", fence=7)
    (sent,) = unkept.receive(ANN, ReleaseUnawaited(release=release))
    assert (sent.to, type(sent.message)) == (A, api.Release)
    acquire = unkept.acquire(BEN)
    assert (acquire.to, type(acquire.message)) == (A, api.Acquire)


@pytest.mark.parametrize("reason", [api.Reason.OVERLOADED, api.Reason.NOT_HELD])
def test_only_a_release_that_is_refused_as_not_held_ends_the_hold(
    unkept: UnkeptSession, reason: api.Reason
) -> None:
    unkept.held()
    unkept.release()
    no = api.Refused(lock="x", reason=reason, detail="no", session="c", owner="ann", request=2)
    assert refusal(unkept.receive(A, no)).reason is reason
    if reason is api.Reason.NOT_HELD:
        assert isinstance(unkept.acquire().message, api.Acquire)
    else:
        assert [send.to for send in unkept.release()] == [A]


def test_an_abandoned_wait_is_cancelled_until_the_endpoint_confirms(unkept: UnkeptSession) -> None:
    unkept.acquire()
    cancel = api.Cancel(lock="x", session="c", owner="ann", request=1)
    sends = unkept.receive(ANN, api.Abandon())
    assert sends == [Send(A, cancel)]
    repeats = of(api.Cancel, unkept.run(120_000))
    assert set(repeats) == {cancel}
    assert 10 <= len(repeats) <= 20
    assert unkept.undo(sends) == []
    assert unkept.run(60_000) == []


def test_a_grant_that_crosses_with_its_cancel_reaches_no_user(unkept: UnkeptSession) -> None:
    asked = unkept.acquire()
    unkept.receive(ANN, api.Abandon())
    assert unkept.grant(asked) == []
    assert unkept.role.session_state.holds == {}
    assert of(api.Cancel, unkept.run(1_000), A)


def test_a_cancelling_user_is_answered_and_so_is_who_waited(unkept: UnkeptSession) -> None:
    unkept.acquire(token=5)
    sends = unkept.receive(BEN, api.Cancel(lock="x", session="", owner="ann", request=5))
    assert refusal(sends).reason is api.Reason.CANCELLED
    assert refusal(sends).request == 5
    assert one(api.Cancel, sends, A).request == 1
    assert one(api.Cancelled, sends, BEN).request == 5


def test_a_cancel_of_another_acquire_touches_nothing(unkept: UnkeptSession) -> None:
    unkept.acquire(token=5)
    sends = unkept.receive(ANN, api.Cancel(lock="x", session="", owner="ann", request=4))
    assert of(api.Cancelled, sends, ANN)
    assert len(sends) == 1
    unkept.held(BEN, token=6)
    sends = unkept.receive(BEN, api.Cancel(lock="x", session="", owner="ben", request=5))
    assert len(sends) == 1


def test_a_cancel_that_comes_after_the_grant_takes_the_lock_back(unkept: UnkeptSession) -> None:
    unkept.held(token=5)
    sends = unkept.receive(BEN, api.Cancel(lock="x", session="", owner="ann", request=5))
    assert one(api.Release, sends, A).fence == 7
    assert of(api.Cancelled, sends, BEN)


def test_a_grant_to_an_ask_that_gave_up_meanwhile_is_given_back(unkept: UnkeptSession) -> None:
    unkept.held()
    sends = unkept.receive(ANN, api.Abandon())
    assert one(api.Release, sends, A).fence == 7
    assert of(api.Release, unkept.run(5_000), A)
    unkept.free(sends)
    assert unkept.role.session_state.holds == {}


def test_an_abandoned_release_goes_on_an_abandoned_question_ends(unkept: UnkeptSession) -> None:
    unkept.held()
    unkept.receive(BEN, api.Release(lock="x", owner="ann", fence=7))
    unkept.receive(BEN, api.Inspect(lock="x"))
    assert unkept.receive(BEN, api.Abandon()) == []
    sends = unkept.run(15_000)
    assert of(api.Release, sends)
    assert of(api.Refused, sends) == []
    assert of(api.Inspect, sends) == []


def test_a_new_wait_of_an_owner_waits_until_its_old_one_is_cancelled(unkept: UnkeptSession) -> None:
    unkept.acquire()
    unkept.receive(ANN, api.Abandon())
    (sent,) = unkept.receive(ANN, api.Acquire(lock="x", owner="ann"))
    assert sent == Send(A, api.Cancel(lock="x", session="c", owner="ann", request=1))
    assert of(api.Acquire, unkept.run_kept(2_000, A)) == []
    assert one(api.Acquire, unkept.undo([sent]), A).request == 2


def test_a_stray_grant_of_a_forgetful_endpoint_is_handed_back(unkept: UnkeptSession) -> None:
    stray = api.Granted(lock="x", fence=7, session="c", owner="ann", request=0)
    back = Send(A, api.Cancel(lock="x", session="c", owner="ann", request=0))
    assert unkept.receive(A, stray) == [back]
    asked = unkept.held()
    assert unkept.grant(asked) == []


# A wait that timed out while the client was cut off is cancelled once it is back


TTL_MS = 3_600_000
"""So long that the session does not end meanwhile, which would free everything."""

CUT_MS = 60_000


def cut_off(ms: int) -> tuple[SessionHarness, list[Send]]:
    """Return a session ``ms`` after all nodes fell silent, and the messages it sent.

    Its user waited for a second, and learned 4.5 s later that no node decided.
    """
    harness = SessionHarness(TTL_MS)
    harness.open(harness.acquire(wait_ms=1_000))
    return harness, harness.run(ms)


@pytest.fixture
def silenced() -> SessionHarness:
    return cut_off(CUT_MS)[0]


@pytest.mark.parametrize("ms", range(6_000, 26_000, 500))
def test_a_wait_is_cancelled_with_the_first_sign_of_life_of_a_node(ms: int) -> None:
    """However long the cut was: whichever nodes were given up, and whatever pauses had grown."""
    harness, sends = cut_off(ms)
    earlier = cut_off(max(0, ms - 700))[1]  # What was sent since may still arrive.
    recent = of(Cancel, sends)[len(of(Cancel, earlier)) :]

    cancels = [*recent, *of(Cancel, harness.alive(sends)), *of(Cancel, harness.run(100))]

    assert cancels != []


def test_signs_of_life_are_requested_while_a_cancel_is_pending(silenced: SessionHarness) -> None:
    assert len(of(KeepAlive, silenced.run(10_000))) >= 8


def test_cancels_are_not_repeated_with_every_sign_of_life(silenced: SessionHarness) -> None:
    sends = silenced.run(2_000)
    first = of(Cancel, silenced.alive(sends))

    more = [cancel for _ in range(20) for cancel in of(Cancel, silenced.alive(sends))]

    assert len(first) <= 2  # The endpoint was given up, which is one reason, and is back.
    assert more == []


def test_a_confirmed_cancel_is_not_repeated(silenced: SessionHarness) -> None:
    silenced.undo(silenced.alive(silenced.run(2_000)))

    assert of(Cancel, silenced.run(60_000)) == []


def test_the_user_learns_that_the_outcome_is_unknown_and_what_is_done_about_it() -> None:
    harness = SessionHarness(TTL_MS)
    harness.open(harness.acquire(wait_ms=1_000))

    detail = one(Refused, harness.run(CUT_MS), ANN).detail

    assert "the outcome is unknown" in detail
    assert "cancels the request as soon as it is connected again" in detail


def test_a_request_that_was_never_sent_is_not_called_unknown() -> None:
    harness = SessionHarness(TTL_MS)
    assert of(Acquire, harness.acquire(wait_ms=1_000)) == []  # No session was opened.

    assert "unknown" not in one(Refused, harness.run(CUT_MS), ANN).detail


# Waits that a proxy judged over


def test_a_repeated_wait_that_is_judged_ended_is_cancelled_before_the_next(
    harness: SessionHarness,
) -> None:
    """A leader of `bakery` may have granted it to one proxy while another judged it to be over."""
    sends = harness.open(harness.acquire(wait_ms=500))
    again = harness.run_kept(300, A, B)
    assert of(Acquire, again)
    sends = harness.refuse(again, Reason.TIMED_OUT)
    assert one(Refused, sends, ANN).reason is Reason.TIMED_OUT
    assert one(Cancel, sends, A).request == of(Acquire, again)[0].request
    assert of(Acquire, harness.acquire()) == []
    assert of(Acquire, harness.undo(sends), A)


def test_a_wait_that_was_sent_once_ends_when_its_proxy_reports_so(harness: SessionHarness) -> None:
    sends = harness.refuse(harness.open(harness.acquire(wait_ms=0)), Reason.TIMED_OUT)
    assert of(Cancel, sends) == []
    assert of(Acquire, harness.acquire(), A)


# Holds that an endpoint asks about


CONFIRM = ConfirmHold(lock="x", fence=7, session="c")


def test_a_session_asked_about_a_hold_of_its_own_does_not_answer(unkept: UnkeptSession) -> None:
    unkept.held()

    assert unkept.receive(A, CONFIRM) == []
    assert unkept.receive(B, CONFIRM) == []


def test_a_session_disowns_what_it_does_not_hold_for_good(unkept: UnkeptSession) -> None:
    asked = unkept.acquire()

    sends = unkept.receive(A, CONFIRM)
    cancel = Cancel(lock="x", session="c", owner="ann", request=1)
    assert Send(A, DisownHold(lock="x", fence=7, session="c")) in sends
    assert Send(A, cancel) in sends
    assert unkept.grant(asked) == []
    assert one(Acquire, unkept.undo(sends), A).request > 1


def test_a_stranger_and_another_session_are_not_answered(unkept: UnkeptSession) -> None:
    assert unkept.receive(Address("z/proxy"), CONFIRM) == []
    assert unkept.receive(A, ConfirmHold(lock="x", fence=7, session="d")) == []


def test_a_late_grant_of_an_earlier_life_of_the_endpoint_does_not_cancel_what_is_held(
    unkept: UnkeptSession,
) -> None:
    """An endpoint that restarts may grant a request anew, before its earlier messages arrive."""
    unkept.held()

    late = Granted(lock="x", fence=5, session="c", owner="ann", request=1)

    assert unkept.receive(A, late) == []
    assert unkept.receive(B, late) == [
        Send(B, Cancel(lock="x", session="c", owner="ann", request=1))
    ]
