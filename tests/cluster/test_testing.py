"""`fencelock.testing`: a cluster in memory, faults that are real, and fixtures for pytest."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.expect import PATIENCE_S, present
from support.paths import EXAMPLES
from support.programs import run_to_end

import fencelock
from fencelock.cluster.testing.ports import PORTS, free_ports, ports_below
from fencelock.testing import LocalCluster, delay, expire, local, lose, partition


def test_a_local_cluster_grants_its_first_lock_without_any_configuration() -> None:
    began = time.perf_counter()
    with local() as cluster, cluster.connect().lock("orders/42") as hold:
        took_ms = 1_000 * (time.perf_counter() - began)
        print(f"the first lock took {took_ms:.0f} ms")  # 8 to 39 ms while little else runs.
        assert hold.fence > 0


def test_two_clusters_in_one_process_know_nothing_of_each_other(cluster: LocalCluster) -> None:
    with local() as other, cluster.connect().lock("a"), other.connect().lock("a", timeout=5):
        pass


def test_a_key_in_the_environment_is_for_other_clusters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("FENCELOCK_KEY", str(tmp_path / "no.key"))
    with local() as cluster, cluster.connect().lock("a"):
        pass
    request.getfixturevalue("fencelock_cluster")
    with fencelock.lock("a"):
        pass


def test_a_stopped_cluster_leaves_no_thread(cluster: LocalCluster) -> None:
    before = set(threading.enumerate())
    with local() as other, other.connect().lock("a"):
        assert set(threading.enumerate()) > before
    assert set(threading.enumerate()) <= before


def test_a_lost_hold_was_evicted(cluster: LocalCluster) -> None:
    client, other = cluster.connect(), cluster.connect()
    notices: list[fencelock.Notice] = []
    lost = threading.Event()
    hold = present(client.lock("a").acquire())
    hold.on_lost(notices.append)
    hold.on_lost(lambda _: lost.set())
    lose(hold)
    assert hold.lost
    assert lost.wait(PATIENCE_S)
    assert notices[0].fence == hold.fence
    with pytest.raises(fencelock.LockOwnershipLostError, match=r"fencelock\.testing"):
        hold.raise_if_lost()
    with other.lock("a", timeout=0) as later:
        assert later.fence > hold.fence
    with pytest.raises(fencelock.NotHeldError):
        lose(hold)


def test_an_expired_session_loses_all_its_holds_and_opens_again(cluster: LocalCluster) -> None:
    client, other = cluster.connect(), cluster.connect()
    with pytest.raises(ValueError, match="no session"):
        expire(client)
    holds = [client.lock(name).acquire() for name in ("a", "b")]
    expire(client)
    assert [hold.lost for hold in holds if hold] == [True, True]
    with other.lock("a", timeout=0), client.lock("b", timeout=PATIENCE_S):
        pass


def test_what_is_no_hold_or_no_client_is_refused_in_words(cluster: LocalCluster) -> None:
    lock: Any = cluster.connect().lock("a")
    with pytest.raises(TypeError, match=r"^hold is <.*, and must be a hold"):
        lose(lock)
    module: Any = fencelock
    with pytest.raises(TypeError, match=r"^client is <module .*, and must be a client"):
        expire(module)
    with pytest.raises(TypeError, match="must be a client"), partition(lock):
        pass


def test_a_partitioned_client_is_suspect_then_lost_and_comes_back(cluster: LocalCluster) -> None:
    client, other = cluster.connect(ttl=1), cluster.connect()
    hold = present(client.lock("a").acquire())
    suspect, lost = threading.Event(), threading.Event()
    hold.on_suspect(lambda _: suspect.set())
    hold.on_lost(lambda _: lost.set())
    with partition(client):
        assert suspect.wait(PATIENCE_S)
        assert not hold.lost
        assert lost.wait(PATIENCE_S)
        with other.lock("a", timeout=PATIENCE_S):
            pass
    with client.lock("a", timeout=PATIENCE_S) as again:
        assert again.fence > hold.fence


def test_a_delay_delays_and_ends(cluster: LocalCluster) -> None:
    client = cluster.connect()
    lock = client.lock("a")
    began = time.monotonic()
    with delay(client, 0.1):
        assert lock.acquire()
    assert time.monotonic() - began >= 0.1
    lock.release()
    assert lock.acquire(timeout=PATIENCE_S)


async def test_an_asyncio_hold_can_be_lost(cluster: LocalCluster) -> None:
    lost = asyncio.Event()
    async with cluster.connect_aio() as client:
        hold = present(await client.lock("a").acquire())
        hold.on_lost(lambda _: lost.set())
        lose(hold)
        assert hold.lost
        async with asyncio.timeout(PATIENCE_S):
            await lost.wait()


SERVICE_TESTS = """
import asyncio, pytest
import fencelock
from fencelock.testing import lose

