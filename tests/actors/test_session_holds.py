"""Holds of a client's session: their states, and sessions kept while endpoints come and go."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace
from support.session_harness import ANN, BEN, ME, WATCHER, A, B, SessionHarness, of, one

from fencelock.actors.api import lock_message as api
from fencelock.actors.api.backup_message import ReadBackup
from fencelock.actors.api.lock_message import Granted, Reason, Unlocking
from fencelock.actors.api.operator_message import (
    CloseSession,
    Evict,
    Evicted,
    ListLocks,
    LockList,
    OperatorCommand,
    SessionClosed,
)
from fencelock.actors.api.session_message import Alive, End, KeepAlive, Open, Opened
from fencelock.actors.message import Address, Instant
from fencelock.actors.role_message import LinkDown, LinkRefused
from fencelock.actors.session import holds as session_holds
from fencelock.actors.session.event import Close, Closed, HoldsLost
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


def test_a_hold_of_two_acquires_is_held_when_one_is_released(harness: SessionHarness) -> None:
    harness.hold(limit=0)
    harness.grant(harness.acquire(token=2, limit=0), fence=7, count=2)
    hold = harness.ann_holds
    sends = harness.release()
    states = [hold.state]
    harness.free(sends, count=1)
    states.append(hold.state)
    harness.free(harness.release())
    assert [*states, hold.state] == [HoldState.RELEASING, HoldState.HELD, HoldState.RELEASED]


def test_an_acquire_whose_release_was_confirmed_is_no_part_of_the_hold(
    harness: SessionHarness,
) -> None:
    harness.hold(token=1, limit=0)
    harness.grant(harness.acquire(token=2, limit=0), fence=7, count=2)
    harness.free(harness.release(token=2), count=1)
    assert [acquisition.token for acquisition in harness.ann_holds.acquisitions] == [1]


def test_a_release_that_is_refused_as_not_held_ends_the_hold(harness: SessionHarness) -> None:
    harness.hold()
    hold = harness.ann_holds
    harness.refuse(harness.release(), Reason.NOT_HELD)
    assert hold.state is HoldState.RELEASED


def test_an_unconfirmed_release_goes_on_though_its_user_gives_up(harness: SessionHarness) -> None:
    harness.hold()
    hold = harness.ann_holds
    harness.release()
    harness.run(11_000)
    assert hold.state is HoldState.RELEASING


def test_a_hold_is_unlocking_when_its_duration_is_over() -> None:
    harness = SessionHarness(600_000)
    asked = one(api.Acquire, harness.open(harness.acquire()))
    harness.receive(A, Granted(**asked.fields(), fence=7, hold_ms=1_000, grace_ms=5_000))
    hold = harness.ann_holds
    states = [hold.state]
    harness.run_kept(1_500, A)
    notice = Unlocking(lock="x", fence=7, grace_ms=5_000, session=harness.assigned, owner="ann")
    harness.receive(A, notice)
    states.append(hold.state)
    harness.run_kept(5_000, A)
    assert [*states, hold.state] == [HoldState.HELD, HoldState.UNLOCKING, HoldState.LOST]


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


def test_a_wait_moves_under_its_number_and_nothing_is_withdrawn(harness: SessionHarness) -> None:
    asked = one(api.Acquire, harness.open(harness.acquire(wait_ms=9_000)))
    harness.run(150)
    sends = harness.lose_link("a")
    moved = one(api.Acquire, sends, B)
    assert (moved.request, moved.wait_ms) == (asked.request, 8_850)
    assert of(api.Cancel, sends) == []


def test_a_release_moves_under_its_number(harness: SessionHarness) -> None:
    harness.hold()
    asked = one(api.Release, harness.release(), A)
    sends = harness.lose_link("a")
    assert one(api.Release, sends, B) == asked
    assert one(api.Released, harness.free(sends), ANN).count == 0


def test_a_cancel_moves_and_any_endpoint_may_confirm_it(harness: SessionHarness) -> None:
    harness.open(harness.acquire())
    asked = one(api.Cancel, harness.receive(ANN, api.Abandon()), A)
    harness.run_kept(10_000, A, B)
    sends = harness.lose_link("a")
    assert one(api.Cancel, sends, B) == asked
    assert of(api.Cancel, harness.run_kept(1_000, B), B) == [asked] * 2  # The pauses begin anew.
    harness.undo(sends)
    assert of(api.Cancel, harness.run(60_000)) == []


def test_a_cancel_that_the_key_does_not_allow_is_given_up(harness: SessionHarness) -> None:
    harness.open(harness.acquire())
    asked = one(api.Cancel, harness.receive(ANN, api.Abandon()), A)
    assert of(api.Cancel, harness.run(2_000))
    harness.receive(A, api.refused(asked, api.Reason.FORBIDDEN, "its prefixes are narrower now"))
    assert of(api.Cancel, harness.run(60_000)) == []


def test_a_hold_is_released_where_its_session_is(harness: SessionHarness) -> None:
    harness.hold()
    harness.lose_link("a")
    assert one(api.Release, harness.release(), B).session == "c.1"


def test_an_answer_of_an_endpoint_that_was_left_counts(harness: SessionHarness) -> None:
    asked = harness.open(harness.acquire())
    moved = harness.lose_link("a")
    assert one(api.Granted, harness.grant(asked), ANN).fence == 7
    assert harness.grant(moved) == []
    assert of(api.Cancel, harness.run_kept(5_000, B)) == []


def test_an_open_moves_to_another_endpoint_too(harness: SessionHarness) -> None:
    harness.acquire()
    sends = harness.lose_link("a")
    assert one(Open, sends, B).session == "c"
    assert one(api.Acquire, harness.open(sends), B).session == "c.1"


def test_all_endpoints_are_asked_to_open_if_every_one_is_silent(harness: SessionHarness) -> None:
    harness.acquire()
    sends = harness.run(20_000)
    assert of(Open, sends, A)
    assert of(Open, sends, B)


@pytest.mark.parametrize("known_before", ["", "b"])
def test_the_leader_is_preferred_once_it_is_known_which_endpoint_it_is(
    harness: SessionHarness, known_before: str
) -> None:
    for greeting in harness.begun:
        harness.alive([greeting], leader=known_before)
    sends = harness.open(harness.acquire(), leader="b")
    assert one(api.Acquire, sends, B).session == "c.1"
    assert harness.acquire(BEN)[0].to == B


def test_unanswered_requests_go_to_a_new_leader(harness: SessionHarness) -> None:
    for greeting in harness.begun:
        harness.alive([greeting])
    harness.open(harness.acquire(), leader="a")
    kept = harness.run(1_300)
    assert of(api.Acquire, harness.alive(kept, leader="b"), B)
    assert harness.alive(kept, leader="b") == []


def test_a_leader_that_cannot_be_reached_is_not_gone_back_to(harness: SessionHarness) -> None:
    for greeting in harness.begun:
        harness.alive([greeting])
    harness.open(harness.acquire(), leader="a")
    assert harness.alive(harness.lose_link("a"), leader="a") == []
    assert harness.acquire(BEN)[0].to == B


def test_a_leader_whose_link_is_back_is_preferred_again(harness: SessionHarness) -> None:
    for greeting in harness.begun:
        harness.alive([greeting])
    harness.open(harness.acquire(), leader="a")
    harness.lose_link("a")
    assert of(api.Acquire, harness.regain_link("a"), A)


def test_a_repeated_question_asks_its_endpoint_for_a_sign_of_life(harness: SessionHarness) -> None:
    harness.hold()
    harness.run_kept(60_000, A)
    harness.free(harness.release())
    harness.run_kept(1_500, A)
    harness.acquire(BEN)
    assert of(KeepAlive, harness.run(400), A)


def test_the_session_is_kept_through_all_endpoints_if_none_is_usable(
    harness: SessionHarness,
) -> None:
    harness.hold()
    harness.lose_link("a")
    harness.lose_link("b")
    sends = harness.run(3_000)
    assert of(KeepAlive, sends, A)
    assert of(KeepAlive, sends, B)


def test_a_part_of_a_backup_is_requested_from_the_node_that_has_it(harness: SessionHarness) -> None:
    harness.hold()
    harness.receive(B, Alive(session="c", node="n2", request=0))
    for node, endpoint in (("n2", B), ("", A), ("n9", A)):
        sends = harness.receive(ANN, ReadBackup(node=node, slot=9, request=3))
        assert one(ReadBackup, sends, endpoint).node == node


def test_questions_without_a_session_are_answered_in_the_clients_own_name(
    harness: SessionHarness,
) -> None:
    harness.hold()
    listing = one(ListLocks, harness.receive(ANN, ListLocks(prefix="p", request=3)))
    answer = LockList(lines=(), more=False, session="c", request=listing.request)
    assert one(LockList, harness.receive(A, answer), ANN).request == 3
    evict = Evict(lock="x", fence=7, operator="me", request=4)
    eviction = one(Evict, harness.receive(ANN, evict))
    holder = api.Contender("d", "d.1", "o", 7, 10)
    evicted = Evicted(lock="x", fence=7, holder=holder, session="c", request=eviction.request)
    assert one(Evicted, harness.receive(A, evicted), ANN).request == 4
    asked = one(api.Inspect, harness.receive(ANN, api.Inspect(lock="x", age_ms=50, request=5)))
    assert asked.age_ms == 50
    status = api.LockStatus(
        lock="x", holder=None, waiters=(), waits_for=(), session="c", request=asked.request
    )
    assert one(api.LockStatus, harness.receive(A, status), ANN).request == 5


def test_a_close_is_asked_for_without_a_claim_and_answered(harness: SessionHarness) -> None:
    close = CloseSession(handle="v.1", operator="me", request=4)
    asked = one(CloseSession, harness.receive(ANN, close))
    closed = SessionClosed(handle="v.1", label="", claims=2, session="c", request=asked.request)
    assert one(SessionClosed, harness.receive(A, closed), ANN) == replace(closed, request=4)


@pytest.mark.parametrize(
    "command",
    [Evict(lock="x", fence=7, operator="me"), CloseSession(handle="c.1", operator="me")],
    ids=["eviction", "close"],
)
def test_an_unanswered_eviction_or_close_reports_that_it_may_be_repeated(
    harness: SessionHarness, command: OperatorCommand
) -> None:
    harness.receive(ANN, command)
    refused = one(api.Refused, harness.run(10_200), ANN)
    assert refused.reason is api.Reason.UNAVAILABLE
    assert "no harm" in refused.detail


def test_an_owner_that_enters_again_leaves_as_often(harness: SessionHarness) -> None:
    harness.hold(limit=0)
    harness.hold(limit=0, count=2)
    first = harness.release(token=1)
    second = harness.release(token=2)
    assert of(api.Release, second) == []  # One request of a claim at a time.
    sends = harness.free(first, count=1)
    assert one(api.Released, sends, ANN).request == 1
    assert one(api.Released, harness.free(sends), ANN).request == 2
    assert harness.role.session_state.holds == {}


def test_more_releases_than_entries_are_refused_without_asking(harness: SessionHarness) -> None:
    harness.hold(limit=0)
    harness.release()
    assert one(api.Refused, harness.release(), ANN).reason is api.Reason.NOT_HELD


def test_a_new_entry_waits_until_an_earlier_release_is_confirmed(harness: SessionHarness) -> None:
    harness.hold(limit=0)
    harness.hold(limit=0, count=2)
    leaving = harness.release()
    assert of(api.Acquire, harness.acquire(limit=0)) == []
    assert of(api.Acquire, harness.free(leaving, count=1), A)


def test_a_release_that_another_endpoint_refused_goes_on_since_a_copy_may_be_done(
    harness: SessionHarness,
) -> None:
    harness.hold()
    sends = harness.release()
    assert harness.refuse(sends, api.Reason.OVERLOADED) == []
    assert of(api.Release, harness.run(1_000))
    assert one(api.Released, harness.free(sends), ANN)


def test_a_hold_granted_to_an_ask_that_gave_up_is_released_beside_a_users_own_release(
    harness: SessionHarness,
) -> None:
    harness.hold(limit=0)
    harness.acquire(BEN, limit=0)
    harness.receive(BEN, api.Abandon())
    harness.undo(harness.run(300))
    harness.hold(ANN, limit=0, count=2)
    sends = harness.receive(ANN, api.Abandon())  # Both grants went to an ask of that address.
    assert len(of(api.Release, sends)) == 1
    sends = harness.free(sends, count=1)
    assert len(of(api.Release, sends)) == 1
    harness.free(sends)
    assert harness.role.session_state.holds == {}


def test_a_cancelled_reentry_keeps_the_release_waiting_till_undone(harness: SessionHarness) -> None:
    harness.hold(limit=0, token=1)
    harness.acquire(limit=0, token=2)
    sends = harness.receive(ANN, api.Cancel(lock="x", session="", owner="ann", request=2))
    assert of(api.Cancel, sends, A)
    assert of(api.Release, harness.release()) == []
    assert of(api.Release, harness.undo(sends), A)


def test_a_hold_granted_anew_replaces_one_that_was_lost_unheard(harness: SessionHarness) -> None:
    harness.hold(limit=0)
    sends = harness.hold(limit=0, fence=9)
    assert one(HoldsLost, sends).losses[0].fence == 7
    assert one(api.Refused, harness.release(fence=7), ANN).reason is api.Reason.OWNERSHIP_LOST
    assert of(api.Release, harness.release(fence=9))


def test_a_cluster_that_keeps_no_sessions_is_served_as_ever(harness: SessionHarness) -> None:
    sends = harness.acquire()
    opened = one(Open, sends, A)
    asked = harness.receive(
        A, Opened(session="c", assigned="c", ttl_ms=0, node="a", request=opened.request)
    )
    assert one(api.Acquire, asked, A).session == "c"
    harness.grant(asked)
    assert of(HoldsLost, harness.run(60_000)) == []
    harness.lose_link("a")
    assert one(api.Release, harness.release(), A).fence == 7
    sends = harness.receive(BEN, Close())
    assert of(End, sends) == []
    assert one(Closed, sends, BEN).unanswered == 1


def test_a_close_while_a_session_is_opened_leaves_nothing_behind(harness: SessionHarness) -> None:
    sends = harness.acquire()
    closing = harness.receive(BEN, Close())
    assert one(api.Refused, closing, ANN).reason is api.Reason.CANCELLED
    assert one(Closed, closing, BEN).unanswered == 0
    assert harness.open(sends) == []
    harness.run(1_000)
    assert harness.alarms == []


# Sessions of clients where two faults coincide: no hold is left without an owner, or believed in


def test_a_wait_given_up_at_a_wrong_proxy_is_cancelled_since_an_earlier_proxy_received_it(
    harness: SessionHarness,
) -> None:
    harness.open(harness.acquire(wait_ms=1_000))
    assert one(api.Acquire, harness.receive(ME, LinkDown(node="a")), B)
    harness.receive(ME, LinkRefused(node="b", detail="another cluster"))
    sends = harness.run(6_000)
    assert one(api.Refused, sends, ANN).reason is Reason.UNAVAILABLE
    assert of(api.Cancel, sends)


def test_a_late_no_to_a_release_of_a_lost_hold_spares_the_next(harness: SessionHarness) -> None:
    """An operator took the first hold, without a notice: the owner acquires again, and waits."""
    harness.hold(limit=0)
    again = harness.acquire(user=ANN, token=2, limit=0)
    asked = api.Release(lock="x", fence=7, owner="ann", request=3)
    sent = harness.receive(Address("c/helper"), asked)
    assert of(api.Release, sent) == []  # It goes after the request under way.
    sends = harness.grant(again, fence=9)
    assert one(Granted, sends, ANN).fence == 9
    assert one(HoldsLost, sends, WATCHER).losses[0].fence == 7
    sends = harness.refuse(sends, Reason.NOT_HELD)
    assert of(HoldsLost, sends) == []
    assert one(api.Released, harness.free(harness.release(fence=9)), ANN).count == 0


def test_a_hold_lost_at_one_level_is_lost_at_the_others(harness: SessionHarness) -> None:
    harness.hold(limit=0)
    harness.grant(harness.acquire(token=2, limit=0), fence=7, count=2)
    sends = harness.refuse(harness.release(token=3), Reason.NOT_HELD)
    assert one(api.Refused, sends, ANN).reason is Reason.NOT_HELD
    assert one(HoldsLost, sends, WATCHER).losses[0].fence == 7
    assert one(api.Refused, harness.release(token=4), ANN).reason is Reason.OWNERSHIP_LOST
