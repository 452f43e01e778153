"""A proxy passes requests of other processes to roles of its node, and their replies back."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from support.effects import HOST, T0, at, only_sent, sent
from support.proxy_scene import ANN, BACKEND, BOB, PROXY, proxy_of_n1

from fencelock.actors.api.message import Reason, Refused
from fencelock.actors.api.role_request import ASK_MS_MAX, REQUEST_BYTES_MAX, AskRole, RoleReply
from fencelock.actors.effect import Observe, Wake
from fencelock.actors.message import Address
from fencelock.actors.proxy.access import CLIENT, OPERATOR, Rights
from fencelock.actors.proxy.lock_manager import LockManager
from fencelock.actors.proxy.message import AskReplied, DropAsk, PassAsk
from fencelock.actors.proxy.proxy import Proxy, Tick
from fencelock.actors.proxy.role_asks import CLIENT_MAX, NODE_MAX

NODE = Address("n1/node")
BODY = b"\x81\x19\x01\x02"


def ask(
    request: int = 1,
    role: str = "clock",
    wait_ms: int = 1_000,
    session: str = "ann",
    body: bytes = BODY,
) -> AskRole:
    return AskRole(role=role, body=body, wait_ms=wait_ms, session=session, request=request)


def refusal(proxy: Proxy, client: Address, request: AskRole) -> Refused:
    """Return the refusal of ``request``, which is not passed on."""
    effects = proxy.handle(client, request, T0)
    assert not sent(effects, PassAsk)
    return only_sent(effects, Refused, client)


def test_a_request_goes_to_the_host_and_its_reply_to_the_client() -> None:
    proxy = proxy_of_n1()
    effects = proxy.handle(ANN, ask(request=7), T0)
    assert only_sent(effects, PassAsk, NODE) == PassAsk(number=1, role="clock", body=BODY)
    assert [one.timer for one in effects if isinstance(one, Wake)] == [Tick()]
    effects = proxy.handle(NODE, AskReplied(number=1, body=b"\x81\x07"), T0)
    reply = RoleReply(body=b"\x81\x07", session="ann", request=7)
    assert only_sent(effects, RoleReply, ANN) == reply
    assert not sent(proxy.handle(NODE, AskReplied(number=1, body=b""), T0), RoleReply)


def test_a_refusal_of_the_host_goes_to_the_client() -> None:
    proxy = proxy_of_n1()
    proxy.handle(ANN, ask(request=7), T0)
    effects = proxy.handle(NODE, AskReplied(number=1, reason=Reason.GONE, detail="x"), T0)
    no = only_sent(effects, Refused, ANN)
    assert (no.reason, no.detail, no.session, no.request) == (Reason.GONE, "x", "ann", 7)


def test_a_request_without_a_wait_is_passed_on_and_forgotten() -> None:
    proxy = proxy_of_n1()
    effects = proxy.handle(ANN, ask(wait_ms=0), T0)
    assert only_sent(effects, PassAsk, NODE).number == 0
    assert not proxy.role_asks.open


def test_a_request_is_dropped_when_its_client_has_stopped_waiting() -> None:
    proxy = proxy_of_n1()
    proxy.handle(ANN, ask(wait_ms=1_000), T0)
    assert not sent(proxy.handle(PROXY, Tick(), at(999)), DropAsk)
    effects = proxy.handle(PROXY, Tick(), at(1_000))
    assert only_sent(effects, DropAsk, NODE).number == 1
    assert Observe("proxy.ask_expired") in effects
    assert not sent(proxy.handle(NODE, AskReplied(number=1, body=b"\x80"), T0), RoleReply)


def test_each_client_has_a_limit_of_unanswered_requests_and_the_node_one_for_all() -> None:
    proxy = proxy_of_n1()
    for number in range(CLIENT_MAX):
        assert sent(proxy.handle(ANN, ask(number), T0), PassAsk)
    no = refusal(proxy, ANN, ask(CLIENT_MAX))
    assert no.reason is Reason.OVERLOADED
    assert no.detail.startswith(f"client 'ann' has {CLIENT_MAX} unanswered requests to roles")
    assert sent(proxy.handle(ANN, ask(wait_ms=0), T0), PassAsk)
    proxy.handle(NODE, AskReplied(number=1, body=b"\x80"), T0)
    assert sent(proxy.handle(ANN, ask(CLIENT_MAX), T0), PassAsk)
    for number in range(NODE_MAX - CLIENT_MAX):
        proxy.handle(Address(f"c{number}/x"), ask(session=f"c{number}"), T0)
    assert refusal(proxy, BOB, ask(session="bob")).reason is Reason.OVERLOADED
    for number in range(1, NODE_MAX + 2):
        proxy.handle(NODE, AskReplied(number=number, body=b"\x80"), T0)
    assert not proxy.role_asks.open
    assert sent(proxy.handle(BOB, ask(session="bob"), T0), PassAsk)


@dataclass(frozen=True)
class Wrong:
    request: AskRole
    detail: str


@pytest.mark.parametrize(
    "wrong",
    [
        Wrong(ask(role=""), "role is ''"),
        Wrong(ask(role="a/b"), "role is 'a/b'"),
        Wrong(ask(role="x" * 129), "of 1 to 128 bytes"),
        Wrong(ask(body=b""), "the request to a role has 0 bytes"),
        Wrong(ask(body=b"x" * (REQUEST_BYTES_MAX + 1)), f"1 to {REQUEST_BYTES_MAX} are allowed"),
        Wrong(ask(wait_ms=-1), "wait_ms is -1, 0 to 60000 are allowed"),
        Wrong(ask(wait_ms=ASK_MS_MAX + 1), "wait_ms is 60001"),
        Wrong(ask(session="bob"), "session 'bob' is not of the client 'ann'"),
    ],
)
def test_a_field_out_of_its_limits_is_refused(wrong: Wrong) -> None:
    no = refusal(proxy_of_n1(), ANN, wrong.request)
    assert no.reason is Reason.INVALID
    assert wrong.detail in no.detail


def test_a_caller_inside_the_process_asks_the_role_itself() -> None:
    no = refusal(proxy_of_n1(), Address("n1/ask-1"), ask(session="n1"))
    assert "inside the process" in no.detail


def keyed_proxy() -> Proxy:
    rights = (
        Rights("shop", CLIENT),
        Rights("eve", OPERATOR, ("orders/",)),
        Rights("op", OPERATOR),
    )
    backend = LockManager("n1", ("n1", "n2"), "lamport", BACKEND)
    return Proxy(PROXY, HOST, backend=backend, rights=rights)


@pytest.mark.parametrize(
    ("key", "role", "allowed"),
    [
        ("op", "clock", True),
        ("op", "proxy", True),
        ("shop", "clock", False),
        ("shop", "proxy", True),
        ("eve", "clock", False),
        ("eve", "proxy", True),
        ("gone", "proxy", False),
    ],
)
def test_a_key_decides_which_roles_a_client_may_ask(key: str, role: str, allowed: bool) -> None:
    proxy, client = keyed_proxy(), Address(f"{key}@1/asker")
    request = ask(role=role, session=f"{key}@1")
    if allowed:
        assert sent(proxy.handle(client, request, T0), PassAsk)
    else:
        assert refusal(proxy, client, request).reason is Reason.FORBIDDEN


def test_clients_with_one_key_share_the_limit_of_unanswered_requests() -> None:
    proxy = keyed_proxy()
    for number in range(CLIENT_MAX):
        client = Address(f"op@{number}/asker")
        assert sent(proxy.handle(client, ask(session=f"op@{number}"), T0), PassAsk)
    no = refusal(proxy, Address("op@x/asker"), ask(session="op@x"))
    assert no.detail.startswith(f"key 'op' has {CLIENT_MAX} unanswered")
