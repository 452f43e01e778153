"""Sessions at a proxy, its limits, and its status."""

from __future__ import annotations

from typing import NoReturn

from msgspec.structs import replace
from support import session_harness as client
from support.expect import only
from support.proxy_scene import ANN, BACKEND, BOB, FREE, PROXY, acquire, claims_of, hold
from support.role_harness import T0, at, only_sent, sent

from fencelock.actors.api.cluster_message import Describe, NodeStatus
from fencelock.actors.api.lock_message import (
    Acquire,
    Contender,
    Granted,
    Inspect,
    LockStatus,
    Reason,
    Refused,
)
from fencelock.actors.api.session_message import End, Ended, Open
from fencelock.actors.effect import Send, Wake
from fencelock.actors.message import Address
from fencelock.actors.proxy.clients import NODE_REQUESTS_MAX
from fencelock.actors.proxy.event import AcquireLock, LockGranted, QueryLock, ReleaseLock, Reported
from fencelock.actors.proxy.lock_manager import (
    CLAIMS_ENDED_MAX,
    CLAIMS_ENDED_MS,
    STATUS_LOCKS_MAX,
    EndsDue,
    Key,
    LockRequest,
)
from fencelock.actors.proxy.proxy import Proxy, Tick
from fencelock.actors.quota import Quotas
from fencelock.transport.cbor import FRAME_BYTES_MAX
from fencelock.transport.codec import encode


def test_a_client_whose_first_session_was_never_opened_is_served_later(proxy: Proxy) -> None:
    harness = client.SessionHarness()

    def through_the_proxy(sends: list[Send]) -> list[Send]:
        """Pass requests to the node, and its replies back."""
        more: list[Send] = []
        for send in sends:
            assert isinstance(send.message, Open | Acquire)
            for answer in proxy.handle(client.ME, send.message, T0):
                if isinstance(answer, Send) and answer.to == client.ME:
                    more += harness.receive(client.A, answer.message)
        return more

    harness.acquire(wait_ms=5_000)
    assert only_sent(harness.run(60_000), Refused).reason is Reason.UNAVAILABLE

    asked = through_the_proxy(harness.acquire(token=9))
    assert [type(send.message) for send in asked] == [Acquire]
    through_the_proxy(asked)
    got = only(Send, proxy.handle(BACKEND, LockGranted(lock="x", ticket=1, fence=7), T0)[:1])
    (granted,) = sent(harness.receive(client.A, got.message), Granted)
    assert (granted.fence, granted.request) == (7, 9)


def test_a_session_with_many_claims_ends_some_at_a_time_and_is_then_confirmed(
    proxy: Proxy,
) -> None:
    claims = 2 * CLAIMS_ENDED_MAX + 1
    for n in range(claims):
        proxy.handle(ANN, acquire(f"l{n}", request=n + 1), T0)
        proxy.handle(BACKEND, LockGranted(lock=f"l{n}", ticket=n + 1, fence=7), T0)
    proxy.handle(BOB, acquire("b", session="bob"), T0)

    first = proxy.handle(ANN, End(session="ann", request=999), T0)
    again = proxy.handle(ANN, End(session="ann", request=999), T0)
    late = [acquire("l0", request=1), acquire("new", request=1_000)]
    dropped = [proxy.handle(ANN, request, T0) for request in late]
    assert Wake(CLAIMS_ENDED_MS, EndsDue()) in first
    assert [sent(effects, ReleaseLock) for effects in (again, *dropped)] == [[], [], []]
    assert [sent(effects, AcquireLock) for effects in dropped] == [[], []]

    turns = [first, *(proxy.handle(PROXY, EndsDue(), T0) for _ in range(3))]
    assert [len(sent(effects, ReleaseLock)) for effects in turns] == [
        CLAIMS_ENDED_MAX,
        CLAIMS_ENDED_MAX,
        1,
        0,
    ]
    assert [len(sent(effects, Ended)) for effects in turns] == [0, 0, 1, 0]
    assert [claim.key.session for claim in claims_of(proxy).by_key.values()] == ["bob"]
    assert list(claims_of(proxy).by_session) == ["bob"]
    assert [type(one) for one in proxy.handle(ANN, late[0], T0)][:1] == [Send]


