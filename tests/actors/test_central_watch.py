from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.central_scene import BROKER_A, PROXY, SERVER, WATCH
from support.effects import HOST, T0, at, not_counted

from fencelock.actors.api.message import Absence, Contender
from fencelock.actors.central import message as messages
from fencelock.actors.central.watch import PEEKS_MAX, QUERIES_MAX, SILENT_MS, ServerWatch
from fencelock.actors.effect import Observe, Send, Wake
from fencelock.actors.message import Address
from fencelock.actors.proxy.message import LockDescription, Ready


@pytest.fixture
def watch() -> ServerWatch:
    watch = ServerWatch(WATCH, HOST, proxy=PROXY, server=SERVER)
    watch.begin(T0)
    return watch


GLANCE = messages.LocalView(lock="l", query=3, holder=None, waiters=())
HOLDER = Contender(node="b", session="t", owner="x", fence=7, since_ms=3)


UNANSWERED = "node s, which runs the lock server, did not answer"


def answered(holder: Contender | None, silent: tuple[Absence, ...] = (), unknown: str = "") -> Send:
    seen = LockDescription(
        lock="l", query=3, holder=holder, waiters=(), waits_for=silent, unknown=unknown
    )
    return Send(PROXY, seen)


def test_the_node_is_not_ready_before_the_server_was_heard(watch: ServerWatch) -> None:
    said = not_counted(ServerWatch(WATCH, HOST, proxy=PROXY, server=SERVER).begin(T0))
    detail = "node s, which runs the lock server, has not answered yet"
    assert said[:2] == [
        Send(PROXY, Ready(ready=False, detail=detail)),
        Send(SERVER, messages.Probe()),
    ]
    assert isinstance(said[2], Wake)

    assert not_counted(watch.handle(SERVER, messages.Probed(), at(1))) == [
        Send(PROXY, Ready(ready=True, detail="ready"))
    ]
    assert not_counted(watch.handle(SERVER, messages.Probed(), at(2))) == []


def test_a_silent_server_is_looked_for_and_makes_the_node_unready(watch: ServerWatch) -> None:
    watch.handle(SERVER, messages.Probed(), T0)

    probe, again = not_counted(watch.handle(WATCH, messages.ProbeServer(), at(SILENT_MS)))
    assert (probe, type(again)) == (Send(SERVER, messages.Probe()), Wake)
    unready, *_ = not_counted(watch.handle(WATCH, messages.ProbeServer(), at(SILENT_MS + 1)))
    detail = "node s, which runs the lock server, is silent for 5001 ms"
    assert unready == Send(PROXY, Ready(ready=False, detail=detail))
    assert not_counted(watch.handle(SERVER, messages.Probed(), at(SILENT_MS + 2))) == [
        Send(PROXY, Ready(ready=True, detail="ready"))
    ]


def test_a_look_is_answered_with_what_the_server_says(watch: ServerWatch) -> None:
    watch.handle(SERVER, messages.Probed(), T0)
    peek, retry = watch.handle(BROKER_A, GLANCE, T0)
    assert peek == Send(SERVER, messages.Peek(lock="l", query=3))
    assert isinstance(retry, Wake)

    peeked = messages.Peeked(lock="l", query=3, holder=HOLDER)
    assert not_counted(watch.handle(SERVER, peeked, T0)) == [answered(HOLDER)]
    assert not_counted(watch.handle(SERVER, peeked, T0)) == []
    assert not_counted(watch.handle(WATCH, messages.PeekRetry(query=3), T0)) == []


def test_a_look_in_vain_names_the_server_and_how_long_it_is_silent(watch: ServerWatch) -> None:
    watch.handle(SERVER, messages.Probed(), at(100))
    watch.handle(BROKER_A, GLANCE, at(200))
    for _ in range(PEEKS_MAX - 1):
        peek, _ = not_counted(watch.handle(WATCH, messages.PeekRetry(query=3), at(300)))
        assert peek == Send(SERVER, messages.Peek(lock="l", query=3))

    effects = watch.handle(WATCH, messages.PeekRetry(query=3), at(700))

    assert not_counted(effects) == [answered(None, (Absence("s", 600),), UNANSWERED)]
    assert watch.queries == {}


def test_a_look_in_vain_does_not_accuse_a_server_that_was_heard(watch: ServerWatch) -> None:
    watch.handle(BROKER_A, GLANCE, at(200))
    watch.handle(SERVER, messages.Probed(), at(250))

    answers = [watch.handle(WATCH, messages.PeekRetry(query=3), at(700)) for _ in range(PEEKS_MAX)]

    assert not_counted(answers[-1]) == [answered(None, unknown=UNANSWERED)]


@pytest.mark.parametrize(
    ("sender", "event", "mark"),
    [
        (Address("b/x"), messages.Probed(), "central.probed_malformed"),
        (
            Address("b/x"),
            messages.Peeked(lock="l", query=3, holder=None),
            "central.peeked_malformed",
        ),
        (
            SERVER,
            messages.Peeked(lock="l", query=3, holder=HOLDER._replace(owner="x" * 300)),
            "central.peeked_malformed",
        ),
        (
            SERVER,
            messages.Peeked(lock="l", query=3, holder=HOLDER._replace(fence=0)),
            "central.peeked_malformed",
        ),
    ],
)
def test_what_no_honest_server_says_is_counted_and_dropped(
    watch: ServerWatch, sender: Address, event: messages.Peeked | messages.Probed, mark: str
) -> None:
    watch.handle(BROKER_A, GLANCE, T0)
    before = dict(watch.state())

    assert watch.handle(sender, event, T0) == (Observe(mark),)
    assert dict(watch.state()) == before


def test_too_many_looks_are_answered_without_the_server(watch: ServerWatch) -> None:
    for query in range(10, 10 + QUERIES_MAX):
        watch.handle(
            BROKER_A, messages.LocalView(lock="l", query=query, holder=None, waiters=()), T0
        )

    why = f"{QUERIES_MAX} questions wait for the lock server, the limit"
    assert not_counted(watch.handle(BROKER_A, GLANCE, T0)) == [answered(None, unknown=why)]


def test_an_answer_to_a_question_of_an_earlier_life_is_no_answer() -> None:
    watch = ServerWatch(WATCH, HOST, proxy=PROXY, server=SERVER, boot=5)
    watch.begin(T0)
    watch.handle(BROKER_A, GLANCE, T0)

    assert PROXY not in [
        effect.to
        for effect in not_counted(
            watch.handle(SERVER, messages.Peeked(lock="l", query=3, holder=None), T0)
        )
        if isinstance(effect, Send) and isinstance(effect.message, LockDescription)
    ]


def test_the_server_knows_better_who_holds_than_the_node_does(watch: ServerWatch) -> None:
    ours = Contender(node="a", session="s", owner="o", fence=6, since_ms=3)
    watch.handle(SERVER, messages.Probed(), T0)
    watch.handle(BROKER_A, replace(GLANCE, holder=ours), T0)

    answers = watch.handle(SERVER, messages.Peeked(lock="l", query=3, holder=HOLDER), T0)
    assert not_counted(answers) == [answered(HOLDER)]
