"""A process that writes, or holds several locks, is killed: all is free after its TTL."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.real_nodes import running_nodes

import fencelock

PATIENCE_S = 60
HOLDER = """
import sys
import fencelock
client = fencelock.connect(sys.argv[1], ttl=1)
hold = {}.acquire()
print(hold.fence, flush=True)
sys.stdin.read()
"""

Face = Callable[[fencelock.Client], fencelock.RLock | fencelock.LockAll]

FACES: dict[str, tuple[str, Face]] = {
    "write": ("client.rwlock('cfg').write()", lambda client: client.rwlock("cfg").read()),
    "read": ("client.rwlock('cfg').read()", lambda client: client.rwlock("cfg").write()),
    "several": ("client.lock_all('a', 'b')", lambda client: client.lock_all("b", "c")),
}


@pytest.mark.parametrize("kind", FACES)
def test_what_a_killed_process_held_is_granted_to_others(tmp_path: Path, kind: str) -> None:
    code, face = FACES[kind]
    with running_nodes(tmp_path) as nodes:
        addresses = ",".join(node.address for node in nodes.values())
        with (
            fencelock.connect(addresses) as client,
            subprocess.Popen(
                [sys.executable, "-c", HOLDER.format(code), addresses],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as process,
        ):
            assert process.stdout is not None
            fence = int(process.stdout.readline())
            wanted = face(client)
            assert wanted.acquire(blocking=False) is None
            process.kill()
            hold = wanted.acquire(timeout=PATIENCE_S)
            assert hold
            assert hold.fence > fence
            wanted.release()
