"""The proxy of the log, with causes of refusals, with many sessions, and with a table.

What it does with each request stands in `transcripts/paxos-proxy.txt`.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.expect import only
from support.log_proxy_scene import (
    ACQUIRE,
    ANN,
    FAR,
    ME,
    PROXY,
    acquire,
    denied,
    happens,
    in_flight_at,
    led_by_n2,
    log_proxy,
    messages_to,
    proposals,
    proposed,
)
from support.proxy_scene import UnbatchedProxy
from support.role_harness import T0, at, sent

from fencelock.actors.api import lock_message as api
from fencelock.actors.api.lock_message import HoldLost
from fencelock.actors.api.operator_message import CloseSession, Evict, Evicted, SessionClosed
from fencelock.actors.api.refusal import Cause, Obstacle, Why
from fencelock.actors.api.semaphore import AcquirePermits
from fencelock.actors.api.session_message import CloseReason, Ended, KeepAlive, Open, ended
from fencelock.actors.effect import Observe
from fencelock.actors.message import Address, node_of
from fencelock.actors.paxos.backend import EXPIRED_LINES_MAX
from fencelock.actors.paxos.log_requests import SILENT_WAIT_MS
from fencelock.actors.proxy.proxy import Proxy, Tick
from fencelock.actors.role_message import Level, RoleNotice
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import Queued

NODE = Address("n1/node")
HELD = api.Granted(session=ME, owner="o", request=2, lock="a", fence=5, count=1)
QUEUED = Queued(session=ME, owner="o", request=2, lock="a")


@pytest.fixture
def proxy() -> Proxy:
    return led_by_n2(log_proxy(UnbatchedProxy))


@pytest.mark.parametrize(
    "wait", [ACQUIRE, AcquirePermits(semaphore="a", permits=3, session=ME, owner="o", request=2)]
)
def test_a_wait_for_any_object_is_cancelled_when_the_key_of_its_client_is_removed(
    proxy: Proxy, wait: api.AcquireRequest
) -> None:
    proxy.handle(ANN, wait, T0)
    proxy.backend.cancel_waits([node_of(ANN)], T0)
    cancel = only(api.Cancel, [command for _, command in proxy.backend.pending()])
    assert cancel.key == (ME, "o", wait.lock, -2)


def test_a_client_is_notified_that_an_operator_took_its_hold(proxy: Proxy) -> None:
    proxy.handle(ANN, ACQUIRE, T0)
    why = Why(Cause.TAKEN, texts=("eve (n2)",))
    lost = HoldLost(session=ME, owner="o", lock="a", fence=5, detail="", why=why)
    (notice,) = messages_to(happens(proxy, lost), HoldLost)
    assert (notice.lock, notice.fence, notice.session, notice.owner) == ("a", 5, ME, "o")
    assert notice.why is None
    assert notice.detail == "lock 'a': the hold under fence 5 was taken by 'eve (n2)'"


@pytest.mark.parametrize("more", [0, 1, 2])
def test_sessions_that_expire_together_have_a_bounded_number_of_lines(
    proxy: Proxy, more: int
) -> None:
    sessions = [f"s.{number}" for number in range(EXPIRED_LINES_MAX + more)]
    for _ in range(2):  # Each slot has its own lines.
        effects = happens(proxy, *(ended(session, CloseReason.EXPIRED) for session in sessions))
        lines = [notice.text.partition(":")[0] for notice in sent(effects, RoleNotice, NODE)]
        each = [f"session {session} expired" for session in sessions[:EXPIRED_LINES_MAX]]
        rest = f"{more} more sessions expired at the same time. Their locks are free for others"
        assert lines == each + [rest] * (more > 0)


@pytest.mark.parametrize(
    "why",
    [
        Why(Cause.TIMED_OUT),
        Why(Cause.TIMED_OUT, (), ("a",), Obstacle("a")),
        Why(Cause.QUOTA, (1, 2, 3), ("shop", "apples")),
        Why(Cause.QUOTA, (1, 2, 3), ("shop",)),
        Why(Cause.OTHER_SIZE, (1, 2, 3)),
        Why(Cause.DELETED, (1,), ("root",)),
        Why(Cause.PURGED, (1,), ("",)),
    ],
)
def test_a_refusal_without_a_text_is_dropped(proxy: Proxy, why: Why) -> None:
    proxy.handle(ANN, ACQUIRE, T0)
    effects = proxy.handle(FAR, replace(denied(api.Reason.TIMED_OUT), why=why), T0)
    assert effects == [Observe("paxos.outcome_malformed")]
    assert len(in_flight_at(proxy)) == 1


def test_a_request_sent_again_is_charged_to_the_client_as_now_known() -> None:
    leaderless = log_proxy(UnbatchedProxy)
    leaderless.handle(ANN, acquire(), T0)
    happens(leaderless, QUEUED)
    clients = leaderless.backend.clients
    ((name, first),) = clients.by_id.items()
    clients.by_id.clear()  # As if many clients had come since.
    clients.latest = None
    leaderless.handle(ANN, acquire(), at(SILENT_WAIT_MS))
    second = clients.by_id[name]
    assert (first.usage.in_flight, second.usage.in_flight) == (0, 1)
    assert (first.usage.bytes, second.usage.bytes) == (0, in_flight_at(leaderless).bytes)
    assert len(proposals(leaderless.handle(PROXY, Tick(), at(SILENT_WAIT_MS)))) == 1


@pytest.mark.parametrize("reason", [*api.Reason])
def test_a_refusal_of_the_table_reaches_the_client(proxy: Proxy, reason: api.Reason) -> None:
    proxy.handle(ANN, ACQUIRE, T0)
    why = denied(reason, "lock 'a': why")
    (answer,) = messages_to(happens(proxy, why), api.Refused)
    nothing_done = reason in (api.Reason.SUPERSEDED, api.Reason.FORGOTTEN)
    assert answer == (replace(why, reason=api.Reason.CANCELLED) if nothing_done else why)


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
    assert messages_to(happens(proxy, evicted), Evicted) == [evicted]


def test_a_closed_session_is_notified_and_logged_with_the_operator(proxy: Proxy) -> None:
    """A client that has no session yet may ask, and the victim's client uses this node."""
    bob, secret = Address("bob/session"), "~" + "0123456789abcdef" * 2
    table = LockTable()
    table.apply(0, Open(session=f"bob{secret}", ttl_ms=9_000))
    proxy.handle(bob, KeepAlive(session=f"bob{secret}.1", request=1), T0)
    close = CloseSession(handle="bob.1", operator="eve", session="ann", request=8)
    (command,) = proposed(proxy.handle(ANN, close, T0))
    assert command == close
    effects = happens(proxy, *table.apply(1, close))
    (closed,) = messages_to(effects, SessionClosed)
    assert (closed.handle, closed.claims, closed.request) == ("bob.1", 0, 8)
    (ended,) = messages_to(effects, Ended, bob)
    assert (ended.session, ended.reason) == (f"bob{secret}.1", CloseReason.FORCED)
    (notice,) = sent(effects, RoleNotice, NODE)
    assert notice.level is Level.WARNING
    assert notice.text.startswith("session bob.1 closed: it was ended by force, by 'eve (ann)'")
    again = happens(proxy, *table.apply(2, close))
    assert sent(again, RoleNotice, NODE) == []  # A repetition closes nothing.


def test_an_eviction_of_an_owner_that_does_not_hold_is_refused(proxy: Proxy) -> None:
    evict = Evict(lock="a", fence=5, operator="eve", session="ann", request=8)
    proxy.handle(ANN, evict, T0)
    (why,) = LockTable().apply(0, evict)
    (answer,) = messages_to(happens(proxy, why), api.Refused)
    assert (answer.reason, answer.request) == (api.Reason.NOT_HELD, 8)
    assert "fence 5" in answer.detail
