"""The role of a client that asks roles of nodes: which link it uses, and how requests end."""

from __future__ import annotations

import pykka
import pytest
from support.effects import HOST, T0, at, only_sent, sends, sent

from fencelock.actors.api.message import Abandon, Reason, Refused
from fencelock.actors.api.probe_message import Probe, ProbeReply
from fencelock.actors.api.role_request import AskRole, RoleReply
from fencelock.actors.effect import Effects, Observe, Wake
from fencelock.actors.message import Address, Instant
from fencelock.actors.role_message import LinkDown, LinkRefused, LinkUp
from fencelock.actors.session.ask_error import RoleGoneError
from fencelock.actors.session.asker import ASKS_MAX, FIND_MS, Asker, AskNode, AskTick, AskTimedOut

USER, OTHER = Address("me/ask-1"), Address("me/ask-2")
NODE = Address("me/node")
FIRST, SECOND = Address("endpoint.0/proxy"), Address("endpoint.1/proxy")
BODY = b"\x81\x19\x01\x02"
LATE_DROPPED = [Observe("client.late_answer_dropped")]


def ask(node: str = "n2", wait_ms: int = 1_000) -> AskNode:
    return AskNode(node=node, role="clock", body=BODY, wait_ms=wait_ms)


def named(node: str) -> ProbeReply:
    return ProbeReply(session="me", node=node, serving=True)


def reply_to(number: int) -> RoleReply:
    return RoleReply(body=b"\x82\x19\x01\x03\x07", session="me", request=number)


def new_asker() -> Asker:
    labels = {"endpoint.0": "tcp://a:1", "endpoint.1": "tcp://b:1"}
    return Asker(Address("me/asker"), HOST, client="me", labels=labels)


def linked_asker() -> Asker:
    """Return an asker with a link to ``n1`` and one to ``n2``."""
    asker = new_asker()
    for link, proxy, node in (("endpoint.0", FIRST, "n1"), ("endpoint.1", SECOND, "n2")):
        effects = asker.handle(NODE, LinkUp(node=link), T0)
        only_sent(effects, Probe, proxy)
        asker.handle(proxy, named(node), T0)
    return asker


def refusal(effects: Effects, user: Address = USER) -> str:
    """Return the text with which a request ends because its role cannot be reached."""
    no = only_sent(effects, Refused, user)
    assert no.reason is Reason.GONE
    return no.detail


def test_a_request_goes_over_the_link_to_its_node_and_the_reply_to_its_user() -> None:
    asker = linked_asker()
    effects = asker.handle(USER, ask(), T0)
    request = AskRole(role="clock", body=BODY, wait_ms=1_000, session="me", request=1)
    assert [(send.to, send.message) for send in sends(effects)] == [(SECOND, request)]
    effects = asker.handle(SECOND, reply_to(1), T0)
    assert [(send.to, send.message) for send in sends(effects)] == [(USER, reply_to(1))]
    assert not asker.open


def test_a_refusal_of_the_node_goes_to_the_user() -> None:
    asker = linked_asker()
    asker.handle(USER, ask(), T0)
    no = Refused(lock="", reason=Reason.FORBIDDEN, detail="x", session="me", owner="", request=1)
    assert only_sent(asker.handle(SECOND, no, T0), Refused, USER) == no


def test_only_the_node_that_was_asked_can_answer_and_only_once() -> None:
    asker = linked_asker()
    asker.handle(USER, ask(), T0)
    assert asker.handle(FIRST, reply_to(1), T0) == LATE_DROPPED
    assert asker.handle(SECOND, reply_to(2), T0) == LATE_DROPPED
    asker.handle(SECOND, reply_to(1), T0)
    assert asker.handle(SECOND, reply_to(1), T0) == LATE_DROPPED


def test_a_request_waits_until_it_is_known_which_link_leads_to_its_node() -> None:
    asker = new_asker()
    asker.handle(NODE, LinkUp(node="endpoint.0"), T0)
    asker.handle(NODE, LinkUp(node="endpoint.1"), T0)
    assert not sent(asker.handle(USER, ask(), T0), AskRole)
    assert not sent(asker.handle(FIRST, named("n1"), T0), AskRole)
    effects = asker.handle(NODE, AskTick(), at(100))
    assert [send.to for send in sends(effects)] == [SECOND], "the lost probe is sent again"
    assert only_sent(asker.handle(SECOND, named("n2"), at(200)), AskRole, SECOND).request == 1


def test_a_request_waits_for_the_first_links_of_its_client() -> None:
    asker = new_asker()
    asker.handle(NODE, LinkUp(node="endpoint.0"), T0)
    asker.handle(FIRST, named("n1"), T0)
    assert not sends(asker.handle(USER, ask("n2"), T0)), "the other link may lead there"
    asker.handle(OTHER, ask("n9"), T0)
    asker.handle(NODE, LinkUp(node="endpoint.1"), at(50))
    effects = asker.handle(SECOND, named("n2"), at(100))
    assert only_sent(effects, AskRole, SECOND).request == 1
    assert refusal(effects, OTHER) == "node n9 cannot be reached; the client has links to n1, n2"


def test_a_link_that_cannot_be_made_at_first_is_not_waited_for() -> None:
    asker = new_asker()
    asker.handle(NODE, LinkUp(node="endpoint.0"), T0)
    asker.handle(FIRST, named("n1"), T0)
    asker.handle(USER, ask("n2"), T0)
    text = refusal(asker.handle(NODE, LinkDown(node="endpoint.1"), at(20)))
    assert text.endswith("links to n1, and none to tcp://b:1")


