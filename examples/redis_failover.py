"""One lock, two holders: a failover of Redis, and the same failover of a fencelock cluster.

    python examples/redis_failover.py

Both times a client of redis-py holds a lock with `SET job alice NX PX 60000`, the server that leads
is killed with SIGKILL, and a second client tries to acquire the lock at the server that takes over.
Redis replicates after it has replied, so its replica may not know the lock: here the link between
them breaks for a moment. A fencelock node replies after a majority has the lock on disk, so the
second client waits until the lock is released or its time is over.

It starts two `redis-server` and three `fencelock serve` on free ports of this machine. The exit
status is 0 if Redis had two holders and fencelock had one.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import redis

import fencelock
from fencelock.cluster.testing.ports import free_ports
from fencelock.verification.bench.members import NodeProcesses, leader_among

START_S = 30.0
HELD_MS = 60_000


def main() -> int:
    """Show both failovers; return the exit status."""
    with ExitStack() as last:
        folder = Path(last.enter_context(tempfile.TemporaryDirectory()))
        of_redis = holders_on_redis(folder, last)
        print(f"Redis after its failover:     holders of 'job': {', '.join(of_redis)}")
        of_fencelock = holders_on_fencelock(folder, last)
        print(f"fencelock after its failover: holders of 'job': {', '.join(of_fencelock)}")
    return 0 if (len(of_redis), len(of_fencelock)) == (2, 1) else 1


def holders_on_redis(folder: Path, last: ExitStack) -> list[str]:
    """Let the leader of two Redis servers die, and return who then holds the lock."""
    leader_port, replica_port = free_ports(2)
    leader = start_redis(folder / "leader", leader_port, last)
    first = client_of(leader_port, last)
    until(first.ping)
    replica = start_redis(
        folder / "replica", replica_port, last, "--replicaof", f"127.0.0.1 {leader_port}"
    )
    second = client_of(replica_port, last)
    until(lambda: link_is_up(second))

    replica.send_signal(signal.SIGSTOP)
    first.client_kill_filter(_type="replica")  # The link between the two breaks for a moment.
    holders = ["alice"] if acquire(first, "alice") else []
    leader.kill()
    replica.send_signal(signal.SIGCONT)
    until(lambda: second.replicaof("NO", "ONE"))  # The failover, as Sentinel orders it.
    return [*holders, "bob"] if acquire(second, "bob") else holders


def holders_on_fencelock(folder: Path, last: ExitStack) -> list[str]:
    """Let the leader of three nodes die, and return who then holds the lock."""
    nodes = last.enter_context(NodeProcesses(folder, "paxos", 3, durable=True, redis=True))
    watcher = last.enter_context(
        fencelock.connect(nodes.connect, cluster=nodes.cluster, connect_timeout=START_S)
    )
    leader = leader_among(nodes.wait_until_ready(watcher))
    other = next(name for name in nodes.names if name != leader)

    holders = ["alice"] if acquire(client_of(nodes.doors[leader], last), "alice") else []
    nodes.kill(leader)
    second = client_of(nodes.doors[other], last)
    if acquire(second, "bob"):
        holders.append("bob")
    assert second.get("job") == holders[0].encode()
    return holders


def acquire(client: Any, who: str) -> bool:
    """Try to acquire the lock for a minute, as any client of Redis does."""
    return bool(client.set("job", who, nx=True, px=HELD_MS))


def start_redis(folder: Path, port: int, last: ExitStack, *options: str) -> subprocess.Popen[bytes]:
    """Start a Redis server that ends with ``last``."""
    folder.mkdir()
    command = ["redis-server", "--port", str(port), "--save", "", *options]
    server = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    last.callback(server.wait)
    last.callback(server.kill)
    return server


def client_of(port: int, last: ExitStack) -> Any:
    """Return a client of redis-py."""
    client = redis.Redis(port=port, socket_timeout=START_S)
    last.callback(client.close)
    return client


def link_is_up(replica: Any) -> None:
    """Return if the replica has all that its leader has.

    Raises:
        redis.ConnectionError: not yet.

    """
    if replica.info("replication")["master_link_status"] != "up":
        raise redis.ConnectionError


def until(act: Callable[[], Any]) -> None:
    """Try ``act`` until the server that it asks has started."""
    ends = time.monotonic() + START_S
    while True:
        try:
            act()
        except (redis.ConnectionError, redis.TimeoutError):
            if time.monotonic() > ends:
                raise
            time.sleep(0.02)
        else:
            return


if __name__ == "__main__":
    sys.exit(main())
