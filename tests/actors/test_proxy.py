from __future__ import annotations

from typing import Any

import pytest
from support.effects import T0, at, sent
from support.proxy_scene import ANN, BACKEND, BOB, LOCAL, PROXY, acquire, claims_of, hold, waits

from fencelock.actors.api import message as api
from fencelock.actors.effect import Send, Wake
from fencelock.actors.message import Address
from fencelock.actors.proxy.lock_manager import (
    TRY_MS,
    TRY_QUERY_MS,
    LockManager,
    TryQuery,
    WaitOver,
)
from fencelock.actors.proxy.message import (
    AcquireLock,
    LockDescription,
    LockGranted,
    QueryLock,
    QueueFull,
    ReleaseLock,
)
from fencelock.actors.proxy.proxy import Proxy, Tick


def test_what_a_client_wants_is_asked_of_the_backend_and_the_grant_comes_back(proxy: Proxy) -> None:
    effects = proxy.handle(ANN, acquire(), T0)
    assert sent(effects, AcquireLock) == [AcquireLock(lock="a", ticket=1, session="ann", owner="o")]

    effects = proxy.handle(BACKEND, LockGranted(lock="a", ticket=1, fence=7), T0)
    granted = api.Granted(lock="a", fence=7, session="ann", owner="o", request=1)
    assert Send(ANN, granted) in effects


def test_a_request_that_is_sent_again_is_asked_once_and_answered_again(proxy: Proxy) -> None:
    proxy.handle(ANN, acquire(), T0)
    assert sent(proxy.handle(ANN, acquire(), T0), AcquireLock) == []
    first = sent(proxy.handle(BACKEND, LockGranted(lock="a", ticket=1, fence=7), T0), api.Granted)
    assert sent(proxy.handle(ANN, acquire(), T0), api.Granted) == first


def test_a_release_gives_the_lock_back_once_however_often_it_is_sent(proxy: Proxy) -> None:
    hold(proxy)
    release = api.Release(lock="a", fence=7, session="ann", owner="o", request=2)
    effects = proxy.handle(ANN, release, T0)
    assert sent(effects, ReleaseLock) == [ReleaseLock(lock="a", ticket=1)]
    released = sent(effects, api.Released)
    assert len(released) == 1
    again = proxy.handle(ANN, release, T0)
    assert sent(again, ReleaseLock) == []
    assert sent(again, api.Released) == released


def test_an_acquire_that_arrives_after_its_release_is_dropped(proxy: Proxy) -> None:
    hold(proxy)
    proxy.handle(ANN, api.Release(lock="a", fence=7, session="ann", owner="o", request=2), T0)
    assert sent(proxy.handle(ANN, acquire(request=1), T0), AcquireLock) == []


@pytest.mark.parametrize(
    "release",
    [
        api.Release(lock="a", fence=6, session="ann", owner="o", request=2),
        api.Release(lock="a", fence=7, session="ann", owner="other", request=2),
        api.Release(lock="b", fence=7, session="ann", owner="o", request=2),
    ],
    ids=["fence", "owner", "lock"],
)
def test_only_the_holder_releases_and_only_under_its_fence(
    proxy: Proxy, release: api.Release
) -> None:
    hold(proxy)
    effects = proxy.handle(ANN, release, T0)
    assert [refused.reason for refused in sent(effects, api.Refused)] == [api.Reason.NOT_HELD]
    assert sent(effects, ReleaseLock) == []


def test_a_wait_that_is_over_names_the_silent_node_and_is_never_granted(proxy: Proxy) -> None:
    effects = proxy.handle(ANN, acquire(wait_ms=500), T0)
    assert waits(effects) == [Wake(500, WaitOver(ticket=1))]

    effects = proxy.handle(PROXY, WaitOver(ticket=1), at(500))
    asked = [e.message for e in effects if isinstance(e, Send)]
    assert asked == [QueryLock(lock="a", query=1), ReleaseLock(lock="a", ticket=1)]
    assert proxy.handle(BACKEND, LockGranted(lock="a", ticket=1, fence=7), at(501)) == ()

    seen = LockDescription(
        lock="a", query=1, holder=None, waiters=(), waits_for=(api.Absence("n2", 4_200),)
    )
    (refused,) = sent(proxy.handle(BACKEND, seen, at(502)), api.Refused)
    assert refused.reason is api.Reason.UNAVAILABLE
    assert "n2 (silent for 4200 ms)" in refused.detail


