"""The state of `bakery`, as status and watches show it."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console
from support.bakery_cluster_harness import ClusterHarness
from support.expect import only
from support.leader_trio import member, seats
from support.samples import READY

from fencelock.actors.api.cluster_message import (
    ClusterDown,
    ClusterUp,
    Elected,
    MemberSeen,
    NodeStatus,
    Watch,
)
from fencelock.actors.api.lock_message import Contender, LockStatus
from fencelock.actors.bakery.backend import CHANGE_NUMBERS, WATCHERS_MAX, Watchers
from fencelock.actors.bakery.electorate import Electorate
from fencelock.actors.bakery.event import Readiness
from fencelock.actors.bakery.wire import Chosen, Seating
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.error import ConfigError
from fencelock.actors.message import Address
from fencelock.cluster.cli.status import headline, locks_seen, nodes_table
from fencelock.cluster.node.config import loopback, parse, starting_config

ANN = Address("ann/session")
MEMBERS = ("n1", "n2", "n3")
News = ClusterUp | ClusterDown


def ready(reachable: tuple[str, ...] = MEMBERS, detail: str = "ready", epoch: int = 1) -> Readiness:
    return Readiness(
        seating=Seating(epoch, tuple(Chosen(name, 1) for name in MEMBERS), 10_000),
        members=tuple(member(name) for name in reachable),
        ready=detail == "ready",
        detail=detail,
        electorate=Electorate(0, seats(*MEMBERS)),
    )


def news_in(effects: list[Effect]) -> list[News]:
    return [
        effect.message
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, ClusterUp | ClusterDown)
    ]


@pytest.fixture
def watchers() -> Watchers:
    return Watchers(life=7)


def know(watchers: Watchers) -> int:
    """Let ann learn the present state, and wait for the next; return its number."""
    (now,) = news_in(watchers.watch(ANN, Watch(session="ann", request=1)))
    watched = Watch(known=now.number, session="ann", request=2)
    assert watchers.watch(ANN, watched) == []
    return now.number


def test_a_watch_that_knows_nothing_gets_an_answer_at_once(watchers: Watchers) -> None:
    state = only(ClusterDown, news_in(watchers.watch(ANN, Watch(session="ann", request=5))))
    assert (state.reason, state.session, state.request, state.epoch) == ("starting", "ann", 5, 0)


def test_each_change_of_cluster_readiness_reason_or_leaders_is_reported_once(
    watchers: Watchers,
) -> None:
    changes = [
        (ready(("n1",), "down"), ClusterDown, False),
        (ready(("n1", "n2"), "an election is under way"), ClusterUp, False),
        (ready(("n1", "n2"), "hand-over"), ClusterUp, False),
        (ready(("n1", "n2")), ClusterUp, False),
        (ready(), ClusterUp, True),
        (ready(epoch=2), ClusterUp, True),
    ]
    numbers = {know(watchers)}
    for readiness, kind, complete in changes:
        (state,) = news_in(watchers.see(readiness))
        assert isinstance(state, kind)
        assert state.reason == readiness.detail
        if isinstance(state, ClusterUp):
            assert (state.complete, state.ready) == (complete, readiness.ready)
            assert (state.epoch, state.leaders) == (readiness.seating.epoch, MEMBERS)
        assert state.number not in numbers
        numbers.add(state.number)
        watchers.watch(ANN, Watch(known=state.number, session="ann", request=3))


def test_nothing_is_sent_while_nothing_changes(watchers: Watchers) -> None:
    watchers.see(ready())
    number = know(watchers)
    assert watchers.see(ready()) == []
    assert watchers.see(ready(tuple(MEMBERS))) == []
    assert watchers.watch(ANN, Watch(known=number, session="ann", request=9)) == []


def test_a_slow_client_gets_one_reply_the_newest(watchers: Watchers) -> None:
    know(watchers)
    assert len(news_in(watchers.see(ready(("n1", "n2"), "hand-over")))) == 1
    assert watchers.see(ready(("n1",), "down")) == []
    assert watchers.see(ready()) == []
    (state,) = news_in(watchers.watch(ANN, Watch(known=1, session="ann", request=3)))
    assert isinstance(state, ClusterUp)
    assert state.ready


def test_news_of_an_earlier_life_are_not_known_to_the_next_one() -> None:
    first, second = Watchers(life=7), Watchers(life=8)
    number = know(first)
    assert news_in(second.watch(ANN, Watch(known=number, session="ann")))
    assert Watchers(life=(1 << 63) - 1).state.number < 1 << 63
    assert second.state.number - first.state.number == CHANGE_NUMBERS


def test_watchers_are_bounded_and_who_asked_longest_ago_makes_room(watchers: Watchers) -> None:
    number = know(watchers)
    effects: list[Effect] = []
    for client in range(WATCHERS_MAX):
        asker = Address(f"c{client}/session")
        effects = watchers.watch(asker, Watch(known=number, session="c", request=1))
    assert effects[0] == Observe("proxy.watcher_displaced")
    assert [news.number for news in news_in(effects)] == [number]  # So that it asks again.
    assert len(watchers.waiting) == WATCHERS_MAX
    assert ANN not in watchers.waiting


def test_a_client_that_asks_again_and_again_learns_that_its_cluster_goes_down_and_up() -> None:
    """LOCK_READY, NO_LOCK and their reasons, unasked."""
    harness = ClusterHarness(3).start().ready()

    def watch(known: int) -> News:
        news: News = harness.answer(News, harness.request("n1", Watch, known=known))
        return news

    news = watch(0)
    while not (isinstance(news, ClusterUp) and news.ready and news.complete):
        news = watch(news.number)
    assert set(news.leaders) == set(harness.serving())
    harness.world.crash("n2")
    harness.world.crash("n3")
    while not isinstance(news, ClusterDown):
        news = watch(news.number)
    assert "1 of 3 members are connected, 2 are needed" in news.reason
    harness.world.power_on("n2")
    harness.world.power_on("n3")
    while not (isinstance(news, ClusterUp) and news.ready):
        news = watch(news.number)
    assert news.epoch > 1


SEEN = (MemberSeen("n1", True, 14), MemberSeen("n2", True, 15), MemberSeen("n3", False, 0))
HOLDER = Contender("n1", "c", "first", 7, 10)
WAITER = Contender("n1", "c", "second", None, 10)


def status_of(node: str, epoch: int, *leaders: str, ready: bool = True, **more: Any) -> NodeStatus:
    return replace(
        READY,
        node=node,
        protocol="bakery",
        nodes=MEMBERS,
        ready=ready,
        detail="ready" if ready else "hand-over: 1 of the leaders n1, n3 serve in epoch 2",
        elected=Elected(epoch, leaders, SEEN),
        **more,
    )


def shown(*nodes: NodeStatus) -> str:
    console = Console(file=StringIO(), width=200)
    console.print(nodes_table(nodes, asked=3))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_last_election_that_a_node_knows_is_reported() -> None:
    nodes = [status_of("n1", 2, "n1", "n3"), status_of("n2", 1, "n1", "n2")]
    assert headline(nodes) == "bakery on 3 nodes; n1 and n3 lead in epoch 2"


def test_no_node_is_shown_as_leader_while_no_node_is_ready() -> None:
    nodes = [status_of("n1", 2, "n1", "n3", ready=False)]
    assert headline(nodes) == "bakery on 3 nodes; n1 and n3 led in epoch 2"


def test_each_member_is_shown_with_its_seat_its_priority_and_what_is_missing() -> None:
    lines = [
        " ".join(line.split())
        for line in shown(status_of("n1", 2, "n1", "n3", ready=False)).splitlines()
    ]
    assert lines[3].startswith(
        "n1 not ready: hand-over: 1 of the leaders n1, n3 serve in epoch 2 seat 1 14"
    )
    assert lines[4].endswith("no off")
    assert lines[5].endswith("seat 2 ?")


def test_the_fullest_of_the_leaders_reports_on_a_lock_is_shown() -> None:
    less = LockStatus(lock="a", holder=None, waiters=(WAITER,), waits_for=())
    more = LockStatus(lock="a", holder=HOLDER, waiters=(WAITER,), waits_for=())
    nodes = [status_of("n1", 1, "n1", locks=(less,)), status_of("n2", 1, "n1", locks=(more,))]
    assert locks_seen(nodes) == [("", more)]


def test_durations_and_priorities_arrive_each_at_its_node() -> None:
    text = starting_config(loopback(5), protocol="bakery").replace("grace = 5.0", "grace = 4")
    text = text.replace('4042"\n', '4042"\npriority = 3\n').replace(
        '4043"\n', '4043"\npriority = "off"\n'
    )
    config = parse(text, Path())
    settings = config.settings
    terms = settings.bakery_terms
    assert (terms.hold_ms, terms.grace_ms, terms.wait_ms) == (5_000, 4_000, 5_000)
    assert [config.settings_of(node).priority for node in config.nodes] == [
        14,
        3,
        15,
        14,
        14,
    ]


OBTENTION = r"bakery.obtention: .* is not usable: "
PRIORITY = r"nodes.n1.priority: .* 1 to 14, the smaller the likelier"


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        *(("priority", value, PRIORITY) for value in ("0", "15", "true", '"on"', "2.5")),
        ("priority", '"off"', 'priority "off" of n1 leaves 2 for the 3 seats'),
        ("grace", "2.5", r"bakery.grace: 2.5 is not usable: at least bakery.least, 3 s"),
        *(("obtention", s, OBTENTION) for s in ("2.9", "0", "604801", "true", '"none"', "nan")),
    ],
)
def test_a_value_out_of_its_limits_is_refused(key: str, value: str, error: str) -> None:
    text = starting_config(loopback(3), protocol="bakery")
    text = text.replace(f"{key} = 5.0", f"{key} = {value}")
    if key == "priority":
        text = text.replace('4041"\n', f'4041"\npriority = {value}\n')
    with pytest.raises(ConfigError, match=error):
        parse(text, Path())


@pytest.mark.parametrize(
    ("obtention", "wait_ms"), [("3", 3_000), ('"unlimited"', 7 * 24 * 3_600_000)]
)
def test_the_obtention_timeout_is_at_most_a_week(obtention: str, wait_ms: int) -> None:
    text = starting_config(loopback(3), protocol="bakery")
    config = parse(text.replace("obtention = 5.0", f"obtention = {obtention}"), Path())
    assert config.settings.bakery_terms.wait_ms == wait_ms
