"""A client's session chooses its endpoints, probes them, and follows the members."""

from __future__ import annotations

from copy import copy
from random import Random

import pytest
from msgspec.structs import replace
from support.session_harness import (
    ANN,
    BEN,
    ME,
    WATCHER,
    A,
    B,
    SessionHarness,
    UnkeptSession,
    of,
    one,
    refusal,
)

from fencelock.actors.api import lock_message as api
from fencelock.actors.api.cluster_message import Describe, Probe, ProbeReply
from fencelock.actors.api.lock_message import Acquire
from fencelock.actors.api.session_message import Alive, KeepAlive, NodeAddress, Open
from fencelock.actors.effect import Observe, Send
from fencelock.actors.message import Address, Event, Instant, address_of, later, node_of, role_of
from fencelock.actors.role_message import LinkDown, LinkRefused, LinkUp
from fencelock.actors.session import refusals
from fencelock.actors.session.endpoints import (
    ENDPOINT_SILENCE_MS,
    ENDPOINTS_MAX,
    EXCUSE_MS,
    FALSE_ALARM_MS,
    PROBE_PAUSE_MS_MAX,
    SILENCES_PER_TTL,
    Endpoint,
    Endpoints,
    EndpointState,
)
from fencelock.actors.session.event import EndpointChanged, EndWait, Survey, Waiting
from fencelock.actors.session.lease import EPOCH
from fencelock.actors.session.requests import LockKey
from fencelock.actors.timing import PROBE_AFTER_MS, REPLY_MS


def test_a_broken_link_moves_what_waits_under_a_new_number_and_cancels_the_old(
    unkept: UnkeptSession,
) -> None:
    unkept.acquire(wait_ms=9_000)
    unkept.receive(BEN, api.Inspect(lock="y"))
    unkept.run(150)
    sends = unkept.lose_link("a")
    assert one(api.Cancel, sends, A).request == 1
    moved = one(api.Acquire, sends, B)
    assert (moved.request, moved.wait_ms) == (3, 8_850)
    assert one(api.Inspect, sends, B).request == 4
    assert of(api.Cancel, unkept.run(5_000), A)


def test_an_answer_for_another_endpoint_by_one_back_does_no_harm(unkept: UnkeptSession) -> None:
    """After its keep-alive reply the request goes to it under a new number; its old reply is
    late."""
    unkept.receive(BEN, api.Inspect(lock="y"))
    unkept.lose_link("b")
    unkept.lose_link("a")
    free = api.LockStatus(lock="y", holder=None, waiters=(), waits_for=(), session="c", request=1)
    sends = unkept.receive(B, free)
    moved = one(api.Inspect, sends, B)
    assert moved.request == 2
    answered = unkept.receive(B, replace(free, request=moved.request))
    assert one(api.LockStatus, answered, BEN).lock == "y"


def test_a_grant_of_the_former_endpoint_reaches_no_user(unkept: UnkeptSession) -> None:
    asked = unkept.acquire()
    sends = unkept.lose_link("a")
    moved = Send(B, one(api.Acquire, sends, B))
    assert of(api.Granted, unkept.grant(asked, fence=7)) == []
    assert one(api.Granted, unkept.grant(moved, fence=9), ANN).fence == 9
    assert unkept.role.session_state.holds[LockKey("x", "ann")].endpoint == B


def test_the_watcher_is_notified_of_another_endpoint_once(harness: SessionHarness) -> None:
    harness.open(harness.acquire())
    assert of(EndpointChanged, harness.run_kept(1_000, A, B)) == []
    harness.lose_link("a")
    sends = harness.run_kept(5_000, B)
    assert of(EndpointChanged, sends, WATCHER) == [EndpointChanged(endpoint="b", former="a")]


