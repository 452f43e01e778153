"""Asking a role of a node from another process: the client's side, and the node's."""

from __future__ import annotations

import pykka
import pytest
from msgspec.structs import replace
from support.expect import checked
from support.proxy_scene import ANN, BACKEND, BOB, PROXY, acquire, proxy_of_n1
from support.role_harness import HOST, T0, at, only_sent, sends, sent

from fencelock.actors.api.cluster_message import Probe, ProbeReply
from fencelock.actors.api.lock_message import Abandon, Reason, Refused
from fencelock.actors.api.role_request import ASK_MS_MAX, ROLE_REQUEST_BYTES_MAX, AskRole, RoleReply
from fencelock.actors.effect import Effects, Observe, Wake
from fencelock.actors.message import Address, Instant
from fencelock.actors.proxy.access import CLIENT, OPERATOR, Rights
from fencelock.actors.proxy.clients import ASKERS_MAX
from fencelock.actors.proxy.event import AskReplied, DropAsk, PassAsk
from fencelock.actors.proxy.lock_manager import LockManager
from fencelock.actors.proxy.proxy import Proxy, Tick
from fencelock.actors.proxy.role_asks import CLIENT_MAX, NODE_MAX
from fencelock.actors.quota import Quotas
from fencelock.actors.role_message import LinkDown, LinkRefused, LinkUp
from fencelock.actors.session.asker import (
    ASKS_MAX,
    FIND_MS,
    Asker,
    AskNode,
    AskTick,
    AskTimedOut,
    RoleGoneError,
)

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


def test_a_request_goes_to_the_host_and_its_reply_to_the_client(proxy: Proxy) -> None:
    effects = proxy.handle(ANN, ask(request=7), T0)
    assert only_sent(effects, PassAsk, NODE) == PassAsk(number=1, role="clock", body=BODY)
    assert [one.timer for one in effects if isinstance(one, Wake)] == [Tick()]
    effects = proxy.handle(NODE, AskReplied(number=1, body=b"\x81\x07"), T0)
    reply = RoleReply(body=b"\x81\x07", session="ann", request=7)
    assert only_sent(effects, RoleReply, ANN) == reply
    assert not sent(proxy.handle(NODE, AskReplied(number=1, body=b""), T0), RoleReply)


def test_a_refusal_of_the_host_goes_to_the_client(proxy: Proxy) -> None:
    proxy.handle(ANN, ask(request=7), T0)
    effects = proxy.handle(NODE, AskReplied(number=1, reason=Reason.GONE, detail="x"), T0)
    no = only_sent(effects, Refused, ANN)
    assert (no.reason, no.detail, no.session, no.request) == (Reason.GONE, "x", "ann", 7)


def test_a_request_without_a_wait_is_passed_on_and_forgotten(proxy: Proxy) -> None:
    effects = proxy.handle(ANN, ask(wait_ms=0), T0)
    assert only_sent(effects, PassAsk, NODE).number == 0
    assert not proxy.role_asks.open


def test_a_request_is_dropped_when_its_client_has_stopped_waiting(proxy: Proxy) -> None:
    proxy.handle(ANN, ask(wait_ms=1_000), T0)
    assert not sent(proxy.handle(PROXY, Tick(), at(999)), DropAsk)
    effects = proxy.handle(PROXY, Tick(), at(1_000))
    assert only_sent(effects, DropAsk, NODE).number == 1
    assert Observe("proxy.ask_expired") in effects
    assert not sent(proxy.handle(NODE, AskReplied(number=1, body=b"\x80"), T0), RoleReply)


