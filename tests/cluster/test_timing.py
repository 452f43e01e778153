"""The times of leaders, followers and clients fit together, and what does not is refused."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from fencelock.actors.paxos.config import BEAT_MS, ELECTION_MS, LEASE_MS
from fencelock.actors.paxos.scout import SCOUT_RESEND_MS
from fencelock.actors.session.endpoint import SILENCE_MS, Probing
from fencelock.actors.session.pending import RETRY_MS
from fencelock.actors.timing import TIMING, Timing


def test_nodes_and_clients_take_their_times_from_one_place() -> None:
    assert (TIMING.beat_ms, TIMING.lease_ms) == (BEAT_MS, LEASE_MS)
    assert TIMING.election_ms == ELECTION_MS
    assert (RETRY_MS, Probing().patience_ms) == (TIMING.probe_ms, TIMING.reply_ms)


def test_one_follower_is_elected_before_the_next_one_stands() -> None:
    assert TIMING.rank_ms > 2 * SCOUT_RESEND_MS


def test_a_probe_finds_a_dead_gate_before_its_silence_does() -> None:
    assert TIMING.probe_ms + TIMING.reply_ms < SILENCE_MS


@pytest.mark.parametrize(
    ("changed", "value", "text"),
    [
        ("lease_ms", 199, "lease_ms is 199, but must be at least 4 x beat_ms, which is 200"),
        ("isolated_ms", 299, "isolated_ms is 299, but must be at least lease_ms + beat_ms"),
        ("election_ms", 399, "election_ms is 399, but must be at least isolated_ms + beat_ms"),
        ("election_ms", 499, "election_ms is 499, but must be at least probe_ms + reply_ms"),
        ("rank_ms", 99, "rank_ms is 99, but must be at least 2 x beat_ms, which is 100"),
        ("reply_ms", 99, "reply_ms is 99, but must be at least 2 x beat_ms, which is 100"),
        ("beat_ms", 63, "lease_ms is 250, but must be at least 4 x beat_ms, which is 252"),
    ],
)
def test_times_that_do_not_fit_are_refused_by_name(changed: str, value: int, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        replace(TIMING, **{changed: value})


def test_the_least_that_fits_is_accepted() -> None:
    least = Timing(
        beat_ms=50,
        lease_ms=200,
        isolated_ms=250,
        election_ms=300,
        rank_ms=100,
        probe_ms=200,
        reply_ms=100,
    )
    assert least.election_ms == least.probe_ms + least.reply_ms
