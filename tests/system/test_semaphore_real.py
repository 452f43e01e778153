"""A process that holds permits of a semaphore is killed: the permits are free after its TTL."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.real_nodes import running_nodes

import fencelock

PATIENCE_S = 60
HOLDER = """
import sys
import fencelock
client = fencelock.connect(sys.argv[1], ttl=1)
semaphore = client.semaphore("printers", permits=3)
print(semaphore.acquire(2).fence, flush=True)
semaphore.release()
print(semaphore.acquire(2).fence, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("at_once", [True, False])
def test_permits_of_a_killed_process_are_granted_to_others(tmp_path: Path, at_once: bool) -> None:
    with running_nodes(tmp_path) as nodes:
        addresses = ",".join(node.address for node in nodes.values())
        with (
            fencelock.connect(addresses) as client,
            subprocess.Popen(
                [sys.executable, "-c", HOLDER, addresses],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as process,
        ):
            assert process.stdout is not None
            fences = [int(process.stdout.readline()) for _ in range(2)]
            semaphore = client.semaphore("printers", permits=3)
            assert [one.times for one in semaphore.status().holders] == [1, 2]
            assert semaphore.acquire(blocking=False) is None
            process.kill()
            holds = [
                semaphore.acquire(n, timeout=PATIENCE_S) for n in ((3,) if at_once else (1, 2))
            ]
            assert all(holds)
            assert [one.times for one in semaphore.status().holders] == ([3] if at_once else [1, 2])
            assert min(hold.fence for hold in holds if hold) > max(fences)
