"""A client's session follows the members of its cluster while it is connected."""

from __future__ import annotations

import pytest
from support.session_harness import ME, WATCHER, A, B, SessionHarness, of

from fencelock.actors.api.message import Acquire, Alive, Describe, KeepAlive
from fencelock.actors.api.self_report import NodeAddress
from fencelock.actors.effect import Send
from fencelock.actors.message import Address, address_of, node_of
from fencelock.actors.role_message import LinkDown, LinkUp
from fencelock.actors.session.endpoints import ENDPOINTS_MAX
from fencelock.actors.session.message import Survey

ALL = {node: NodeAddress(node, f"tcp://host-{node}:4040") for node in ("a", "b", "d", "e")}
D = Address("d/proxy")


def members(*names: str) -> tuple[NodeAddress, ...]:
    return tuple(ALL[name] for name in names)


@pytest.fixture
def harness() -> SessionHarness:
    """A session whose user named A and B; both have answered."""
    harness = SessionHarness()
    for endpoint in (A, B):
        harness.hear(endpoint, Alive(session="c", node=node_of(endpoint)))
    return harness


def named(harness: SessionHarness, view: int, *names: str, endpoint: Address = A) -> list[Send]:
    told = Alive(session="c", node=node_of(endpoint), view=view, members=members(*names))
    return harness.hear(endpoint, told)


def table(harness: SessionHarness) -> set[str]:
    return {node_of(one) for one in harness.role.session_state.endpoints.table}


def leave_only_d(harness: SessionHarness) -> None:
    """Add the member D, and take down the links to the endpoints that the user named."""
    named(harness, 1, "d")
    harness.hear(ME, LinkUp(node="d"))
    harness.hear(ME, LinkDown(node="a"))
    harness.hear(ME, LinkDown(node="b"))


def test_a_new_member_is_connected_to_and_used_once_its_link_is_up(harness: SessionHarness) -> None:
    named(harness, 1, "a", "b", "d")
    assert harness.links == {"d": "tcp://host-d:4040"}
    harness.hear(ME, LinkDown(node="a"))
    harness.hear(ME, LinkDown(node="b"))
    said = harness.acquire()
    assert of(Acquire, said, D) == []
    assert of(KeepAlive, harness.hear(ME, LinkUp(node="d")), D)
    assert {node_of(one.to) for one in harness.run(2_000) if one.to != WATCHER} == {"d"}


def test_the_members_are_followed_although_each_of_the_first_is_replaced(
    harness: SessionHarness,
) -> None:
    named(harness, 1, "a", "b", "d")
    harness.hear(ME, LinkUp(node="d"))
    harness.hear(ME, LinkDown(node="a"))
    named(harness, 4, "d", "e", endpoint=D)
    harness.hear(ME, LinkUp(node="e"))
    harness.hear(ME, LinkDown(node="b"))
    assert harness.links == {"d": "tcp://host-d:4040", "e": "tcp://host-e:4040"}
    said = harness.acquire()
    assert {node_of(send.to) for send in said} <= {"d", "e"}


def test_an_idle_client_asks_another_node_when_one_goes_away(harness: SessionHarness) -> None:
    harness.run(600_000)
    (greeting,) = harness.hear(ME, LinkDown(node="a"))
    assert greeting.to == B
    assert isinstance(greeting.message, KeepAlive)


def test_nodes_that_the_users_endpoints_reach_are_not_connected_to_again() -> None:
    """The user's addresses may lead through relays, and not all have answered yet."""
    harness = SessionHarness()
    named(harness, 1, "a", "b", "d")
    assert harness.links == {}  # B may be any of them.
    named(harness, 1, "a", "b", "d", endpoint=B)
    assert set(harness.links) == {"d"}


