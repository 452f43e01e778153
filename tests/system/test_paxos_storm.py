"""`paxos` with real processes under misfortune that does not end: killed, restarted, paused.

The clients (`storm_client.py`) are processes of their own that write under each lock into
a file that shows any overlap, lost update and late fence. While a majority lives no call of
theirs may end in an error: nobody is told of what the others go on without.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.holds import fence_of
from support.paths import SUPPORT

import fencelock
from fencelock.cluster.bench.members import NodeProcesses, master_of, stop_all

LONG_S = 90.0
KINDS = ("threads", "threads", "tasks")
"""One process of clients each."""

LOCKS = ("a", "b", "c", "d", "e")
LOG_LINES = 15
SERVED_AFTER_S = 20.0
"""How long the longest time without a grant may be, on a machine that has much else to do."""


class Storm:
    """Three nodes with journals, processes of clients, and what they said."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.chance = Random(seed)
        self.members = NodeProcesses(folder, "paxos", 3, durable=True)
        self.granted: Counter[int] = Counter()
        self.said: dict[int, dict[str, Any]] = {}
        self.clients: list[subprocess.Popen[str]] = []
        self.readers: list[threading.Thread] = []
        self.news = threading.Condition()
        self.began = time.monotonic()

    def tell(self, what: str) -> None:
        print(f"{time.monotonic() - self.began:7.2f} s  {self.granted.total():6} grants  {what}")

    def choose(self, master: str) -> str:
        """Return any member; every other time it is the one that leads."""
        node = self.chance.choice(self.members.names)
        return master if master and self.chance.random() < 0.5 else node

    def start_clients(self) -> None:
        program = str(SUPPORT / "storm_client.py")
        for number, kind in enumerate(KINDS):
            seed = str(self.chance.getrandbits(32))
            options = [self.members.connect, self.members.cluster, str(self.folder)]
            client = subprocess.Popen(
                [sys.executable, program, kind, *options, ",".join(LOCKS), seed],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self.clients.append(client)
            reader = threading.Thread(target=self.read, args=(number, client))
            self.readers.append(reader)
            reader.start()

    def read(self, number: int, client: subprocess.Popen[str]) -> None:
        assert client.stdout is not None
        for line in client.stdout:
            with self.news:
                if line.startswith("+"):
                    self.granted[number] += 1
                else:
                    self.said[number] = json.loads(line)
                self.news.notify_all()

    def wait_for(self, grants: int) -> None:
        """Wait until each process of clients had so many more grants."""
        before = Counter(self.granted)
        with self.news:
            served = self.news.wait_for(
                lambda: all(self.granted[n] - before[n] >= grants for n in range(len(KINDS))),
                timeout=SERVED_AFTER_S,
            )
        assert served, f"no {grants} grants to each within {SERVED_AFTER_S} s: {before}"

    def end_clients(self) -> None:
        for client in self.clients:
            assert client.stdin is not None
            client.stdin.write("\n")
            client.stdin.flush()
        for client in self.clients:
            assert client.wait(LONG_S) == 0
        for reader in self.readers:
            reader.join(LONG_S)

    def close(self) -> None:
        stop_all(self.clients)
        for reader in self.readers:
            reader.join(LONG_S)
        for client in self.clients:
            for pipe in (client.stdin, client.stdout):
                if pipe is not None:
                    pipe.close()

    def tell_logs(self) -> None:
        """Print the ends of the nodes' logs; shown if the test has failed."""
        for node in self.members.names:
            lines = (self.folder / f"{node}.log").read_text(encoding="utf-8").splitlines()
            print(f"--- {node}", *lines[-LOG_LINES:], sep="\n")

    def ledger_of(self, lock: str) -> tuple[int, int]:
        fence, updates = (self.folder / f"{lock}.ledger").read_text(encoding="ascii").split()
        return int(fence), int(updates)

    def judge(self, watcher: fencelock.Client) -> None:
        """Nothing overlapped, nothing was lost, nobody was told of an error, all can be taken."""
        for number, said in sorted(self.said.items()):
            assert said["wrong"] == {}, f"client {number}: {said['wrong']} {said['details']}"
        done = sum((Counter[str](said["updates"]) for said in self.said.values()), Counter[str]())
        kept = {lock: self.ledger_of(lock)[1] for lock in LOCKS}
        assert kept == dict(done)
        assert len(self.said) == len(KINDS)
        for lock in LOCKS:
            fence = fence_of(watcher.lock(lock).acquire(timeout=SERVED_AFTER_S))
            assert fence is not None
            assert fence > self.ledger_of(lock)[0]


@pytest.fixture
def storm(tmp_path: Path) -> Iterator[Storm]:
    seed = int(os.environ.get("FENCELOCK_STORM_SEED", secrets.randbits(32)))
    print(f"FENCELOCK_STORM_SEED={seed} chooses the same nodes and times again")
    with ExitStack() as stack:
        storm = Storm(tmp_path, seed)
        stack.callback(storm.close)
        stack.enter_context(storm.members)
        stack.callback(storm.tell_logs)
        yield storm


def rage(storm: Storm, misfortune: Callable[[str], None], *, seconds: float, times: int) -> int:
    """Do it to one member after another for so long and so often; judge; return how often."""
    done = 0
    members = storm.members
    with fencelock.connect(members.connect, cluster=members.cluster, timeout=LONG_S) as watcher:
        storm.start_clients()
        storm.wait_for(10)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends or done < times:
            statuses = members.wait_until_ready(watcher)  # Fails if a node ended by itself.
            misfortune(storm.choose(master_of(statuses)))
            storm.wait_for(storm.chance.randrange(1, 40))
            done += 1
        members.wait_until_ready(watcher)
        storm.end_clients()
        storm.judge(watcher)
    storm.tell(f"{done} times, done")
    return done


def test_members_killed_at_random_for_a_minute_cost_no_lock_no_update_and_no_error(
    storm: Storm,
) -> None:
    def kill(node: str) -> None:
        # Sometimes it is back before the others notice, sometimes they go on without it.
        at_once = storm.chance.random() < 0.3
        storm.members.kill(node)
        storm.tell(f"{node} killed, {'back at once' if at_once else 'back after more grants'}")
        if not at_once:
            storm.wait_for(storm.chance.randrange(1, 100))
        storm.members.start(node)

    kills = rage(storm, kill, seconds=60, times=12)
    assert kills >= 12
    assert min(storm.granted.values()) >= 100


def test_members_paused_at_random_cost_no_lock_no_update_and_no_error(storm: Storm) -> None:
    def pause(node: str) -> None:
        seconds = storm.chance.uniform(1, 3)
        process = storm.members.processes[node]
        storm.tell(f"{node} pauses for {seconds:.1f} s")
        process.send_signal(signal.SIGSTOP)
        try:
            threading.Event().wait(seconds)  # This is the misfortune, nothing is waited for.
        finally:
            process.send_signal(signal.SIGCONT)

    pauses = rage(storm, pause, seconds=20, times=5)
    assert pauses >= 5
    assert min(storm.granted.values()) >= 50