def test_a_small_session_ends_while_a_large_one_does(proxy: Proxy) -> None:
    for n in range(5 * CLAIMS_ENDED_MAX):
        proxy.handle(ANN, acquire(f"l{n}", request=n + 1), T0)
    proxy.handle(BOB, acquire("b", session="bob"), T0)

    proxy.handle(ANN, End(session="ann", request=9_999), T0)
    proxy.handle(BOB, End(session="bob", request=2), T0)
    turns = [proxy.handle(PROXY, EndsDue(), T0) for _ in range(2)]

    assert [ended.session for effects in turns for ended in sent(effects, Ended)] == ["bob"]


def test_the_end_of_a_session_looks_at_its_own_claims_only(proxy: Proxy) -> None:
    class Unlisted(dict[Key, LockRequest]):
        def values(self) -> NoReturn:
            raise AssertionError("all claims are looked at")

    hold(proxy)
    proxy.handle(BOB, acquire("b", session="bob"), T0)
    claims_of(proxy).by_key = Unlisted(claims_of(proxy).by_key)

    assert len(sent(proxy.handle(ANN, End(session="ann", request=3), T0), ReleaseLock)) == 1


def test_the_waits_of_a_silent_client_end_some_at_a_time(proxy: Proxy) -> None:
    for n in range(2 * CLAIMS_ENDED_MAX + 1):
        proxy.handle(ANN, acquire(f"l{n}", request=n + 1), T0)
    silent = at(proxy.clients.silence_ms)
    turns = [proxy.handle(PROXY, Tick(), silent)]
    turns += [proxy.handle(PROXY, EndsDue(), silent) for _ in range(2)]
    assert [len(sent(effects, ReleaseLock)) for effects in turns] == [
        CLAIMS_ENDED_MAX,
        CLAIMS_ENDED_MAX,
        1,
    ]


def test_claims_have_a_limit(proxy: Proxy) -> None:
    proxy.clients.quotas = Quotas(requests_per_s=2 * NODE_REQUESTS_MAX)
    for number in range(1, NODE_REQUESTS_MAX + 1):
        proxy.handle(ANN, Acquire(lock=f"l{number}", session="ann", request=number), T0)
    effects = proxy.handle(ANN, acquire(request=NODE_REQUESTS_MAX + 1), T0)
    (refused,) = sent(effects, Refused)
    assert refused.reason is Reason.OVERLOADED
    assert str(NODE_REQUESTS_MAX) in refused.detail


def test_a_node_that_many_wait_at_still_sends_its_status_in_one_frame(proxy: Proxy) -> None:
    for number in range(STATUS_LOCKS_MAX * 3):
        lock, owner = f"{number % STATUS_LOCKS_MAX:0256}", f"{number:0256}"
        proxy.handle(ANN, Acquire(lock=lock, session="ann", owner=owner, request=1), T0)
    reported = Reported(uptime_ms=1, counters=())
    effects = list(proxy.handle(ANN, Describe(session="ann"), T0))
    effects += proxy.handle(Address("n1/node"), reported, T0)
    for look in sent(effects, QueryLock):
        seen = replace(FREE, lock=look.lock, query=look.query)
        effects += proxy.handle(BACKEND, seen, T0)
    (status,) = sent(effects, NodeStatus)
    assert len(status.locks) > 100
    assert len(encode(status)) < FRAME_BYTES_MAX

    contenders = tuple(Contender("n2", "s", f"{n:0256}", None, 1) for n in range(9_000))
    (look,) = sent(proxy.handle(ANN, Inspect(lock="a", session="ann"), T0), QueryLock)
    seen = replace(FREE, query=look.query, waiters=contenders)
    (lock_status,) = sent(proxy.handle(BACKEND, seen, T0), LockStatus)
    assert len(encode(lock_status)) < FRAME_BYTES_MAX
