"""A profile of a pair: the time of a single client's acquire and release, step by step.

All processes of a machine share one clock. So the way of a request can be followed back from
its answer: to the frame that brought it, to the turn of the node that sent the frame, to the
frame that this turn came from, and so on to the call. What lies between two points of that way
is a span, and the spans of a request add up to its latency, to the nanosecond. A step is the work
of spans of one kind, averaged.

This assumes one request in flight at a time: a turn is taken to come from the frame it received.
"""

from __future__ import annotations

import json
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rich.table import Table

from fencelock.cluster.client.connection import alias_of
from fencelock.verification.bench.job import Job, JobKind
from fencelock.verification.bench.machine import MachineInfo, this_machine
from fencelock.verification.bench.members import (
    BenchFailedError,
    NodeProcesses,
    described,
    leader_among,
)
from fencelock.verification.bench.profile_marks import Mark, read_marks
from fencelock.verification.bench.workers import started, together

CLIENT = "client"
"""The place where the way begins and ends."""


class Span(NamedTuple):
    """A span of time on the way of a request.

    ``what`` is that of a `Mark`, or ``wire``, ``dispatch`` (a turn's time between its marks),
    ``call`` (the caller's thread, before it rings), ``wake`` (from the ring, or from the end of
    the turn that brought the answer, to the thread that waits for it).
    """

    place: str
    what: str
    ns: int
    early: bool = False
    """Whether it precedes the receipt of the frame: its node still had other work to do."""


class NodeMarks:
    """The marks of one process, to be looked up by time.

    Args:
        name: of the node, or `CLIENT`.
        names: the others' names of its links, where they differ.

    """

    def __init__(self, name: str, marks: Sequence[Mark], names: Mapping[str, str]) -> None:
        self.name = name
        ordered = sorted(marks, key=lambda mark: (mark.begin_ns, mark.end_ns))
        self._all = [mark for mark in ordered if mark.what != "ring"]
        self._begins = [mark.begin_ns for mark in self._all]
        self._polls = [mark for mark in self._all if mark.what == "poll"]
        self._rings = [mark for mark in ordered if mark.what == "ring"]
        self._receives: list[tuple[Mark, tuple[str, ...]]] = []
        self._sends: dict[str, list[Mark]] = {}
        for mark in self._all:
            links = tuple(names.get(link, link) for link in mark.detail.split())
            if mark.what == "receive" and links:
                self._receives.append((mark, links))
            elif mark.what == "send":
                self._sends.setdefault(links[0], []).append(mark)

    def received(self, by_ns: int) -> tuple[Mark, tuple[str, ...]] | None:
        """Return the last receipt of frames that ended by ``by_ns``, and their senders."""
        at = bisect_right(self._receives, by_ns, key=lambda one: one[0].end_ns)
        return self._receives[at - 1] if at else None

    def sent(self, to: str, by_ns: int) -> Mark | None:
        """Return the last frame sent to ``to`` that was begun by ``by_ns``."""
        sends = self._sends.get(to, [])
        at = bisect_right(sends, by_ns, key=lambda mark: mark.begin_ns)
        return sends[at - 1] if at else None

    def slept(self, by_ns: int) -> Mark:
        """Return the last sleep that was over by ``by_ns``; one of no length if there is none."""
        at = bisect_right(self._polls, by_ns, key=lambda mark: mark.end_ns)
        return self._polls[at - 1] if at else Mark("poll", 0, 0)

    def sleeps(self, from_ns: int) -> int | None:
        """Return the time of the first sleep at ``from_ns`` or later."""
        at = bisect_left(self._polls, from_ns, key=lambda mark: mark.begin_ns)
        return self._polls[at].begin_ns if at < len(self._polls) else None

    def rung(self, from_ns: int, by_ns: int) -> int | None:
        """Return the time of the first ring of a thread within that time."""
        at = bisect_left(self._rings, from_ns, key=lambda mark: mark.begin_ns)
        if at < len(self._rings) and self._rings[at].begin_ns <= by_ns:
            return self._rings[at].begin_ns
        return None

    def spans(self, begin_ns: int, end_ns: int, *, early: bool = False) -> Iterator[Span]:
        """Yield its spans in that time, without a gap."""
        at = max(0, bisect_right(self._begins, begin_ns) - 1)
        done = begin_ns
        for mark in self._all[at:]:
            if mark.begin_ns >= end_ns:
                break
            if mark.end_ns <= done:
                continue
            if mark.begin_ns > done:
                yield Span(self.name, "dispatch", mark.begin_ns - done, early)
                done = mark.begin_ns
            until = min(mark.end_ns, end_ns)
            yield Span(self.name, mark.what, until - done, early)
            done = until
        if done < end_ns:
            yield Span(self.name, "dispatch", end_ns - done, early)


