"""Sessions at a proxy, its limits, and its status."""

from __future__ import annotations

from typing import NoReturn

import pytest
from msgspec.structs import replace
from support import session_harness as client
from support.expect import only
from support.proxy_scene import (
    ANN,
    BACKEND,
    BOB,
    BOB_HOLDS,
    FREE,
    LOCAL,
    PROXY,
    acquire,
    claims_of,
    hold,
)
from support.role_harness import T0, at, only_sent, sent

from fencelock.actors.api.message import (
    Absence,
    Acquire,
    Contender,
    Describe,
    Granted,
    Inspect,
    KeepAlive,
    LockStatus,
    NodeStatus,
    Reason,
    Refused,
    Release,
)
from fencelock.actors.api.role_request import RoleDescription
from fencelock.actors.api.session_message import End, Ended, Open, Opened
from fencelock.actors.effect import Observe, Send, Wake
from fencelock.actors.message import NS_PER_MS, Address, Instant
from fencelock.actors.proxy.clients import REQUESTS_MAX
from fencelock.actors.proxy.lock_manager import (
    CLAIMS_ENDED_MAX,
    CLAIMS_ENDED_MS,
    LOCKS_SHOWN_MAX,
    WAIT_TIMER_MS_MAX,
    EndsDue,
    Key,
    LockRequest,
    WaitsDue,
)
from fencelock.actors.proxy.message import (
    AcquireLock,
    LockGranted,
    QueryLock,
    Ready,
    ReleaseLock,
    Report,
    Reported,
)
from fencelock.actors.proxy.proxy import Proxy, Tick
from fencelock.actors.quota import Quotas
from fencelock.actors.role_message import RoleNotice
from fencelock.transport.cbor import FRAME_BYTES_MAX
from fencelock.transport.codec import encode


@pytest.mark.parametrize("session", ["ann", "ann~2"])
def test_a_session_is_opened_as_the_client_itself_by_saying_that_none_is_kept(
    proxy: Proxy, session: str
) -> None:
    effects = proxy.handle(ANN, Open(session=session, ttl_ms=9_000, label="x", request=3), T0)
    assert sent(effects, Opened) == [
        Opened(session=session, assigned="ann", ttl_ms=0, node="n1", request=3)
    ]


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


def test_a_session_that_ends_gives_back_what_it_holds_and_leaves_its_queues(proxy: Proxy) -> None:
    hold(proxy)
    proxy.handle(ANN, acquire("b", request=2), T0)
    proxy.handle(BOB, acquire("b", session="bob"), T0)
    effects = proxy.handle(ANN, End(session="ann", request=3), T0)
    assert sent(effects, ReleaseLock) == [
        ReleaseLock(lock="b", ticket=2),  # The newest first.
        ReleaseLock(lock="a", ticket=1),
    ]
    assert [(ended.session, ended.request) for ended in sent(effects, Ended)] == [("ann", 3)]
    assert [claim.key.session for claim in claims_of(proxy).by_key.values()] == ["bob"]
    again = proxy.handle(ANN, End(session="ann", request=3), T0)
    assert (sent(again, ReleaseLock), len(sent(again, Ended))) == ([], 1)
    late = proxy.handle(ANN, acquire("a"), T0)
    assert sent(late, AcquireLock) == []
    release = Release(lock="a", fence=7, session="ann", owner="o", request=4)
    assert [r.reason for r in sent(proxy.handle(ANN, release, T0), Refused)] == [Reason.NOT_HELD]


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


def test_a_client_cannot_end_the_session_of_another_or_of_callers_inside(proxy: Proxy) -> None:
    proxy.handle(LOCAL, acquire("a", session="n1/b00"), T0)
    for asker, session in ((BOB, "ann"), (BOB, ""), (BOB, "n1/b00"), (LOCAL, "")):
        effects = proxy.handle(asker, End(session=session, request=3), T0)
        assert [refused.reason for refused in sent(effects, Refused)] == [Reason.INVALID]
        assert sent(effects, ReleaseLock) == []


@pytest.mark.parametrize("limit", [0, 2])
def test_an_acquire_that_may_enter_again_is_refused_with_the_protocol_that_has_it(
    proxy: Proxy, limit: int
) -> None:
    effects = proxy.handle(ANN, replace(acquire(), limit=limit), T0)
    (refused,) = sent(effects, Refused)
    assert refused.reason is Reason.UNSUPPORTED
    assert f"limit {limit}" in refused.detail
    assert "lamport" in refused.detail
    assert "paxos" in refused.detail
    assert sent(effects, AcquireLock) == []


def test_claims_have_a_limit(proxy: Proxy) -> None:
    proxy.clients.quotas = Quotas(requests_per_s=2 * REQUESTS_MAX)
    for number in range(1, REQUESTS_MAX + 1):
        proxy.handle(ANN, Acquire(lock=f"l{number}", session="ann", request=number), T0)
    effects = proxy.handle(ANN, acquire(request=REQUESTS_MAX + 1), T0)
    (refused,) = sent(effects, Refused)
    assert refused.reason is Reason.OVERLOADED
    assert str(REQUESTS_MAX) in refused.detail


