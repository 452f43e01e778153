"""Real nodes that are killed, paused and changed while processes of clients work.

The clients (`storm_client.py`) are separate processes. Under each lock they write into a file that
shows any overlap, lost update and late fence. While a majority lives, no call of theirs may end in
an error: clients do not notice the loss of a minority.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from checked_file import CheckedFile

import fencelock
from fencelock.cluster.testing.ports import free_ports
from fencelock.verification.bench.members import NodeProcesses, configuration, stop_all
from support.paths import SUPPORT
from support.samples import fence_of

LONG_S = 90.0
LOCKS = ("a", "b", "c", "d", "e")
LOG_LINES = 15
FOUNDERS = 3
SERVED_AFTER_S = 20.0
"""Maximum time without a grant, on a machine that is busy with other work."""
STORM_S = float(os.environ.get("FENCELOCK_STORM_S", "20"))
"""How long a storm lasts at least."""


class Crowd(NamedTuple):
    """A process of clients."""

    kind: str
    """``threads`` or ``tasks``."""
    locks: tuple[str, ...] = LOCKS
    python: str = sys.executable
    program: Path = SUPPORT / "storm_client.py"
    """Its code; that of another release may call the library in another way."""


CROWDS = (Crowd("threads"), Crowd("threads"), Crowd("tasks"))


class GrowingProcesses(NodeProcesses):
    """Nodes that others may join, and from which some go for good."""

    options = ""
    """The end of every configuration."""

    protocol = "paxos"

    def configure(self, options: str) -> None:
        """Add ``options`` to every configuration, before a node is started."""
        self.options = options
        with (self.folder / "cluster.toml").open("a", encoding="utf-8") as file:
            file.write(options)

    def add(self, node: str) -> None:
        """Start a node whose configuration lists itself and the nodes that run, and no other."""
        (port,) = free_ports(1)
        known = {name: self.addresses[name] for name in self.processes}
        self.addresses[node] = f"tcp://127.0.0.1:{port}"
        mine = known | {node: self.addresses[node]}
        text = configuration(self.cluster, self.protocol, mine, durable=True)
        self.configuration_of(node).write_text(text + self.options, encoding="utf-8")
        self.start(node)

    def drop(self, node: str) -> None:
        """Kill ``node`` for good."""
        self.kill(node)
        del self.processes[node]
        del self.addresses[node]

    def configuration_of(self, node: str) -> Path:
        """Return the file that ``node`` is started with."""
        own = self.folder / f"{node}.toml"
        return own if int(node[1:]) > FOUNDERS else super().configuration_of(node)


class Storm:
    """Three nodes with journals, processes of clients, and their output."""

    def __init__(self, folder: Path, seed: int, protocol: str = "paxos") -> None:
        self.folder = folder
        self.chance = Random(seed)
        self.members = GrowingProcesses(folder, protocol, FOUNDERS, durable=True)
        self.members.protocol = protocol
        self.last_grant = 0.0
        self.longest_gap_s = 0.0
        """The longest time without a grant to any client, from the first grant on."""
        self.granted: Counter[int] = Counter()
        self.said: dict[int, dict[str, Any]] = {}
        self.crowds: Sequence[Crowd] = ()
        self.clients: list[subprocess.Popen[str]] = []
        self.readers: list[threading.Thread] = []
        self.news = threading.Condition()
        self.began = time.monotonic()

    def tell(self, what: str) -> None:
        print(f"{time.monotonic() - self.began:7.2f} s  {self.granted.total():6} grants  {what}")

    def choose(self, leader: str) -> str:
        """Return any member; every other time it is the one that leads."""
        node = self.chance.choice(self.members.names)
        return leader if leader and self.chance.random() < 0.5 else node

    def start_clients(self, crowds: Sequence[Crowd] = CROWDS) -> None:
        self.crowds = crowds
        for number, crowd in enumerate(crowds):
            seed = str(self.chance.getrandbits(32))
            options = [self.members.connect, self.members.cluster, str(self.folder)]
            client = subprocess.Popen(
                [
                    crowd.python,
                    str(crowd.program),
                    crowd.kind,
                    *options,
                    ",".join(crowd.locks),
                    seed,
                ],
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
                    self._pass()
                else:
                    self.said[number] = json.loads(line)
                self.news.notify_all()

    def _pass(self) -> None:
        now = time.monotonic()
        if self.last_grant:
            self.longest_gap_s = max(self.longest_gap_s, now - self.last_grant)
        self.last_grant = now

    def wait_for(self, grants: int) -> None:
        """Wait until each process of clients had so many more grants."""
        before = Counter(self.granted)
        with self.news:
            served = self.news.wait_for(
                lambda: all(self.granted[n] - before[n] >= grants for n in range(len(self.crowds))),
                timeout=SERVED_AFTER_S,
            )
        assert served, f"no {grants} grants to each within {SERVED_AFTER_S} s: {before}"

    def _end_clients(self) -> None:
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
        for log in sorted(self.folder.glob("n*.log")):
            lines = log.read_text(encoding="utf-8").splitlines()
            print(f"--- {log.stem}", *lines[-LOG_LINES:], sep="\n")

    def judge(self, watcher: fencelock.Client) -> None:
        """End the clients; check that no holds overlapped, nothing was lost, no client got an
        error, and all locks are free."""
        self._end_clients()
        for number, said in sorted(self.said.items()):
            assert said["wrong"] == {}, f"client {number}: {said['wrong']} {said['details']}"
        done = sum((Counter[str](said["updates"]) for said in self.said.values()), Counter[str]())
        locks = {lock for crowd in self.crowds for lock in crowd.locks}
        kept = {lock: CheckedFile(self.folder, lock).read() for lock in locks}
        assert {lock: one["updates"] for lock, one in kept.items()} == dict(done)
        assert len(self.said) == len(self.crowds)
        for lock in sorted(locks):
            fence = fence_of(watcher.lock(lock).acquire(timeout=SERVED_AFTER_S))
            assert fence > kept[lock]["fence"]


@contextmanager
def raging(folder: Path, options: str = "", protocol: str = "paxos") -> Generator[Storm]:
    """Run three nodes; stop them, and the clients, at the end.

    Args:
        folder: for everything.
        options: the end of every node's configuration; on `paxos`, of its section ``[paxos]``.
        protocol: the protocol of the nodes.

    """
    seed = int(os.environ.get("FENCELOCK_STORM_SEED", secrets.randbits(32)))
    print(f"FENCELOCK_STORM_SEED={seed} chooses the same nodes and times again")
    with ExitStack() as stack:
        storm = Storm(folder, seed, protocol)
        stack.callback(storm.close)
        storm.members.configure(options)
        stack.enter_context(storm.members)
        stack.callback(storm.tell_logs)
        yield storm
