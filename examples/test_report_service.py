"""Tests of a service that loses its lock, with the fixtures and faults of fencelock.testing.

    pytest examples/test_report_service.py

The fixtures come with fencelock: nothing is imported or configured for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from report_service import write_report

import fencelock
from fencelock.testing import LocalCluster, delay, expire, lose, partition


def with_fault_after(rows: int, fault: Callable[[], object]) -> Iterator[str]:
    """Yield rows, with ``fault`` after some of them."""
    for number in range(1, 10):
        yield f"row {number}"
        if number == rows:
            fault()


def test_the_report_is_written(fencelock_client: fencelock.Client, tmp_path: Path) -> None:
    file = tmp_path / "report"
    assert write_report(fencelock_client, file, ["a", "b"]) == 2
    assert len(file.read_text().splitlines()) == 2


def test_nothing_more_is_written_once_the_session_has_ended(
    fencelock_client: fencelock.Client, tmp_path: Path
) -> None:
    file = tmp_path / "report"
    rows = with_fault_after(3, lambda: expire(fencelock_client))
    with pytest.raises(fencelock.LockOwnershipLostError):
        write_report(fencelock_client, file, rows)
    assert len(file.read_text().splitlines()) == 3


def test_a_second_writer_waits_and_gives_up(
    fencelock_client: fencelock.Client, fencelock_cluster: LocalCluster, tmp_path: Path
) -> None:
    other = fencelock_cluster.connect()
    with other.lock("report/daily"):
        lock = fencelock_client.lock("report/daily")
        assert lock.acquire(timeout=0.05) is None


def test_the_next_holder_has_a_higher_fence(
    fencelock_client: fencelock.Client, fencelock_cluster: LocalCluster
) -> None:
    hold = fencelock_client.lock("report/daily").acquire()
    lose(hold)
    with fencelock_cluster.connect().lock("report/daily") as next_hold:
        assert next_hold.fence > hold.fence


def test_a_client_that_is_cut_off_knows_within_its_ttl(fencelock_cluster: LocalCluster) -> None:
    client = fencelock_cluster.connect(ttl=1)
    suspect, lost = threading.Event(), threading.Event()
    hold = client.lock("report/daily").acquire()
    hold.on_suspect(lambda notice: suspect.set())
    hold.on_lost(lambda notice: lost.set())
    with partition(client):
        assert suspect.wait(5)
        assert lost.wait(5)
    with client.lock("report/daily", timeout=5) as again:  # The network is back.
        assert again.fence > hold.fence


def test_a_slow_network_is_only_slow(fencelock_client: fencelock.Client, tmp_path: Path) -> None:
    with delay(fencelock_client, 0.05):
        assert write_report(fencelock_client, tmp_path / "report", ["a"]) == 1
