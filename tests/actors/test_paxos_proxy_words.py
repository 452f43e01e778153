"""The proxy of the log: its refusals, their texts, and its replies to operators."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.effects import T0, sent
from support.log_proxy_scene import (
    ACQUIRE,
    ANN,
    CANCEL,
    ME,
    RELEASE,
    REPLICA,
    denied,
    happens,
    log_proxy,
    proposed,
    told,
)
from support.unbatched_proxy import UnbatchedProxy

from fencelock.actors.api import message as api
from fencelock.actors.api.session_message import (
    CloseReason,
    CloseSession,
    Ended,
    Evict,
    Evicted,
    Open,
    SessionClosed,
)
from fencelock.actors.message import Address
from fencelock.actors.paxos.event import LeaderChanged
from fencelock.actors.proxy.proxy import Proxy
from fencelock.actors.role_message import Level, RoleNotice
from fencelock.actors.table.table import LockTable


@pytest.fixture
def proxy() -> Proxy:
    proxy = log_proxy(UnbatchedProxy)
    proxy.handle(REPLICA, LeaderChanged(leader="n2"), T0)
    return proxy


@pytest.mark.parametrize("reason", [*api.Reason])
def test_a_refusal_of_the_table_reaches_the_client_as_it_is(
    proxy: Proxy, reason: api.Reason
) -> None:
    proxy.handle(ANN, ACQUIRE, T0)
    why = denied(reason, "lock 'a': why")
    (answer,) = told(happens(proxy, why), api.Refused)
    nothing_done = reason in (api.Reason.SUPERSEDED, api.Reason.FORGOTTEN)
    assert answer == (replace(why, reason=api.Reason.CANCELLED) if nothing_done else why)


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        (denied(api.Reason.NOT_HELD, "fence 5 was shown", 3), api.Reason.NOT_HELD),
        (denied(api.Reason.OWNERSHIP_LOST, "taken by 'eve'", 3), api.Reason.OWNERSHIP_LOST),
        (denied(api.Reason.SUPERSEDED, "something else", 3), api.Reason.NOT_HELD),
        (denied(api.Reason.FORGOTTEN, "something else", 3), api.Reason.NOT_HELD),
        (denied(api.Reason.SESSION_EXPIRED, "open one", 3), api.Reason.SESSION_EXPIRED),
    ],
    ids=lambda value: value.name if isinstance(value, api.Reason) else "",
)
def test_a_denied_release_is_refused(proxy: Proxy, why: api.Refused, reason: api.Reason) -> None:
    proxy.handle(ANN, RELEASE, T0)
    (answer,) = told(happens(proxy, why), api.Refused)
    assert answer == replace(why, reason=reason)


def test_a_cancel_in_a_session_that_is_gone_hears_so(proxy: Proxy) -> None:
    proxy.handle(ANN, CANCEL, T0)
    (answer,) = told(happens(proxy, denied(api.Reason.SESSION_EXPIRED, request=-2)), api.Refused)
    assert answer.reason is api.Reason.SESSION_EXPIRED


def test_a_keep_alive_of_a_session_that_is_gone_hears_so(proxy: Proxy) -> None:
    proxy.handle(ANN, api.KeepAlive(session=ME, request=4), T0)
    gone = denied(api.Reason.SESSION_EXPIRED, request=4, lock="")
    (answer,) = told(happens(proxy, gone), api.Refused)
    assert (answer.reason, answer.request) == (api.Reason.SESSION_EXPIRED, 4)


def test_an_eviction_names_the_operator_and_the_client_for_the_log(proxy: Proxy) -> None:
    evict = Evict(lock="a", fence=5, operator="eve", session=ME, request=8)
    (command,) = proposed(proxy.handle(ANN, evict, T0))
    assert command == evict
    assert evict.by == "eve (ann)"
    table = LockTable()
    table.apply(0, Open(session="bob~2", ttl_ms=9_000, label="host:2"))
    (held,) = table.apply(0, api.Acquire(lock="a", session="bob~2.1", owner="p", request=1))
    assert isinstance(held, api.Granted)
    (evicted, _) = table.apply(1, replace(evict, fence=held.fence))
    assert isinstance(evicted, Evicted)
    assert evicted.operator == "eve (ann)"
    assert evicted.holder[:4] == ("bob", "bob~2.1", "p", held.fence)
    assert told(happens(proxy, evicted), Evicted) == [evicted]


def test_a_closed_session_is_notified_and_logged_with_the_operator(proxy: Proxy) -> None:
    """A client that has no session yet may ask, and the victim's client uses this node."""
    bob, secret = Address("bob/session"), "~" + "0123456789abcdef" * 2
    table = LockTable()
    table.apply(0, Open(session=f"bob{secret}", ttl_ms=9_000))
    proxy.handle(bob, api.KeepAlive(session=f"bob{secret}.1", request=1), T0)
    close = CloseSession(handle="bob.1", operator="eve", session="ann", request=8)
    (command,) = proposed(proxy.handle(ANN, close, T0))
    assert command == close
    effects = happens(proxy, *table.apply(1, close))
    (closed,) = told(effects, SessionClosed)
    assert (closed.handle, closed.claims, closed.request) == ("bob.1", 0, 8)
    (ended,) = told(effects, Ended, bob)
    assert (ended.session, ended.reason) == (f"bob{secret}.1", CloseReason.FORCED)
    (notice,) = sent(effects, RoleNotice, Address("n1/node"))
    assert notice.level is Level.WARNING
    assert notice.text.startswith("session bob.1 closed: it was ended by force, by 'eve (ann)'")
    again = happens(proxy, *table.apply(2, close))
    assert sent(again, RoleNotice, Address("n1/node")) == []  # A repetition closes nothing.


def test_an_eviction_of_somebody_who_does_not_hold_is_refused(proxy: Proxy) -> None:
    evict = Evict(lock="a", fence=5, operator="eve", session="ann", request=8)
    proxy.handle(ANN, evict, T0)
    (why,) = LockTable().apply(0, evict)
    (answer,) = told(happens(proxy, why), api.Refused)
    assert (answer.reason, answer.request) == (api.Reason.NOT_HELD, 8)
    assert "fence 5" in answer.detail
