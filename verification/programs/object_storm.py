"""A storm of kill -9 over nodes and clients that compete for objects of all kinds.

    python verification/programs/object_storm.py --seconds 60     # a verdict for each kind
    python verification/programs/object_storm.py --seed 7 --json  # the same choices; as JSON

The program runs three nodes with journals, and clients that take part in the contests of
`examples/contests.py`. It kills clients and nodes at random. It replaces a client by another one,
and starts a node again. The files that clients write show whether an object was ever used beyond
its capacity, or an update was lost. The program exits with 1 if a promise is broken.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from beside import options_of
from rich.console import Console
from rich.table import Table

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

from contender import OVER  # noqa: E402
from contest import KindVerdict, judged  # noqa: E402
from contests import CONTESTS  # noqa: E402

import fencelock  # noqa: E402
from fencelock.verification.bench.members import NodeProcesses, described, stop_all  # noqa: E402

NODES = 3
PAUSE_S = (0.4, 1.6)
"""Range of the time from one kill to the next."""
DOWN_S = (0.0, 1.5)
"""Range of the time until a killed client is replaced, or a killed node is started again."""
NODE_SHARE = 0.4
"""Share of kills that hit a node."""
END_S = 30.0
"""Timeout for the last turns of clients, and for the end of the holds of dead clients (s)."""
LOG_CHARACTERS = 500


@dataclass
class StormVerdict:
    """The result of a storm; ``ok`` only if all kinds kept their promises and no client failed."""

    seed: int
    seconds: float
    client_kills: int
    node_kills: int
    kinds: list[KindVerdict]
    problems: list[str]
    ok: bool


@dataclass
class ObjectStorm:
    """The nodes and clients of a storm.

    Args:
        folder: the folder for configurations, journals, logs and evidence.
        chance: chooses victims and times.
        ttl_s: the TTL of the clients' sessions (s).

    """

    folder: Path
    chance: Random
    clients: int
    ttl_s: float
    client_kills: int = 0
    node_kills: int = 0
    problems: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.members = NodeProcesses(self.folder, "paxos", NODES, durable=True)
        self.contests = [contest(self.folder) for contest in CONTESTS]
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.started = 0
        self.down = ""
        """The node that is down, or empty. Only one may be down, so that a majority lives."""
        self.due: list[tuple[float, str]] = []
        """The times at which nodes start again; an empty name stands for a new client."""

    def start_client(self) -> None:
        self.started += 1
        name = f"c{self.started}"
        command = [sys.executable, str(EXAMPLES / "contender.py"), "--objects", "--name", name]
        command += ["--connect", self.members.connect, "--cluster", self.members.cluster]
        command += ["--locks", "0", "--seconds", "86400", "--folder", str(self.folder)]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "--ttl", str(self.ttl_s)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                text=True,
            )
        assert process.stdin is not None
        process.stdin.write("begin\n")
        process.stdin.flush()
        self.running[name] = process

    def rage(self, watcher: fencelock.Client, seconds: float) -> None:
        """Kill and restart for ``seconds``, then wait until everything runs again."""
        for _ in range(self.clients):
            self.start_client()
        ends = time.monotonic() + seconds
        while (now := time.monotonic()) < ends:
            self._restart(now)
            self._check_running()
            if self.chance.random() < NODE_SHARE:
                self._kill_node(watcher)
            elif len(self.running) > 1:
                self._kill_client()
            time.sleep(self.chance.uniform(*PAUSE_S))
        self._restart(float("inf"))
        self.members.wait_until_ready(watcher)

    def _restart(self, now: float) -> None:
        for at, node in [one for one in self.due if one[0] <= now]:
            self.due.remove((at, node))
            if node:
                self.members.start(node)
            else:
                self.start_client()

    def _kill_client(self) -> None:
        name = self.chance.choice(list(self.running))
        process = self.running.pop(name)
        process.kill()
        process.wait()
        for contest in self.contests:
            contest.evidence.note(dead=name)
        self.client_kills += 1
        self.due.append((time.monotonic() + self.chance.uniform(*DOWN_S), ""))

    def _kill_node(self, watcher: fencelock.Client) -> None:
        """Kill a node, unless another node is down or not ready yet."""
        node = self.chance.choice(self.members.names)
        ready = {status.node for status in described(watcher) if status.ready}
        if ready == set(self.members.names):
            self.members.kill(node)
            self.node_kills += 1
            self.due.append((time.monotonic() + self.chance.uniform(*DOWN_S), node))

    def _check_running(self) -> None:
        """Note the clients that ended by themselves. No call may fail while a majority lives."""
        for name, process in list(self.running.items()):
            if process.poll() is not None:
                del self.running[name]
                log = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
                self.problems.append(f"client {name} ended: {log[-LOG_CHARACTERS:].strip()}")
                self.due.append((0, ""))

    def end(self, watcher: fencelock.Client) -> None:
        """Let the clients end by themselves. After that, no object may be held."""
        (self.folder / OVER).touch()
        ends = time.monotonic() + END_S
        for name, process in self.running.items():
            try:
                code = process.wait(max(0.0, ends - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.problems.append(f"client {name} did not end in {END_S:g} s")
                continue
            if code != 0:
                log = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
                self.problems.append(f"client {name} ended with {code}: {log[-LOG_CHARACTERS:]}")
        while (held := watcher.locks()) and time.monotonic() < ends:
            time.sleep(0.1)
        self.problems += [f"{one.lock!r} is still held by {one.holder}" for one in held]

    def close(self) -> None:
        stop_all(list(self.running.values()))


def storm(seconds: float, clients: int, ttl_s: float, seed: int) -> StormVerdict:
    with tempfile.TemporaryDirectory(prefix="fencelock-storm-") as name, ExitStack() as stack:
        one = ObjectStorm(Path(name), Random(seed), clients, ttl_s)
        stack.callback(one.close)
        members = stack.enter_context(one.members)
        watcher = stack.enter_context(members.ready_client())
        one.rage(watcher, seconds)
        one.end(watcher)
        kinds = [judged(contest) for contest in one.contests]
    return StormVerdict(
        seed=seed,
        seconds=seconds,
        client_kills=one.client_kills,
        node_kills=one.node_kills,
        kinds=kinds,
        problems=one.problems,
        ok=not one.problems and all(kind.ok for kind in kinds),
    )


def table_of(verdict: StormVerdict) -> Table:
    title = f"kill -9: {verdict.client_kills} clients, {verdict.node_kills} nodes"
    table = Table("kind", "turns", "promise", "", title=f"{title}; seed {verdict.seed}")
    for kind in verdict.kinds:
        word = "[green]kept[/]" if kind.ok else "[red]BROKEN[/]"
        table.add_row(kind.kind, str(kind.rounds), kind.promise, word)
    return table


def main() -> int:
    options = options_of(
        __doc__,
        seconds=(60.0, "duration of the storm (s; default: 60)"),
        clients=(6, "client processes at a time (default: 6)"),
        ttl=(3.0, "time for which the holds of a dead client remain (s; default: 3)"),
        seed=(0, "chooses victims and times (default: 0, which draws one)"),
    )
    seed = options.seed or time.time_ns() % 1_000_000
    verdict = storm(options.seconds, options.clients, options.ttl, seed)
    if options.json:
        print(json.dumps(asdict(verdict)))
        return 0 if verdict.ok else 1
    console = Console()
    console.print(table_of(verdict))
    for problem in [*verdict.problems, *(one for kind in verdict.kinds for one in kind.problems)]:
        console.print(problem, style="red", markup=False, highlight=False)
    return 0 if verdict.ok else 1


if __name__ == "__main__":
    sys.exit(main())