def test_each_client_has_a_limit_of_open_requests_and_the_node_one_for_all(proxy: Proxy) -> None:
    for number in range(CLIENT_MAX):
        assert sent(proxy.handle(ANN, ask(number), T0), PassAsk)
    no = refusal(proxy, ANN, ask(CLIENT_MAX))
    assert no.reason is Reason.OVERLOADED
    assert no.detail == (
        f"client 'ann' has {CLIENT_MAX} unanswered requests to roles of node n1, the limit; "
        "nothing was done"
    )
    assert sent(proxy.handle(ANN, ask(wait_ms=0), T0), PassAsk)
    proxy.handle(NODE, AskReplied(number=1, body=b"\x80"), T0)
    assert sent(proxy.handle(ANN, ask(CLIENT_MAX), T0), PassAsk)
    for number in range(NODE_MAX - CLIENT_MAX):
        proxy.handle(Address(f"c{number}/x"), ask(session=f"c{number}"), T0)
    no = refusal(proxy, BOB, ask(session="bob"))
    assert no.reason is Reason.OVERLOADED
    assert no.detail == (
        f"node n1 has {NODE_MAX} unanswered requests to roles, the limit; nothing was done"
    )
    for number in range(1, NODE_MAX + 2):
        proxy.handle(NODE, AskReplied(number=number, body=b"\x80"), T0)
    assert not proxy.role_asks.open
    assert sent(proxy.handle(BOB, ask(session="bob"), T0), PassAsk)


def test_requests_to_roles_count_for_the_requests_that_a_client_may_send_in_a_second(
    proxy: Proxy,
) -> None:
    proxy.clients.quotas = Quotas(requests_per_s=3)
    for number in range(2):
        assert sent(proxy.handle(ANN, ask(number, wait_ms=0), T0), PassAsk)
    assert not sent(proxy.handle(ANN, acquire(), T0), Refused)
    no = only_sent(proxy.handle(ANN, ask(3, wait_ms=0), at(999)), Refused, ANN)
    assert no.reason is Reason.OVERLOADED
    assert no.detail.startswith("client 'ann' has sent 4 requests to node n1 within a second")
    assert sent(proxy.handle(BOB, ask(session="bob"), at(999)), PassAsk)
    assert sent(proxy.handle(ANN, ask(4, wait_ms=0), at(1_001)), PassAsk)
    assert proxy.clients.by_id["ann"].address == ANN, "its session is where it was"


def test_clients_that_only_send_requests_to_roles_are_counted_within_a_bound(
    proxy: Proxy,
) -> None:
    proxy.clients.quotas = Quotas(requests_per_s=1)
    names = [f"c{number}" for number in range(ASKERS_MAX + 10)]
    for name in names:
        asker = Address(f"{name}/asker")
        assert sent(proxy.handle(asker, ask(session=name, wait_ms=0), T0), PassAsk)
    again = Address(f"{names[-1]}/asker")
    no = only_sent(proxy.handle(again, ask(session=names[-1], wait_ms=0), T0), Refused, again)
    assert no.reason is Reason.OVERLOADED
    assert not proxy.clients.by_id, "no session of theirs uses this node"
    assert len(proxy.clients.askers) == ASKERS_MAX


def test_requests_that_another_node_passes_on_are_counted_there() -> None:
    proxy = linked_proxy()
    proxy.clients.quotas = Quotas(requests_per_s=1)
    for number in range(3):
        passed = ask(number, session="n2", wait_ms=0)
        assert sent(proxy.handle(N2, passed, T0), PassAsk)


@pytest.mark.parametrize(
    ("wrong", "detail"),
    [
        (ask(role=""), "role is ''"),
        (ask(role="a/b"), "role is 'a/b'"),
        (ask(role="x" * 129), "of 1 to 128 bytes"),
        (ask(body=b""), "the request to a role has 0 bytes"),
        (
            ask(body=b"x" * (ROLE_REQUEST_BYTES_MAX + 1)),
            f"1 to {ROLE_REQUEST_BYTES_MAX} are allowed",
        ),
        (ask(wait_ms=-1), "wait_ms is -1, 0 to 60000 are allowed"),
        (ask(wait_ms=ASK_MS_MAX + 1), "wait_ms is 60001"),
        (ask(session="bob"), "session 'bob' is not of the client 'ann'"),
    ],
)
def test_a_field_out_of_its_limits_is_refused(proxy: Proxy, wrong: AskRole, detail: str) -> None:
    no = refusal(proxy, ANN, wrong)
    assert no.reason is Reason.INVALID
    assert detail in no.detail


def test_a_caller_inside_the_process_asks_the_role_itself(proxy: Proxy) -> None:
    no = refusal(proxy, Address("n1/ask-1"), ask(session="n1"))
    assert "inside the process" in no.detail


