"""Errors and missing majorities of `bakery`, as clients see them."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.bakery_cluster_harness import NO_COPIES, ClusterHarness
from support.expect import PATIENCE_S
from support.real_nodes import loopback_addresses

import fencelock
from fencelock.actors.api.lock_message import Cancel, Cancelled, Granted, Inspect, Reason, Refused
from fencelock.actors.api.name import WAIT_MS_MAX
from fencelock.actors.bakery.backend import BAKERY_READ_MS, CANCEL_MS, LEADER_ANSWER_MS
from fencelock.cluster.client.settings import wait_ms_of
from fencelock.cluster.node.config import parse, starting_config
from fencelock.cluster.node.node import Node
from fencelock.verification.bench.members import stop_all

CLUSTER = "bakery-errors"
OBTENTION_S = 0.6
TICKETS = 4
"""Maximum number of tickets at these leaders: the real limit would fill memory."""

SERVE = f"""
import sys
from fencelock.actors.bakery import leader_requests
leader_requests.LEADER_TICKETS_MAX = {TICKETS}
from fencelock.cluster.cli.start import main
sys.argv = ["fencelock", "serve", *sys.argv[1:]]
main()
"""


def written(folder: Path, nodes: int) -> dict[str, str]:
    """Write the configuration of a cluster with short times; return the addresses."""
    at = loopback_addresses(nodes)
    text = starting_config(at, cluster=CLUSTER, protocol="bakery")
    text = text.replace("least = 3.0", "least = 0.3")
    text = text.replace("obtention = 5.0", f"obtention = {OBTENTION_S}")
    (folder / "cluster.toml").write_text(text, encoding="utf-8")
    return at


def serving(folder: Path, nodes: int) -> Iterator[fencelock.Client]:
    """Run n1 of a cluster of ``nodes`` as a process; yield a client of it."""
    at = written(folder, nodes)
    command = [sys.executable, "-c", SERVE, "--found", "--id", "n1"]
    with (folder / "n1.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "--config", str(folder / "cluster.toml")], stdout=log, stderr=log
        )
    try:
        with fencelock.connect(at["n1"], cluster=CLUSTER, connect_timeout=PATIENCE_S) as client:
            yield client
    finally:
        stop_all([process])


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fencelock.Client]:
    for client in serving(tmp_path_factory.mktemp("alone"), 1):
        with client.lock("first", timeout=PATIENCE_S):
            pass
        yield client


def test_timed_out_names_the_time_waited_and_where_it_is_configured(
    client: fencelock.Client,
) -> None:
    with client.lock("busy", owner="holder", timeout=PATIENCE_S) as held:
        waiter = client.lock("busy", owner="waiter")
        with pytest.raises(fencelock.LockTimeoutError) as caught, waiter:
            pass
        assert f"held by holder through n1 under fence {held.fence}" in str(caught.value)
        assert "without a timeout in the call, the limit is 600 ms" in str(caught.value)
        assert '"obtention" under [bakery]' in str(caught.value)
        with pytest.raises(fencelock.LockTimeoutError, match="the limit is 600 ms"):
            waiter.acquire()


def test_an_explicit_timeout_counts_however_short_it_is(client: fencelock.Client) -> None:
    with client.lock("short", owner="holder", timeout=PATIENCE_S):
        waiter = client.lock("short", owner="waiter", timeout=0.05)
        with pytest.raises(fencelock.LockTimeoutError) as caught, waiter:
            pass
        assert "obtention" not in str(caught.value)
        assert waiter.acquire(blocking=False) is None


def test_a_wait_may_be_longer_than_that_of_the_cluster(client: fencelock.Client) -> None:
    holder = client.lock("long", owner="holder", duration=3 * OBTENTION_S, grace=0.3)
    assert holder.acquire(timeout=PATIENCE_S) is not None
    waiter = client.lock("long", owner="waiter")
    assert waiter.acquire(timeout=math.inf) is not None
    assert holder.lost
    waiter.release()


def test_a_timeout_without_limit_is_a_week() -> None:
    assert wait_ms_of(math.inf) == WAIT_MS_MAX == 7 * 24 * 3_600_000
    with pytest.raises(ValueError, match="-1 for no limit"):
        wait_ms_of(-math.inf)


def test_invalid_names_the_field_and_what_is_allowed(client: fencelock.Client) -> None:
    """Each mistake raises a different error."""
    with pytest.raises(fencelock.InvalidRequestError, match=r"duration is 100 ms, 300 to 600000"):
        client.lock("invalid", duration=0.1).acquire()


def test_a_second_acquire_of_the_same_owner_waits_within_its_timeout(
    client: fencelock.Client,
) -> None:
    with client.lock("twice", owner="ann", timeout=PATIENCE_S):
        assert client.lock("twice", owner="ann").acquire(timeout=0.5) is None


def test_overflow_names_the_limit_and_passes_when_there_is_room(client: fencelock.Client) -> None:
    held = [client.lock(f"many-{number}") for number in range(TICKETS)]
    for lock in held:
        assert lock.acquire(timeout=PATIENCE_S) is not None
    more = client.lock("one-more")
    with pytest.raises(fencelock.OverloadedError, match=f"{TICKETS} tickets are in the table"):
        more.acquire()
    for lock in held:
        lock.release()
    with more:
        assert more.held


def test_failed_names_what_is_missing(tmp_path: Path) -> None:
    for client in serving(tmp_path, 3):
        with pytest.raises(fencelock.UnavailableError) as caught:
            client.lock("nobody").acquire()
        waiting = "waiting for n2, n3: a new cluster begins when all its members have met once"
        assert f"bakery grants nothing now: {waiting}" in str(caught.value)
        assert '"obtention" under [bakery]' in str(caught.value)


def test_a_client_that_repeats_a_failed_request_receives_failed_again(tmp_path: Path) -> None:
    """A client's session repeats the request under another number; its user does not notice."""
    written(tmp_path, 1)
    config = parse((tmp_path / "cluster.toml").read_text(encoding="utf-8"), tmp_path)
    mine: dict[str, Any] = {"lock": "x", "session": "n1", "owner": "ann", "request": 7}
    with Node.start(config, "n1", found=True) as node:
        request = fencelock.Acquire(**mine, wait_ms=60_000)
        proxy = node.ref("proxy")
        assert proxy.ask(request, timeout=PATIENCE_S).fence > 0
        proxy.ask(fencelock.Cancel(**mine), timeout=PATIENCE_S)
        with pytest.raises(fencelock.AcquireCancelledError, match="ended before"):
            proxy.ask(request, timeout=PATIENCE_S)


