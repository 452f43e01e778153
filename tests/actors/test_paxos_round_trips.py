"""Round trips that are longer than configured are reported, with what to configure."""

from __future__ import annotations

from fencelock.actors.message import NS_PER_MS
from fencelock.actors.paxos.round_trips import SAMPLES, RoundTrips
from fencelock.actors.timing import derived


def measured(trips: RoundTrips, member: str, ms: int, times: int = SAMPLES) -> list[bool]:
    return [trips.measure(member, ms * NS_PER_MS) for _ in range(times)]


def test_long_round_trips_are_reported_once_with_the_value_to_set() -> None:
    trips = RoundTrips(derived(50))
    assert not any(measured(trips, "n2", 310, SAMPLES - 1))
    assert measured(trips, "n2", 310, 1) == [True]
    assert trips.warning() == (
        "round trips take longer than [paxos] round_trip_ms = 50 allows (n2 310 ms): leaders may "
        "be lost and locks granted late; set round_trip_ms to 350 or more on all nodes and "
        "restart them"
    )
    assert not any(measured(trips, "n2", 320))
    assert not any(measured(trips, "n3", 2))


def test_the_quickest_of_some_answers_counts() -> None:
    trips = RoundTrips(derived(50))
    measured(trips, "n2", 2_000, SAMPLES - 1)
    assert measured(trips, "n2", 55, 1) == [False]
    assert trips.warning() == ""


def test_the_warning_ends_when_round_trips_are_short_again() -> None:
    trips = RoundTrips(derived(50, round_trip_ms=300))
    measured(trips, "n2", 400)
    assert measured(trips, "n2", 300)[-1]
    assert trips.warning() == ""


def test_no_value_is_advised_that_cannot_be_configured() -> None:
    trips = RoundTrips(derived(50))
    measured(trips, "n2", 1_500)
    assert trips.warning().endswith("at most 1000 ms can be configured")