def keyed_proxy() -> Proxy:
    rights = (Rights("shop", CLIENT), Rights("eve", OPERATOR, ("orders/",)), Rights("op", OPERATOR))
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


N2 = Address("n2/proxy")


def linked_proxy() -> Proxy:
    proxy = proxy_of_n1()
    proxy.handle(NODE, LinkUp(node="n2"), T0)
    return proxy


def to_n2(request: int = 7, wait_ms: int = 1_000) -> AskRole:
    return replace(ask(request, wait_ms=wait_ms), node="n2")


def test_a_request_for_another_node_is_sent_to_its_proxy_in_the_name_of_this_node() -> None:
    proxy = linked_proxy()
    own = AskRole(role="clock", body=BODY, wait_ms=1_000, session="n1", request=1)
    assert only_sent(proxy.handle(ANN, to_n2(), T0), AskRole, N2) == own
    answer = RoleReply(body=b"\x81\x07", session="n1", request=1)
    for stranger in (BOB, Address("n3/proxy"), NODE):
        assert not sends(proxy.handle(stranger, answer, T0))
    effects = proxy.handle(N2, answer, T0)
    assert only_sent(effects, RoleReply, ANN) == replace(answer, session="ann", request=7)
    assert not sends(proxy.handle(N2, answer, T0))
    assert not proxy.role_asks.open


def test_a_refusal_by_the_other_node_goes_to_the_client() -> None:
    proxy = linked_proxy()
    proxy.handle(ANN, to_n2(), T0)
    refused = Refused(lock="", reason=Reason.UNSUPPORTED, detail="x", session="n1", request=1)
    no = only_sent(proxy.handle(N2, refused, T0), Refused, ANN)
    assert (no.reason, no.detail, no.session, no.request) == (Reason.UNSUPPORTED, "x", "ann", 7)


def test_a_request_for_another_node_that_wants_no_reply_is_passed_on_and_forgotten() -> None:
    proxy = linked_proxy()
    assert only_sent(proxy.handle(ANN, to_n2(wait_ms=0), T0), AskRole, N2).wait_ms == 0
    assert not proxy.role_asks.open


def test_requests_end_when_the_link_to_their_node_breaks_and_are_refused_without_one() -> None:
    proxy = linked_proxy()
    proxy.handle(ANN, to_n2(7), T0)
    proxy.handle(ANN, ask(8), T0)
    no = only_sent(proxy.handle(NODE, LinkDown(node="n2"), T0), Refused, ANN)
    assert (no.reason, no.request) == (Reason.GONE, 7)
    assert "the link from node n1 to node n2 broke before role clock replied" in no.detail
    assert len(proxy.role_asks.open) == 1
    proxy.handle(NODE, LinkUp(node="n3"), T0)
    no = refusal(proxy, ANN, to_n2(9))
    assert no.reason is Reason.GONE
    assert no.detail == (
        "node n2 cannot be reached; node n1, which was to pass the request on, has links to n3"
    )


def test_the_key_of_a_client_is_checked_before_a_request_is_passed_on() -> None:
    proxy = keyed_proxy()
    proxy.handle(NODE, LinkUp(node="n2"), T0)
    client = Address("shop@1/asker")
    request = replace(to_n2(), session="shop@1")
    assert refusal(proxy, client, request).reason is Reason.FORBIDDEN
    allowed = replace(request, role="proxy")
    assert only_sent(proxy.handle(client, allowed, T0), AskRole, N2).session == "n1"


def test_a_request_for_another_node_is_bounded_and_forgotten_as_any_other() -> None:
    proxy = linked_proxy()
    for number in range(CLIENT_MAX):
        proxy.handle(ANN, to_n2(number), T0)
    assert refusal(proxy, ANN, to_n2(CLIENT_MAX)).reason is Reason.OVERLOADED
    assert not sent(proxy.handle(PROXY, Tick(), at(1_000)), DropAsk)
    assert not proxy.role_asks.open
    assert refusal(proxy, ANN, replace(to_n2(), node="a/b")).reason is Reason.INVALID


def test_requests_that_a_node_passes_on_are_not_bounded_as_those_of_one_client() -> None:
    proxy = linked_proxy()
    for number in range(CLIENT_MAX + 1):
        passed_on = ask(request=number, session="n2")
        assert sent(proxy.handle(N2, passed_on, T0), PassAsk)


