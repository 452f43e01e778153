"""Objects with real processes: clients and nodes that are killed, stopped or paused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.expect import PATIENCE_S, present
from support.programs import Child
from support.real_nodes import NODES, Cluster, PaxosProcesses, running_nodes, started, until

import fencelock
from fencelock import Client
from fencelock.actors.api.map import ENTRY_VALUE_BYTES_MAX

COUNT = 600
WRITERS = 3
"""Clients that work at once."""

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
def test_a_hold_of_a_killed_process_is_granted_to_others(tmp_path: Path, kind: str) -> None:
    code, face = FACES[kind]
    with running_nodes(tmp_path) as nodes:
        addresses = ",".join(node.address for node in nodes.values())
        holder = HOLDER.format(code)
        with (
            fencelock.connect(addresses) as client,
            Child("-c", holder, addresses) as process,
        ):
            fence = int(process.line())
            wanted = face(client)
            assert wanted.acquire(blocking=False) is None
            process.kill()
            hold = present(wanted.acquire(timeout=PATIENCE_S))
            assert hold.fence > fence
            wanted.release()


PERMIT_HOLDER = """
import sys
import fencelock
client = fencelock.connect(sys.argv[1], ttl=1)
semaphore = client.semaphore("printers", permits=3)
print(semaphore.acquire(2).fence, flush=True)
semaphore.release()
print(semaphore.acquire(2).fence, flush=True)
sys.stdin.read()
"""


def test_permits_of_a_killed_process_are_granted_to_others(tmp_path: Path) -> None:
    with running_nodes(tmp_path) as nodes:
        addresses = ",".join(node.address for node in nodes.values())
        with (
            fencelock.connect(addresses) as client,
            Child("-c", PERMIT_HOLDER, addresses) as process,
        ):
            fences = [int(process.line()) for _ in range(2)]
            semaphore = client.semaphore("printers", permits=3)
            assert [one.times for one in semaphore.status().holders] == [1, 2]
            assert semaphore.acquire(blocking=False) is None
            process.kill()
            holds = [semaphore.acquire(permits, timeout=PATIENCE_S) for permits in (1, 2)]
            assert [one.times for one in semaphore.status().holders] == [1, 2]
            assert min(present(hold).fence for hold in holds) > max(fences)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    yield from started(Cluster("paxos", 3, tmp_path))


def test_each_change_of_an_object_counts_once_while_nodes_stop(cluster: Cluster) -> None:
    """Three clients work while each node in turn is stopped and started."""
    lefts, values, inside, most = (list[int]() for _ in range(4))
    awaited = cluster.connect().latch("deploy", COUNT)

    def work(client: Client) -> None:
        counter = client.counter("deploys")
        pool = client.semaphore("machines", 2, session_aware=False)
        for _ in range(COUNT // WRITERS):
            lefts.append(client.latch("deploy", COUNT).count_down())
            values.append(counter.add())
            with pool:
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    with ThreadPoolExecutor(WRITERS + 1) as threads:
        passes = threads.submit(awaited.wait)
        workers = [threads.submit(work, cluster.connect()) for _ in range(WRITERS)]
        for node in ("n1", "n2", "n3"):
            cluster.stop(node)
            cluster.start(node)
        for worker in workers:
            worker.result(PATIENCE_S)
        assert passes.result(PATIENCE_S)
    assert sorted(lefts) == list(range(COUNT))  # Each count was reached by one request.
    assert sorted(values) == list(range(1, COUNT + 1))  # Each value was reached by one change.
    client = cluster.connect()
    assert client.counter("deploys").get() == COUNT
    assert len(most) == COUNT
    assert max(most) <= 2
    assert client.semaphore("machines", 2, session_aware=False).available() == 2


FILLER = bytes(range(256)) * (ENTRY_VALUE_BYTES_MAX // 256)
MANY = 160
"""Number of values of 64 KiB. Together they exceed the size at which a journal is trimmed."""

WORKER = """
import sys
import fencelock
client = fencelock.connect(sys.argv[1], ttl=1)
print(client.map("workers").put("one", b"here", ephemeral=True), flush=True)
sys.stdin.read()
"""


def connected(addresses: str) -> fencelock.Client:
    return fencelock.connect(addresses, connect_timeout=PATIENCE_S)


@pytest.mark.long
def test_each_change_is_made_once_while_nodes_are_killed(tmp_path: Path) -> None:
    """The versions of a writer rise, all changes have different ones, and the last value stays."""
    versions: dict[int, list[int]] = {writer: [] for writer in range(WRITERS)}
    killed = threading.Event()

    def write(client: fencelock.Client, writer: int) -> None:
        kv, number, mine = client.map("registers"), 0, versions[writer]
        mine.append(kv.put(f"{writer}", b"0"))
        while not killed.is_set() or number < MANY:
            number += 1
            mine.append(kv.replace(f"{writer}", b"%d" % number, version=mine[-1]))

    with PaxosProcesses(tmp_path) as members:
        clients = [connected(members.connect) for _ in range(WRITERS)]
        threads = [
            threading.Thread(target=write, args=(client, writer))
            for writer, client in enumerate(clients)
        ]
        for thread in threads:
            thread.start()
        for node in NODES:
            members.kill(node)
            members.start(node)
            members.wait_until_ready(clients[0])
        killed.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        together = [version for mine in versions.values() for version in mine]
        assert all(mine == sorted(mine) for mine in versions.values())
        assert len(set(together)) == len(together)
        for writer, mine in versions.items():
            entry = clients[0].map("registers").get(f"{writer}")
            assert entry == (b"%d" % (len(mine) - 1), mine[-1], None, "")
        for client in clients:
            client.close()


def test_a_node_that_was_down_gets_the_large_values_that_it_missed(tmp_path: Path) -> None:
    with PaxosProcesses(tmp_path) as members:
        with connected(members.connect) as client:
            members.wait_until_ready(client)
            members.kill(NODES[-1])
            kv = client.map("large")
            last = [kv.put(f"{number % 8}", FILLER) for number in range(MANY)][-8:]
            members.start(NODES[-1])
            members.wait_until_ready(client)
        alone = members.connect.split(",")[-1]
        with connected(alone) as client:
            for number, version in enumerate(last, MANY - 8):
                entry = client.map("large").get(f"{number % 8}", read="local", max_age=5)
                assert entry == (FILLER, version, None, "")


def test_the_ephemeral_entry_of_a_killed_process_ends(tmp_path: Path) -> None:
    with PaxosProcesses(tmp_path) as members, connected(members.connect) as client:
        workers = client.map("workers")
        with Child("-c", WORKER, members.connect) as process:
            version = int(process.line())
            assert present(workers.get("one")).version == version
            process.kill()
        until(lambda: workers.get("one") is None)
        assert workers.put_if_absent("one", b"next")
