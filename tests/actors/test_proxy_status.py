from __future__ import annotations

from support.effects import T0, at, sent
from support.proxy_scene import ANN, BACKEND, BOB, acquire, hold

from fencelock.actors.api.message import (
    Absence,
    Contender,
    Describe,
    Inspect,
    LockStatus,
    NodeStatus,
)
from fencelock.actors.effect import Send
from fencelock.actors.message import Address
from fencelock.actors.proxy.message import LockDescription, QueryLock, Ready, Report, Reported
from fencelock.actors.proxy.proxy import Proxy
from fencelock.actors.role_message import RoleNotice


def test_a_lock_is_inspected_through_the_backend(proxy: Proxy) -> None:
    effects = proxy.handle(ANN, Inspect(lock="a", session="ann", request=5), T0)
    assert sent(effects, QueryLock) == [QueryLock(lock="a", query=1, proven=True)]
    holder = Contender("n2", "bob", "bob-1", 9, 800)
    seen = LockDescription(lock="a", query=1, holder=holder, waiters=(), waits_for=())
    assert sent(proxy.handle(BACKEND, seen, T0), LockStatus) == [
        LockStatus(lock="a", holder=holder, waiters=(), waits_for=(), session="ann", request=5)
    ]


def test_a_node_describes_itself_and_its_locks(proxy: Proxy) -> None:
    hold(proxy)
    proxy.handle(BACKEND, Ready(ready=True, detail="ready"), T0)
    effects = proxy.handle(BOB, Describe(session="bob", request=4), T0)
    assert effects[-1] == Send(Address("n1/node"), Report())
    reported = Reported(uptime_ms=5, counters=())
    ((to, status),) = [
        (e.to, e.message)
        for e in proxy.handle(Address("n1/node"), reported, at(100))
        if isinstance(e, Send)
    ]
    assert to == BOB
    assert isinstance(status, NodeStatus)
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


def test_a_description_says_who_holds_elsewhere_and_which_node_is_missing(proxy: Proxy) -> None:
    proxy.handle(ANN, acquire(), T0)
    effects = proxy.handle(BOB, Describe(session="bob", request=4), T0)
    assert sent(effects, QueryLock) == [QueryLock(lock="a", query=1)]
    reported = Reported(uptime_ms=5, counters=())
    assert list(proxy.handle(Address("n1/node"), reported, T0)) == []
    holder = Contender("n2", "", "", 9, 800)
    absent = (Absence("n3", 4_000),)
    seen = LockDescription(lock="a", query=1, holder=holder, waiters=(), waits_for=absent)
    (status,) = sent(proxy.handle(BACKEND, seen, at(100)), NodeStatus)
    (lock,) = status.locks
    assert (lock.holder, lock.waits_for) == (holder, absent)
    assert lock.waiters == (Contender("n1", "ann", "o", None, 100),)


def test_descriptions_asked_for_at_once_share_one_look(proxy: Proxy) -> None:
    proxy.handle(BOB, Describe(session="bob", request=4), T0)
    assert sent(proxy.handle(ANN, Describe(session="ann", request=1), T0), Report) == []
    reported = Reported(uptime_ms=5, counters=())
    answers = proxy.handle(Address("n1/node"), reported, T0)
    assert [answer.session for answer in sent(answers, NodeStatus)] == ["bob", "ann"]
