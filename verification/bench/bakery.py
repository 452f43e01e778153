"""A comparison of `bakery` with `paxos` in memory, and of its messages with the source's."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from fencelock.cluster.client.client import Client, connect
from fencelock.verification.bench.job import Job, JobKind
from fencelock.verification.bench.load import CONNECT_S, WARM_PAIRS
from fencelock.verification.bench.locks import PROCESSES, RIVALS
from fencelock.verification.bench.machine import MachineInfo, this_machine
from fencelock.verification.bench.members import NodeProcesses
from fencelock.verification.bench.report import BarFigure, higher_is_better, lower_is_better
from fencelock.verification.bench.workers import measured, per_s

PAIR_RATIO_MAX = 1.5
"""Bar: the cost of a pair, as a multiple of that of `paxos` without a disk."""

COPIES_RATIO_MAX = 1.3
"""Bar: the cost of a pair with copies, as a multiple of that without them, with five members."""


@dataclass(frozen=True, slots=True)
class SourceStep:
    """A step of the source, its cost there, and the messages that do it here.

    Attributes:
        source: its name, or several that are one step here.
        theirs: messages between nodes, with three leaders and through a node that does not lead.
        ours: the messages of the step here, by the names of their counters.

    """

    source: str
    theirs: int
    ours: tuple[str, ...]


STEPS = (
    SourceStep("LOCK, forwarded", 1, ("bakery.lock",)),
    SourceStep("LOCKENTERING, GETMAXTICKET", 8, ("bakery.entering", "bakery.maxticket")),
    SourceStep(
        "ADDTICKET, LOCKEXITING, TICKETREADY, ACTIVATE",
        12,
        ("bakery.addticket", "bakery.collected", "bakery.yield"),
    ),
    SourceStep("LOCKED", 1, ("bakery.granted",)),
    SourceStep("UNLOCK, forwarded", 1, ("bakery.unlock",)),
    SourceStep("DROPTICKET", 2, ("bakery.dropticket", "bakery.ticketdropped")),
    SourceStep("UNLOCKED", 1, ("proxy.released",)),
)
"""In the source a dropped ticket is not confirmed: its answer may be lost, and the lock stays."""


@dataclass(frozen=True, slots=True)
class PaxosComparison:
    """All results of a run, and the machine.

    Attributes:
        figures: `bakery` beside `paxos`, three members each.
        copied: `bakery` with copies beside the same without, five members each.

    """

    machine: MachineInfo
    figures: tuple[BarFigure, ...]
    copied: tuple[BarFigure, ...]
    per_lock: tuple[float, ...]
    """By step: messages sent for one lock that no other client wants."""

    @property
    def met(self) -> bool:
        return all(figure.met for figure in (*self.figures, *self.copied))

    def as_plain(self) -> dict[str, Any]:
        counted = zip(STEPS, self.per_lock, strict=True)
        return {
            "machine": asdict(self.machine),
            "figures": [asdict(figure) for figure in self.figures],
            "copied": [asdict(figure) for figure in self.copied],
            "messages": [
                {"step": step.source, "source": step.theirs, "ours": round(ours, 3)}
                for step, ours in counted
            ],
        }


def compare(rounds: int, seconds: float, say: Callable[[str], None]) -> PaxosComparison:
    """Start the nodes of each, let them run in turns, and leave nothing running.

    Each measurement takes ``seconds`` in each of ``rounds`` (1 or more), and the medians count.

    Raises:
        BenchFailedError: a process failed, or was not served at all; the text explains it.

    """
    with tempfile.TemporaryDirectory(prefix="fencelock-bench-") as name:
        machine = this_machine(Path(name))
        run = _Run(Path(name), rounds, seconds, say)
        bakery, paxos = Cluster("bakery", "bakery", 3), Cluster("paxos", "paxos", 3)
        figures, per_lock = run.compare(bakery, paxos, PAIR_RATIO_MAX)
        copied = Cluster("with copies", "bakery", 5)
        uncopied = Cluster("without copies", "bakery", 5, copies=False)
        copies, _ = run.compare(copied, uncopied, COPIES_RATIO_MAX)
        return PaxosComparison(machine, figures, copies, per_lock)


class Cluster(NamedTuple):
    """One of two clusters that are compared."""

    name: str
    protocol: str
    nodes: int
    copies: bool = True


@dataclass(frozen=True, slots=True)
class _Run:
    """The duration and the place of a measurement."""

    folder: Path
    rounds: int
    seconds: float
    say: Callable[[str], None]

    def compare(
        self, ours: Cluster, theirs: Cluster, pair_ratio_max: float
    ) -> tuple[tuple[BarFigure, ...], tuple[float, ...]]:
        """Return the figures of two clusters that run in turns, and our messages by step."""
        with ExitStack() as stack:
            self.say(f"starting {ours.nodes} nodes of each")
            sides = [_Side(stack, self.folder, one) for one in (ours, theirs)]
            for side in sides:
                side.members.wait_until_ready(side.watcher)
            pairs: list[list[float]] = [[], []]
            turns: list[list[float]] = [[], []]
            per_lock: tuple[float, ...] = ()
            for number in range(1, self.rounds + 1):
                for mine, side in zip(pairs, sides, strict=True):
                    self.say(f"pair, {side.name}, round {number}")
                    p50_us, counted = side.pair(self.seconds)
                    mine.append(p50_us)
                    per_lock = per_lock or counted
                for mine, side in zip(turns, sides, strict=True):
                    self.say(f"hand-over, {side.name}, round {number}")
                    mine.append(side.handover(self.seconds))
            figures = (
                lower_is_better("pair, p50", "us", pairs[0], pairs[1], pair_ratio_max),
                higher_is_better("hand-over", "grants/s", turns[0], turns[1], None),
            )
            return figures, per_lock


def steps_table(per_lock: tuple[float, ...]) -> Table:
    table = Table(title="messages between nodes for one lock, three leaders")
    table.add_column("step of the source")
    table.add_column("source", justify="right")
    table.add_column("ours", justify="right")
    table.add_column("our messages")
    for step, ours in zip(STEPS, per_lock, strict=True):
        names = ", ".join(name.partition(".")[2] for name in step.ours)
        table.add_row(step.source, str(step.theirs), f"{ours:.2f}", names)
    theirs = sum(step.theirs for step in STEPS)
    table.add_row("together", str(theirs), f"{sum(per_lock):.2f}", "", style="bold")
    return table


class _Side:
    """One of the two clusters."""

    def __init__(self, stack: ExitStack, folder: Path, cluster: Cluster) -> None:
        self.name, protocol, nodes, copies = cluster
        self.folder = folder / self.name
        self.folder.mkdir()
        members = NodeProcesses(self.folder, protocol, nodes, durable=False, copies=copies)
        self.members = stack.enter_context(members)
        watcher = connect(members.connect, cluster=members.cluster, connect_timeout=CONNECT_S)
        self.watcher: Client = stack.enter_context(watcher)
        self.job = Job(kind=JobKind.PAIR, address=members.connect, cluster=members.cluster)

    def pair(self, seconds: float) -> tuple[float, tuple[float, ...]]:
        """Return the duration of a pair (us), and the messages of a pair by step."""
        before = self._counted()
        (took,) = measured(self.folder, [replace(self.job, seconds=seconds)])
        pairs = took["times"] + WARM_PAIRS
        counted = self._counted() - before
        per_lock = tuple(sum(counted[name] for name in step.ours) / pairs for step in STEPS)
        return took["p50_us"], per_lock

    def handover(self, seconds: float) -> float:
        """Return how many times a second one lock passes from one of many clients to the next."""
        job = replace(
            self.job,
            kind=JobKind.RATE,
            seconds=seconds,
            warm_s=seconds / 5,
            at_once=RIVALS,
            lock="one",
            shared=True,
        )
        return per_s(measured(self.folder, [job] * PROCESSES))

    def _counted(self) -> Counter[str]:
        counted: Counter[str] = Counter()
        for status in self.members.wait_until_ready(self.watcher):
            counted.update({counter.name: counter.times for counter in status.counters})
        return counted