def test_a_node_that_many_wait_at_still_sends_its_status_in_one_frame(proxy: Proxy) -> None:
    for number in range(LOCKS_SHOWN_MAX * 3):
        lock, owner = f"{number % LOCKS_SHOWN_MAX:0256}", f"{number:0256}"
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


def test_a_session_without_end_is_not_kept(proxy: Proxy) -> None:
    described = proxy.handle(ANN, Describe(session="x" * 999), T0)
    assert described == [Observe("proxy.session_malformed")]
    for session in ("x" * 999, "ann~" + "2" * 999):
        (refused,) = sent(proxy.handle(ANN, KeepAlive(session=session), T0), Refused)
        assert refused.reason is Reason.INVALID
    assert len(proxy.clients.by_id) == 0


def test_a_long_wait_leaves_no_long_timer_behind(proxy: Proxy) -> None:
    first, second = WAIT_TIMER_MS_MAX * NS_PER_MS, (WAIT_TIMER_MS_MAX + 500) * NS_PER_MS
    long = Acquire(lock="a", session="ann", request=1, wait_ms=WAIT_TIMER_MS_MAX + 500)
    early, late = WaitsDue(at=Instant(first)), WaitsDue(at=Instant(second))
    assert Wake(WAIT_TIMER_MS_MAX, early) in proxy.handle(ANN, long, T0)
    assert proxy.handle(PROXY, early, Instant(first)) == [Wake(500, late)]
    assert sent(proxy.handle(PROXY, late, Instant(second)), ReleaseLock)


def test_a_lock_is_inspected_through_the_backend(proxy: Proxy) -> None:
    effects = proxy.handle(ANN, Inspect(lock="a", session="ann", request=5), T0)
    assert sent(effects, QueryLock) == [QueryLock(lock="a", query=1, proven=True, waiters=True)]
    seen = replace(FREE, holder=BOB_HOLDS)
    assert sent(proxy.handle(BACKEND, seen, T0), LockStatus) == [
        LockStatus(lock="a", holder=BOB_HOLDS, waiters=(), waits_for=(), session="ann", request=5)
    ]


def test_a_node_describes_itself_and_its_locks(proxy: Proxy) -> None:
    hold(proxy)
    proxy.handle(BACKEND, Ready(ready=True, detail="ready"), T0)
    effects = proxy.handle(BOB, Describe(session="bob", request=4), T0)
    assert effects[-1] == Send(Address("n1/node"), Report())
    reported = Reported(uptime_ms=5, counters=())
    status = only_sent(proxy.handle(Address("n1/node"), reported, at(100)), NodeStatus, BOB)
    assert (status.ready, status.uptime_ms, status.request) == (True, 5, 4)
    assert status.locks[0].holder == Contender("n1", "ann", "o", 7, 100)


def test_the_log_has_a_line_when_a_node_starts_and_when_it_is_ready(proxy: Proxy) -> None:
    def notices(ready: Ready) -> list[str]:
        return [one.text for one in sent(proxy.handle(BACKEND, ready, T0), RoleNotice)]

    waits = Ready(ready=False, detail="n2 is missing")
    ready = ["n1 is ready: it can grant locks"]
    assert notices(waits) == ["n1 is not ready yet: n2 is missing"]
    assert notices(waits) == []
    assert notices(Ready(ready=True, detail="ready")) == ready
    assert notices(waits) == []
    assert notices(Ready(ready=True, detail="ready")) == ready


def test_a_description_shows_who_holds_elsewhere_and_which_node_is_missing(proxy: Proxy) -> None:
    proxy.handle(ANN, acquire(), T0)
    effects = proxy.handle(BOB, Describe(session="bob", request=4), T0)
    assert sent(effects, QueryLock) == [QueryLock(lock="a", query=1)]
    reported = Reported(uptime_ms=5, counters=())
    assert list(proxy.handle(Address("n1/node"), reported, T0)) == []
    holder = Contender("n2", "", "", 9, 800)
    absent = (Absence("n3", 4_000),)
    seen = replace(FREE, holder=holder, waits_for=absent)
    (status,) = sent(proxy.handle(BACKEND, seen, at(100)), NodeStatus)
    (lock,) = status.locks
    assert (lock.holder, lock.waits_for) == (holder, absent)
    assert lock.waiters == (Contender("n1", "ann", "o", None, 100),)


def test_the_host_reports_roles_only_to_those_who_want_them(proxy: Proxy) -> None:
    asked = sent(proxy.handle(BOB, Describe(session="bob", request=4), T0), Report)
    assert asked == [Report(roles=False)]
    asked = sent(proxy.handle(ANN, Describe(session="ann", request=1, roles=True), T0), Report)
    assert asked == [Report(roles=True)]
    without = Reported(uptime_ms=5, counters=())
    assert sent(proxy.handle(Address("n1/node"), without, T0), NodeStatus) == []
    role = RoleDescription(name="clock", kind="Clock", waiting=0, summary=(), counters=())
    answers = proxy.handle(Address("n1/node"), replace(without, roles=(role,)), T0)
    assert [one.roles for one in sent(answers, NodeStatus)] == [(), (role,)]