def test_a_wait_that_is_over_names_the_holder(proxy: Proxy) -> None:
    proxy.handle(ANN, acquire(wait_ms=500), T0)
    proxy.handle(PROXY, WaitOver(ticket=1), at(500))
    holder = api.Contender("n2", "bob", "bob-1", 9, 800)
    seen = LockDescription(lock="a", query=1, holder=holder, waiters=(), waits_for=())
    (refused,) = sent(proxy.handle(BACKEND, seen, at(502)), api.Refused)
    assert refused.reason is api.Reason.TIMED_OUT
    assert "held by bob-1 on n2 under fence 9" in refused.detail
    assert sent(proxy.handle(ANN, acquire(wait_ms=500), at(600)), api.Refused) == [refused]


def test_who_will_not_wait_is_refused_as_soon_as_somebody_is_ahead(proxy: Proxy) -> None:
    effects = proxy.handle(ANN, acquire(wait_ms=0), T0)
    assert sent(effects, QueryLock) == [QueryLock(lock="a", query=1)]
    assert waits(effects) == [Wake(TRY_MS, WaitOver(ticket=1))]
    nobody = LockDescription(lock="a", query=1, holder=None, waiters=(), waits_for=())
    assert proxy.handle(BACKEND, nobody, T0) == [Wake(TRY_QUERY_MS, TryQuery(ticket=1))]
    assert sent(proxy.handle(PROXY, TryQuery(ticket=1), T0), QueryLock) == [
        QueryLock(lock="a", query=2)
    ]
    holder = api.Contender("n2", "bob", "bob-1", 9, 800)
    seen = LockDescription(lock="a", query=2, holder=holder, waiters=(), waits_for=())
    effects = proxy.handle(BACKEND, seen, T0)
    assert sent(effects, ReleaseLock) == [ReleaseLock(lock="a", ticket=1)]
    assert [refused.reason for refused in sent(effects, api.Refused)] == [api.Reason.TIMED_OUT]


def test_an_owner_that_holds_is_told_so_and_not_left_to_wait_for_itself(proxy: Proxy) -> None:
    hold(proxy)
    effects = proxy.handle(ANN, acquire(request=2), T0)
    assert [refused.reason for refused in sent(effects, api.Refused)] == [api.Reason.ALREADY_HELD]


def test_a_new_wait_of_an_owner_ends_its_old_one(proxy: Proxy) -> None:
    proxy.handle(ANN, acquire(), T0)
    effects = proxy.handle(ANN, acquire(request=2), T0)
    assert sent(effects, ReleaseLock) == [ReleaseLock(lock="a", ticket=1)]
    assert [r.reason for r in sent(effects, api.Refused)] == [api.Reason.CANCELLED]
    assert [want.ticket for want in sent(effects, AcquireLock)] == [2]


def test_a_cancel_ends_a_wait_or_a_hold_and_can_be_repeated(proxy: Proxy) -> None:
    cancel = api.Cancel(lock="a", session="ann", owner="o", request=1)
    hold(proxy)
    effects = proxy.handle(ANN, cancel, T0)
    assert sent(effects, ReleaseLock) == [ReleaseLock(lock="a", ticket=1)]
    assert len(sent(effects, api.Cancelled)) == 1
    again = proxy.handle(ANN, cancel, T0)
    assert (sent(again, ReleaseLock), len(sent(again, api.Cancelled))) == ([], 1)
    assert sent(proxy.handle(ANN, acquire(request=1), T0), AcquireLock) == []


def test_a_cancel_that_overtakes_its_acquire_still_wins(proxy: Proxy) -> None:
    proxy.handle(ANN, api.Cancel(lock="a", session="ann", owner="o", request=1), T0)
    effects = proxy.handle(ANN, acquire(request=1), T0)
    assert (len(sent(effects, api.Cancelled)), sent(effects, AcquireLock)) == (1, [])