USER, OTHER = Address("me/ask-1"), Address("me/ask-2")
OWN_NODE = Address("me/node")
FIRST, SECOND = Address("endpoint.0/proxy"), Address("endpoint.1/proxy")
LATE_DROPPED = [Observe("client.late_answer_dropped")]


def ask_node(node: str = "n2", wait_ms: int = 1_000) -> AskNode:
    return AskNode(node=node, role="clock", body=BODY, wait_ms=wait_ms)


def named(node: str) -> ProbeReply:
    return ProbeReply(session="me", node=node, serving=True)


def reply_to(number: int) -> RoleReply:
    return RoleReply(body=b"\x82\x19\x01\x03\x07", session="me", request=number)


def new_asker() -> Asker:
    labels = {"endpoint.0": "tcp://a:1", "endpoint.1": "tcp://b:1"}
    return Asker(Address("me/asker"), HOST, client="me", labels=labels)


@pytest.fixture
def asker() -> Asker:
    """Return an asker with a link to ``n1`` and one to ``n2``."""
    asker = new_asker()
    for link, proxy, node in (("endpoint.0", FIRST, "n1"), ("endpoint.1", SECOND, "n2")):
        effects = asker.handle(OWN_NODE, LinkUp(node=link), T0)
        only_sent(effects, Probe, proxy)
        asker.handle(proxy, named(node), T0)
    return asker


def refusal_text(effects: Effects) -> str:
    """Return the text with which a request ends because its role cannot be reached."""
    no = only_sent(effects, Refused, USER)
    assert no.reason is Reason.GONE
    return no.detail


def test_a_request_goes_over_the_link_to_its_node_and_the_reply_to_its_user(asker: Asker) -> None:
    effects = asker.handle(USER, ask_node(), T0)
    request = AskRole(role="clock", body=BODY, wait_ms=1_000, session="me", request=1)
    assert [(send.to, send.message) for send in sends(effects)] == [(SECOND, request)]
    effects = asker.handle(SECOND, reply_to(1), T0)
    assert [(send.to, send.message) for send in sends(effects)] == [(USER, reply_to(1))]
    assert not asker.open


def test_a_refusal_of_the_node_goes_to_the_user(asker: Asker) -> None:
    asker.handle(USER, ask_node(), T0)
    no = Refused(lock="", reason=Reason.FORBIDDEN, detail="x", session="me", owner="", request=1)
    assert only_sent(asker.handle(SECOND, no, T0), Refused, USER) == no


def test_only_the_node_that_was_asked_can_answer_and_only_once(asker: Asker) -> None:
    asker.handle(USER, ask_node(), T0)
    assert asker.handle(FIRST, reply_to(1), T0) == LATE_DROPPED
    assert asker.handle(SECOND, reply_to(2), T0) == LATE_DROPPED
    asker.handle(SECOND, reply_to(1), T0)
    assert asker.handle(SECOND, reply_to(1), T0) == LATE_DROPPED


def test_a_request_waits_until_it_is_known_which_link_leads_to_its_node() -> None:
    asker = new_asker()
    asker.handle(OWN_NODE, LinkUp(node="endpoint.0"), T0)
    asker.handle(OWN_NODE, LinkUp(node="endpoint.1"), T0)
    assert not sent(asker.handle(USER, ask_node(), T0), AskRole)
    assert not sent(asker.handle(FIRST, named("n1"), T0), AskRole)
    effects = asker.handle(OWN_NODE, AskTick(), at(100))
    assert [send.to for send in sends(effects)] == [SECOND], "the lost probe is sent again"
    assert only_sent(asker.handle(SECOND, named("n2"), at(200)), AskRole, SECOND).request == 1


def test_a_request_waits_for_the_first_links_of_its_client() -> None:
    asker = new_asker()
    asker.handle(OWN_NODE, LinkUp(node="endpoint.0"), T0)
    asker.handle(FIRST, named("n1"), T0)
    assert not sends(asker.handle(USER, ask_node("n2"), T0)), "the other link may lead there"
    asker.handle(OTHER, ask_node("n9"), T0)
    asker.handle(OWN_NODE, LinkUp(node="endpoint.1"), at(50))
    effects = asker.handle(SECOND, named("n2"), at(100))
    assert only_sent(effects, AskRole, SECOND).request == 1
    assert only_sent(effects, AskRole, FIRST).node == "n9"