def way_of(logs: Mapping[str, NodeMarks], call_ns: int, back_ns: int) -> list[Span] | None:
    """Return the spans of a request, oldest first; their sum is ``back_ns - call_ns``.

    Args:
        logs: by name; `CLIENT` among them.
        call_ns: the time of the caller's call.
        back_ns: the time of its return.

    Returns:
        None if no frame of a known process led to the answer.

    """
    here = logs[CLIENT]
    found = here.received(back_ns)
    if found is None or found[0].begin_ns < call_ns:
        return None
    answered = min(here.sleeps(found[0].end_ns) or back_ns, back_ns)
    parts = [[*here.spans(found[0].end_ns, answered), Span(CLIENT, "wake", back_ns - answered)]]
    while True:
        received, senders = found
        sent, sender = _last_sent(logs, here.name, senders, received.begin_ns)
        if sent is None or sender is None or sent.begin_ns < call_ns:
            return None
        slept = here.slept(received.begin_ns)
        came = max(slept.end_ns, min(sent.end_ns, received.begin_ns))
        left = min(sent.end_ns, came)  # The socket's own thread may be quicker than our call.
        asleep = min(max(left, slept.begin_ns), came)
        parts.append([
            Span(sender.name, "send", left - sent.begin_ns),
            *here.spans(left, asleep, early=True),
            Span(here.name, "wire", came - asleep),
            *here.spans(came, received.begin_ns),
            Span(here.name, "receive", received.end_ns - received.begin_ns),
        ])  # fmt: skip
        if sender.name == CLIENT:
            parts.append(_asked(sender, call_ns, sent.begin_ns))
            return [span for part in reversed(parts) for span in part if span.ns]
        cause = sender.received(sent.begin_ns)
        if cause is None or cause[0].begin_ns < call_ns:
            return None
        parts.append(list(sender.spans(cause[0].end_ns, sent.begin_ns)))
        here, found = sender, cause


def _last_sent(
    logs: Mapping[str, NodeMarks], here: str, senders: Sequence[str], by_ns: int
) -> tuple[Mark | None, NodeMarks | None]:
    """Return the last of the frames that were received together, and its sender."""
    last: Mark | None = None
    by: NodeMarks | None = None
    for name in senders:
        log = logs.get(name)
        sent = None if log is None else log.sent(here, by_ns)
        if sent is not None and (last is None or sent.begin_ns > last.begin_ns):
            last, by = sent, log
    return last, by


def _asked(client: NodeMarks, call_ns: int, sent_ns: int) -> list[Span]:
    """Return the spans from the call to the first frame."""
    woke = max(client.slept(sent_ns).end_ns, call_ns)
    rung = client.rung(call_ns, woke)
    rung = woke if rung is None else rung
    return [
        Span(CLIENT, "call", rung - call_ns),
        Span(CLIENT, "wake", woke - rung),
        *client.spans(woke, sent_ns),
    ]


PAIRS_MIN = 20
"""Fewer pairs that can be followed from end to end prove nothing."""

SHARE_MIN = 0.001
"""Share of the pair below which a step is counted as dispatch of its visit."""

FIRST: dict[str, str] = dict.fromkeys(("proxy", "replica", "leader", "commander"), "propose")
LATER = {"proxy": "reply", "replica": "apply", "leader": "quorum", "commander": "quorum"}
FOLLOW: dict[str, str] = dict.fromkeys(FIRST, "follow")
"""The turns of roles at the leader before and after it asks for votes, and at an acceptor."""

STEPS = {
    "call": "client call",
    "wake": "client wake-up",
    "session": "client session",
    "receive": "decode",
    "append": "sync",
    "acceptor": "vote",
    "clock": "dispatch",
    "poll": "asleep",
}
"""Names of spans where they differ; a span with a role's name is a turn of that role."""

Key = tuple[int, str, str]
"""A row: the visit on the way (the call is the first), the place, and the step."""


@dataclass(frozen=True, slots=True)
class PairStep:
    """One row: the mean over the pairs whose latency is in the middle half.

    Attributes:
        visit: the number of the stop on the path: client, leader, acceptor, leader, client.
        acquire_us: its share of the acquire (us).
        release_us: its share of the release (us).

    """

    visit: int
    place: str
    step: str
    acquire_us: float
    release_us: float

    @property
    def pair_us(self) -> float:
        return self.acquire_us + self.release_us


