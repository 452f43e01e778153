"""The border of the log: limits, strangers, fields out of range."""

from __future__ import annotations

from typing import Any

import pytest
from support.log_proxy_scene import (
    ANN,
    ME,
    PROXY,
    acquire,
    happens,
    in_flight_at,
    log_proxy,
    messages_to,
    proposed,
)
from support.proxy_scene import UnbatchedProxy
from support.role_harness import HOST, T0, at

from fencelock.actors.api import lock_message as api
from fencelock.actors.api.map import ENTRY_VALUE_BYTES_MAX, PutEntry
from fencelock.actors.api.name import WAIT_MS_MAX, object_name
from fencelock.actors.api.retained import AcquireRetained
from fencelock.actors.api.rwlock import RWLOCK
from fencelock.actors.api.session_message import (
    CloseReason,
    CloseSession,
    End,
    Ended,
    Evict,
    HoldLost,
    ListLocks,
    Open,
    Opened,
)
from fencelock.actors.effect import Observe
from fencelock.actors.message import Address
from fencelock.actors.paxos import backend
from fencelock.actors.paxos.backend import PaxosBackend
from fencelock.actors.paxos.log_requests import CLIENT_COMMANDS_BYTES_MAX
from fencelock.actors.proxy import clients
from fencelock.actors.proxy.access import CLIENT, Rights
from fencelock.actors.proxy.proxy import Proxy, Tick
from fencelock.actors.quota import Quotas


@pytest.fixture
def proxy() -> Proxy:
    return log_proxy(UnbatchedProxy)


def test_one_client_cannot_use_up_a_node(proxy: Proxy) -> None:
    proxy.clients.quotas = Quotas(requests=3)
    for request in (2, 3, 4):
        proxy.handle(ANN, acquire(request, f"l{request}"), T0)
    (refused,) = messages_to(proxy.handle(ANN, acquire(5, "l5"), T0), api.Refused)
    assert (refused.reason, refused.request) == (api.Reason.OVERLOADED, 5)
    bob = Address("bob/session")
    other = api.Acquire(lock="z", session="bob.8", owner="o", request=1)
    assert len(proposed(proxy.handle(bob, other, T0))) == 1
    happens(proxy, api.Granted(session=ME, owner="o", request=2, lock="l2", fence=5, count=1))
    assert len(proposed(proxy.handle(ANN, acquire(5, "l5"), T0))) == 1