def test_a_link_that_cannot_be_made_at_first_is_not_waited_for() -> None:
    asker = new_asker()
    asker.handle(OWN_NODE, LinkUp(node="endpoint.0"), T0)
    asker.handle(FIRST, named("n1"), T0)
    asker.handle(USER, ask_node("n2"), T0)
    effects = asker.handle(OWN_NODE, LinkDown(node="endpoint.1"), at(20))
    assert only_sent(effects, AskRole, FIRST).node == "n2"


def test_a_request_for_a_node_without_a_link_is_passed_on_by_another_node(asker: Asker) -> None:
    asker.handle(OWN_NODE, LinkDown(node="endpoint.1"), T0)
    request = only_sent(asker.handle(USER, ask_node(), T0), AskRole, FIRST)
    assert (request.node, request.request) == ("n2", 1)
    assert only_sent(asker.handle(FIRST, reply_to(1), T0), RoleReply, USER) == reply_to(1)


def test_a_node_that_cannot_pass_a_request_on_replies_so_and_the_client_adds_its_own_links(
    asker: Asker,
) -> None:
    asker.handle(OWN_NODE, LinkDown(node="endpoint.1"), T0)
    assert passed_and_refused(asker) == "lost; the client has links to n1, and none to tcp://b:1"


def passed_and_refused(asker: Asker) -> str:
    """Return the error of a request for n2 that the first node cannot pass on."""
    request = only_sent(asker.handle(USER, ask_node("n2"), T0), AskRole, FIRST)
    assert request.node == "n2"
    number = request.request
    no = Refused(lock="", reason=Reason.GONE, detail="lost", session="me", request=number)
    return refusal_text(asker.handle(FIRST, no, T0))


def test_a_short_request_does_not_wait_for_names_until_its_time_is_up(asker: Asker) -> None:
    asker.handle(OWN_NODE, LinkUp(node="endpoint.1"), T0)
    asker.handle(USER, ask_node(wait_ms=600), T0)
    assert not sent(asker.handle(OWN_NODE, AskTick(), at(299)), AskRole)
    assert only_sent(asker.handle(OWN_NODE, AskTick(), at(300)), AskRole, FIRST).node == "n2"


def test_a_node_without_any_link_is_refused_at_once(asker: Asker) -> None:
    for link in ("endpoint.0", "endpoint.1"):
        asker.handle(OWN_NODE, LinkDown(node=link), T0)
    text = refusal_text(asker.handle(USER, ask_node(), T0))
    assert text.startswith("node n2 cannot be reached; the client has links to no node, and none")


def test_a_node_that_does_not_give_its_name_is_not_waited_for_longer_than_the_limit() -> None:
    asker = new_asker()
    asker.handle(OWN_NODE, LinkUp(node="endpoint.1"), T0)
    asker.handle(USER, ask_node(wait_ms=60_000), T0)
    assert not sent(asker.handle(OWN_NODE, AskTick(), at(FIND_MS - 1)), Refused)
    assert "has links to no node" in refusal_text(asker.handle(OWN_NODE, AskTick(), at(FIND_MS)))


def test_a_link_that_breaks_ends_the_requests_sent_over_it(asker: Asker) -> None:
    asker.handle(USER, ask_node("n2"), T0)
    asker.handle(OTHER, ask_node("n1"), T0)
    text = refusal_text(asker.handle(OWN_NODE, LinkDown(node="endpoint.1"), T0))
    assert text.startswith("the link to node n2 (tcp://b:1) broke before role clock replied")
    assert text.endswith("it is unknown whether it received the request")
    assert only_sent(asker.handle(FIRST, reply_to(2), T0), RoleReply, OTHER)


def test_the_reason_of_a_refused_link_is_in_the_text(asker: Asker) -> None:
    refused = LinkRefused(node="endpoint.1", detail="the key is not known", by_key=True)
    asker.handle(USER, ask_node("n2"), T0)
    text = refusal_text(asker.handle(OWN_NODE, refused, T0))
    assert "to node n2 (tcp://b:1) was refused: the key is not known before role clock" in text
    assert "none to tcp://b:1: the key is not known" in passed_and_refused(asker)