def test_connect_finds_the_cluster(fencelock_cluster):
    with fencelock.connect() as client, client.lock("a") as hold:
        assert hold.held

def test_each_test_has_its_own(fencelock_client):
    assert not fencelock_client.lock("left behind").locked()
    fencelock_client.lock("left behind").acquire()

def test_another_has_its_own(fencelock_client):
    assert not fencelock_client.lock("left behind").locked()

async def is_told(client):
    told = asyncio.Event()
    async with client.lock("kept", timeout=5) as hold:
        assert hold.held
    hold = await client.lock("a").acquire()
    hold.on_lost(lambda notice: told.set())
    lose(hold)
    async with asyncio.timeout(5):
        await told.wait()

@pytest.mark.asyncio
async def test_with_pytest_asyncio(fencelock_aio_client):
    await is_told(fencelock_aio_client)

@pytest.mark.anyio
async def test_with_anyio(fencelock_aio_client, anyio_backend):
    await is_told(fencelock_aio_client)

@pytest.fixture
def anyio_backend():
    return "asyncio"

def test_with_a_loop_of_its_own(fencelock_aio_client):
    asyncio.run(is_told(fencelock_aio_client))
"""


def pytest_of(folder: Path, *arguments: str) -> str:
    """Return the output of pytest in a folder that has no configuration of ours."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    ended = run_to_end(command, cwd=folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_a_service_has_the_fixtures_without_any_configuration(tmp_path: Path) -> None:
    (tmp_path / "test_service.py").write_text(SERVICE_TESTS)
    for mode in ("strict", "auto"):
        assert "6 passed" in pytest_of(tmp_path, "-o", f"asyncio_mode={mode}")


def test_the_example_of_a_tested_service_passes(tmp_path: Path) -> None:
    for name in ("report_service.py", "test_report_service.py"):
        (tmp_path / name).write_text((EXAMPLES / name).read_text())
    assert "6 passed" in pytest_of(tmp_path)


DRAWS = """
from fencelock.cluster.testing.ports import free_ports
for _ in range(100):
    print(*free_ports(3))
"""


def test_processes_that_choose_ports_at_once_are_given_different_ones() -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", DRAWS], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    chosen = [port for one in processes for port in one.communicate(timeout=PATIENCE_S)[0].split()]
    assert len(chosen) == len(set(chosen)) == 3 * 100 * 3


@pytest.mark.parametrize(
    ("local_ports", "stop"),
    [
        ("32768\t60999\n", 32_768),
        ("16000\t65535\n", 16_000),
        ("1024\t65535\n", 32_768),
        ("", 32_768),
    ],
)
def test_no_port_is_one_that_an_outgoing_connection_may_take_if_enough_are_left(
    local_ports: str, stop: int
) -> None:
    assert ports_below(local_ports) == range(10_240, stop)


def test_after_the_last_port_comes_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    free_ports(1)
    (turn,) = tmp_path.iterdir()
    turn.write_text(str(PORTS.stop - 2))
    first, *rest = free_ports(5)
    assert rest == [first + 1, first + 2, first + 3, first + 4]
    assert PORTS.start <= first < PORTS.start + 1_000  # Other programs may have the very first.
    assert turn.read_text() == str(first + 6)


def test_the_port_after_a_row_is_left_to_a_node_that_joins() -> None:
    chosen = [free_ports(3) for _ in range(20)]
    given = {port for row in chosen for port in row}
    assert not given & {row[-1] + 1 for row in chosen}