def test_a_cancelled_acquire_stays_cancelled_while_an_older_one_waits(proxy: Proxy) -> None:
    proxy.handle(ANN, acquire(request=1), T0)
    proxy.handle(ANN, api.Cancel(lock="a", session="ann", owner="o", request=2), T0)
    effects = proxy.handle(ANN, acquire(request=2), T0)
    assert (len(sent(effects, api.Cancelled)), sent(effects, AcquireLock)) == (1, [])


def test_the_session_of_callers_inside_is_a_client_like_others(proxy: Proxy) -> None:
    mine: dict[str, Any] = {"lock": "a", "session": "n1/b00", "owner": "ask-1", "request": 1}
    for caller in (ANN, LOCAL):
        effects = proxy.handle(caller, api.Acquire(**mine), T0)
        assert len(sent(effects, api.Refused)) == (caller == ANN)
    effects = proxy.handle(BACKEND, LockGranted(lock="a", ticket=1, fence=7), T0)
    assert Send(LOCAL, api.Granted(fence=7, **mine)) in effects
    proxy.handle(LOCAL, api.Cancel(**mine), T0)
    assert proxy.handle(BACKEND, LockGranted(lock="a", ticket=1, fence=7), T0) == ()


@pytest.mark.parametrize(
    "request_",
    [
        api.Acquire(lock="a", owner="o", request=1),
        api.Release(lock="a", fence=7, request=1),
        api.Cancel(lock="a", session="", owner="o", request=1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_who_names_no_session_is_sent_to_the_role_that_has_one(
    proxy: Proxy, request_: api.Acquire | api.Release | api.Cancel
) -> None:
    (refused,) = sent(proxy.handle(Address("n1/ask-1"), request_, T0), api.Refused)
    assert refused.reason is api.Reason.INVALID
    assert "session is empty; the role 'session' of n1 has one" in refused.detail


def test_a_full_backend_is_an_overload_for_the_asker(proxy: Proxy) -> None:
    proxy.handle(ANN, acquire(), T0)
    effects = proxy.handle(BACKEND, QueueFull(lock="a", ticket=1, detail="10000 wait"), T0)
    assert [(r.reason, r.detail) for r in sent(effects, api.Refused)] == [
        (api.Reason.OVERLOADED, "10000 wait")
    ]


def test_a_lock_granted_twice_through_a_node_stays_with_its_first_holder(proxy: Proxy) -> None:
    """A `central` server without a journal forgets all holders when it restarts."""
    hold(proxy, fence=7)
    proxy.handle(BOB, acquire(session="bob"), T0)
    effects = proxy.handle(BACKEND, LockGranted(lock="a", ticket=2, fence=8), T0)
    assert sent(effects, ReleaseLock) == [ReleaseLock(lock="a", ticket=2)]
    assert [refused.reason for refused in sent(effects, api.Refused)] == [api.Reason.UNAVAILABLE]
    assert claims_of(proxy).holder["a"].fence == 7


def test_the_waits_of_a_silent_client_end_and_its_holds_stay(proxy: Proxy) -> None:
    hold(proxy)
    proxy.handle(BOB, acquire(session="bob"), T0)
    effects = proxy.handle(PROXY, Tick(), at(LockManager.CLIENT_SILENCE_MS))
    assert sent(effects, ReleaseLock) == [ReleaseLock(lock="a", ticket=2)]
    assert claims_of(proxy).holder["a"].key.session == "ann"


def test_a_client_that_keeps_alive_keeps_its_wait(proxy: Proxy) -> None:
    proxy.handle(ANN, acquire(), T0)
    effects = proxy.handle(
        ANN, api.KeepAlive(session="ann", request=3), at(LockManager.CLIENT_SILENCE_MS - 1)
    )
    assert sent(effects, api.Alive) == [api.Alive(session="ann", node="n1", request=3)]
    effects = proxy.handle(PROXY, Tick(), at(LockManager.CLIENT_SILENCE_MS))
    assert (sent(effects, ReleaseLock), effects[-1]) == ([], Wake(LockManager.TICK_MS, Tick()))


def test_an_acquire_without_a_limit_has_no_timer(proxy: Proxy) -> None:
    assert waits(proxy.handle(ANN, acquire(wait_ms=None), T0)) == []
    assert len(waits(proxy.handle(BOB, acquire(session="bob", wait_ms=500), T0))) == 1
