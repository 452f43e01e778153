"""Deadlines of holds with real processes: a holder is stopped, and leaders are killed."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest
from support.expect import PATIENCE_S, present
from support.programs import Child
from support.real_nodes import PaxosProcesses, ask, running_nodes
from support.samples import fence_of

import fencelock
from fencelock.actors.api.lock_message import Acquire, Inspect, Release, Renew
from fencelock.actors.error import LockOwnershipLostError, NotHeldError
from fencelock.guard import FileGuard

LOG_TIME_S = 0.01
"""A bound on how long before its arrival a request may be stamped (s)."""

TERM_S = 1.0
"""Duration, and grace, of the holds."""

HOLDER = """
import sys
from pathlib import Path
import fencelock
from fencelock.guard import FileGuard, StaleFenceError

client = fencelock.connect(sys.argv[1])
lock = client.lock("report", duration=float(sys.argv[2]), grace=float(sys.argv[2]))
hold = lock.acquire()
print(hold.fence, flush=True)
for _ in sys.stdin:
    # These are its first actions when it runs again.
    state = f"{lock.held} {lock.lost} {lock.remaining}"
    try:
        hold.raise_if_lost()
    except fencelock.LockOwnershipLostError as error:
        state = f"{state} {error}"
    try:
        FileGuard(Path(sys.argv[3])).write(b"late", hold.fence)
    except StaleFenceError:
        state = f"{state}; the write was refused"
    print(state, flush=True)
"""


def test_a_stopped_holder_loses_the_lock_and_knows_it_when_it_runs_again(tmp_path: Path) -> None:
    """The session is still alive, so only the deadline can end the hold."""
    report = tmp_path / "report"
    with running_nodes(tmp_path) as nodes:
        addresses = ",".join(node.address for node in nodes.values())
        with (
            fencelock.connect(addresses) as client,
            Child("-c", HOLDER, addresses, str(TERM_S), str(report)) as holder,
        ):
            fence = int(holder.line())
            holder.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            hold = client.lock("report").acquire(timeout=PATIENCE_S)
            took_s = time.monotonic() - began
            assert hold is not None
            assert hold.fence > fence
            assert took_s < 2 * TERM_S + 5  # The session lasts for 15 s.
            FileGuard(report).write(b"mine", hold.fence)
            holder.send_signal(signal.SIGCONT)
            holder.send("what about it?")
            line = holder.line()
            assert line.startswith("False True 0.0 ")
            assert "lost its hold under fence" in line
            assert "the write was refused" in line
            assert report.read_bytes() == b"mine"
            present(holder.stdin).close()


def test_a_caller_inside_the_process_has_deadlines_too(tmp_path: Path) -> None:
    with running_nodes(tmp_path) as nodes:
        node, other = nodes["n1"], nodes["n2"]
        granted = ask(node, Acquire(lock="a", hold_ms=1_000, grace_ms=500))
        assert (granted.hold_ms, granted.grace_ms) == (1_000, 500)
        renewed = ask(node, Renew(lock="a", fence=granted.fence, hold_ms=1_500))
        assert (renewed.fence, renewed.hold_ms) == (granted.fence, 1_500)
        assert 0 < ask(other, Inspect(lock="a")).left_ms <= 2_001
        assert ask(other, Acquire(lock="a", wait_ms=30_000)).fence > granted.fence
        for late in (Renew(lock="a", fence=granted.fence), Release(lock="a", fence=granted.fence)):
            with pytest.raises((LockOwnershipLostError, NotHeldError)):
                ask(node, late)


def test_a_killed_leader_does_not_shorten_a_deadline(members: PaxosProcesses) -> None:
    term_s = 2.0
    with (
        fencelock.connect(members.connect, connect_timeout=PATIENCE_S) as client,
        fencelock.connect(members.connect, connect_timeout=PATIENCE_S) as other,
    ):
        _held = client.lock("first").acquire(timeout=PATIENCE_S)
        lost_at: list[float] = []
        lost = threading.Event()
        mine = client.lock("order", duration=term_s, grace=term_s)
        mine.on_lost(lambda _: lost_at.append(time.monotonic()))
        mine.on_lost(lambda _: lost.set())
        before = time.monotonic()
        fence = fence_of(mine.acquire(timeout=PATIENCE_S))
        leader = next(status.leader for status in client.describe() if status.leader)
        members.kill(leader)
        later = fence_of(other.lock("order").acquire(timeout=PATIENCE_S))
        granted_at = time.monotonic()
        assert lost.wait(PATIENCE_S)
        members.start(leader)
        assert later > fence
        # Log time counts milliseconds, from the beginning of the leader's turn with the request.
        assert granted_at - before >= 2 * term_s - LOG_TIME_S
        assert before + 2 * term_s * 0.9 <= lost_at[0] <= granted_at


def test_a_holder_that_renews_keeps_its_lock_as_leaders_die(members: PaxosProcesses) -> None:
    with fencelock.connect(members.connect, connect_timeout=PATIENCE_S) as client:
        renewed = threading.Semaphore(0)
        mine = client.lock("kept", duration=TERM_S, grace=10)

        def renew(_: object) -> None:
            mine.renew()
            renewed.release()

        mine.on_unlocking(renew)
        with mine as hold:
            for node in sorted(members.processes)[:2]:
                members.kill(node)
                assert renewed.acquire(timeout=PATIENCE_S)
                members.start(node)
                assert renewed.acquire(timeout=PATIENCE_S)
            assert mine.fence == hold.fence
            hold.raise_if_lost()