# Clients of a cluster that lost two leaders: they learn why they wait, and may ask again


LONG_MS = 30_000
WHY = "every lease must be over first, in"


Stranded = tuple[ClusterHarness, str]


@pytest.fixture
def stranded() -> Stranded:
    """A cluster that waits for a long lease, since two leaders were lost; and a node that runs."""
    harness = ClusterHarness(5, NO_COPIES).led()
    proxy = harness.others()[0]
    harness.lock(proxy, "other", "cat", hold_ms=LONG_MS)
    for name in harness.serving()[:2]:
        harness.world.crash(name)
    harness.run(1_500)
    return harness, proxy


def test_a_wait_that_times_out_is_refused_with_the_reason(stranded: Stranded) -> None:
    """The leader that is left serves on, and would say that another owner is ahead."""
    harness, proxy = stranded
    for owner, wait_ms in (("ann", 1_000), ("ben", 0)):
        refused = harness.refused(harness.acquire(proxy, owner=owner, wait_ms=wait_ms), 5_000)
        assert (refused.reason, WHY in refused.detail) == (Reason.UNAVAILABLE, True)


def test_a_read_is_refused_with_the_reason_before_its_client_gives_up(stranded: Stranded) -> None:
    harness, proxy = stranded
    asked = harness.request(proxy, Inspect, lock="x")
    took_ms = harness.until(lambda: bool(harness.answers(Refused, asked)), 5_000)
    refused = harness.refused(asked)
    assert (refused.reason, WHY in refused.detail) == (Reason.UNAVAILABLE, True)
    assert took_ms <= BAKERY_READ_MS + 1_100


def cancel(harness: ClusterHarness, proxy: str, request: int) -> int:
    """Cancel a request of ann; return the time until that is confirmed (ms)."""
    before = len(harness.answers(Cancelled, request))
    harness.send(proxy, Cancel(lock="x", session="u", owner="ann", request=request))
    return harness.until(lambda: len(harness.answers(Cancelled, request)) > before, 5_000)


def test_a_cancel_that_no_leader_confirms_does_not_block_later_acquires(stranded: Stranded) -> None:
    harness, proxy = stranded
    first = harness.acquire(proxy, wait_ms=10_000)
    harness.run(300)
    assert cancel(harness, proxy, first) <= CANCEL_MS + 100
    assert cancel(harness, proxy, first) < 100  # The confirmation may have been lost.
    second = harness.acquire(proxy, wait_ms=1_000)
    assert WHY in harness.refused(second, 5_000).detail
    cancel(harness, proxy, second)
    assert len(harness.backend(proxy)) == 1


def test_a_grant_to_a_cancelled_request_is_taken_back_and_the_next_one_gets_the_lock() -> None:
    """The leaders learn of the cancel only after the next acquire."""
    harness = ClusterHarness(3).led()
    held = harness.lock("n1", hold_ms=LONG_MS)
    for name in harness.names:
        harness.cut([name], 2_000)
    harness.run(1_000)
    assert cancel(harness, "n1", held.request) <= CANCEL_MS + 100
    second = harness.acquire("n1", wait_ms=20_000)
    assert harness.granted(second, 10_000).fence > held.fence
    assert [one.request for one in harness.answers(Granted)] == [held.request, second]
    assert harness.answers(Refused) == []
    assert len(harness.backend("n1")) == 0


def test_a_cancel_is_sent_for_as_long_as_the_hold_may_live() -> None:
    """Otherwise leaders would refuse the next acquire of its owner until the lease is over."""
    harness = ClusterHarness(5, NO_COPIES).led()
    proxy = harness.others()[0]
    held = harness.lock(proxy, hold_ms=LONG_MS)
    harness.cut([proxy], LEADER_ANSWER_MS + 2_000)
    harness.run(1_000)
    cancel(harness, proxy, held.request)
    harness.run(LEADER_ANSWER_MS + 3_000)
    second = harness.acquire(proxy, wait_ms=3_000)
    assert harness.granted(second, 4_000).fence > held.fence
