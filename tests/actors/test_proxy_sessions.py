"""Replies of a proxy about sessions and to operators where the cluster keeps no table of locks."""

from __future__ import annotations

import pytest
from support import session_harness as client
from support.effects import T0, sent
from support.proxy_scene import ANN, BACKEND, BOB, LOCAL, acquire, claims_of

from fencelock.actors.api.message import Acquire, Granted, Reason, Refused, Release
from fencelock.actors.api.session_message import End, Ended, Evict, ListLocks, Open, Opened
from fencelock.actors.effect import Send
from fencelock.actors.proxy.message import AcquireLock, LockGranted, ReleaseLock
from fencelock.actors.proxy.proxy import Proxy


def test_a_session_is_opened_by_saying_that_none_is_kept(proxy: Proxy) -> None:
    effects = proxy.handle(ANN, Open(session="ann", ttl_ms=9_000, label="x", request=3), T0)
    assert sent(effects, Opened) == [
        Opened(session="ann", assigned="ann", ttl_ms=0, node="n1", request=3)
    ]


def test_a_later_session_of_a_client_is_opened_as_the_client_itself(proxy: Proxy) -> None:
    effects = proxy.handle(ANN, Open(session="ann~2", ttl_ms=9_000, request=3), T0)
    assert sent(effects, Opened) == [
        Opened(session="ann~2", assigned="ann", ttl_ms=0, node="n1", request=3)
    ]


@pytest.mark.parametrize("session", ["", "an", "annie", "annie~2", "bob", "bob~2", "ann.2"])
def test_nobody_opens_a_session_of_another(proxy: Proxy, session: str) -> None:
    effects = proxy.handle(ANN, Open(session=session, ttl_ms=9_000, request=3), T0)
    assert [refused.reason for refused in sent(effects, Refused)] == [Reason.INVALID]
    assert sent(effects, Opened) == []


def test_a_client_whose_first_session_nobody_opened_is_served_when_a_node_is_there(
    proxy: Proxy,
) -> None:
    harness = client.SessionHarness()

    def through_the_proxy(said: list[Send]) -> list[Send]:
        """Pass requests to the node, and its replies back."""
        more: list[Send] = []
        for send in said:
            assert isinstance(send.message, Open | Acquire)
            for answer in proxy.handle(client.ME, send.message, T0):
                if isinstance(answer, Send) and answer.to == client.ME:
                    more += harness.hear(client.A, answer.message)
        return more

    harness.acquire(wait_ms=5_000)
    silent = harness.run(60_000)
    assert [send.message.reason for send in silent if isinstance(send.message, Refused)] == [
        Reason.UNAVAILABLE
    ]

    asked = through_the_proxy(harness.acquire(token=9))
    assert [type(send.message) for send in asked] == [Acquire]
    through_the_proxy(asked)
    (got,) = proxy.handle(BACKEND, LockGranted(lock="x", ticket=1, fence=7), T0)[:1]
    assert isinstance(got, Send)
    (granted,) = sent(harness.hear(client.A, got.message), Granted)
    assert (granted.fence, granted.request) == (7, 9)


def test_a_session_that_ends_gives_back_what_it_holds_and_leaves_its_queues(proxy: Proxy) -> None:
    proxy.handle(ANN, acquire("a"), T0)
    proxy.handle(BACKEND, LockGranted(lock="a", ticket=1, fence=7), T0)
    proxy.handle(ANN, acquire("b", request=2), T0)
    proxy.handle(BOB, acquire("b", session="bob"), T0)
    effects = proxy.handle(ANN, End(session="ann", request=3), T0)
    assert sent(effects, ReleaseLock) == [
        ReleaseLock(lock="a", ticket=1),
        ReleaseLock(lock="b", ticket=2),
    ]
    assert [(ended.session, ended.request) for ended in sent(effects, Ended)] == [("ann", 3)]
    assert [claim.key.session for claim in claims_of(proxy).by_key.values()] == ["bob"]
    again = proxy.handle(ANN, End(session="ann", request=3), T0)
    assert (sent(again, ReleaseLock), len(sent(again, Ended))) == ([], 1)
    late = proxy.handle(ANN, acquire("a"), T0)
    assert sent(late, AcquireLock) == []


def test_nobody_ends_the_session_of_another_or_of_callers_inside(proxy: Proxy) -> None:
    proxy.handle(LOCAL, acquire("a", session="n1/b00"), T0)
    for asker, session in ((BOB, "ann"), (BOB, ""), (BOB, "n1/b00"), (LOCAL, "")):
        effects = proxy.handle(asker, End(session=session, request=3), T0)
        assert [refused.reason for refused in sent(effects, Refused)] == [Reason.INVALID]
        assert sent(effects, ReleaseLock) == []


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (ListLocks(session="ann", request=1), "no table of locks"),
        (
            Evict(lock="a", fence=1, operator="o", session="ann", request=1),
            "takes no lock by",
        ),
        (Acquire(lock="a", session="ann", owner="o", request=1, limit=2), "limit 2"),
        (Acquire(lock="a", session="ann", owner="o", request=1, limit=0), "limit 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_only_a_table_can_do_is_refused_with_the_name_of_who_has_one(
    proxy: Proxy, request_: ListLocks | Evict | Acquire, told: str
) -> None:
    effects = proxy.handle(ANN, request_, T0)
    (refused,) = sent(effects, Refused)
    assert refused.reason is Reason.UNSUPPORTED
    assert told in refused.detail
    assert "lamport" in refused.detail
    assert "paxos" in refused.detail
    assert sent(effects, AcquireLock) == []


def test_a_release_after_the_end_is_not_held(proxy: Proxy) -> None:
    proxy.handle(ANN, acquire("a"), T0)
    proxy.handle(BACKEND, LockGranted(lock="a", ticket=1, fence=7), T0)
    proxy.handle(ANN, End(session="ann", request=3), T0)
    release = Release(lock="a", fence=7, session="ann", owner="o", request=4)
    assert [r.reason for r in sent(proxy.handle(ANN, release, T0), Refused)] == [Reason.NOT_HELD]