def test_an_endpoint_that_does_not_answer_is_not_waited_for() -> None:
    harness = SessionHarness()
    named(harness, 1, "a", "b")
    harness.hear(ME, LinkDown(node="b"))
    named(harness, 1, "a", "b")
    assert set(harness.links) == set()  # It has the address of a link of the user's.
    named(harness, 2, "a", "d")
    assert set(harness.links) == {"d"}


def test_a_list_that_is_not_newer_changes_nothing(harness: SessionHarness) -> None:
    named(harness, 3, "a", "d")
    named(harness, 2, "a", "b", "e", endpoint=B)
    named(harness, 3, "a", "b", "e", endpoint=B)
    harness.hear(B, Alive(session="c", node="b", view=9))
    assert harness.links == {"d": "tcp://host-d:4040"}


def test_a_learned_member_that_left_is_dropped_with_its_requests_moved(
    harness: SessionHarness,
) -> None:
    leave_only_d(harness)
    harness.hear(harness.role.address, Describe())  # It waits at D.
    harness.hear(ME, LinkUp(node="b"))
    said = named(harness, 2, "b", endpoint=B)
    assert harness.links == {}
    assert table(harness) == {"a", "b"}  # The user's own endpoints stay.
    assert of(Describe, said, B)


def test_a_member_that_left_stays_while_it_is_the_only_one_that_answers(
    harness: SessionHarness,
) -> None:
    leave_only_d(harness)
    harness.hear(D, Alive(session="c", node="d", view=2, members=members("e")))
    assert set(harness.links) == {"d", "e"}
    harness.hear(ME, LinkUp(node="e"))
    harness.hear(
        address_of("e", "proxy"), Alive(session="c", node="e", view=2, members=members("e"))
    )
    assert set(harness.links) == {"e"}


def test_a_survey_of_a_member_that_left_is_finished_first(harness: SessionHarness) -> None:
    named(harness, 1, "a", "d")
    harness.hear(ME, LinkUp(node="d"))
    harness.hear(Address("c/ann"), Survey())
    named(harness, 2, "a")
    assert set(harness.links) == {"d"}
    harness.run(5_000)
    named(harness, 2, "a")
    assert harness.links == {}


def test_a_member_at_a_new_address_is_connected_to_there(harness: SessionHarness) -> None:
    named(harness, 1, "d")
    moved = NodeAddress("d", "tcp://elsewhere:4040")
    harness.hear(A, Alive(session="c", node="a", view=3, members=(moved,)))
    assert harness.links == {"d": "tcp://elsewhere:4040"}


@pytest.mark.parametrize(
    "bad",
    [
        NodeAddress("d", ""),
        NodeAddress("d", "tcp://0.0.0.0:1"),
        NodeAddress("d", "inproc://x"),
        NodeAddress("D!", "tcp://host-d:4040"),
    ],
)
def test_a_bad_member_is_ignored(harness: SessionHarness, bad: NodeAddress) -> None:
    harness.hear(A, Alive(session="c", node="a", view=1, members=(bad, ALL["e"])))
    assert set(harness.links) == {"e"}


def test_members_beyond_the_limit_of_endpoints_are_ignored(harness: SessionHarness) -> None:
    many = tuple(NodeAddress(f"x{n}", f"tcp://x{n}:1") for n in range(2 * ENDPOINTS_MAX))
    harness.hear(A, Alive(session="c", node="a", view=1, members=many))
    assert len(harness.role.session_state.endpoints.table) == ENDPOINTS_MAX


def test_a_client_that_stays_neither_learns_members_nor_moves_to_the_leader() -> None:
    harness = SessionHarness(stays=True)
    harness.open(harness.acquire())
    for endpoint in (A, B):
        told = Alive(session="c", node=node_of(endpoint), leader="b", view=1, members=members("d"))
        harness.hear(endpoint, told)
    assert harness.links == {}
    assert of(Acquire, harness.acquire(lock="y"), A)
    assert of(Acquire, harness.hear(ME, LinkDown(node="a")), B)
