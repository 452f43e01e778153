"""A client's session chooses its endpoints: what a transcript does not show."""

from __future__ import annotations

from copy import copy
from random import Random

import pytest
from support.session_harness import ANN, A, B, SessionHarness, UnkeptSession, of, one

from fencelock.actors.api import lock_message as api
from fencelock.actors.api.cluster_message import Probe, ProbeReply
from fencelock.actors.api.lock_message import Acquire
from fencelock.actors.api.session_message import Alive, KeepAlive
from fencelock.actors.effect import Send
from fencelock.actors.message import Address, Event, Instant, address_of, later, node_of
from fencelock.actors.role_message import LinkDown, LinkRefused, LinkUp
from fencelock.actors.session.endpoints import (
    ENDPOINT_SILENCE_MS,
    EXCUSE_MS,
    FALSE_ALARM_MS,
    PROBE_PAUSE_MS_MAX,
    SILENCES_PER_TTL,
    Endpoint,
    Endpoints,
    EndpointState,
)
from fencelock.actors.session.lease import EPOCH
from fencelock.actors.timing import REPLY_MS


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


def test_moving_to_and_fro_keeps_at_most_one_cancel_per_endpoint(unkept: UnkeptSession) -> None:
    unkept.acquire()
    for _ in range(20):
        for node in ("a", "b"):
            unkept.lose_link(node)
            unkept.regain_link(node)
    assert len(unkept.role.session_state.in_flight.cancels) <= 2
    assert len(unkept.role.session_state.in_flight.pending) == 1


def test_each_greeting_has_a_number_of_its_own(unkept: UnkeptSession) -> None:
    unkept.held()
    greetings = of(KeepAlive, unkept.run(20_000), A)
    assert len({one.request for one in greetings}) == len(greetings) > 15


TICK_MS = 100


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
    assert len({probe.request for probe in probes}) == len(probes)
    assert 3 <= len(of(Probe, sent, A)) <= 4 + 20_000 // PROBE_PAUSE_MS_MAX
    assert of(Acquire, sent, B) == []


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
