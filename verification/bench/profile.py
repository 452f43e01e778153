"""A profile of a pair: the time of a single client's acquire and release, step by step."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.table import Table

from fencelock.cluster.client.connection import alias_of
from fencelock.verification.bench.job import Job, JobKind
from fencelock.verification.bench.machine import MachineInfo, this_machine
from fencelock.verification.bench.members import NodeProcesses, described, leader_among
from fencelock.verification.bench.profile_marks import Mark, read_marks
from fencelock.verification.bench.steps import PairStep, steps_of
from fencelock.verification.bench.timeline import CLIENT, NodeMarks
from fencelock.verification.bench.workers import started, together


@dataclass(frozen=True, slots=True)
class Profile:
    """The time of pairs by step.

    Attributes:
        title: the title of the measurement.
        machine: the machine.
        steps: in the order of the way; they add up to `sum_us`.
        pairs: the number of measured pairs.
        followed: the number of these that went the usual way and could be followed.
        sum_us: of all steps.
        measured_us: the median of all pairs, by the clock of the thread that made them.
        unmarked_us: the median of pairs in a cluster that sets no marks.

    """

    title: str
    machine: MachineInfo
    steps: tuple[PairStep, ...]
    pairs: int
    followed: int
    sum_us: float
    measured_us: float
    unmarked_us: float

    @property
    def by_step(self) -> dict[str, float]:
        """The same by step, summed over all places (us of a pair), the largest first."""
        sums: dict[str, float] = defaultdict(float)
        for step in self.steps:
            sums[step.step] += step.pair_us
        return dict(sorted(sums.items(), key=lambda one: -one[1]))

    def in_words(self) -> str:
        off = 100 * (self.sum_us / self.measured_us - 1)
        marks = self.measured_us - self.unmarked_us
        return (
            f"The steps add up to {self.sum_us:,.0f} us, the mean of the pairs in the middle half; "
            f"the median of all {self.pairs:,} is {self.measured_us:,.0f} us ({off:+.1f} %). "
            f"{self.followed:,} went the usual way. Without marks the median is "
            f"{self.unmarked_us:,.0f} us in a cluster of its own: {marks:+,.0f} us are the marks' "
            "cost, and noise."
        )

    def as_plain(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "steps": [{**asdict(step), "pair_us": step.pair_us} for step in self.steps],
            "by_step": self.by_step,
        }


def profile(
    protocol: str, nodes: int, *, durable: bool, seconds: float, title: str,
    say: Callable[[str], None],
) -> Profile:  # fmt: skip
    """Measure a single client's pairs in a cluster that marks its steps.

    Args:
        protocol: the protocol of the nodes.
        nodes: the number of node processes.
        durable: whether nodes write to disk, where that is a choice.
        seconds: how long to measure, and as long without marks before.
        title: of the profile.
        say: called with the next step.

    Raises:
        BenchFailedError: a process failed, or too few pairs could be followed.
        fencelock.ConfigError: the protocol cannot run so.

    """
    with TemporaryDirectory(prefix="fencelock-bench-") as name:
        plain, marked = Path(name, "plain"), Path(name, "marked")
        machine = this_machine(Path(name))
        for folder in (plain, marked):
            folder.mkdir()
        say("measuring pairs without marks")
        with NodeProcesses(plain, protocol, nodes, durable=durable) as members:
            took, _ = _measured(members, JobKind.PAIR, seconds)
        say("measuring pairs with marks")
        with NodeProcesses(marked, protocol, nodes, durable=durable, marks=True) as members:
            _, leader = _measured(members, JobKind.PROFILE, seconds)
        # The nodes write their marks before they end.
        say("putting the marks together")
        seen = json.loads((marked / "client.marks").read_text(encoding="utf-8"))
        logs = _logs(members, seen)
    pairs: list[list[int]] = seen["pairs"]
    steps, followed, total_us = steps_of(logs, pairs, leader)
    measured_us = statistics.median(pair[2] - pair[0] for pair in pairs) / 1000
    return Profile(
        title, machine, steps, len(pairs), followed, total_us, measured_us, took["p50_us"]
    )


def profile_table(found: Profile) -> Table:
    """Return the steps for people, with their sum."""
    table = Table(title=f"{found.title}: where the time of a pair goes (us)")
    table.add_column("where")
    table.add_column("step")
    for column in ("acquire", "release", "pair", "share"):
        table.add_column(column, justify="right")
    before = (0, "")
    for step in found.steps:
        here = (step.visit, step.place)
        if here != before:
            table.add_section()
        table.add_row(
            step.place if here != before else "",
            step.step,
            f"{step.acquire_us:.1f}",
            f"{step.release_us:.1f}",
            f"{step.pair_us:.1f}",
            f"{step.pair_us / found.sum_us:.1%}",
        )
        before = here
    table.add_section()
    acquire, release = (
        sum(getattr(step, part) for step in found.steps) for part in ("acquire_us", "release_us")
    )
    table.add_row("all", "", f"{acquire:.1f}", f"{release:.1f}", f"{found.sum_us:.1f}", "")
    return table


def steps_table(found: Profile) -> Table:
    """Return the same by step, summed over all places."""
    table = Table("step", title="the same by step")
    table.add_column("us of a pair", justify="right")
    table.add_column("share", justify="right")
    for step, us in found.by_step.items():
        table.add_row(step, f"{us:.1f}", f"{us / found.sum_us:.1%}")
    return table


def _measured(members: NodeProcesses, kind: JobKind, seconds: float) -> tuple[dict[str, Any], str]:
    """Return the results of a lone client, and the leader's id."""
    with members.ready_client() as watcher:
        leader = leader_among(described(watcher))
    job = Job(
        kind=kind,
        address=members.connect,
        cluster=members.cluster,
        seconds=seconds,
        marks=str(members.folder / "client.marks"),
    )
    with ExitStack() as stack:
        (took,) = together([started(stack, job, members.folder, "client")])
    return took, leader


def _logs(members: NodeProcesses, seen: dict[str, Any]) -> dict[str, NodeMarks]:
    endpoints = {alias_of(number): node for number, node in enumerate(members.names)}
    logs = {CLIENT: NodeMarks(CLIENT, [Mark(*mark) for mark in seen["marks"]], endpoints)}
    for node in members.names:
        logs[node] = NodeMarks(node, read_marks(members.marks_of(node)), {seen["session"]: CLIENT})
    return logs
