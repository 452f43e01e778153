"""The times of leaders, followers and clients fit together; times that do not are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fencelock.actors.session.endpoints import ENDPOINT_SILENCE_MS, Probing
from fencelock.actors.session.requests import RETRY_MS
from fencelock.actors.timing import (
    PROBE_AFTER_MS,
    REPLY_MS,
    ROUND_TRIP_MS,
    ROUND_TRIP_MS_MAX,
    TIMING,
    Timing,
    derived,
)


def test_clients_take_their_times_from_one_place() -> None:
    assert (RETRY_MS, Probing().patience_ms) == (PROBE_AFTER_MS, REPLY_MS)


def test_one_follower_is_elected_before_the_next_one_stands() -> None:
    assert TIMING.rank_ms > 2 * TIMING.round_trip_ms
    assert derived(10).rank_ms > 2 * ROUND_TRIP_MS


def test_a_probe_finds_a_dead_proxy_before_its_silence_does() -> None:
    assert PROBE_AFTER_MS + REPLY_MS < ENDPOINT_SILENCE_MS


@pytest.mark.parametrize(
    ("changed", "value", "text"),
    [
        (
            "lease_ms",
            199,
            "lease_ms is 199, but must be at least 4 x heartbeat_ms (50), which is 200",
        ),
        (
            "isolated_ms",
            299,
            "isolated_ms is 299, but must be at least lease_ms (250) + heartbeat_ms (50)",
        ),
        (
            "election_ms",
            399,
            "election_ms is 399, but must be at least isolated_ms (350) + heartbeat_ms (50)",
        ),
        ("election_ms", 499, "election_ms is 499, but must be at least 500"),
        ("rank_ms", 99, "rank_ms is 99, but must be at least 2 x heartbeat_ms (50), which is 100"),
        ("heartbeat_ms", 126, "heartbeat_ms is 126, but must be at most 125"),
        (
            "heartbeat_ms",
            63,
            "lease_ms is 250, but must be at least 4 x heartbeat_ms (63), which is 252",
        ),
    ],
)
def test_times_that_do_not_fit_are_refused_by_name(changed: str, value: int, text: str) -> None:
    times: Any = TIMING._replace(**{changed: value})
    with pytest.raises(ValueError, match=re.escape(text)):
        times.checked()


def test_the_least_that_fits_is_accepted() -> None:
    Timing(heartbeat_ms=50, lease_ms=200, isolated_ms=250, election_ms=500, rank_ms=100).checked()


def test_times_left_out_are_derived_from_the_others() -> None:
    assert derived(50) == TIMING
    assert derived(100) == Timing(100, 450, 650, 1_350, 250)
    assert derived(10) == Timing(10, 90, 110, 500, 150)
    assert derived(50, lease_ms=1_000) == Timing(50, 1_000, 1_100, 1_450, 150)
    assert derived(50, election_ms=5_000) == TIMING._replace(election_ms=5_000)


@pytest.mark.parametrize("heartbeat_ms", range(1, REPLY_MS // 2 + 1))
def test_derived_times_always_fit(heartbeat_ms: int) -> None:
    derived(heartbeat_ms)


def test_a_slower_network_lengthens_every_wait_by_its_round_trips() -> None:
    slow = derived(50, round_trip_ms=300)
    assert slow == Timing(50, 500, 600, 950, 400, 300)
    assert (slow.reply_ms, slow.outcome_ms, slow.startup_ms) == (350, 1_000, 350)
    assert (TIMING.reply_ms, TIMING.outcome_ms, TIMING.startup_ms) == (100, 500, 100)


@pytest.mark.parametrize("round_trip_ms", [1, 49, 50, 51, 300, ROUND_TRIP_MS_MAX])
@pytest.mark.parametrize("heartbeat_ms", [1, 50, REPLY_MS // 2])
def test_derived_times_fit_every_round_trip(heartbeat_ms: int, round_trip_ms: int) -> None:
    times = derived(heartbeat_ms, round_trip_ms=round_trip_ms)
    assert times.lease_ms >= round_trip_ms + heartbeat_ms
    assert times.rank_ms > round_trip_ms


def test_times_that_are_too_short_for_the_round_trip_are_refused_by_name() -> None:
    text = (
        "lease_ms is 400, but must be at least 4 x heartbeat_ms (50) + round_trip_ms (300) - 50, "
        "which is 450"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        derived(50, lease_ms=400, round_trip_ms=300)
