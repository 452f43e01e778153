"""The times of leaders, followers and clients fit together, and what does not is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fencelock.actors.paxos.scout import SCOUT_RESEND_MS
from fencelock.actors.session.endpoint import SILENCE_MS, Probing
from fencelock.actors.session.pending import RETRY_MS
from fencelock.actors.timing import PROBE_MS, REPLY_MS, TIMING, Timing, derived


def test_clients_take_their_times_from_one_place() -> None:
    assert (RETRY_MS, Probing().patience_ms) == (PROBE_MS, REPLY_MS)


def test_one_follower_is_elected_before_the_next_one_stands() -> None:
    assert TIMING.rank_ms > 2 * SCOUT_RESEND_MS
    assert derived(10).rank_ms > 2 * SCOUT_RESEND_MS


def test_a_probe_finds_a_dead_proxy_before_its_silence_does() -> None:
    assert PROBE_MS + REPLY_MS < SILENCE_MS


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
    assert derived(100) == Timing(100, 500, 700, 1_400, 300)
    assert derived(10) == Timing(10, 50, 70, 500, 150)
    assert derived(50, lease_ms=1_000) == Timing(50, 1_000, 1_100, 2_200, 150)
    assert derived(50, election_ms=5_000) == TIMING._replace(election_ms=5_000)


@pytest.mark.parametrize("heartbeat_ms", range(1, REPLY_MS // 2 + 1))
def test_derived_times_always_fit(heartbeat_ms: int) -> None:
    derived(heartbeat_ms)
