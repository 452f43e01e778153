"""A client whose node dies without a sign: it probes, and goes to a node that replies."""

from __future__ import annotations

import pytest
from support.session_harness import A, B, SessionHarness, of

from fencelock.actors.api.message import Acquire
from fencelock.actors.api.probe_message import Probe, ProbeReply
from fencelock.actors.effect import Observe, Send
from fencelock.actors.message import Address, node_of
from fencelock.actors.session.endpoints import PROBE_PAUSE_MS_MAX
from fencelock.actors.session.lease import EPOCH
from fencelock.actors.session.requests import later
from fencelock.actors.timing import PROBE_AFTER_MS, REPLY_MS

TICK_MS = 100
PROBED_MS = PROBE_AFTER_MS + 2 * TICK_MS
"""By then a request that is unanswered has led to a probe."""


def reply(
    harness: SessionHarness,
    endpoint: Address,
    *,
    serving: bool = True,
    leader: str = "",
    session: str = "c",
) -> list[Send]:
    told = ProbeReply(session=session, node=node_of(endpoint), serving=serving, leader=leader)
    return harness.hear(endpoint, told)


@pytest.fixture
def harness() -> SessionHarness:
    """A session that holds a lock through A, and waits for another there."""
    harness = SessionHarness()
    harness.hold()
    harness.run_kept(2_000, A, B)
    harness.acquire(lock="y")
    return harness


def silent(harness: SessionHarness) -> list[Send]:
    """Let A be silent until the others are probed; return the messages sent."""
    sent: list[Send] = []
    while not of(Probe, sent, B):
        assert len(sent) < 100
        sent += harness.run(TICK_MS)
    return sent


def test_an_unanswered_request_has_its_endpoint_probed_and_no_other(
    harness: SessionHarness,
) -> None:
    sent = harness.run(PROBED_MS)

    assert len(of(Probe, sent, A)) == 1
    assert of(Probe, sent, B) == []


def test_nothing_is_probed_where_something_was_just_heard(harness: SessionHarness) -> None:
    harness.run(PROBE_AFTER_MS - TICK_MS)
    reply(harness, A)

    assert of(Probe, harness.run(TICK_MS + TICK_MS // 2)) == []


def test_an_endpoint_that_replies_keeps_what_it_was_asked(harness: SessionHarness) -> None:
    harness.run(PROBED_MS)
    reply(harness, A)

    sent = harness.run(REPLY_MS)

    assert of(Probe, sent, B) == []
    assert of(Acquire, sent, B) == []


def test_silence_has_the_others_probed_and_the_first_that_replies_is_used(
    harness: SessionHarness,
) -> None:
    began = harness.now_ms
    sent = silent(harness)
    assert harness.now_ms - began <= PROBE_AFTER_MS + REPLY_MS + 3 * TICK_MS
    assert of(Acquire, sent, B) == []

    sent = reply(harness, B, leader="a")

    (moved,) = of(Acquire, sent, B)
    assert (moved.lock, moved.request) == ("y", of(Acquire, harness.run(5_000), B)[0].request)
    assert harness.role.session_state.endpoints.current == B


def test_a_client_that_stood_still_itself_hears_its_endpoint_before_it_leaves(
    harness: SessionHarness,
) -> None:
    silent(harness)
    reply(harness, A)

    assert of(Acquire, reply(harness, B), B) == []
    assert harness.role.session_state.endpoints.current == A


def test_a_leader_without_a_majority_is_left_for_a_node_that_serves(
    harness: SessionHarness,
) -> None:
    asked = reply(harness, A, serving=False, leader="a", session="c.1")
    assert of(Probe, asked, B)

    assert of(Acquire, reply(harness, B, leader="a"), B)
    assert harness.role.session_state.endpoints.current == B


def test_while_no_node_serves_a_client_stays_and_asks_ever_more_seldom(
    harness: SessionHarness,
) -> None:
    reply(harness, A, serving=False)
    assert of(Acquire, reply(harness, B, serving=False), B) == []

    sent: list[Send] = []
    for _ in range(200):
        for probe in harness.run(TICK_MS):
            if isinstance(probe.message, Probe):
                sent += [probe, *reply(harness, probe.to, serving=False)]

    assert 3 <= len(of(Probe, sent, A)) <= 4 + 20_000 // PROBE_PAUSE_MS_MAX
    assert of(Acquire, sent, B) == []


def test_whoever_was_elected_is_used_once_it_says_so(harness: SessionHarness) -> None:
    reply(harness, A, serving=False)
    reply(harness, B, serving=False)

    assert of(Acquire, reply(harness, B, leader="b"), B)


def test_each_false_alarm_makes_a_client_more_patient(harness: SessionHarness) -> None:
    probing = harness.role.session_state.probing
    silent(harness)
    reply(harness, B)
    assert probing.patience_ms == REPLY_MS

    reply(harness, A)

    assert probing.patience_ms == 2 * REPLY_MS


def test_replies_of_strangers_and_in_other_sessions_change_nothing(harness: SessionHarness) -> None:
    dropped = Observe("client.answer_of_another_session_dropped")
    stranger = ProbeReply(session="c", node="z", serving=False)
    foreign = ProbeReply(session="d", node="a", serving=False)
    now = later(EPOCH, harness.now_ms)

    assert list(harness.role.handle(Address("z/proxy"), stranger, now)) == [dropped]
    assert list(harness.role.handle(A, foreign, now)) == [dropped]
    assert harness.role.session_state.endpoints.table[A].serving
