"""The targets of the comparison, whether a run's figures meet them, and its tables and charts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fencelock.verification.bench.report import Spread, spread_chart

Results = dict[str, Any]
"""The figures of a run, as written as JSON: see ``docs/performance.md``."""
OURS = "fencelock"
NOT_MEASURED = "not measured"


@dataclass(frozen=True, kw_only=True)
class Bar:
    """The target for ``figure`` of a workload, absolute or relative to a peer."""

    text: str
    workload: str
    figure: str
    peer: str | None
    at_most: bool
    limit: float
    hard: bool = True
    """False: told for orientation, without a verdict."""
    ours: str = OURS
    """The peer whose figure it is."""
    against: str = ""
    """The peer's workload, if it is another."""

    def values(self, results: Results) -> list[float]:
        """Return the figure, or its ratio to the peer's, of each round that has it."""
        if self.peer is None:
            return [
                entry[self.figure]
                for entry in _rounds(results, self.ours, self.workload)
                if self.figure in entry
            ]
        pairs = zip(
            _rounds(results, self.ours, self.workload),
            _rounds(results, self.peer, self.against or self.workload),
            strict=False,
        )
        return [
            ours[self.figure] / theirs[self.figure]
            for ours, theirs in pairs
            if ours.get(self.figure) and theirs.get(self.figure)
        ]

    def verdict(self, results: Results) -> dict[str, Any]:
        """Return the target, the figure, and ``pass``, ``fail`` or the reason for neither."""
        values = self.values(results)
        middle = statistics.median(values) if values else None
        sign = "at most" if self.at_most else "at least"
        unit = "" if self.peer is None else "x"
        if middle is None:
            word = NOT_MEASURED
        elif not self.hard:
            word = "for orientation"
        else:
            word = "pass" if (middle <= self.limit) == self.at_most else "FAIL"
        return {
            "bar": self.text,
            "wanted": f"{sign} {self.limit:g}{unit}" if self.hard else "",
            "median": middle,
            "low": min(values, default=None),
            "high": max(values, default=None),
            "verdict": word,
        }


def _ratio(
    text: str,
    workload: str,
    figure: str,
    peer: str,
    limit: float,
    ours: str = OURS,
    against: str = "",
) -> Bar:
    at_most = figure.endswith("_us")
    text = f"{text}, beside {peer}" if ours == OURS else f"{ours}: {text}, beside {peer}"
    return Bar(
        text=text,
        workload=workload,
        figure=figure,
        peer=peer,
        at_most=at_most,
        limit=limit,
        ours=ours,
        against=against,
    )


RETAINED, COHORT = "fencelock-retained", "fencelock-cohort"
UNCONFIRMED = "fencelock-unconfirmed"
FRESH = "pair p50, a new name each time"


PAIR, DISTINCT, HANDOVER = (
    "pair p50",
    "2x64 distinct locks, pairs/s",
    "2x4 on one lock, hand-overs/s",
)
PAIRS_OF_ONE, PING_PONG = "2x4 on one lock, pairs/s", "2x1 on one lock, pairs/s"
BARS = (
    _ratio(PAIR, "pair", "p50_us", "redlock", 1.3),
    _ratio(PAIR, "pair", "p50_us", "etcd", 0.3),
    _ratio(DISTINCT, "distinct", "pairs_per_s", "etcd", 3.0),
    _ratio(DISTINCT, "distinct", "pairs_per_s", "redlock", 2.0),
    _ratio(HANDOVER, "handover", "handovers_per_s", "etcd", 8.0),
    _ratio(PAIR, "pair", "p50_us", "redis", 0.1, RETAINED),
    _ratio("pair p50, one asyncio task", "task", "p50_us", "redis", 0.2, RETAINED, "pair"),
    _ratio(DISTINCT, "distinct", "pairs_per_s", "etcd", 20.0, RETAINED),
    _ratio(DISTINCT, "distinct", "pairs_per_s", "redis", 5.0, RETAINED),
    _ratio(PAIRS_OF_ONE, "handover", "pairs_per_s", OURS, 1.0, RETAINED),
    _ratio(PAIRS_OF_ONE, "handover", "pairs_per_s", OURS, 5.0, COHORT),
    _ratio(PING_PONG, "ping-pong", "pairs_per_s", OURS, 0.9, RETAINED),
    _ratio(FRESH, "fresh", "p50_us", OURS, 0.6, UNCONFIRMED),
    _ratio(FRESH, "fresh", "p50_us", "etcd", 0.65, UNCONFIRMED),
    Bar(
        text="asyncio, 256 tasks, pairs/s", workload="asyncio", figure="pairs_per_s", peer=None,
        at_most=False, limit=6000,
    ),
    Bar(
        text="asyncio, pairs for each bare round trip", workload="asyncio",
        figure="per_round_trip", peer=None, at_most=False, limit=0, hard=False,
    ),
    Bar(
        text="leader killed, s without grants", workload="failover", figure="gap_s", peer=None,
        at_most=True, limit=0.6,
    ),
)  # fmt: skip


