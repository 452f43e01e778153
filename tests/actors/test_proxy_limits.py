from __future__ import annotations

import pytest
from support.effects import T0, sent
from support.proxy_scene import ANN, BACKEND, PROXY, acquire

from fencelock.actors.api.message import (
    Acquire,
    Contender,
    Describe,
    Inspect,
    KeepAlive,
    LockStatus,
    NodeStatus,
    Reason,
    Refused,
    Release,
)
from fencelock.actors.api.name import LOCK_NAME_BYTES_MAX, WAIT_MS_MAX
from fencelock.actors.effect import Observe, Wake
from fencelock.actors.message import NS_PER_MS, Address, Instant
from fencelock.actors.proxy.clients import REQUESTS_MAX
from fencelock.actors.proxy.lock_manager import WAIT_TIMER_MS_MAX, WaitOver
from fencelock.actors.proxy.lock_request import LOCKS_SHOWN_MAX
from fencelock.actors.proxy.message import LockDescription, QueryLock, ReleaseLock, Reported
from fencelock.actors.proxy.proxy import Proxy
from fencelock.actors.quota import Quotas
from fencelock.transport.cbor import FRAME_BYTES_MAX
from fencelock.transport.codec import encode


def test_claims_have_a_limit(proxy: Proxy) -> None:
    proxy.clients.quotas = Quotas(requests_per_s=2 * REQUESTS_MAX)
    for number in range(1, REQUESTS_MAX + 1):
        proxy.handle(ANN, Acquire(lock=f"l{number}", session="ann", request=number), T0)
    effects = proxy.handle(ANN, acquire(request=REQUESTS_MAX + 1), T0)
    (refused,) = sent(effects, Refused)
    assert refused.reason is Reason.OVERLOADED
    assert str(REQUESTS_MAX) in refused.detail


def test_a_node_that_many_wait_at_still_tells_its_status_in_one_frame(proxy: Proxy) -> None:
    for number in range(LOCKS_SHOWN_MAX * 3):
        lock, owner = f"{number % LOCKS_SHOWN_MAX:0256}", f"{number:0256}"
        proxy.handle(ANN, Acquire(lock=lock, session="ann", owner=owner, request=1), T0)
    reported = Reported(uptime_ms=1, counters=())
    effects = list(proxy.handle(ANN, Describe(session="ann"), T0))
    effects += proxy.handle(Address("n1/node"), reported, T0)
    for look in sent(effects, QueryLock):
        seen = LockDescription(
            lock=look.lock, query=look.query, holder=None, waiters=(), waits_for=()
        )
        effects += proxy.handle(BACKEND, seen, T0)
    (status,) = sent(effects, NodeStatus)
    assert len(status.locks) > 100
    assert len(encode(status)) < FRAME_BYTES_MAX

    contenders = tuple(Contender("n2", "s", f"{n:0256}", None, 1) for n in range(9_000))
    (look,) = sent(proxy.handle(ANN, Inspect(lock="a", session="ann"), T0), QueryLock)
    seen = LockDescription(
        lock="a", query=look.query, holder=None, waiters=contenders, waits_for=()
    )
    (told,) = sent(proxy.handle(BACKEND, seen, T0), LockStatus)
    assert len(encode(told)) < FRAME_BYTES_MAX


def test_a_session_without_end_is_not_kept(proxy: Proxy) -> None:
    described = proxy.handle(ANN, Describe(session="x" * 999), T0)
    assert described == [Observe("proxy.session_malformed")]
    for session in ("x" * 999, "ann~" + "2" * 999):
        (refused,) = sent(proxy.handle(ANN, KeepAlive(session=session), T0), Refused)
        assert refused.reason is Reason.INVALID
    assert len(proxy.clients.by_id) == 0


def test_a_long_wait_leaves_no_long_timer_behind(proxy: Proxy) -> None:
    first, second = WAIT_TIMER_MS_MAX * NS_PER_MS, (WAIT_TIMER_MS_MAX + 500) * NS_PER_MS
    over = WaitOver(ticket=1)
    long = Acquire(lock="a", session="ann", request=1, wait_ms=WAIT_TIMER_MS_MAX + 500)
    assert Wake(WAIT_TIMER_MS_MAX, over) in proxy.handle(ANN, long, T0)
    assert proxy.handle(PROXY, over, Instant(first)) == [Wake(500, over)]
    assert sent(proxy.handle(PROXY, over, Instant(second)), ReleaseLock)


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (Acquire(lock="", session="ann", request=1), "0 bytes"),
        (Acquire(lock="x" * 300, session="ann", request=1), f"1 to {LOCK_NAME_BYTES_MAX}"),
        (Acquire(lock="a\n", session="ann", request=1), "has U+000A"),
        (Acquire(lock=" \u3164", session="ann", request=1), "no visible character"),
        (Acquire(lock="a", session="ann", owner="o" * 300, request=1), "owner of 300 bytes"),
        (Acquire(lock="a", session="ann", wait_ms=-1, request=1), "wait_ms is -1"),
        (Acquire(lock="a", session="ann", wait_ms=WAIT_MS_MAX + 1, request=1), str(WAIT_MS_MAX)),
        (
            Acquire(lock="a", session="bob", request=1),
            "session 'bob' is not of the client 'ann' itself",
        ),
        (Release(lock="a", session="bob", fence=1, request=1), "session 'bob'"),
        (Acquire(lock="a", session="ann", owner="\ud800", request=1), "has U+D800"),
        (Inspect(lock="", session="ann"), "0 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_bad_request_is_told_its_field_value_and_limit(
    proxy: Proxy, request_: Acquire | Release | Inspect, told: str
) -> None:
    (refused,) = sent(proxy.handle(ANN, request_, T0), Refused)
    assert refused.reason is Reason.INVALID
    assert told in refused.detail