def test_there_is_room_to_release_to_cancel_and_to_keep_the_session_however_much_waits(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.clients.quotas = Quotas(requests=4)
    monkeypatch.setattr(backend, "NODE_REQUESTS_MAX", 4)
    for request in (2, 3, 4, 5):
        proxy.handle(ANN, acquire(request, f"l{request}"), T0)
    assert messages_to(proxy.handle(ANN, acquire(6, "l6"), T0), api.Refused)
    easing: list[api.KeepAlive | api.Release | api.Cancel | End] = [
        api.KeepAlive(session=ME, request=7),
        api.Release(lock="held", fence=1, session=ME, owner="o", request=8),
        api.Cancel(lock="l9", session=ME, owner="o", request=9),
        End(session=ME, request=10),
    ]
    for asked in easing:
        (command,) = proposed(proxy.handle(ANN, asked, T0))
        assert getattr(command, "request", 0) == asked.request
    more = api.Release(lock="more", fence=1, session=ME, owner="o", request=11)
    assert messages_to(proxy.handle(ANN, more, T0), api.Refused), "it has a limit, too"


def test_a_node_has_a_limit(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "NODE_REQUESTS_MAX", 2)
    for request in (2, 3):
        proxy.handle(ANN, acquire(request, f"l{request}"), T0)
    (refused,) = messages_to(proxy.handle(ANN, acquire(4, "l4"), T0), api.Refused)
    assert refused.reason is api.Reason.OVERLOADED
    ask = Address("n1/ask-1")
    assert len(messages_to(proxy.handle(ask, api.Acquire(lock="z"), T0), api.Refused, ask)) == 1


def put(request: int, session: str = ME) -> PutEntry:
    return PutEntry(
        map="m",
        entry_key="k",
        value=bytes(ENTRY_VALUE_BYTES_MAX),
        session=session,
        owner=f"o{request}",
        request=request,
    )


def test_bytes_in_flight_are_bounded_too(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may have 16 MiB in flight, a node 64 MiB; releases may have twice as much."""
    in_flight = in_flight_at(proxy)
    fitting = 1 + CLIENT_COMMANDS_BYTES_MAX // ENTRY_VALUE_BYTES_MAX
    taken = sum(bool(proposed(proxy.handle(ANN, put(n), T0))) for n in range(1, 2 * fitting))
    assert taken in (fitting - 1, fitting)
    assert CLIENT_COMMANDS_BYTES_MAX <= in_flight.bytes < CLIENT_COMMANDS_BYTES_MAX + (68 << 10)
    (refused,) = messages_to(proxy.handle(ANN, put(999), T0), api.Refused)
    assert refused.reason is api.Reason.OVERLOADED
    assert "requests of client 'ann' are under way" in refused.detail
    assert "16384 KiB are allowed" in refused.detail
    cancel = api.Cancel(lock="l", session=ME, owner="o", request=1_000)
    assert len(proposed(proxy.handle(ANN, cancel, T0))) == 1
    monkeypatch.setattr(backend, "COMMANDS_BYTES_MAX", in_flight.bytes)
    bob = Address("bob/session")
    (refused,) = messages_to(proxy.handle(bob, put(1, "bob.8"), T0), api.Refused, bob)
    assert "MiB of requests are under way at node n1" in refused.detail
    for known in list(in_flight.by_key.values()):
        in_flight.end(known)
    assert (in_flight.bytes, proxy.clients.by_id["ann"].usage.bytes) == (0, 0)


def test_a_newer_keep_alive_makes_the_older_needless_but_for_the_oldest(proxy: Proxy) -> None:
    for request in (3, 4, 5):
        (command,) = proposed(proxy.handle(ANN, api.KeepAlive(session=ME, request=request), T0))
        assert command == api.KeepAlive(session=ME, request=request)
    assert [key[3] for key in in_flight_at(proxy).by_key] == [3, 5]


def test_keep_alives_are_confirmed_by_a_log_that_is_slower_than_they_come(proxy: Proxy) -> None:
    requests: list[int] = []
    for request in range(3, 23):
        proxy.handle(ANN, api.KeepAlive(session=ME, request=request), at(request * 200))
        kept = api.Alive(session=ME, node="", request=request - 2)
        alive = messages_to(happens(proxy, kept, now=at(request * 200 + 100)), api.Alive)
        requests += [message.request for message in alive]
    assert requests == list(range(3, 21, 2))


def test_an_ask_inside_a_process_is_not_answered_by_a_loss_elsewhere(proxy: Proxy) -> None:
    """It takes any message for its reply, so it must get no unsolicited message."""
    ask = Address("n1/ask-9")
    proxy.handle(ask, acquire(4, "b"), T0)
    lost = HoldLost(session=ME, owner="o", lock="a", fence=3, detail="taken by root")
    assert messages_to(happens(proxy, lost), HoldLost, ask) == []
    held = api.Granted(session=ME, owner="o", request=4, lock="b", fence=5, count=1)
    assert [granted.fence for granted in messages_to(happens(proxy, held), api.Granted, ask)] == [5]


def test_requests_of_a_silent_client_are_forgotten(proxy: Proxy) -> None:
    bob = Address("bob/session")
    proxy.handle(ANN, acquire(), T0)
    proxy.handle(bob, api.Acquire(lock="b", session="bob.8", owner="o", request=1), T0)
    proxy.handle(
        bob, api.KeepAlive(session="bob", request=2), at(PaxosBackend.CLIENT_SILENCE_MS - 1)
    )
    effects = proxy.handle(PROXY, Tick(), at(PaxosBackend.CLIENT_SILENCE_MS))
    assert Observe("proxy.request_of_silent_client_forgotten", 1) in effects
    assert [
        in_flight_request.key[0] for in_flight_request in in_flight_at(proxy).by_key.values()
    ] == ["bob.8"]


def test_clients_that_come_and_go_do_not_fill_the_memory(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "KNOWN_CLIENTS_MAX", 10)
    for number in range(30):
        client = Address(f"c{number}/session")
        proxy.handle(client, api.KeepAlive(session=f"c{number}", request=1), T0)
    assert list(proxy.clients.by_id) == [f"c{number}" for number in range(20, 30)]


@pytest.mark.parametrize(
    "request_",
    [
        acquire(),
        api.Release(lock="a", fence=1, session=ME, owner="o", request=2),
        api.Cancel(lock="a", session=ME, owner="o", request=2),
        api.KeepAlive(session=ME, request=2),
        End(session=ME, request=2),
        Open(session="ann", ttl_ms=9_000, request=2),
        ListLocks(session=ME, request=2),
        Evict(lock="a", fence=1, operator="o", session=ME, request=2),
        CloseSession(handle="bob.1", operator="o", session=ME, request=2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_client_cannot_send_in_the_session_of_another(proxy: Proxy, request_: Any) -> None:
    for client in ("bob", "an", "ann~2", "ann.7", "n"):
        asker = Address(f"{client}/session")
        effects = proxy.handle(asker, request_, T0)
        assert [r.reason for r in messages_to(effects, api.Refused, asker)] == [api.Reason.INVALID]
        assert proposed(effects) == []
    assert len(proxy.clients.by_id) == 0


@pytest.mark.parametrize("session", ["n1/b00.3", "ann/x", "ann./b", "", "ann." + "9" * 300])
def test_a_session_that_is_none_of_a_client_is_refused(proxy: Proxy, session: str) -> None:
    effects = proxy.handle(ANN, api.Acquire(lock="a", session=session, owner="o", request=1), T0)
    assert [r.reason for r in messages_to(effects, api.Refused)] == [api.Reason.INVALID]


def test_a_name_is_no_session_until_it_was_opened(proxy: Proxy) -> None:
    for name in ("ann", "ann~2"):
        request = api.Acquire(lock="a", session=name, owner="o", request=1)
        (refused,) = messages_to(proxy.handle(ANN, request, T0), api.Refused)
        assert refused.reason is api.Reason.SESSION_EXPIRED
        assert "open" in refused.detail
    (alive,) = messages_to(
        proxy.handle(ANN, api.KeepAlive(session="ann", request=1), T0), api.Alive
    )
    assert (alive.session, alive.node) == ("ann", "n1")
    assert len(in_flight_at(proxy)) == 0


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (api.Acquire(lock="", session=ME, owner="o", request=1), "0 bytes"),
        (api.Acquire(lock="x" * 300, session=ME, owner="o", request=1), "300 bytes"),
        (api.Acquire(lock="a\n", session=ME, owner="o", request=1), "has U+000A"),
        (api.Inspect(lock="", session=ME), "0 bytes"),
        (api.Acquire(lock="a", session=ME, owner="\ud800", request=1), "has U+D800"),
        (api.Acquire(lock="a", session=ME, owner="o" * 300, request=1), "owner of 300"),
        (api.Acquire(lock="a", session=ME, owner="o", request=0), "request is 0"),
        (api.Acquire(lock="a", session=ME, owner="o", request=1, wait_ms=-1), "wait_ms is -1"),
        (api.Acquire(lock="a", session=ME, owner="o", request=1, limit=-1), "limit is -1"),
        (api.Acquire(lock="a", session=ME, owner="o", request=1, label="x" * 300), "label of 300"),
        (
            api.Acquire(lock="a", session=ME, owner="o", request=1, wait_ms=WAIT_MS_MAX + 1),
            str(WAIT_MS_MAX),
        ),
        (Open(session="ann", ttl_ms=1, request=1), "ttl_ms is 1"),
        (Open(session="ann.5", ttl_ms=9_000, request=1), "'ann.5'"),
        (Evict(lock="a", fence=1, operator="x" * 300, session=ME, request=1), "operator"),
        (Evict(lock="a", fence=1, operator="o\n", session=ME, request=1), "operator"),
        (CloseSession(handle="b.1", operator="\x1b", session=ME, request=1), "operator"),
        (ListLocks(session=ME, most=0), "most is 0"),
        (ListLocks(session=ME, most=1_001), "most is 1001"),
        (ListLocks(session=ME, prefix="x" * 300), "prefix of 300 bytes"),
        (ListLocks(session=ME, age_ms=-1), "age_ms is -1"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_refusal_of_a_bad_request_names_field_value_and_limit(
    proxy: Proxy, request_: Any, words: str
) -> None:
    effects = proxy.handle(ANN, request_, T0)
    (refused,) = messages_to(effects, api.Refused)
    assert refused.reason is api.Reason.INVALID
    assert words in refused.detail
    assert proposed(effects) == []


def test_a_client_is_refused_what_it_sends_beyond_its_quota_of_a_second(proxy: Proxy) -> None:
    proxy.clients.quotas = Quotas(requests_per_s=3)
    for request in (2, 3, 4):
        assert not messages_to(proxy.handle(ANN, acquire(request, f"l{request}"), T0), api.Refused)
    effects = proxy.handle(ANN, acquire(5, "l5"), at(999))
    (refused,) = messages_to(effects, api.Refused)
    assert (refused.reason, refused.request) == (api.Reason.OVERLOADED, 5)
    assert "client 'ann' has sent 4 requests" in refused.detail
    assert "requests_per_s is 3" in refused.detail
    assert Observe("proxy.over_quota") in effects
    release = api.Release(lock="l2", fence=5, session=ME, owner="o", request=6)
    assert not messages_to(proxy.handle(ANN, release, at(999)), api.Refused)
    bob = api.Acquire(lock="z", session="bob.8", owner="o", request=1)
    assert not messages_to(proxy.handle(Address("bob/session"), bob, at(999)), api.Refused)
    assert not messages_to(proxy.handle(ANN, acquire(7, "l7"), at(1_001)), api.Refused)


def test_a_client_is_refused_reads_beyond_its_quota(proxy: Proxy) -> None:
    proxy.clients.quotas = Quotas(queries=2)
    for request in (1, 2):
        proxy.handle(ANN, api.Inspect(lock="a", session="ann", request=request), T0)
    (refused,) = messages_to(
        proxy.handle(ANN, api.Inspect(lock="a", session="ann", request=3), T0), api.Refused
    )
    assert "2 queries of client 'ann'" in refused.detail
    assert "quota queries is 2" in refused.detail


def test_a_client_opens_only_so_many_sessions_through_a_node(proxy: Proxy) -> None:
    """By its key: the clients ``ann@1`` and ``ann@2`` have the same."""
    proxy.clients.quotas = Quotas(sessions=1)
    proxy.handle(Address("ann@1/session"), Open(session="ann@1", ttl_ms=9_000, request=1), T0)
    happens(proxy, Opened(session="ann@1", request=1, assigned="ann@1.5", ttl_ms=9_000, node=""))
    other = Address("ann@2/session")
    again = Open(session="ann@2", ttl_ms=9_000, request=1)
    (refused,) = messages_to(proxy.handle(other, again, T0), api.Refused, other)
    assert refused.reason is api.Reason.OVERLOADED
    assert "quota sessions is 1" in refused.detail
    happens(proxy, Ended(session="ann@1.5", detail="", reason=CloseReason.EXPIRED))
    assert not messages_to(proxy.handle(other, again, T0), api.Refused, other)


def by_keys(proxy: Proxy, quotas: Quotas) -> Proxy:
    rights = (Rights("ann", CLIENT), Rights("bob", CLIENT))
    return UnbatchedProxy(proxy.address, HOST, backend=proxy.backend, rights=rights, quotas=quotas)


@pytest.mark.parametrize("kind", ["", RWLOCK])
def test_a_key_with_prefixes_retains_only_what_begins_so(proxy: Proxy, kind: str) -> None:
    rights = (Rights("ann", CLIENT, ("orders/",)),)
    keyed = UnbatchedProxy(proxy.address, HOST, backend=proxy.backend, rights=rights)
    for number, (name, reason) in enumerate((("orders/1", None), ("bills/1", "FORBIDDEN")), 1):
        lock = object_name(kind, name) if kind else name
        acquire = AcquireRetained(lock=lock, span=9, session="ann@1.1", owner="*", request=number)
        sender = Address("ann@1/session")
        refused = messages_to(keyed.handle(sender, acquire, T0), api.Refused, sender)
        assert [one.reason.name for one in refused] == [reason] * (reason is not None)


REFUSED_BY_KEY = [
    (Quotas(requests=2), "2 requests of key 'ann' are under way"),
    (Quotas(requests_per_s=2), "key 'ann' has sent 3 requests"),
]


@pytest.mark.parametrize(("quotas", "words"), REFUSED_BY_KEY)
def test_a_key_has_one_quota_for_all_its_clients(proxy: Proxy, quotas: Quotas, words: str) -> None:
    keyed = by_keys(proxy, quotas)

    def send(client: str) -> list[api.Refused]:
        sender = Address(f"{client}/session")
        request = api.Acquire(lock=client, session=f"{client}.1", owner="o", request=1)
        return messages_to(keyed.handle(sender, request, T0), api.Refused, sender)

    assert not send("ann@1")
    assert not send("ann@2")
    (refused,) = send("ann@3")
    assert refused.reason is api.Reason.OVERLOADED
    assert words in refused.detail
    assert not send("bob@1")


def test_a_key_has_one_quota_of_reads_however_many_clients_use_it(proxy: Proxy) -> None:
    keyed = by_keys(proxy, Quotas(queries=1))
    for client, refusals in (("ann@1", 0), ("ann@2", 1), ("bob@1", 0)):
        sender = Address(f"{client}/session")
        effects = keyed.handle(sender, api.Inspect(lock="a", session=client, request=1), T0)
        found = messages_to(effects, api.Refused, sender)
        assert ["1 queries of key 'ann'" in one.detail for one in found] == [True] * refusals


def test_each_client_has_its_own_quota_without_keys_whatever_its_id(proxy: Proxy) -> None:
    proxy.clients.quotas = Quotas(requests=1, requests_per_s=1, queries=1)
    for client in ("ann@1", "ann@2"):
        sender = Address(f"{client}/session")
        request = api.Acquire(lock=client, session=f"{client}.1", owner="o", request=1)
        assert not messages_to(proxy.handle(sender, request, T0), api.Refused, sender)
