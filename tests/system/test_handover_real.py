"""A lock goes from a process that is killed to another one, over the death of the leader."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.expect import PATIENCE_S, present
from support.real_nodes import until

from fencelock.verification.bench.members import NodeProcesses

CONNECT = "import fencelock, sys; client = fencelock.connect(sys.argv[1], cluster='bench'); "
DETACH = f"{CONNECT} print(client.lock('job').acquire().detach(float(sys.argv[2])), flush=True); "
ATTACH = f"{CONNECT} hold = client.attach(sys.argv[2]); print(hold.fence, flush=True); "
WAIT, RELEASE = "sys.stdin.read()", "sys.stdin.readline(); hold.release()"


class Process:
    """A process that runs a program, and says one line about it."""

    def __init__(self, program: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=PATIENCE_S)

    def end(self) -> str:
        """Let it go on, and return what it wrote about its end."""
        return self._process.communicate("\n", timeout=PATIENCE_S)[1]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodeProcesses]:
    with NodeProcesses(tmp_path, "paxos", 3, durable=True) as nodes:
        yield nodes


def test_a_killed_process_has_handed_its_lock_over_and_no_third_one_gets_between(
    nodes: NodeProcesses,
) -> None:
    with (
        nodes.ready_client() as third,
        ThreadPoolExecutor() as pool,
    ):
        web = Process(DETACH + WAIT, nodes.connect, "600")
        token = web.said()
        waiting = pool.submit(third.lock("job").acquire, timeout=PATIENCE_S)
        until(lambda: third.status("job").waiters)
        web.kill()
        nodes.kill(third.describe()[0].leader)
        worker = Process(ATTACH + RELEASE, nodes.connect, token)
        fence = int(worker.said())
        late = Process(ATTACH + RELEASE, nodes.connect, token)
        assert "NotHeldError: lock 'job': this token does not attach it" in late.end()
        status = third.status("job")
        assert status.holder is not None
        assert (status.holder.fence, waiting.done()) == (fence, False)
        assert worker.end() == ""
        hold = present(waiting.result(PATIENCE_S))
        assert hold.fence == fence + 1
        hold.release()


def test_a_token_that_no_process_shows_in_time_frees_the_lock_for_the_next(
    nodes: NodeProcesses,
) -> None:
    with nodes.ready_client() as third:
        web = Process(DETACH + WAIT, nodes.connect, "1")
        token = web.said()
        web.kill()
        with third.lock("job", timeout=10):
            late = Process(ATTACH + RELEASE, nodes.connect, token)
            assert "it was used, or its time is over" in late.end()
