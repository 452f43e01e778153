"""A client's session: its handlers, and how it asks."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import get_args

import pytest
from support.role_harness import RoleHarness
from support.session_harness import ANN, BEN, ME, A, B, UnkeptSession, node_status, of, one, refusal

from fencelock.actors.api.cluster_message import Describe, NodeStatus
from fencelock.actors.api.lock_message import (
    Acquire,
    Granted,
    Inspect,
    LockStatus,
    Reason,
    Refused,
    Release,
    Released,
)
from fencelock.actors.api.session_message import KeepAlive, Opened
from fencelock.actors.effect import Send
from fencelock.actors.message import Address, Instant, later, ms_between
from fencelock.actors.session import refusals, session
from fencelock.actors.session.event import SessionTick, Suspected
from fencelock.actors.session.lease import EPOCH, MOVES, SENT_MAX, SessionLease, Stage
from fencelock.actors.session.requests import lock_key_named
from fencelock.actors.session.session import HANDLERS, SESSION_TICK_MS, ClientSession
from fencelock.actors.table.wire import Queued


def test_a_request_goes_to_the_endpoint_in_use_with_a_number(unkept: UnkeptSession) -> None:
    asked = unkept.acquire(wait_ms=500, token=99)
    assert asked == Send(A, Acquire(lock="x", session="c", owner="ann", request=1, wait_ms=500))
    assert unkept.acquire(BEN).message == Acquire(lock="x", session="c", owner="ben", request=2)


def test_the_first_endpoint_is_drawn_by_chance() -> None:
    def first(seed: int) -> Address:
        unkept = RoleHarness(
            lambda host: ClientSession(ME, host, session="c", endpoints=(A, B), random=Random(seed))
        )
        return unkept.role.session_state.endpoints.current

    assert {first(seed) for seed in range(20)} == {A, B}


def test_a_session_greets_every_endpoint_when_it_begins(unkept: UnkeptSession) -> None:
    assert [send.to for send in unkept.begun] == [A, B]
    assert all(isinstance(send.message, KeepAlive) for send in unkept.begun)


def test_an_answer_reaches_the_user_once_under_the_users_own_number(unkept: UnkeptSession) -> None:
    asked = unkept.acquire(token=99)
    answer = Granted(lock="x", fence=7, session="c", owner="ann", request=99)
    assert unkept.grant(asked) == [Send(ANN, answer)]
    assert unkept.grant(asked) == []
    assert unkept.counted[-1] == "client.late_answer_dropped"


def test_answers_of_strangers_and_unfit_ones_are_dropped(unkept: UnkeptSession) -> None:
    unkept.acquire()
    for unfit in (
        Granted(lock="x", fence=7, session="d", owner="ann", request=1),
        Granted(lock="y", fence=7, session="c", owner="ann", request=1),
        Granted(lock="x", fence=7, session="c", owner="ben", request=1),
        Released(lock="x", session="c", owner="ann", request=1),
        Refused(lock="y", reason=Reason.TIMED_OUT, detail="", session="c", owner="ann", request=1),
        LockStatus(lock="x", holder=None, waiters=(), waits_for=(), session="c", request=1),
        Queued(lock="x", session="c", owner="ann", request=1),
    ):
        assert unkept.receive(A, unfit) == []
    assert unkept.counted == [
        "client.answer_of_another_session_dropped",
        *["client.unfit_answer_dropped"] * 6,
    ]
    assert len(unkept.role.session_state.in_flight.pending) == 1


def test_a_user_on_another_node_is_no_user(unkept: UnkeptSession) -> None:
    assert unkept.receive(Address("a/ann"), Acquire(lock="x")) == []
    assert unkept.counted == ["client.stranger_dropped"]


def test_a_request_is_repeated_ever_more_slowly_until_answered(unkept: UnkeptSession) -> None:
    asked = unkept.acquire()
    repeats = of(Acquire, unkept.run_kept(60_000, A))
    assert set(repeats) == {asked.message}
    assert len(repeats) == 18
    unkept.grant(asked)
    assert of(Acquire, unkept.run_kept(10_000, A)) == []


def test_a_repeated_acquire_carries_what_is_left_of_its_wait(unkept: UnkeptSession) -> None:
    unkept.acquire(wait_ms=2_000)
    waits = [repeat.wait_ms for repeat in of(Acquire, unkept.run_kept(1_900, A))]
    assert all(wait is not None and wait < 2_000 for wait in waits)
    assert waits == sorted(waits, key=lambda wait: -(wait or 0))


def test_pauses_vary_with_the_chance_given() -> None:
    def pause(seed: int) -> int | None:
        unkept = UnkeptSession()
        unkept.role.session_state.in_flight.random = Random(seed)
        unkept.acquire()
        unkept.run(SESSION_TICK_MS)
        return unkept.role.session_state.in_flight.pending[1].resend_at

    assert len({pause(seed) for seed in range(10)}) > 5
    assert pause(3) == pause(3)


def test_an_idle_session_sets_no_timer(unkept: UnkeptSession) -> None:
    unkept.run(10_000)
    assert unkept.alarms == []
    unkept.held()
    unkept.free(unkept.release())
    unkept.run(10_000)
    assert unkept.alarms == []


def test_the_memory_of_a_session_can_be_copied(unkept: UnkeptSession) -> None:
    unkept.held()
    unkept.acquire(BEN)
    copy = deepcopy(unkept.role.state())
    assert list(copy["session_state"].holds) == list(unkept.role.session_state.holds)


def test_a_stale_tick_does_nothing(unkept: UnkeptSession) -> None:
    unkept.acquire()
    unkept.now_ms += 60_000
    assert unkept.receive(ME, SessionTick(round=unkept.role.round - 1)) == []
    assert unkept.receive(ME, SessionTick(round=unkept.role.round)) != []


def test_inspect_and_describe_are_answered_with_the_endpoints_reply(unkept: UnkeptSession) -> None:
    (asked,) = unkept.receive(ANN, Inspect(lock="x", request=5))
    assert asked == Send(A, Inspect(lock="x", session="c", request=1))
    status = LockStatus(lock="x", holder=None, waiters=(), waits_for=(), session="c", request=1)
    assert one(LockStatus, unkept.receive(A, status), ANN).request == 5
    (asked,) = unkept.receive(ANN, Describe())
    assert asked == Send(A, Describe(session="c", request=2))
    assert of(NodeStatus, unkept.receive(A, node_status("a", 2)), ANN)


@pytest.mark.parametrize(
    ("request_", "detail"),
    [
        (Acquire(lock=""), "lock name"),
        (Acquire(lock="x" * 300), "256"),
        (Acquire(lock="x", owner="o" * 300), "owner"),
        (Acquire(lock="x", owner="\ud800"), "has U+D800"),
        (Acquire(lock="x", wait_ms=-1), "wait_ms is -1"),
        (Release(lock="\n", fence=1), "has U+000A"),
        (Inspect(lock=""), "lock name"),
    ],
)
def test_a_field_out_of_its_limits_is_refused_at_once(
    unkept: UnkeptSession, request_: Acquire | Release | Inspect, detail: str
) -> None:
    answer = refusal(unkept.receive(ANN, request_))
    assert answer.reason is Reason.INVALID
    assert detail in answer.detail


def test_an_owner_that_holds_is_refused_until_it_releases_and_then_waits_for_the_confirmation(
    unkept: UnkeptSession,
) -> None:
    unkept.held()
    answer = refusal(unkept.receive(ANN, Acquire(lock="x", owner="ann")))
    assert answer.reason is Reason.ALREADY_HELD
    assert "fence 7" in answer.detail
    release = unkept.release()
    assert unkept.receive(BEN, Acquire(lock="x", owner="ann")) == []
    sends = unkept.free(release)
    assert [(send.to, type(send.message)) for send in sends] == [(ANN, Released), (A, Acquire)]


def test_requests_beyond_the_limit_are_refused_as_overload(
    unkept: UnkeptSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "PENDING_REQUESTS_MAX", 2)
    unkept.acquire(lock="1")
    unkept.acquire(lock="2")
    answer = refusal(unkept.receive(ANN, Acquire(lock="3")))
    assert answer.reason is Reason.OVERLOADED
    assert "2" in answer.detail
    monkeypatch.setattr(refusals, "HOLDS_MAX", 0)
    assert refusal(unkept.receive(ANN, Acquire(lock="3"))).reason is Reason.OVERLOADED


# The table of handlers of a client's session, and what its checks come before


@pytest.mark.parametrize("kind", get_args(session.Event))
def test_each_type_of_event_has_a_handler(kind: type) -> None:
    assert callable(HANDLERS[kind])


def test_a_type_that_no_session_receives_has_no_handler() -> None:
    with pytest.raises(KeyError):
        HANDLERS[int]


@pytest.mark.parametrize("former", Stage)
@pytest.mark.parametrize("following", Stage)
def test_a_session_moves_only_along_its_table(former: Stage, following: Stage) -> None:
    lease = SessionLease("c", 15_000, "")
    lease.stage = former
    if following in MOVES[former]:
        lease.enter(following)
        assert lease.stage is following
    else:
        with pytest.raises(AssertionError, match=f"{former.value} cannot be {following.value}"):
            lease.enter(following)


def opened_lease(ttl_ms: int) -> SessionLease:
    """Return the lease of a session that was asked for and opened at `EPOCH`."""
    lease = SessionLease("c", ttl_ms, "")
    lease.need(EPOCH)
    lease.note_sent(1, EPOCH)
    opened = Opened(session="c", assigned="c.1", ttl_ms=ttl_ms, node="a", request=1)
    assert lease.opened(opened, EPOCH)
    assert lease.sent == {}
    return lease


def test_a_session_is_suspected_and_left_at_the_very_instant() -> None:
    lease = opened_lease(10_000)
    suspect_at, until = later(EPOCH, 5_000), lease.until
    assert until == SessionLease.trusted_until(EPOCH, 10_000)
    assert lease.suspect(Instant(suspect_at - 1)) is None
    assert lease.suspect(suspect_at) == Suspected(
        silent_ms=5_000, left_ms=ms_between(suspect_at, until)
    )
    assert lease.suspect(suspect_at) is None
    assert (lease.passed(Instant(until - 1)), lease.passed(until)) == (False, True)
    lease.confirm(suspect_at)  # It is notified once each time.
    assert lease.suspect(later(suspect_at, 5_000)) == Suspected(
        silent_ms=5_000, left_ms=ms_between(suspect_at, until)
    )


def test_a_session_that_opens_too_late_is_not_taken() -> None:
    until = SessionLease.trusted_until(EPOCH, 10_000)
    for now, taken in ((Instant(until - 1), True), (until, False)):
        lease = SessionLease("c", 10_000, "")
        lease.need(EPOCH)
        lease.note_sent(1, EPOCH)
        opened = Opened(session="c", assigned="c.1", ttl_ms=10_000, node="a", request=1)
        assert lease.opened(opened, now) is taken


def test_the_next_session_has_nothing_of_the_last_one() -> None:
    lease = opened_lease(10_000)
    lease.note_sent(2, EPOCH)
    lease.pinned = True
    lease.suspect(later(EPOCH, 5_000))
    assert lease.drop() == "c.1"
    assert (lease.sent, lease.pinned, lease.suspected) == ({}, False, False)


def test_a_keep_alive_comes_after_a_fifth_of_the_ttl_and_never_at_once() -> None:
    assert [opened_lease(ttl_ms).keep_ms for ttl_ms in (10_000, 4)] == [2_000, 1]


def test_as_many_keep_alives_as_the_limit_may_still_be_confirmed() -> None:
    lease = opened_lease(10_000)
    for number in range(SENT_MAX + 1):
        lease.note_sent(number, EPOCH)
    assert list(lease.sent) == list(range(1, SENT_MAX + 1))


def test_a_name_of_a_stranger_or_a_forbidden_one_is_not_kept(unkept: UnkeptSession) -> None:
    """Names are checked before they enter a cache, so that the cache is bounded."""
    kept = lock_key_named.cache_info().currsize
    for user in (A, Address("c/ask-1")):
        unkept.receive(user, Release(lock="n" * 100_000, fence=7, owner="o"))
        unkept.receive(user, Acquire(lock="n" * 100_000, owner="o"))
    assert lock_key_named.cache_info().currsize == kept
