"""Backup and restore with processes: under load, and with nodes of the old cluster about."""

from __future__ import annotations

import contextlib
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.expect import PATIENCE_S, present
from support.programs import run_to_end
from support.real_nodes import until

import fencelock
from fencelock.cluster.node.storage.backup import read_backup
from fencelock.verification.bench.members import NodeProcesses, configuration, leader_among

KEPT = 300
TTL_S = 600.0


class RestoredProcesses(NodeProcesses):
    """The new cluster, which is not started before its folders are made."""

    cluster = "bench-2"


def fencelock_command(*arguments: str) -> str:
    ended = run_to_end([sys.executable, "-m", "fencelock", *arguments], stdin=subprocess.DEVNULL)
    assert ended.returncode == 0, ended.stderr + ended.stdout
    return ended.stdout + ended.stderr


def back_up(members: NodeProcesses, file: Path) -> str:
    """Write a backup into ``file``; return what the command printed."""
    where = ("--connect", members.connect, "--cluster", members.cluster)
    return fencelock_command("backup", str(file), *where)


def restored(file: Path, folder: Path) -> RestoredProcesses:
    """Return the nodes of the new cluster, with what ``file`` has, before they are started."""
    folder.mkdir()
    new = RestoredProcesses(folder, "paxos", 3, durable=True)
    fencelock_command("restore", str(file), "--config", str(new.configuration_of("n1")))
    return new


class Load:
    """A thread that takes and releases a lock until it is stopped; keeps the highest fence."""

    def __init__(self, client: fencelock.Client) -> None:
        self.client = client
        self.fence = 0
        self.pairs = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        lock = self.client.lock("often")
        while not self._over.is_set():
            with lock as hold:
                self.fence = hold.fence
            self.pairs += 1

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture
def old(tmp_path: Path) -> Iterator[NodeProcesses]:
    folder = tmp_path / "old"
    folder.mkdir()
    with NodeProcesses(folder, "paxos", 3, durable=True) as members:
        members.ready_client().close()
        yield members


def stop(members: NodeProcesses, *nodes: str) -> None:
    for node in nodes:
        members.processes[node].terminate()
        members.processes[node].wait(PATIENCE_S)


def holders(client: fencelock.Client) -> dict[str, tuple[str, str, int | None]]:
    return {
        line.lock: (line.holder.session, line.holder.owner, line.holder.fence)
        for line in client.locks("kept")
    }


@pytest.mark.long
def test_a_backup_under_load_is_restored_with_every_lock_and_fences_above_all(
    old: NodeProcesses, tmp_path: Path
) -> None:
    file = tmp_path / "monday.backup"
    with (
        old.connected(TTL_S) as client,
        old.connected(TTL_S) as other,
    ):
        for number in range(KEPT):
            client.lock(f"kept-{number}", owner="worker").acquire()
        _held = client.semaphore("permits", 5).acquire(3)
        queued = threading.Thread(target=_wait_for, args=(other, "kept-7"))
        queued.start()
        until(lambda: client.status("kept-7").waiters)
        waiters = client.status("kept-7").waiters
        with Load(client) as load:
            before = load.pairs
            output = back_up(old, file)
            assert load.pairs > before
            between = load.fence
            until(lambda: load.fence >= between + 50)
        held = holders(client)
        assert len(held) == KEPT
        stop(old, *old.names)
    queued.join()
    assert "from a follower" in output
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    header, _ = read_backup(file)
    assert header.fence < load.fence

    new = restored(file, tmp_path / "new")
    with new, new.ready_client() as client:
        assert holders(client) == held
        assert client.status("kept-7").waiters[0].session == waiters[0].session
        assert client.semaphore("permits", 5).status().holders[0].times == 3
        assert present(client.lock("fresh").acquire()).fence > load.fence + (1 << 39)


def _wait_for(client: fencelock.Client, name: str) -> None:
    with contextlib.suppress(fencelock.FencelockError):  # The cluster stops meanwhile.
        _held = client.lock(name).acquire()


@pytest.mark.long
def test_nodes_of_an_old_cluster_cannot_join_the_new(old: NodeProcesses, tmp_path: Path) -> None:
    file = tmp_path / "monday.backup"
    with fencelock.connect(old.connect, cluster=old.cluster) as client:
        _held = client.lock("kept", owner="worker").acquire()
        back_up(old, file)
    stop(old, *old.names)
    new = restored(file, tmp_path / "new")
    # The old third node has the address of the new one, and knows the addresses of the others.
    text = configuration(old.cluster, "paxos", new.addresses, durable=True)
    old.configuration_of("n3").write_text(text, encoding="utf-8")
    try:
        for node in ("n1", "n2"):
            new.start(node)
        old.start("n3")
        two = ",".join(new.addresses[node] for node in ("n1", "n2"))
        with fencelock.connect(two, cluster=new.cluster, connect_timeout=PATIENCE_S) as client:
            hold = present(client.lock("fresh").acquire(timeout=PATIENCE_S))
            refused, statuses = 0, client.describe()
            while not refused:
                statuses = client.describe()
                refused = sum(
                    counted.times
                    for status in statuses
                    for counted in status.counters
                    if counted.name == "wire.wrong_cluster"
                )
            assert leader_among(statuses) in ("n1", "n2")
            hold.release()
            stop(new, "n2")
            with pytest.raises((fencelock.UnavailableError, fencelock.LockTimeoutError)):
                client.lock("alone").acquire(timeout=3)
    finally:
        new.__exit__()


def wait_until_learned(members: NodeProcesses, node: str, fence: int) -> None:
    """Wait until ``node`` knows the grant, which a majority may have decided without it."""
    with fencelock.connect(members.addresses[node], cluster=members.cluster) as client:

        def is_known() -> bool:
            holder = client.status("kept", read="local", max_age=PATIENCE_S).holder
            return holder is not None and holder.fence == fence

        until(is_known)


def test_a_backup_comes_from_the_last_member_left(old: NodeProcesses, tmp_path: Path) -> None:
    file = tmp_path / "rescue.backup"
    with old.connected(TTL_S) as client:
        held = present(client.lock("kept", owner="worker").acquire())
        leader = leader_among(client.describe())
        left = next(node for node in old.names if node != leader)
        wait_until_learned(old, left, held.fence)
        for node in set(old.names) - {left}:
            old.kill(node)

        output = back_up(old, file)

    assert "No majority answers" in output
    header, _ = read_backup(file)
    assert (header.node, header.fence) == (left, held.fence)
