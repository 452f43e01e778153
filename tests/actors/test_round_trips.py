"""Round trips that are longer than configured are reported, with what to configure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.bakery_cluster_harness import TERMS, ClusterHarness
from support.leader_trio import beat, cluster_status, voters
from support.role_harness import T0, at, sent

from fencelock.actors.api.cluster_message import Describe, NodeStatus
from fencelock.actors.bakery.beats import ClusterStatus
from fencelock.actors.bakery.config import BEAT_MS, BakeryTiming, proxy_of, status_of
from fencelock.actors.bakery.event import BeatDue
from fencelock.actors.bakery.wire import Beat
from fencelock.actors.effect import Effect
from fencelock.actors.message import NS_PER_MS, Instant
from fencelock.actors.proxy.event import TimesUnfit
from fencelock.actors.role_message import Level, RoleNotice
from fencelock.actors.round_trips import SAMPLES, RoundTrips
from fencelock.verification.simulation.faults import Faults


def measured(trips: RoundTrips, member: str, ms: int, times: int = SAMPLES) -> list[bool]:
    return [trips.measure(member, ms * NS_PER_MS) for _ in range(times)]


@pytest.mark.parametrize("section", ["paxos", "bakery"])
def test_long_round_trips_are_reported_once_with_the_value_to_set(section: str) -> None:
    trips = RoundTrips(section, 50)
    assert not any(measured(trips, "n2", 310, SAMPLES - 1))
    assert measured(trips, "n2", 310, 1) == [True]
    assert trips.warning() == (
        f"round trips take longer than [{section}] round_trip_ms = 50 allows (n2 310 ms): leaders "
        "may be lost and locks granted late; set round_trip_ms to 350 or more on all nodes and "
        "restart them"
    )
    assert not any(measured(trips, "n2", 320))
    assert not any(measured(trips, "n3", 2))


def test_the_quickest_of_some_answers_counts() -> None:
    trips = RoundTrips("paxos", 50)
    measured(trips, "n2", 2_000, SAMPLES - 1)
    assert measured(trips, "n2", 55, 1) == [False]
    assert trips.warning() == ""


def test_the_warning_ends_when_round_trips_are_short_again() -> None:
    trips = RoundTrips("paxos", 300)
    measured(trips, "n2", 400)
    assert measured(trips, "n2", 300)[-1]
    assert trips.warning() == ""


def test_the_warning_ends_when_the_distant_node_is_no_member() -> None:
    trips = RoundTrips("paxos", 50)
    measured(trips, "n2", 400)
    measured(trips, "n3", 300, SAMPLES - 1)
    trips.keep(["n1"])
    assert trips.warning() == ""
    assert measured(trips, "n3", 300, 1) == [False], "an earlier member's answers do not count"


def test_no_value_is_advised_that_cannot_be_configured() -> None:
    trips = RoundTrips("paxos", 50)
    measured(trips, "n2", 1_500)
    assert trips.warning().endswith("at most 1000 ms can be configured")


# `bakery` measures them by beats, which wait for up to `BEAT_MS` before they are echoed


def begun() -> ClusterStatus:
    role = cluster_status(voters())
    role.begin(T0)
    return role


def echoes(
    role: ClusterStatus,
    one_way_ms: int,
    age_ms: int | None,
    node: str = "n2",
    beats: range = range(1, SAMPLES + 1),
) -> list[Effect]:
    """Let ``node`` echo each of these beats ``age_ms`` after it came; return the effects."""
    effects: list[Effect] = []
    for number in beats:
        due = at(number * BEAT_MS)
        role.handle(status_of("n1"), BeatDue(), due)
        answer = beat(number=number, echo=role.number, echo_age_ms=age_ms)
        arrives = Instant(due + (2 * one_way_ms + (age_ms or 0)) * NS_PER_MS)
        effects += role.handle(status_of(node), answer, arrives)
    return effects


def test_a_member_of_bakery_reports_long_round_trips_once_and_once_that_they_are_short() -> None:
    role = begun()
    why = (
        "round trips take longer than [bakery] round_trip_ms = 50 allows (n2 60 ms): leaders may "
        "be lost and locks granted late; set round_trip_ms to 100 or more on all nodes and "
        "restart them"
    )
    effects = echoes(role, 30, 10)
    assert [(one.level, one.text) for one in sent(effects, RoleNotice)] == [(Level.WARNING, why)]
    assert sent(effects, TimesUnfit, proxy_of("n1")) == [TimesUnfit(why=why)]

    again = echoes(role, 30, 20, beats=range(SAMPLES + 1, 2 * SAMPLES + 1))
    assert not [*sent(again, RoleNotice), *sent(again, TimesUnfit)]

    short = echoes(role, 20, 20, beats=range(2 * SAMPLES + 1, 3 * SAMPLES + 1))
    assert [one.level for one in sent(short, RoleNotice)] == [Level.INFO]
    assert sent(short, TimesUnfit) == [TimesUnfit(why="")]


@pytest.mark.parametrize("age_ms", [0, 1, 50, BEAT_MS])
def test_the_time_for_which_a_beat_waits_for_its_echo_does_not_count(age_ms: int) -> None:
    assert sent(echoes(begun(), 25, age_ms), TimesUnfit) == []


def test_a_beat_names_the_time_since_the_beat_that_it_echoes() -> None:
    role = begun()
    role.handle(status_of("n2"), beat(number=1, echo=role.number), at(30))
    beats = [
        one.echo_age_ms
        for now in (at(30), at(72))
        for one in sent(role.handle(status_of("n1"), BeatDue(), now), Beat)
    ]
    assert beats == [1, None, 43, None], "rounded up; n3 has sent none"


def test_a_member_that_does_not_know_the_age_and_a_guest_are_not_measured() -> None:
    assert sent(echoes(begun(), 300, None), TimesUnfit) == []
    assert sent(echoes(begun(), 300, 0, "n9"), TimesUnfit) == []


def distant(one_way_ms: int, round_trip_ms: int) -> ClusterHarness:
    """Let three members that are so far from each other run for some seconds."""
    settings = replace(TERMS, bakery_timing=BakeryTiming(round_trip_ms))
    faults = Faults(delay_us=1_000 * one_way_ms, sync_us=2_000)
    harness = ClusterHarness(3, settings=settings, faults=faults).start()
    harness.run(10_000)
    return harness


@pytest.mark.parametrize(("one_way_ms", "round_trip_ms"), [(24, 50), (150, 300), (1, 2)])
def test_times_that_fit_a_slow_network_are_not_reported(
    one_way_ms: int, round_trip_ms: int
) -> None:
    harness = distant(one_way_ms, round_trip_ms)
    assert len(harness.serving()) == 3
    assert [harness.backend(name).why_times for name in harness.names] == ["", "", ""]


@pytest.mark.parametrize(("one_way_ms", "advised_ms"), [(45, 100), (150, 300), (400, 800)])
def test_every_member_of_bakery_reports_that_the_network_is_slower_than_its_times_allow(
    one_way_ms: int, advised_ms: int
) -> None:
    harness = distant(one_way_ms, 50)
    for name in harness.names:
        why = harness.backend(name).why_times
        assert f"set round_trip_ms to {advised_ms} or more on all nodes" in why
        assert all(f"{other} " in why for other in harness.names if other != name)
    assert harness.world.marks["notice.warning"] >= 3


def test_status_shows_that_the_network_is_slower_than_the_times_allow() -> None:
    harness = distant(150, 50)
    status = harness.answer(NodeStatus, harness.request("n1", Describe))
    assert "round trips take longer than [bakery] round_trip_ms = 50 allows" in status.detail