def test_a_node_without_a_link_is_refused_at_once_with_those_that_have_one() -> None:
    asker = linked_asker()
    asker.handle(NODE, LinkDown(node="endpoint.1"), T0)
    text = refusal(asker.handle(USER, ask(), T0))
    assert text == "node n2 cannot be reached; the client has links to n1, and none to tcp://b:1"


def test_a_node_that_does_not_give_its_name_is_not_waited_for_longer_than_the_limit() -> None:
    asker = new_asker()
    asker.handle(NODE, LinkUp(node="endpoint.1"), T0)
    asker.handle(USER, ask(wait_ms=60_000), T0)
    assert not sent(asker.handle(NODE, AskTick(), at(FIND_MS - 1)), Refused)
    assert "has links to no node" in refusal(asker.handle(NODE, AskTick(), at(FIND_MS)))


def test_a_link_that_breaks_ends_the_requests_sent_over_it() -> None:
    asker = linked_asker()
    asker.handle(USER, ask("n2"), T0)
    asker.handle(OTHER, ask("n1"), T0)
    text = refusal(asker.handle(NODE, LinkDown(node="endpoint.1"), T0))
    assert text.startswith("the link to node n2 (tcp://b:1) broke before role clock replied")
    assert text.endswith("it is unknown whether it received the request")
    assert only_sent(asker.handle(FIRST, reply_to(2), T0), RoleReply, OTHER)


def test_the_reason_of_a_refused_link_is_in_the_text() -> None:
    asker = linked_asker()
    refused = LinkRefused(node="endpoint.1", detail="the key is not known", by_key=True)
    asker.handle(NODE, refused, T0)
    assert "none to tcp://b:1: the key is not known" in refusal(asker.handle(USER, ask(), T0))


def test_another_node_behind_a_link_is_found_after_it_broke() -> None:
    asker = linked_asker()
    asker.handle(NODE, LinkDown(node="endpoint.1"), T0)
    asker.handle(NODE, LinkUp(node="endpoint.1"), T0)
    asker.handle(SECOND, named("n7"), T0)
    assert only_sent(asker.handle(USER, ask("n7"), T0), AskRole, SECOND)
    assert "links to n1, n7" in refusal(asker.handle(USER, ask("n2"), T0))


def test_a_member_that_the_session_connects_to_can_be_asked() -> None:
    asker = linked_asker()
    effects = asker.handle(NODE, LinkUp(node="n4"), T0)
    only_sent(effects, Probe, Address("n4/proxy"))
    asker.handle(Address("n4/proxy"), named("n4"), T0)
    assert only_sent(asker.handle(USER, ask("n4"), T0), AskRole, Address("n4/proxy"))


def test_a_request_ends_when_its_time_is_up() -> None:
    asker = linked_asker()
    effects = asker.handle(USER, ask(wait_ms=1_000), T0)
    assert [effect.timer for effect in effects if isinstance(effect, Wake)] == [AskTick()]
    assert not sent(asker.handle(NODE, AskTick(), at(999)), AskTimedOut)
    timed_out = only_sent(asker.handle(NODE, AskTick(), at(1_000)), AskTimedOut, USER)
    error = timed_out.error()
    assert isinstance(error, pykka.Timeout)
    assert isinstance(error, TimeoutError)
    assert str(error) == "n2/clock sent no reply within 1 s"
    assert asker.handle(SECOND, reply_to(1), at(1_001)) == LATE_DROPPED


def test_a_request_is_never_sent_twice() -> None:
    asker = linked_asker()
    asker.handle(USER, ask(wait_ms=60_000), T0)
    for ms in range(0, 10_000, 100):
        assert not sent(asker.handle(NODE, AskTick(), at(ms)), AskRole)


def test_a_tell_is_forgotten_when_it_is_sent() -> None:
    asker = linked_asker()
    effects = asker.handle(NODE, ask(wait_ms=0), T0)
    assert only_sent(effects, AskRole, SECOND).wait_ms == 0
    assert not asker.open
    assert not [effect for effect in effects if isinstance(effect, Wake)]
    effects = asker.handle(NODE, ask("n9", wait_ms=0), T0)
    assert effects == [Observe("client.tell_failed")]


def test_a_user_that_stops_waiting_is_forgotten() -> None:
    asker = linked_asker()
    asker.handle(USER, ask(), T0)
    asker.handle(OTHER, ask(), T0)
    asker.handle(USER, Abandon(), T0)
    assert asker.handle(SECOND, reply_to(1), T0)[:1] == LATE_DROPPED
    assert only_sent(asker.handle(SECOND, reply_to(2), T0), RoleReply, OTHER)


def test_a_client_has_a_limit_of_unanswered_requests() -> None:
    asker = linked_asker()
    for _ in range(ASKS_MAX):
        asker.handle(USER, ask(), T0)
    no = only_sent(asker.handle(OTHER, ask(), T0), Refused, OTHER)
    assert no.reason is Reason.OVERLOADED
    assert str(ASKS_MAX) in no.detail


def test_a_request_whose_role_is_gone_raises_an_error_of_pykka() -> None:
    no = Refused(lock="", reason=Reason.GONE, detail="n1 has no x", session="me", owner="")
    with pytest.raises(pykka.ActorDeadError, match="n1 has no x") as caught:
        raise no.error()
    assert type(caught.value) is RoleGoneError


def test_its_summary_names_the_nodes_that_it_can_ask() -> None:
    asker = linked_asker()
    asker.handle(USER, ask(), Instant(0))
    assert asker.summary() == (("nodes", "n1, n2"), ("in flight", 1))
