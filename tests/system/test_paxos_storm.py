"""`paxos` with real processes under faults that do not end: killed, restarted, paused."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.storm import LONG_S, STORM_S, Storm, raging

import fencelock
from fencelock.verification.bench.members import leader_among

pytestmark = pytest.mark.long


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
