"""Clients of a cluster that lost two leaders: they learn why they wait, and may ask again."""

from __future__ import annotations

from typing import Any

import pytest
from support.bakery_cluster_harness import ClusterHarness

from fencelock.actors.api.message import Cancel, Cancelled, Granted, Inspect, Reason, Refused
from fencelock.actors.bakery.backend import ANSWER_MS, CANCEL_MS, READ_MS
from fencelock.actors.message import address_of

LONG_MS = 30_000
WHY = "every lease must be over first, in"


@pytest.fixture
def stranded() -> tuple[ClusterHarness, str]:
    """A cluster that waits for a long lease, since two leaders were lost; and a node that runs."""
    harness = ClusterHarness(5).start().ready()
    harness.until(lambda: len(harness.serving()) == 3)
    proxy = harness.others()[0]
    harness.lock(proxy, "other", "cat", hold_ms=LONG_MS)
    for name in harness.serving()[:2]:
        harness.world.crash(name)
    harness.run(1_500)
    return harness, proxy


def refusal(harness: ClusterHarness, request: int) -> Refused:
    harness.until(lambda: bool(harness.answers(Refused, request)), 5_000)
    refused: Refused = harness.answers(Refused, request)[0]
    return refused


def test_a_wait_that_times_out_is_refused_with_the_reason(
    stranded: tuple[ClusterHarness, str],
) -> None:
    """The leader that is left serves on, and would say that another owner is ahead."""
    harness, proxy = stranded
    for owner, wait_ms in (("ann", 1_000), ("ben", 0)):
        refused = refusal(harness, harness.acquire(proxy, owner=owner, wait_ms=wait_ms))
        assert (refused.reason, WHY in refused.detail) == (Reason.UNAVAILABLE, True)


def test_a_read_is_refused_with_the_reason_before_its_client_gives_up(
    stranded: tuple[ClusterHarness, str],
) -> None:
    harness, proxy = stranded
    harness.say(proxy, Inspect(lock="x", session="u", request=700))
    took_ms = harness.until(lambda: bool(harness.answers(Refused, 700)), 5_000)
    refused = refusal(harness, 700)
    assert (refused.reason, WHY in refused.detail) == (Reason.UNAVAILABLE, True)
    assert took_ms <= READ_MS + 1_100


def cancel(harness: ClusterHarness, proxy: str, request: int) -> int:
    """Cancel a request of ann; return the time until that is confirmed (ms)."""
    before = len(harness.answers(Cancelled, request))
    harness.say(proxy, Cancel(lock="x", session="u", owner="ann", request=request))
    return harness.until(lambda: len(harness.answers(Cancelled, request)) > before, 5_000)


def test_a_cancel_that_no_leader_confirms_does_not_block_later_acquires(
    stranded: tuple[ClusterHarness, str],
) -> None:
    harness, proxy = stranded
    first = harness.acquire(proxy, wait_ms=10_000)
    harness.run(300)
    assert cancel(harness, proxy, first) <= CANCEL_MS + 100
    assert cancel(harness, proxy, first) < 100  # The confirmation may have been lost.
    second = harness.acquire(proxy, wait_ms=1_000)
    assert WHY in refusal(harness, second).detail
    role: Any = harness.world.role_at(address_of(proxy, "proxy"))
    cancel(harness, proxy, second)
    assert len(role.backend) == 1


def test_a_grant_to_a_cancelled_request_is_taken_back_and_the_next_one_gets_the_lock() -> None:
    """The leaders learn of the cancel only after the next acquire."""
    harness = ClusterHarness(3).start().ready()
    harness.until(lambda: len(harness.serving()) == 3)
    held = harness.lock("n1", hold_ms=LONG_MS)
    role: Any = harness.world.role_at(address_of("n1", "proxy"))
    for name in harness.names:
        harness.cut([name], 2_000)
    harness.run(1_000)
    assert cancel(harness, "n1", held.request) <= CANCEL_MS + 100
    second = harness.acquire("n1", wait_ms=20_000)
    assert harness.granted(second, 10_000).fence > held.fence
    assert [one.request for one in harness.answers(Granted)] == [held.request, second]
    assert harness.answers(Refused) == []
    assert len(role.backend) == 0


def test_a_cancel_is_sent_for_as_long_as_the_hold_may_live() -> None:
    """Otherwise leaders would refuse the next acquire of its owner until the lease is over."""
    harness = ClusterHarness(5).start().ready()
    harness.until(lambda: len(harness.serving()) == 3)
    proxy = harness.others()[0]
    held = harness.lock(proxy, hold_ms=LONG_MS)
    harness.cut([proxy], ANSWER_MS + 2_000)
    harness.run(1_000)
    cancel(harness, proxy, held.request)
    harness.run(ANSWER_MS + 3_000)
    second = harness.acquire(proxy, wait_ms=3_000)
    assert harness.granted(second, 4_000).fence > held.fence
