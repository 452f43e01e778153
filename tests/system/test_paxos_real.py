"""`paxos` with real processes, sockets and disks: members are killed and come back."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.expect import PATIENCE_S
from support.real_nodes import NODES, PaxosProcesses
from support.samples import fence_of
from support.storm import LONG_S, STORM_S, Storm, raging

import fencelock
from fencelock.verification.bench.members import leader_among


def test_whichever_member_is_killed_others_grant_and_fences_rise(members: PaxosProcesses) -> None:
    fences: list[int] = []
    with fencelock.connect(members.connect, connect_timeout=PATIENCE_S) as client:
        for round_number, node in enumerate((*NODES, NODES[0])):  # One of them twice.
            with client.lock(f"before-{round_number}", timeout=PATIENCE_S) as lock:
                assert lock.fence is not None
                fences.append(lock.fence)
            members.kill(node)
            after = client.lock(f"after-{round_number}")
            fences.append(fence_of(after.acquire(timeout=PATIENCE_S)))
            members.start(node)
    assert fences == sorted(set(fences))


@pytest.mark.long
def test_a_hold_outlives_every_member_it_was_granted_by(members: PaxosProcesses) -> None:
    with (
        fencelock.connect(members.connect, connect_timeout=PATIENCE_S) as client,
        fencelock.connect(members.connect, connect_timeout=PATIENCE_S) as other,
    ):
        lock = client.lock("a")
        fence = fence_of(lock.acquire(timeout=PATIENCE_S))
        for node in NODES:
            members.kill(node)
            assert other.lock("a").acquire(timeout=1.0) is None
            members.start(node)
            members.wait_until_ready(client)  # Or the next kill leaves no majority.
            assert lock.fence == fence
        lock.release()
        after = fence_of(other.lock("a").acquire(timeout=PATIENCE_S))
        assert after > fence


def test_no_fence_comes_again_when_every_member_was_killed(members: PaxosProcesses) -> None:
    with fencelock.connect(members.connect, connect_timeout=PATIENCE_S) as client:
        before = fence_of(client.lock("a").acquire(timeout=PATIENCE_S))
        for node in NODES:
            members.kill(node)
        for node in NODES:
            members.start(node)
        assert fence_of(client.lock("b").acquire(timeout=PATIENCE_S)) > before


# Storms


@pytest.fixture
def storm(tmp_path: Path) -> Iterator[Storm]:
    with raging(tmp_path) as storm:
        yield storm


def rage(storm: Storm, fault: Callable[[str], None], *, times: int) -> int:
    """Do it to one member after another until the storm's time and ``times`` have passed; judge;
    return how often."""
    done = 0
    members = storm.members
    with fencelock.connect(
        members.connect, cluster=members.cluster, connect_timeout=LONG_S
    ) as watcher:
        storm.start_clients()
        storm.wait_for(10)
        ends = time.monotonic() + STORM_S
        while time.monotonic() < ends or done < times:
            statuses = members.wait_until_ready(watcher)  # Fails if a node ended by itself.
            fault(storm.choose(leader_among(statuses)))
            storm.wait_for(storm.chance.randrange(1, 40))
            done += 1
        members.wait_until_ready(watcher)
        storm.judge(watcher)
    storm.tell(f"{done} times, done")
    return done


@pytest.mark.long
def test_members_killed_at_random_cost_no_lock_no_update_and_no_error(storm: Storm) -> None:
    def kill(node: str) -> None:
        # Sometimes it is back before the others notice, sometimes they continue without it.
        at_once = storm.chance.random() < 0.3
        storm.members.kill(node)
        storm.tell(f"{node} killed, {'back at once' if at_once else 'back after more grants'}")
        if not at_once:
            storm.wait_for(storm.chance.randrange(1, 100))
        storm.members.start(node)

    kills = rage(storm, kill, times=12)
    assert kills >= 12
    assert min(storm.granted.values()) >= 100


@pytest.mark.long
def test_members_paused_at_random_cost_no_lock_no_update_and_no_error(storm: Storm) -> None:
    def pause(node: str) -> None:
        seconds = storm.chance.uniform(1, 3)
        process = storm.members.processes[node]
        storm.tell(f"{node} pauses for {seconds:.1f} s")
        process.send_signal(signal.SIGSTOP)
        try:
            threading.Event().wait(seconds)  # This is the fault; nothing is waited for.
        finally:
            process.send_signal(signal.SIGCONT)

    pauses = rage(storm, pause, times=5)
    assert pauses >= 5
    assert min(storm.granted.values()) >= 50