def test_another_node_behind_a_link_is_found_after_it_broke(asker: Asker) -> None:
    asker.handle(OWN_NODE, LinkDown(node="endpoint.1"), T0)
    asker.handle(OWN_NODE, LinkUp(node="endpoint.1"), T0)
    asker.handle(SECOND, named("n7"), T0)
    assert only_sent(asker.handle(USER, ask_node("n7"), T0), AskRole, SECOND)
    assert "links to n1, n7" in passed_and_refused(asker)


def test_a_member_that_the_session_connects_to_can_be_asked(asker: Asker) -> None:
    effects = asker.handle(OWN_NODE, LinkUp(node="n4"), T0)
    only_sent(effects, Probe, Address("n4/proxy"))
    asker.handle(Address("n4/proxy"), named("n4"), T0)
    assert only_sent(asker.handle(USER, ask_node("n4"), T0), AskRole, Address("n4/proxy"))


def test_a_request_ends_when_its_time_is_up(asker: Asker) -> None:
    effects = asker.handle(USER, ask_node(wait_ms=1_000), T0)
    assert [effect.timer for effect in effects if isinstance(effect, Wake)] == [AskTick()]
    assert not sent(asker.handle(OWN_NODE, AskTick(), at(999)), AskTimedOut)
    timed_out = only_sent(asker.handle(OWN_NODE, AskTick(), at(1_000)), AskTimedOut, USER)
    error = checked(TimeoutError, checked(pykka.Timeout, timed_out.error()))
    assert str(error) == "n2/clock sent no reply within 1 s"
    assert asker.handle(SECOND, reply_to(1), at(1_001)) == LATE_DROPPED


def test_a_request_is_never_sent_twice(asker: Asker) -> None:
    asker.handle(USER, ask_node(wait_ms=60_000), T0)
    for ms in range(0, 10_000, 100):
        assert not sent(asker.handle(OWN_NODE, AskTick(), at(ms)), AskRole)


def test_a_tell_is_forgotten_when_it_is_sent(asker: Asker) -> None:
    effects = asker.handle(OWN_NODE, ask_node(wait_ms=0), T0)
    assert only_sent(effects, AskRole, SECOND).wait_ms == 0
    assert not asker.open
    assert not [effect for effect in effects if isinstance(effect, Wake)]
    for link in ("endpoint.0", "endpoint.1"):
        asker.handle(OWN_NODE, LinkDown(node=link), T0)
    effects = asker.handle(OWN_NODE, ask_node("n9", wait_ms=0), T0)
    assert effects == [Observe("client.tell_failed")]


def test_a_user_that_stops_waiting_is_forgotten(asker: Asker) -> None:
    asker.handle(USER, ask_node(), T0)
    asker.handle(OTHER, ask_node(), T0)
    asker.handle(USER, Abandon(), T0)
    assert asker.handle(SECOND, reply_to(1), T0)[:1] == LATE_DROPPED
    assert only_sent(asker.handle(SECOND, reply_to(2), T0), RoleReply, OTHER)


def test_a_client_has_a_limit_of_unanswered_requests(asker: Asker) -> None:
    for _ in range(ASKS_MAX):
        asker.handle(USER, ask_node(), T0)
    no = only_sent(asker.handle(OTHER, ask_node(), T0), Refused, OTHER)
    assert no.reason is Reason.OVERLOADED
    assert str(ASKS_MAX) in no.detail


def test_a_request_whose_role_is_gone_raises_an_error_of_pykka() -> None:
    no = Refused(lock="", reason=Reason.GONE, detail="n1 has no x", session="me", owner="")
    with pytest.raises(pykka.ActorDeadError, match="n1 has no x") as caught:
        raise no.error()
    assert type(caught.value) is RoleGoneError


def test_its_summary_names_the_nodes_that_it_can_ask(asker: Asker) -> None:
    asker.handle(USER, ask_node(), Instant(0))
    assert asker.summary() == (("nodes", "n1, n2"), ("in flight", 1))