def steps_of(
    logs: Mapping[str, NodeMarks], pairs: Sequence[Sequence[int]], leader: str
) -> tuple[tuple[PairStep, ...], int, float]:
    """Return the steps of the middle half, the number of pairs on the usual way, and the sum (us).

    Args:
        logs: of the client and of each node, by name.
        pairs: of each pair the times of the call of acquire, of its return and the call of
            release, and of the return of that (ns).
        leader: the node to call so; the others are acceptors. Empty: each has its own name.

    Raises:
        BenchFailedError: fewer than `PAIRS_MIN` can be followed.

    """
    ways: list[tuple[int, list[dict[Key, int]]]] = []
    shapes: list[tuple[tuple[str, ...], ...]] = []
    for call, held, free in pairs:
        acquire, release = way_of(logs, call, held), way_of(logs, held, free)
        if acquire is not None and release is not None:
            rows = [_rows(way, leader) for way in (acquire, release)]
            shapes.append(tuple(_shape(row) for row in rows))
            ways.append((free - call, rows))
    usual = max(Counter(shapes).items(), key=lambda one: one[1], default=((), 0))[0]
    kept = [way for way, shape in zip(ways, shapes, strict=True) if shape == usual]
    if len(kept) < PAIRS_MIN:
        raise BenchFailedError(f"{len(kept)} of {len(pairs)} pairs could be followed: go on longer")
    kept.sort(key=lambda way: way[0])
    middle = kept[len(kept) // 4 : len(kept) - len(kept) // 4]
    total_us = _mean_us([took for took, _ in middle])
    return _means([rows for _, rows in middle], SHARE_MIN * total_us), len(kept), total_us


def _means(pairs: Sequence[list[dict[Key, int]]], least_us: float) -> tuple[PairStep, ...]:
    """Return the mean of each row over ``pairs``; those below ``least_us`` go into dispatch."""
    # Order the rows as in the fullest pairs: a frame that was early on the wire lacks a row.
    fullest = sorted(pairs, key=lambda rows: -sum(len(row) for row in rows))
    keys = dict.fromkeys(key for rows in fullest for row in rows for key in row)
    means = {
        key: tuple(_mean_us([rows[part].get(key, 0) for rows in pairs]) for part in (0, 1))
        for key in keys
    }
    for visit, place, step in keys:
        rest = (visit, place, "dispatch")
        if sum(means[visit, place, step]) < least_us and step != "dispatch" and rest in means:
            small = means.pop((visit, place, step))
            means[rest] = (means[rest][0] + small[0], means[rest][1] + small[1])
    places = list(dict.fromkeys(place for _, place, _ in keys))
    ordered = sorted(means, key=lambda key: (key[0], places.index(key[1])))
    return tuple(PairStep(*key, *means[key]) for key in ordered)


def _rows(way: Sequence[Span], leader: str) -> dict[Key, int]:
    """Return the time of each row of one request's way (ns)."""
    rows: dict[Key, int] = defaultdict(int)
    visit, place = 1, CLIENT
    stays = Counter([CLIENT])
    for span in way:
        if span.place != place:
            visit, place = visit + 1, span.place
            stays[place] += 1
        where, turns = _whereabouts(place, leader, stays[place])
        rows[visit, where, _step(span, turns)] += span.ns
    return rows


def _whereabouts(place: str, leader: str, stay: int) -> tuple[str, dict[str, str]]:
    """Return the name of a place, and the turns of its roles; without a leader, its own name."""
    if place == CLIENT or not leader:
        return place, {}
    if place != leader:
        return "acceptor", FOLLOW
    return "leader", FIRST if stay == 1 else LATER


def _step(span: Span, turns: Mapping[str, str]) -> str:
    if span.early:
        return "own sync" if span.what in ("append", "sync") else "busy"
    role = span.what.partition("-")[0]  # Some are numbered: "commander-7".
    return turns.get(role) or STEPS.get(role, role)


def _shape(rows: Mapping[Key, int]) -> tuple[str, ...]:
    return tuple(place for _, place in sorted({(visit, place) for visit, place, _ in rows}))


def _mean_us(times: Sequence[int]) -> float:
    return statistics.fmean(times) / 1000


@dataclass(frozen=True, slots=True)
class Profile:
    """The time of pairs by step.

    Attributes:
        steps: in the order of the way; they add up to `sum_us`.
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

    That takes ``seconds``, after as long in a cluster without marks.

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
