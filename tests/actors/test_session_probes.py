"""A client whose node dies without a sign: it probes, and goes to a node that replies."""

from __future__ import annotations

import pytest
from support.session_harness import A, B, SessionHarness, of

from fencelock.actors.api.message import Acquire
from fencelock.actors.api.probe_message import Probe, ProbeReply
from fencelock.actors.effect import Observe, Send
from fencelock.actors.message import Address, node_of
from fencelock.actors.session.endpoint import PROBE_PAUSE_MS_MAX
from fencelock.actors.session.pending import later
from fencelock.actors.session.session_lease import EPOCH
from fencelock.actors.timing import PROBE_MS, REPLY_MS

TICK_MS = 100
PROBED_MS = PROBE_MS + 2 * TICK_MS
"""By then a request that is unanswered has led to a probe."""


def reply(
    parley: SessionHarness,
    gate: Address,
    *,
    serving: bool = True,
    leader: str = "",
    session: str = "c",
) -> list[Send]:
    told = ProbeReply(session=session, node=node_of(gate), serving=serving, leader=leader)
    return parley.hear(gate, told)


@pytest.fixture
def parley() -> SessionHarness:
    """A session that holds a lock through A, and waits for another there."""
    parley = SessionHarness()
    parley.hold()
    parley.run_kept(2_000, A, B)
    parley.acquire(lock="y")
    return parley


def silent(parley: SessionHarness) -> list[Send]:
    """Let A be silent until the others are probed; return what was sent."""
    sent: list[Send] = []
    while not of(Probe, sent, B):
        assert len(sent) < 100
        sent += parley.run(TICK_MS)
    return sent


def test_an_unanswered_request_has_its_gate_probed_and_no_other(parley: SessionHarness) -> None:
    sent = parley.run(PROBED_MS)

    assert len(of(Probe, sent, A)) == 1
    assert of(Probe, sent, B) == []


def test_nothing_is_probed_where_something_was_just_heard(parley: SessionHarness) -> None:
    parley.run(PROBE_MS - TICK_MS)
    reply(parley, A)

    assert of(Probe, parley.run(TICK_MS + TICK_MS // 2)) == []


def test_a_gate_that_replies_keeps_what_it_was_asked(parley: SessionHarness) -> None:
    parley.run(PROBED_MS)
    reply(parley, A)

    sent = parley.run(REPLY_MS)

    assert of(Probe, sent, B) == []
    assert of(Acquire, sent, B) == []


def test_silence_has_the_others_probed_and_the_first_that_replies_is_used(
    parley: SessionHarness,
) -> None:
    began = parley.now_ms
    sent = silent(parley)
    assert parley.now_ms - began <= PROBE_MS + REPLY_MS + 3 * TICK_MS
    assert of(Acquire, sent, B) == []

    sent = reply(parley, B, leader="a")

    (moved,) = of(Acquire, sent, B)
    assert (moved.lock, moved.request) == ("y", of(Acquire, parley.run(5_000), B)[0].request)
    assert parley.role.session_state.endpoints.current == B


def test_a_client_that_stood_still_itself_hears_its_gate_before_it_leaves(
    parley: SessionHarness,
) -> None:
    silent(parley)
    reply(parley, A)

    assert of(Acquire, reply(parley, B), B) == []
    assert parley.role.session_state.endpoints.current == A


def test_a_leader_without_a_majority_is_left_for_a_node_that_serves(parley: SessionHarness) -> None:
    asked = reply(parley, A, serving=False, leader="a", session="c.1")
    assert of(Probe, asked, B)

    assert of(Acquire, reply(parley, B, leader="a"), B)
    assert parley.role.session_state.endpoints.current == B


def test_while_no_node_serves_a_client_stays_and_asks_ever_more_seldom(
    parley: SessionHarness,
) -> None:
    reply(parley, A, serving=False)
    assert of(Acquire, reply(parley, B, serving=False), B) == []

    sent: list[Send] = []
    for _ in range(200):
        for probe in parley.run(TICK_MS):
            if isinstance(probe.message, Probe):
                sent += [probe, *reply(parley, probe.to, serving=False)]

    assert 3 <= len(of(Probe, sent, A)) <= 4 + 20_000 // PROBE_PAUSE_MS_MAX
    assert of(Acquire, sent, B) == []


def test_whoever_was_elected_is_used_once_it_says_so(parley: SessionHarness) -> None:
    reply(parley, A, serving=False)
    reply(parley, B, serving=False)

    assert of(Acquire, reply(parley, B, leader="b"), B)


def test_each_false_alarm_makes_a_client_more_patient(parley: SessionHarness) -> None:
    probing = parley.role.session_state.probing
    silent(parley)
    reply(parley, B)
    assert probing.patience_ms == REPLY_MS

    reply(parley, A)

    assert probing.patience_ms == 2 * REPLY_MS


def test_replies_of_strangers_and_in_other_sessions_change_nothing(parley: SessionHarness) -> None:
    dropped = Observe("client.answer_of_another_session_dropped")
    stranger = ProbeReply(session="c", node="z", serving=False)
    foreign = ProbeReply(session="d", node="a", serving=False)
    now = later(EPOCH, parley.now_ms)

    assert list(parley.role.handle(Address("z/proxy"), stranger, now)) == [dropped]
    assert list(parley.role.handle(A, foreign, now)) == [dropped]
    assert parley.role.session_state.endpoints.table[A].serving