def test_the_watcher_is_notified_of_acquires_that_wait_for_long(harness: SessionHarness) -> None:
    harness.open(harness.acquire())
    harness.acquire(BEN)
    assert of(Waiting, harness.run_kept(1_900, A, B)) == []
    notice = one(Waiting, harness.run_kept(1_100, A, B), WATCHER)
    assert [(wait.lock, wait.waited_ms // 100) for wait in notice.waits] == [("x", 21)]
    assert (notice.more, notice.silence) == (0, "")
    assert of(Waiting, harness.run_kept(29_000, A, B)) == []
    assert len(of(Waiting, harness.run_kept(3_000, A, B))) == 1


def test_the_watcher_learns_why_no_node_decides(harness: SessionHarness) -> None:
    for lock in "uvwxyz":
        harness.acquire(lock=lock)
    notice = one(Waiting, harness.run(3_000), WATCHER)
    assert [wait.lock for wait in notice.waits] == ["u", "v", "w"]
    assert notice.more == 3
    assert "and has never answered" in notice.silence


def test_advice_is_given_until_a_node_has_answered(harness: SessionHarness) -> None:
    endpoints = harness.role.session_state.endpoints
    endpoints.advice = "Start one."
    harness.acquire(wait_ms=1_000)
    refused = one(api.Refused, harness.run(3_000), ANN)
    assert refused.detail.endswith(", and has never answered), b (not asked yet). Start one.")
    known: tuple[tuple[str, object], ...] = (
        ("received_at", Instant(1)),
        ("state", EndpointState.REFUSED),
    )
    for name, value in known:
        fresh = copy(endpoints.table[B])
        setattr(endpoints.table[B], name, value)
        assert "Start one" not in endpoints.describe(Instant(1))
        endpoints.table[B] = fresh


def known(*states: EndpointState, silence_ms: int = ENDPOINT_SILENCE_MS) -> Endpoints:
    """Return endpoints ``a``, ``b``, ... in ``states``; the first is in use."""
    nodes = [address_of(node, "proxy") for node, _ in zip("abcd", states, strict=False)]
    table = {
        one: Endpoint(one, node_of(one), state=state)
        for one, state in zip(nodes, states, strict=True)
    }
    return Endpoints(table, nodes[0], silence_ms=silence_ms)


def test_an_endpoint_makes_only_the_moves_of_the_table() -> None:
    with pytest.raises(AssertionError, match="that is refused cannot be silent"):
        Endpoint(A, "a", state=EndpointState.REFUSED).enter(EndpointState.SILENT, EPOCH)


@pytest.mark.parametrize(("ms", "counts"), [(EXCUSE_MS - 1, True), (EXCUSE_MS, False)])
def test_what_an_endpoint_sent_counts_for_its_time(ms: int, *, counts: bool) -> None:
    endpoint = Endpoint(A, "a", received_at=EPOCH, excuse="busy", excused_at=EPOCH)
    now = later(EPOCH, ms)
    assert endpoint.excuse_at(now) == ("busy" if counts else "")
    assert endpoint.received_within(EXCUSE_MS, now) is counts


def test_the_next_endpoint_is_the_one_that_follows_in_the_list() -> None:
    live, silent = EndpointState.LIVE, EndpointState.SILENT
    endpoints = known(live, live, live)
    a, b, c = endpoints.table.values()
    assert [endpoints.after(one.address) for one in (a, b, c)] == [b, c, a]
    b.enter(silent, EPOCH)
    assert [endpoints.after(one.address) for one in (a, b, c)] == [c, c, a]
    c.enter(silent, EPOCH)
    assert endpoints.after(a.address) is None


@pytest.mark.parametrize(
    ("ttl_ms", "silence_ms"),
    [(1, 1), (SILENCES_PER_TTL * 900, 900), (60_000, ENDPOINT_SILENCE_MS)],
)
def test_a_short_session_leaves_a_silent_endpoint_soon(ttl_ms: int, silence_ms: int) -> None:
    endpoints = known(EndpointState.LIVE)
    endpoints.live_by(ttl_ms)
    assert endpoints.silence_ms == silence_ms


@pytest.mark.parametrize(("patience_ms", "silence_ms"), [(400, 500), (500, 400)])
def test_an_endpoint_that_never_answered_is_left_after_the_shorter_time(
    patience_ms: int, silence_ms: int
) -> None:
    endpoints = known(EndpointState.UNTRIED, EndpointState.LIVE, silence_ms=silence_ms)
    endpoints.patience_ms = patience_ms
    a, b = endpoints.table.values()
    a.owing_since = b.received_at = EPOCH
    due = later(EPOCH, 400)
    assert endpoints.fall_silent([A, B], later(EPOCH, 399)) == []
    assert endpoints.fall_silent([A, B], due) == [A]


def test_a_new_link_owes_a_reply_only_from_now_on() -> None:
    endpoints, now = known(EndpointState.UNTRIED), later(EPOCH, 1_000)
    endpoint = endpoints.table[A]
    endpoints.linked(endpoint, now)
    assert endpoint.owing_since is None
    endpoint.owing_since = EPOCH
    endpoints.linked(endpoint, now)
    assert endpoint.owing_since == now
    due = later(now, REPLY_MS)
    assert endpoints.next_at(now) == due
    assert endpoints.next_at(due) is None


@pytest.mark.parametrize(
    ("left_ms", "patience_ms", "next_ms"),
    [
        (FALSE_ALARM_MS - 1, REPLY_MS, 2 * REPLY_MS),
        (FALSE_ALARM_MS - 1, ENDPOINT_SILENCE_MS - 1, ENDPOINT_SILENCE_MS),
        (FALSE_ALARM_MS, 2 * REPLY_MS, REPLY_MS),
    ],
)
def test_patience_grows_with_false_alarms_up_to_the_limit(
    left_ms: int, patience_ms: int, next_ms: int
) -> None:
    endpoints = known(EndpointState.LIVE)
    endpoints.patience_ms = patience_ms
    endpoints.judge_patience(left_ms)
    assert endpoints.patience_ms == next_ms


def test_an_acquire_ends_its_wait_as_its_user_wishes_a_hold_stays(harness: SessionHarness) -> None:
    harness.hold(token=1)
    harness.acquire(BEN, token=2)
    for user, token in ((ANN, 1), (BEN, 1)):
        assert not harness.receive(user, EndWait(lock="x", owner=role_of(user), request=token))
    ended = harness.receive(BEN, EndWait(lock="x", owner="ben", request=2))
    assert one(api.Refused, ended, BEN).reason is api.Reason.CANCELLED
    assert one(api.Cancel, ended).owner == "ben"
    assert harness.ann_holds.lease is None  # Of a hold without a deadline.


def test_an_endpoint_that_is_silent_while_something_waits_is_left(unkept: UnkeptSession) -> None:
    for number, endpoint in ((2, A), (3, B)):
        unkept.receive(endpoint, Alive(session="c", node=node_of(endpoint), request=number))
    unkept.acquire()
    sends = unkept.run_kept(2_900, B)
    assert of(api.Acquire, sends, B) == []
    assert of(KeepAlive, sends, A)
    assert of(api.Acquire, unkept.run_kept(400, B), B)
    assert "client.endpoint_silent" in unkept.counted


def test_an_endpoint_that_answers_is_kept_however_long_the_wait(unkept: UnkeptSession) -> None:
    unkept.acquire()
    sends = unkept.run_kept(60_000, A)
    assert of(api.Acquire, sends, B) == []
    assert of(api.Refused, sends) == []


def test_a_first_endpoint_that_never_answered_is_left_sooner_if_another_did(
    unkept: UnkeptSession,
) -> None:
    unkept.receive(B, Alive(session="c", node="b", request=3))
    unkept.acquire()
    assert of(api.Acquire, unkept.run_kept(800, B), B)


def test_a_first_endpoint_that_never_answers_leaves_half_of_the_shortest_usual_connect_timeout(
    harness: SessionHarness,
) -> None:
    harness.receive(ANN, Describe())
    harness.receive(B, Alive(session="c", node="b"))
    assert of(Describe, harness.run(350), B)


def test_a_first_answer_of_another_endpoint_is_used_at_the_next_tick_if_it_comes_late(
    harness: SessionHarness,
) -> None:
    harness.receive(ANN, Describe())
    assert of(Describe, harness.run(2_000), B) == []
    harness.receive(B, Alive(session="c", node="b"))
    assert of(Describe, harness.run(100), B)


def test_a_session_stays_with_the_new_endpoint_if_the_old_is_back(unkept: UnkeptSession) -> None:
    unkept.acquire()
    unkept.lose_link("a")
    assert of(api.Acquire, unkept.regain_link("a")) == []
    assert unkept.acquire(BEN).to == B


def test_a_wait_goes_to_the_first_endpoint_that_is_back_if_none_was_left(
    unkept: UnkeptSession,
) -> None:
    unkept.acquire()
    unkept.lose_link("b")
    assert of(api.Acquire, unkept.lose_link("a")) == []
    assert of(KeepAlive, unkept.run(2_000), B)
    sends = unkept.regain_link("b")
    assert of(api.Acquire, sends, B)
    assert of(api.Cancel, sends, A)


def test_an_endpoint_that_answers_again_takes_stranded_requests(unkept: UnkeptSession) -> None:
    unkept.acquire()
    sends = unkept.run(9_000)  # First the one, then the other is silent.
    assert "client.endpoint_silent" in unkept.counted
    back = unkept.alive([send for send in sends if send.to == A])
    assert one(api.Cancel, back, A).request == 1  # The old wait there has to end first.
    assert of(api.Acquire, unkept.undo(back), A)


def test_moving_to_and_fro_keeps_at_most_one_cancel_per_endpoint(unkept: UnkeptSession) -> None:
    unkept.acquire()
    for _ in range(20):
        for node in ("a", "b"):
            unkept.lose_link(node)
            unkept.regain_link(node)
    assert len(unkept.role.session_state.in_flight.cancels) <= 2
    assert len(unkept.role.session_state.in_flight.pending) == 1


def test_a_new_link_repeats_at_once_what_is_unanswered_there(unkept: UnkeptSession) -> None:
    asked = unkept.acquire()
    assert of(api.Acquire, unkept.regain_link("a"), A) == [asked.message]


def test_a_new_link_is_asked_again_at_once_to_open_the_session(harness: SessionHarness) -> None:
    """What was sent before the link was up went nowhere."""
    first = one(Open, harness.acquire(), A)
    again = one(Open, harness.regain_link("a"), A)
    assert (again.session, again.request > first.request) == (first.session, True)
    assert of(Open, harness.regain_link("b")) == []
    harness.open([Send(A, again)])
    assert of(Open, harness.regain_link("a")) == []


def test_a_new_link_is_asked_as_often_as_a_first_one_to_open_the_session() -> None:
    """Pauses have grown meanwhile, since nothing answered; a new link deserves short ones again."""
    harness = SessionHarness()
    harness.acquire()
    asked = len(of(Open, harness.run(1_000), A))
    harness.run(10_000)
    assert len(of(Open, harness.run(4_000), A)) < asked
    harness.regain_link("a")
    assert len(of(Open, harness.run(1_000), A)) == asked


def test_a_new_link_is_greeted_so_that_it_is_known_who_answers(unkept: UnkeptSession) -> None:
    assert [type(send.message) for send in unkept.regain_link("b")] == [KeepAlive]


def test_links_that_are_no_endpoints_are_counted(unkept: UnkeptSession) -> None:
    for event in (LinkUp(node="z"), LinkDown(node="z"), LinkRefused(node="z", detail="")):
        assert unkept.receive(ME, event) == []
    assert unkept.counted == ["client.unknown_link"] * 3


def test_a_hold_keeps_its_endpoint_greeted_and_outlives_its_silence(unkept: UnkeptSession) -> None:
    unkept.held()
    sends = unkept.run(20_000)
    greetings = of(KeepAlive, sends, A)
    assert 15 <= len(greetings) <= 25
    assert len({one.request for one in greetings}) == len(greetings), "each number is used once"
    assert of(KeepAlive, sends, B) == []
    assert len(unkept.role.session_state.holds) == 1
    assert unkept.acquire(BEN).to == B


def test_pending_cancels_count_against_the_limit_so_that_none_is_ever_forgotten(
    unkept: UnkeptSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "PENDING_REQUESTS_MAX", 2)
    for lock in ("1", "2"):
        unkept.acquire(lock=lock)
        unkept.receive(ANN, api.Abandon())
    assert refusal(unkept.receive(ANN, api.Acquire(lock="3"))).reason is api.Reason.OVERLOADED


ALL = {node: NodeAddress(node, f"tcp://host-{node}:4040") for node in ("a", "b", "d", "e")}
D = Address("d/proxy")


def members(*names: str) -> tuple[NodeAddress, ...]:
    return tuple(ALL[name] for name in names)


@pytest.fixture
def connected() -> SessionHarness:
    """A session whose user named A and B; both have answered."""
    connected = SessionHarness()
    for endpoint in (A, B):
        connected.receive(endpoint, Alive(session="c", node=node_of(endpoint)))
    return connected


def named(connected: SessionHarness, view: int, *names: str, endpoint: Address = A) -> list[Send]:
    notice = Alive(session="c", node=node_of(endpoint), view=view, members=members(*names))
    return connected.receive(endpoint, notice)


def table(connected: SessionHarness) -> set[str]:
    return {node_of(one) for one in connected.role.session_state.endpoints.table}


def leave_only_d(connected: SessionHarness) -> None:
    """Add the member D, and take down the links to the endpoints that the user named."""
    named(connected, 1, "d")
    connected.regain_link("d")
    connected.lose_link("a")
    connected.lose_link("b")


def test_a_new_member_is_connected_and_used_once_its_link_is_up(connected: SessionHarness) -> None:
    named(connected, 1, "a", "b", "d")
    assert connected.links == {"d": "tcp://host-d:4040"}
    connected.lose_link("a")
    connected.lose_link("b")
    sends = connected.acquire()
    assert of(Acquire, sends, D) == []
    assert of(KeepAlive, connected.regain_link("d"), D)
    assert {node_of(one.to) for one in connected.run(2_000) if one.to != WATCHER} == {"d"}


def test_the_members_are_followed_though_all_first_are_replaced(connected: SessionHarness) -> None:
    named(connected, 1, "a", "b", "d")
    connected.regain_link("d")
    connected.lose_link("a")
    named(connected, 4, "d", "e", endpoint=D)
    connected.regain_link("e")
    connected.lose_link("b")
    assert connected.links == {"d": "tcp://host-d:4040", "e": "tcp://host-e:4040"}
    sends = connected.acquire()
    assert {node_of(send.to) for send in sends} <= {"d", "e"}


def test_an_idle_client_asks_another_node_when_one_goes_away(connected: SessionHarness) -> None:
    connected.run(600_000)
    (greeting,) = connected.lose_link("a")
    assert greeting.to == B
    assert isinstance(greeting.message, KeepAlive)


def test_nodes_that_the_users_endpoints_reach_are_not_connected_to_again() -> None:
    """The user's addresses may lead through relays, and not all have answered yet."""
    connected = SessionHarness()
    named(connected, 1, "a", "b", "d")
    assert connected.links == {}  # B may be any of them.
    named(connected, 1, "a", "b", "d", endpoint=B)
    assert set(connected.links) == {"d"}


def test_an_endpoint_that_does_not_answer_is_not_waited_for() -> None:
    connected = SessionHarness()
    named(connected, 1, "a", "b")
    connected.lose_link("b")
    named(connected, 1, "a", "b")
    assert set(connected.links) == set()  # It has the address of a link of the user's.
    named(connected, 2, "a", "d")
    assert set(connected.links) == {"d"}


def test_a_list_that_is_not_newer_changes_nothing(connected: SessionHarness) -> None:
    named(connected, 3, "a", "d")
    named(connected, 2, "a", "b", "e", endpoint=B)
    named(connected, 3, "a", "b", "e", endpoint=B)
    connected.receive(B, Alive(session="c", node="b", view=9))
    assert connected.links == {"d": "tcp://host-d:4040"}


def test_a_learned_member_that_left_is_dropped_its_requests_move(connected: SessionHarness) -> None:
    leave_only_d(connected)
    connected.receive(connected.role.address, Describe())  # It waits at D.
    connected.regain_link("b")
    sends = named(connected, 2, "b", endpoint=B)
    assert connected.links == {}
    assert table(connected) == {"a", "b"}  # The user's own endpoints stay.
    assert of(Describe, sends, B)


def test_a_member_that_left_stays_while_it_alone_answers(connected: SessionHarness) -> None:
    leave_only_d(connected)
    connected.receive(D, Alive(session="c", node="d", view=2, members=members("e")))
    assert set(connected.links) == {"d", "e"}
    connected.regain_link("e")
    connected.receive(
        address_of("e", "proxy"), Alive(session="c", node="e", view=2, members=members("e"))
    )
    assert set(connected.links) == {"e"}


def test_a_survey_of_a_member_that_left_is_finished_first(connected: SessionHarness) -> None:
    named(connected, 1, "a", "d")
    connected.regain_link("d")
    connected.receive(Address("c/ann"), Survey())
    named(connected, 2, "a")
    assert set(connected.links) == {"d"}
    connected.run(5_000)
    named(connected, 2, "a")
    assert connected.links == {}


def test_a_member_at_a_new_address_is_connected_to_there(connected: SessionHarness) -> None:
    named(connected, 1, "d")
    moved = NodeAddress("d", "tcp://elsewhere:4040")
    connected.receive(A, Alive(session="c", node="a", view=3, members=(moved,)))
    assert connected.links == {"d": "tcp://elsewhere:4040"}


@pytest.mark.parametrize(
    "bad",
    [
        NodeAddress("d", ""),
        NodeAddress("d", "tcp://0.0.0.0:1"),
        NodeAddress("d", "inproc://x"),
        NodeAddress("D!", "tcp://host-d:4040"),
    ],
)
def test_a_bad_member_is_ignored(connected: SessionHarness, bad: NodeAddress) -> None:
    connected.receive(A, Alive(session="c", node="a", view=1, members=(bad, ALL["e"])))
    assert set(connected.links) == {"e"}


def test_members_beyond_the_limit_of_endpoints_are_ignored(connected: SessionHarness) -> None:
    many = tuple(NodeAddress(f"x{n}", f"tcp://x{n}:1") for n in range(2 * ENDPOINTS_MAX))
    connected.receive(A, Alive(session="c", node="a", view=1, members=many))
    assert len(connected.role.session_state.endpoints.table) == ENDPOINTS_MAX


TICK_MS = 100
PROBED_MS = PROBE_AFTER_MS + 2 * TICK_MS
"""By then a request that is unanswered has led to a probe."""


def reply(
    waiting: SessionHarness,
    endpoint: Address,
    *,
    serving: bool = True,
    leader: str = "",
    session: str = "c",
) -> list[Send]:
    notice = ProbeReply(session=session, node=node_of(endpoint), serving=serving, leader=leader)
    return waiting.receive(endpoint, notice)


@pytest.fixture
def waiting() -> SessionHarness:
    """A session that holds a lock through A, and waits for another there."""
    waiting = SessionHarness()
    waiting.hold()
    waiting.run_kept(2_000, A, B)
    waiting.acquire(lock="y")
    return waiting


def silent(waiting: SessionHarness) -> list[Send]:
    """Let A be silent until the others are probed; return the messages sent."""
    sent: list[Send] = []
    while not of(Probe, sent, B):
        assert len(sent) < 100
        sent += waiting.run(TICK_MS)
    return sent


def test_an_unanswered_request_has_only_its_endpoint_probed(waiting: SessionHarness) -> None:
    sent = waiting.run(PROBED_MS)

    assert len(of(Probe, sent, A)) == 1
    assert of(Probe, sent, B) == []


def test_an_endpoint_that_has_just_answered_is_not_probed(waiting: SessionHarness) -> None:
    waiting.run(PROBE_AFTER_MS - TICK_MS)
    reply(waiting, A)

    assert of(Probe, waiting.run(TICK_MS + TICK_MS // 2)) == []


def test_an_endpoint_that_replies_keeps_what_it_was_asked(waiting: SessionHarness) -> None:
    waiting.run(PROBED_MS)
    reply(waiting, A)

    sent = waiting.run(REPLY_MS)

    assert of(Probe, sent, B) == []
    assert of(Acquire, sent, B) == []


def test_silence_has_the_others_probed_and_the_first_reply_wins(waiting: SessionHarness) -> None:
    began = waiting.now_ms
    sent = silent(waiting)
    assert waiting.now_ms - began == PROBE_AFTER_MS + REPLY_MS
    assert of(Acquire, sent, B) == []

    sent = reply(waiting, B, leader="a")

    (moved,) = of(Acquire, sent, B)
    assert "client.endpoint_silent" in waiting.counted
    assert (moved.lock, moved.request) == ("y", of(Acquire, waiting.run(5_000), B)[0].request)
    assert waiting.role.session_state.endpoints.current == B


def test_a_client_that_stood_still_waits_for_its_endpoint_first(
    waiting: SessionHarness,
) -> None:
    silent(waiting)
    reply(waiting, A)

    assert of(Acquire, reply(waiting, B), B) == []
    assert waiting.role.session_state.endpoints.current == A


def test_a_leader_without_a_majority_is_left_for_one_that_serves(waiting: SessionHarness) -> None:
    asked = reply(waiting, A, serving=False, leader="a", session="c.1")
    assert of(Probe, asked, B)

    assert of(Acquire, reply(waiting, B, leader="a"), B)
    assert waiting.role.session_state.endpoints.current == B
    assert "client.endpoint_not_serving" in waiting.counted


def test_a_client_asks_ever_more_seldom_with_no_node_serving(waiting: SessionHarness) -> None:
    reply(waiting, A, serving=False)
    assert of(Acquire, reply(waiting, B, serving=False), B) == []
    described = waiting.role.session_state.endpoints.describe(Instant(0))
    assert described == "a (answers, but cannot serve now), b (answers, but cannot serve now)"

    sent: list[Send] = []
    for _ in range(200):
        for probe in waiting.run(TICK_MS):
            if isinstance(probe.message, Probe):
                sent += [probe, *reply(waiting, probe.to, serving=False)]

    probes = of(Probe, sent)
    assert 3 <= len(of(Probe, sent, A)) <= 4 + 20_000 // PROBE_PAUSE_MS_MAX
    assert len({probe.request for probe in probes}) == len(probes)
    assert of(Acquire, sent, B) == []


def test_an_elected_leader_is_used_once_it_confirms_that_it_leads(waiting: SessionHarness) -> None:
    reply(waiting, A, serving=False)
    reply(waiting, B, serving=False)

    assert of(Acquire, reply(waiting, B, leader="b"), B)


def test_each_false_alarm_makes_a_client_more_patient(waiting: SessionHarness) -> None:
    endpoints = waiting.role.session_state.endpoints
    silent(waiting)
    reply(waiting, B)
    assert endpoints.patience_ms == REPLY_MS

    reply(waiting, A)

    assert endpoints.patience_ms == 2 * REPLY_MS
    assert not endpoints.table[A].left_in_doubt  # The next silence may have another reason.


def test_a_client_that_moves_to_the_leader_doubts_its_former_endpoint_no_more(
    waiting: SessionHarness,
) -> None:
    endpoints = waiting.role.session_state.endpoints
    waiting.run(PROBED_MS)
    assert endpoints.table[A].state is EndpointState.DOUBTED

    reply(waiting, B, leader="b")

    assert endpoints.current == B
    assert (endpoints.table[A].state, endpoints.probe_at) == (EndpointState.LIVE, None)


def test_an_endpoint_that_was_left_for_owing_a_reply_makes_no_client_more_patient() -> None:
    idle = SessionHarness()
    idle.hold()
    endpoints = idle.role.session_state.endpoints
    for _ in range(3 * ENDPOINT_SILENCE_MS // 100):
        if endpoints.table[A].state is not EndpointState.SILENT:
            idle.run_kept(100, B)

    idle.receive(A, Alive(session="c.1", node="a", request=999))

    assert endpoints.table[A].state is EndpointState.LIVE
    assert endpoints.patience_ms == REPLY_MS


def test_replies_of_strangers_and_in_other_sessions_change_nothing(waiting: SessionHarness) -> None:
    dropped = Observe("client.answer_of_another_session_dropped")
    stranger = ProbeReply(session="c", node="z", serving=False)
    foreign = ProbeReply(session="d", node="a", serving=False)
    now = later(EPOCH, waiting.now_ms)

    assert list(waiting.role.handle(Address("z/proxy"), stranger, now)) == [dropped]
    assert list(waiting.role.handle(A, foreign, now)) == [dropped]
    assert waiting.role.session_state.endpoints.table[A].state is EndpointState.LIVE


def test_a_client_that_stays_neither_learns_members_nor_moves_to_the_leader() -> None:
    harness = SessionHarness(stays=True)
    harness.open(harness.acquire())
    for endpoint in (A, B):
        notice = Alive(
            session="c", node=node_of(endpoint), leader="b", view=1, members=members("d")
        )
        harness.receive(endpoint, notice)
    assert harness.links == {}
    assert of(Acquire, harness.acquire(lock="y"), A)
    assert of(Acquire, harness.lose_link("a"), B)


@pytest.mark.parametrize("seed", range(20))
def test_no_order_of_events_leads_to_an_illegal_move_of_an_endpoint(seed: int) -> None:
    """A message of an endpoint, or a new link, makes it usable again, whatever came before.

    The endpoint in use is usable if any is.
    """
    random, harness = Random(seed), SessionHarness()
    harness.open(harness.acquire(), leader=random.choice(["", "a", "b"]))
    endpoints = harness.role.session_state.endpoints
    seen: set[EndpointState] = set()
    for number in range(300):
        node, address = random.choice([("a", A), ("b", B)])
        serving = random.random() < 0.5
        events: list[Event] = [
            LinkUp(node=node),
            LinkDown(node=node),
            LinkRefused(node=node, detail="no"),
            ProbeReply(session="c", node=node, serving=serving, leader=random.choice(["", "b"])),
            Alive(session="c", node=node),
            Acquire(lock=f"l{number}", wait_ms=500),
        ]
        event = random.choice(events)
        harness.receive(ANN if isinstance(event, Acquire) else address, event)
        if isinstance(event, Alive | LinkUp):
            assert endpoints.table[address].usable
        assert endpoints.choose().usable or not endpoints.any_usable()
        harness.run_kept(random.choice([0, 100, 600, 4_000]), A)
        seen |= {one.state for one in endpoints.table.values()}
    assert len(seen) >= len(EndpointState) - 1
