"""Locks that killed processes handed over, and locks that killed and stopped ones retain."""

from __future__ import annotations

import itertools
import os
import secrets
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from support.collected import Collected
from support.expect import PATIENCE_S, present
from support.paths import SUPPORT
from support.programs import Child
from support.real_nodes import PaxosProcesses, until

CONNECT = "import fencelock, sys; client = fencelock.connect(sys.argv[1]); "
DETACH = f"{CONNECT} print(client.lock('job').acquire().detach(float(sys.argv[2])), flush=True); "
ATTACH = f"{CONNECT} hold = client.attach(sys.argv[2]); print(hold.fence, flush=True); "
WAIT, RELEASE = "sys.stdin.read()", "sys.stdin.readline(); hold.release()"


def process(program: str, *arguments: str) -> Child:
    return Child("-c", program, *arguments, stderr=subprocess.PIPE)


def killed(one: Child) -> None:
    one.kill()
    one.communicate(timeout=PATIENCE_S)


def end(one: Child) -> str:
    """Let a process go on, and return what it wrote about its end."""
    return one.communicate("\n", timeout=PATIENCE_S)[1]


def test_a_killed_process_has_handed_its_lock_over_to_no_third(members: PaxosProcesses) -> None:
    with members.ready_client() as third, ThreadPoolExecutor() as pool:
        web = process(DETACH + WAIT, members.connect, "600")
        token = web.line()
        waiting = pool.submit(third.lock("job").acquire, timeout=PATIENCE_S)
        until(lambda: third.status("job").waiters)
        killed(web)
        leader = third.describe()[0].leader
        members.kill(leader)
        worker = process(ATTACH + RELEASE, members.connect, token)
        fence = int(worker.line())
        late = process(ATTACH + RELEASE, members.connect, token)
        assert "NotHeldError: lock 'job': this token does not attach it" in end(late)
        status = third.status("job")
        assert status.holder is not None
        assert (status.holder.fence, waiting.done()) == (fence, False)
        assert end(worker) == ""
        hold = present(waiting.result(PATIENCE_S))
        assert hold.fence == fence + 1
        hold.release()
        members.start(leader)


def test_a_token_shown_by_none_in_time_frees_the_lock_for_the_next(members: PaxosProcesses) -> None:
    with members.ready_client() as third:
        web = process(DETACH + WAIT, members.connect, "1")
        token = web.line()
        killed(web)
        with third.lock("job", timeout=10):
            late = process(ATTACH + RELEASE, members.connect, token)
            assert "it was used, or its time is over" in end(late)


# Retained locks


TTL_S = 1.5
CLIENTS = 3
FAULTS = int(os.environ.get("FENCELOCK_RETAINED_FAULTS", "4"))
HOLDS = 10
"""Holds of each client between two faults."""


class Hold(NamedTuple):
    """A hold that a client reported, from its first to its last certain moment."""

    began: float
    ended: float
    fence: int
    retained: bool
    updated: bool


class RetainingClient:
    """A process of `retained_client.py`, and the holds that it reported."""

    def __init__(self, members: PaxosProcesses, folder: Path) -> None:
        program = str(SUPPORT / "retained_client.py")
        self.process = Child(program, members.connect, str(folder), str(TTL_S))
        self.holds = Collected[Hold]()
        self.begun: dict[int, tuple[float, bool]] = {}
        """When a hold began, and whether it was a local owner's, by fence."""
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def close(self) -> None:
        with self.process:
            self.process.kill()
            self.reader.join()

    def end(self) -> None:
        self.process.send("")
        assert self.process.wait(PATIENCE_S) == 0
        self.reader.join()

    def _read(self) -> None:
        for line in self.process.lines:
            if not line.endswith("\n"):
                return  # It was killed amid a line.
            sign, fence, at, flag = line.split()
            if sign == "+":
                assert int(fence) not in self.begun, f"fence {fence} twice"
                self.begun[int(fence)] = float(at), flag == "1"
            else:
                began, retained = self.begun[int(fence)]
                self.holds.add(Hold(began, float(at), int(fence), retained, flag == "1"))


@pytest.mark.long
def test_killed_and_stopped_clients_that_retain_cost_no_exclusion_and_no_update(
    members: PaxosProcesses, tmp_path: Path
) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    chance, kills = Random(seed), 0
    with ExitStack() as stack:

        def start() -> RetainingClient:
            client = RetainingClient(members, tmp_path)
            stack.callback(client.close)
            return client

        living = [start() for _ in range(CLIENTS)]
        every = [*living]
        for number in range(FAULTS):
            for client in living:
                client.holds.wait_for_more(HOLDS)
            victim = living[number % CLIENTS]
            if number % 2:
                victim.process.kill()
                kills += 1
                living[number % CLIENTS] = start()
                every.append(living[number % CLIENTS])
            else:
                stopped(victim, chance.uniform(0.2, 2 * TTL_S))
        for client in living:
            client.holds.wait_for_more(HOLDS)
            client.end()
        for client in every:
            client.close()
    judge([hold for client in every for hold in client.holds.values])
    fences = [fence for client in every for fence in client.begun]
    assert len(fences) == len(set(fences))
    updates = sum(hold.updated for client in every for hold in client.holds.values)
    # It is unknown whether a hold that was lost or killed had updated the file.
    unknown = len(fences) - sum(len(client.holds.values) for client in every)
    assert updates <= int((tmp_path / "ledger").read_text()) <= updates + unknown
    assert sum(hold.retained for client in every for hold in client.holds.values) > 20


def stopped(client: RetainingClient, seconds: float) -> None:
    client.process.send_signal(signal.SIGSTOP)
    try:
        threading.Event().wait(seconds)  # This is the fault; nothing is waited for.
    finally:
        client.process.send_signal(signal.SIGCONT)


def judge(holds: list[Hold]) -> None:
    """Check that no two holds overlap, and that fences rise."""
    holds.sort()
    for one, next_one in itertools.pairwise(holds):
        assert one.ended <= next_one.began, f"{one} overlaps {next_one}"
        assert one.fence < next_one.fence
        assert next_one.updated


def test_the_judge_sees_an_overlap_and_a_fence_that_falls() -> None:
    first, second = Hold(0, 2, 5, True, True), Hold(3, 4, 6, True, True)
    judge([first, second])
    for wrong in (second._replace(began=1), second._replace(fence=4)):
        with pytest.raises(AssertionError):
            judge([first, wrong])


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_client_that_was_stopped_beyond_its_time_grants_nothing_when_it_wakes(
    members: PaxosProcesses, tmp_path: Path
) -> None:
    """Another has the lock by then, and the fences of the one that wakes are above."""
    with ExitStack() as stack:
        first = RetainingClient(members, folder(tmp_path / "first"))
        stack.callback(first.close)
        first.holds.wait_for_more(HOLDS)
        first.process.send_signal(signal.SIGSTOP)
        # Files of its own, since the stopped one may have the file lock of its own.
        second = RetainingClient(members, folder(tmp_path / "second"))
        stack.callback(second.close)
        second.holds.wait_for_more(HOLDS)  # After the time to live of the first.
        woken = time.monotonic()
        first.process.send_signal(signal.SIGCONT)
        first.holds.wait_for_more(HOLDS)
        for client in (first, second):
            client.end()
    judge([*first.holds.values, *second.holds.values])
    taken = min(hold.fence for hold in second.holds.values)
    assert all(hold.fence > taken for hold in first.holds.values if hold.began > woken)
