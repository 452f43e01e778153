"""The border of the log: bytes, strangers, and what clients share with one key.

Limits and fields out of range stand in `transcripts/paxos-proxy-limits.txt`.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.log_proxy_scene import (
    ANN,
    ME,
    acquire,
    happens,
    in_flight_at,
    log_proxy,
    messages_to,
    proposed,
)
from support.proxy_scene import UnbatchedProxy
from support.role_harness import HOST, T0, at, sent

from fencelock.actors.api import lock_message as api
from fencelock.actors.api.map import ENTRY_VALUE_BYTES_MAX, PutEntry
from fencelock.actors.api.name import object_name
from fencelock.actors.api.operator_message import CloseSession, Evict, ListLocks
from fencelock.actors.api.retained import AcquireRetained
from fencelock.actors.api.rwlock import RWLOCK
from fencelock.actors.api.session_message import Alive, End, KeepAlive, Open
from fencelock.actors.message import Address
from fencelock.actors.paxos import backend
from fencelock.actors.paxos.log_requests import CLIENT_COMMANDS_BYTES_MAX
from fencelock.actors.proxy.access import CLIENT, Rights
from fencelock.actors.proxy.clients import why_foreign
from fencelock.actors.proxy.proxy import Proxy
from fencelock.actors.quota import Quotas
from fencelock.actors.role_message import RoleNotice


@pytest.fixture
def proxy() -> Proxy:
    return log_proxy(UnbatchedProxy)


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


def test_keep_alives_are_confirmed_by_a_log_that_is_slower_than_they_come(proxy: Proxy) -> None:
    requests: list[int] = []
    for request in range(3, 23):
        proxy.handle(ANN, KeepAlive(session=ME, request=request), at(request * 200))
        kept = Alive(session=ME, node="", request=request - 2)
        alive = messages_to(happens(proxy, kept, now=at(request * 200 + 100)), Alive)
        requests += [message.request for message in alive]
    assert requests == list(range(3, 21, 2))


@pytest.mark.parametrize(
    "request_",
    [
        acquire(),
        api.Release(lock="a", fence=1, session=ME, owner="o", request=2),
        api.Cancel(lock="a", session=ME, owner="o", request=2),
        KeepAlive(session=ME, request=2),
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


@pytest.mark.parametrize(
    ("client", "session", "why"),
    [
        (
            "ann~2",
            "ann~2.1",
            "client id 'ann~2' has a '~' or a '.', which only its sessions may have",
        ),
        ("bob", "ann.1", "session 'ann.1' is not of the client 'bob' itself"),
        ("ann", f"ann.{'1' * 300}", f"session 'ann.{'1' * 76}' is longer than 256 bytes"),
        ("n1", "n1.5f/1", "session 'n1.5f/1' has a '/', which only nodes have in theirs"),
    ],
)
def test_a_session_that_is_not_the_clients_own_is_refused_with_the_reason(
    client: str, session: str, why: str
) -> None:
    assert why_foreign(client, session) == why


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


LIMITED = (
    "key 'ann' has the role client for names that begin with 'orders/' or 'bills/', and ListLocks "
    "is about all names: ask for such names only, on the command line with --prefix, or use a key "
    "without prefixes"
)
OTHER = (
    "key 'ann' has the role client for names that begin with 'orders/' or 'bills/', and Acquire is "
    "about 'jobs/1': use such names, or a key that has a prefix for this one"
)
OPERATORS = (
    "key 'bob' has the role client, and Evict needs the role operator: use an operator's key "
    '("fencelock keys add NAME --role operator" makes one)'
)


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (ListLocks(session="ann@1", request=2), LIMITED),
        (api.Acquire(lock="jobs/1", session="ann@1.1", owner="o", request=2), OTHER),
        (Evict(lock="bills/1", fence=1, operator="o", session="bob@1", request=2), OPERATORS),
        (ListLocks(session="eve@1", request=2), "key 'eve' was removed, so ListLocks is refused"),
    ],
    ids=["all names", "another name", "a role", "no key"],
)
def test_a_request_that_a_key_does_not_allow_is_refused_with_what_it_allows(
    proxy: Proxy, request_: Any, text: str
) -> None:
    rights = (Rights("ann", CLIENT, ("orders/", "bills/")), Rights("bob", CLIENT))
    keyed = UnbatchedProxy(proxy.address, HOST, backend=proxy.backend, rights=rights)
    client = request_.session.partition(".")[0]
    sender = Address(f"{client}/session")
    effects = keyed.handle(sender, request_, T0)
    (refused,) = messages_to(effects, api.Refused, sender)
    assert (refused.reason, refused.detail) == (api.Reason.FORBIDDEN, text)
    kind = type(request_).__name__
    log = f"refused {kind} of {client}: its key does not allow it"
    assert [one.text for one in sent(effects, RoleNotice)] == [log]
    assert sent(keyed.handle(sender, request_, T0), RoleNotice) == []


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