def judge(results: Results) -> list[dict[str, Any]]:
    known = {(bar.workload, bar.peer) for bar in BARS if bar.ours == OURS}
    others = [
        Bar(
            text=f"{text}, beside {peer}", workload=workload, figure=figure, peer=peer,
            at_most=figure.endswith("_us"), limit=0, hard=False,
        )
        for text, workload, figure in (
            (PAIR, "pair", "p50_us"),
            (DISTINCT, "distinct", "pairs_per_s"),
            (HANDOVER, "handover", "handovers_per_s"),
            ("leader killed, s without grants", "failover", "gap_s"),
        )
        for peer in results["peers"]
        if peer != OURS and (workload, peer) not in known
    ]  # fmt: skip
    return [
        bar.verdict(results) for bar in (*BARS, *(bar for bar in others if bar.values(results)))
    ]


def over_rounds(results: Results, peer: str, workload: str, figure: str) -> Spread | None:
    """Return the median, the least and the most of a figure over the rounds; None without it."""
    values = [
        entry[figure] for entry in _rounds(results, peer, workload) if entry.get(figure) is not None
    ]
    return _middle(values)


def overlaps_of(results: Results, peer: str) -> int:
    """Return how often a holder of the one lock met another, in all rounds."""
    return sum(int(entry["overlaps"]) for entry in _rounds(results, peer, "handover"))


def _rounds(results: Results, peer: str, workload: str) -> list[dict[str, float]]:
    entries: list[dict[str, float]] = results["figures"].get(peer, {}).get(workload, [])
    return entries


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table as Markdown, with columns wide enough to be read as text."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    cells = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    )


def figures_table(results: Results) -> str:
    """Return every peer's figures: the median over the rounds, and the spread."""
    columns = (
        ("pair p50, us", "pair", "p50_us"),
        ("pair p99, us", "pair", "p99_us"),
        ("new names, pair p50, us", "fresh", "p50_us"),
        ("1 asyncio task, pair p50, us", "task", "p50_us"),
        ("2x64 distinct, pairs/s", "distinct", "pairs_per_s"),
        ("2x4 one lock, hand-overs/s", "handover", "handovers_per_s"),
        ("2x4 one lock, pairs/s", "handover", "pairs_per_s"),
        ("2x4 one lock, longest pair, ms", "handover", "longest_ms"),
        ("2x1 one lock, pairs/s", "ping-pong", "pairs_per_s"),
        ("leader killed, gap s", "failover", "gap_s"),
    )
    rows = [
        [peer, *(_cell(over_rounds(results, peer, *column[1:])) for column in columns)]
        for peer in results["peers"]
    ]
    return table(["", *(column[0] for column in columns)], rows)


def wire_table(results: Results) -> str:
    """Return the limits of the machine itself, and the figures of fencelock's asyncio client."""
    names = (
        ("bare ROUTER/DEALER round trip, us", "p50_us"),
        ("bare round trips/s", "per_s"),
        ("200 bytes appended and synced, us", "sync_us"),
    )
    rows = [
        [text, _cell(_middle([entry[key] for entry in results["wire"] if key in entry]))]
        for text, key in names
    ]
    tasks = over_rounds(results, OURS, "asyncio", "pairs_per_s")
    return table(["the machine", ""], [*rows, ["asyncio, 256 tasks, pairs/s", _cell(tasks)]])


def bars_table(results: Results) -> str:
    rows = [
        [
            judged["bar"],
            judged["wanted"],
            _cell(None if judged["median"] is None else _spread(judged)),
            judged["verdict"],
        ]
        for judged in judge(results)
    ]
    return table(["bar", "wanted", "measured: median (spread)", "verdict"], rows)


CHARTS = (
    ("pair", "p50_us", "One client, one lock: acquire and release", "p50, us"),
    ("fresh", "p50_us", "One client, a new name each time: acquire and release", "p50, us"),
    ("distinct", "pairs_per_s", "2 processes of 64 threads, a lock each", "pairs per second"),
    (
        "handover", "handovers_per_s", "2 processes of 4 threads, one lock",
        "hand-overs to another thread or process, per second",
    ),
    ("failover", "gap_s", "Leader killed with -9 under load", "longest time without grants, s"),
)  # fmt: skip
"""For each chart the workload, which also names its file, the figure, the title and the unit."""


def charts(results: Results) -> Iterator[tuple[str, str]]:
    """Yield the file name and the text of a chart of each workload that was measured."""
    machine = results["machine"]
    for workload, figure, title, unit in CHARTS:
        found = {peer: over_rounds(results, peer, workload, figure) for peer in results["peers"]}
        rows = [(peer, spread) for peer, spread in found.items() if spread is not None]
        if not rows:
            continue
        more = figure.endswith("_per_s")
        rows.sort(key=lambda one: one[1][0], reverse=more)
        times = max(len(_rounds(results, peer, workload)) for peer, _ in rows)
        about = (
            f"median of {times} {'kills' if workload == 'failover' else 'rounds'}, line: least to "
            f"most; {machine['cores']} cores {machine['processor']}, load {machine['load']:.1f} "
            "before"
        )
        axis = f"{unit} ({'more' if more else 'less'} is better)"
        yield f"{workload}.svg", spread_chart(title, rows, axis, about, OURS)


def _middle(values: list[float]) -> Spread | None:
    return (statistics.median(values), min(values), max(values)) if values else None


def _spread(judged: dict[str, Any]) -> Spread:
    return judged["median"], judged["low"], judged["high"]


def _cell(figures: Spread | None) -> str:
    if figures is None:
        return "-"
    middle, low, high = (_number(figure) for figure in figures)
    return middle if low == high else f"{middle} ({low}-{high})"


def _number(figure: float) -> str:
    return f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.3g}"
