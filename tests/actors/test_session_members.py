"""A client's session follows the members of its cluster while it is connected."""

from __future__ import annotations

import pytest
from support.session_harness import ME, A, B, SessionHarness, of

from fencelock.actors.api.message import Acquire, Alive, Describe, KeepAlive
from fencelock.actors.api.self_report import NodeAddress
from fencelock.actors.effect import Send
from fencelock.actors.message import Address, address_of, node_of
from fencelock.actors.role_message import LinkDown, LinkUp
from fencelock.actors.session.endpoint import ENDPOINTS_MAX
from fencelock.actors.session.message import Survey

ALL = {node: NodeAddress(node, f"tcp://host-{node}:4040") for node in ("a", "b", "d", "e")}
D = Address("d/proxy")


def members(*names: str) -> tuple[NodeAddress, ...]:
    return tuple(ALL[name] for name in names)


@pytest.fixture
def play() -> SessionHarness:
    """A session whose user named A and B; both have answered."""
    play = SessionHarness()
    for gate in (A, B):
        play.hear(gate, Alive(session="c", node=node_of(gate)))
    return play


def named(play: SessionHarness, view: int, *names: str, gate: Address = A) -> list[Send]:
    told = Alive(session="c", node=node_of(gate), view=view, members=members(*names))
    return play.hear(gate, told)


def table(play: SessionHarness) -> set[str]:
    return {node_of(one) for one in play.role.session_state.endpoints.table}


def leave_only_d(play: SessionHarness) -> None:
    """Add the member D, and take down the links to the endpoints that the user named."""
    named(play, 1, "d")
    play.hear(ME, LinkUp(node="d"))
    play.hear(ME, LinkDown(node="a"))
    play.hear(ME, LinkDown(node="b"))


def test_a_new_member_is_connected_to_and_used_once_its_link_is_up(play: SessionHarness) -> None:
    named(play, 1, "a", "b", "d")
    assert play.links == {"d": "tcp://host-d:4040"}
    play.hear(ME, LinkDown(node="a"))
    play.hear(ME, LinkDown(node="b"))
    said = play.acquire()
    assert of(Acquire, said, D) == []
    assert of(KeepAlive, play.hear(ME, LinkUp(node="d")), D)
    assert {node_of(one.to) for one in play.run(2_000)} == {"d"}


def test_the_members_are_followed_although_each_of_the_first_is_replaced(
    play: SessionHarness,
) -> None:
    named(play, 1, "a", "b", "d")
    play.hear(ME, LinkUp(node="d"))
    play.hear(ME, LinkDown(node="a"))
    named(play, 4, "d", "e", gate=D)
    play.hear(ME, LinkUp(node="e"))
    play.hear(ME, LinkDown(node="b"))
    assert play.links == {"d": "tcp://host-d:4040", "e": "tcp://host-e:4040"}
    said = play.acquire()
    assert {node_of(send.to) for send in said} <= {"d", "e"}


def test_an_idle_client_asks_another_node_when_one_goes_away(play: SessionHarness) -> None:
    play.run(600_000)
    (greeting,) = play.hear(ME, LinkDown(node="a"))
    assert greeting.to == B
    assert isinstance(greeting.message, KeepAlive)


def test_nodes_that_the_users_endpoints_reach_are_not_connected_to_again() -> None:
    """The user's addresses may lead through relays, and not all have answered yet."""
    play = SessionHarness()
    named(play, 1, "a", "b", "d")
    assert play.links == {}  # B may be any of them.
    named(play, 1, "a", "b", "d", gate=B)
    assert set(play.links) == {"d"}


def test_an_endpoint_that_does_not_answer_is_not_waited_for() -> None:
    play = SessionHarness()
    named(play, 1, "a", "b")
    play.hear(ME, LinkDown(node="b"))
    named(play, 1, "a", "b")
    assert set(play.links) == set()  # It has the address of a link of the user's.
    named(play, 2, "a", "d")
    assert set(play.links) == {"d"}


def test_a_list_that_is_not_newer_changes_nothing(play: SessionHarness) -> None:
    named(play, 3, "a", "d")
    named(play, 2, "a", "b", "e", gate=B)
    named(play, 3, "a", "b", "e", gate=B)
    play.hear(B, Alive(session="c", node="b", view=9))
    assert play.links == {"d": "tcp://host-d:4040"}


def test_a_learned_member_that_left_is_dropped_with_its_requests_moved(
    play: SessionHarness,
) -> None:
    leave_only_d(play)
    play.hear(play.role.address, Describe())  # It waits at D.
    play.hear(ME, LinkUp(node="b"))
    said = named(play, 2, "b", gate=B)
    assert play.links == {}
    assert table(play) == {"a", "b"}  # The user's own endpoints stay.
    assert of(Describe, said, B)


def test_a_member_that_left_stays_while_it_is_the_only_one_that_answers(
    play: SessionHarness,
) -> None:
    leave_only_d(play)
    play.hear(D, Alive(session="c", node="d", view=2, members=members("e")))
    assert set(play.links) == {"d", "e"}
    play.hear(ME, LinkUp(node="e"))
    play.hear(address_of("e", "proxy"), Alive(session="c", node="e", view=2, members=members("e")))
    assert set(play.links) == {"e"}


def test_a_survey_of_a_member_that_left_is_finished_first(play: SessionHarness) -> None:
    named(play, 1, "a", "d")
    play.hear(ME, LinkUp(node="d"))
    play.hear(Address("c/ann"), Survey())
    named(play, 2, "a")
    assert set(play.links) == {"d"}
    play.run(5_000)
    named(play, 2, "a")
    assert play.links == {}


def test_a_member_at_a_new_address_is_connected_to_there(play: SessionHarness) -> None:
    named(play, 1, "d")
    moved = NodeAddress("d", "tcp://elsewhere:4040")
    play.hear(A, Alive(session="c", node="a", view=3, members=(moved,)))
    assert play.links == {"d": "tcp://elsewhere:4040"}


@pytest.mark.parametrize(
    "bad",
    [
        NodeAddress("d", ""),
        NodeAddress("d", "tcp://0.0.0.0:1"),
        NodeAddress("d", "inproc://x"),
        NodeAddress("D!", "tcp://host-d:4040"),
    ],
)
def test_a_bad_member_is_ignored(play: SessionHarness, bad: NodeAddress) -> None:
    play.hear(A, Alive(session="c", node="a", view=1, members=(bad, ALL["e"])))
    assert set(play.links) == {"e"}


def test_members_beyond_the_limit_of_endpoints_are_ignored(play: SessionHarness) -> None:
    many = tuple(NodeAddress(f"x{n}", f"tcp://x{n}:1") for n in range(2 * ENDPOINTS_MAX))
    play.hear(A, Alive(session="c", node="a", view=1, members=many))
    assert len(play.role.session_state.endpoints.table) == ENDPOINTS_MAX
