"""Charts of a comparison, by matplotlib."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from compare_bars import OURS, Results, over_rounds

LOG_FROM = 10
"""If the largest median is this many times the smallest, the axis is logarithmic."""

OUR_COLOUR, THEIR_COLOUR = "#0072b2", "#999999"
"""Blue and grey also differ in lightness: for every eye, and in print."""


LABELS = {
    "fencelock-retained": "fencelock, lock retained",
    "fencelock-cohort": "fencelock, retained, cohort of 16",
    "fencelock-door": "fencelock, redis-py at its door",
    "fencelock-door-waiting": "fencelock, python-redis-lock",
    "redis-waiting": "redis, python-redis-lock",
    "fencelock-unconfirmed": "fencelock, release not confirmed",
}
"""What the charts call them, where the name is too short."""

YARDSTICKS = ("bare",)
"""No peers, but what wire and disk take: drawn as a hollow point."""


class Chart(NamedTuple):
    """A chart of one figure of a workload. The workload's name is also the file name."""

    workload: str
    figure: str
    title: str
    unit: str
    less_is_better: bool


CHARTS = (
    Chart("pair", "p50_us", "One client, one lock: acquire and release", "p50, us", True),
    Chart(
        "fresh", "p50_us", "One client, a new name each time: acquire and release", "p50, us", True,
    ),
    Chart(
        "distinct", "pairs_per_s", "2 processes of 64 threads, a lock each", "pairs per second",
        False,
    ),
    Chart(
        "handover", "handovers_per_s", "2 processes of 4 threads, one lock",
        "hand-overs to another thread or process, per second", False,
    ),
    Chart(
        "failover", "gap_s", "Leader killed with -9 under load", "longest time without grants, s",
        True,
    ),
)  # fmt: skip


def missing() -> str | None:
    """Return the packages to install for charts, or None if none is missing."""
    return None if find_spec("matplotlib") else "pip install matplotlib"


def plot(results: Results, folder: Path) -> list[Path]:
    """Write a chart for each workload that was measured into ``folder``; return which.

    A point is the median over the rounds, or over the kills, and the line on it goes from the
    least to the most. On an axis that begins at 0 the point is the end of a bar.
    """
    import_module("matplotlib").use("Agg")
    pyplot: Any = import_module("matplotlib.pyplot")
    written: list[Path] = []
    for chart in CHARTS:
        found = {
            peer: over_rounds(results, peer, chart.workload, chart.figure)
            for peer in results["peers"]
        }
        known = [(peer, spread) for peer, spread in found.items() if spread is not None]
        if known:
            known.sort(key=lambda one: one[1][0], reverse=not chart.less_is_better)
            path = folder / f"{chart.workload}.png"
            _draw(pyplot, chart, known, _origin(results, chart), path)
            written.append(path)
    return written


def _origin(results: Results, chart: Chart) -> str:
    times = [len(peer.get(chart.workload, ())) for peer in results["figures"].values()]
    machine = results["machine"]
    what = "kills" if chart.workload == "failover" else "rounds"
    return (
        f"median of {max(times, default=0)} {what}, line: least to most; "
        f"{machine['cores']} cores {machine['cpu']}, load {machine['load']:.1f} before"
    )


def _draw(
    pyplot: Any, chart: Chart, known: list[tuple[str, tuple[float, float, float]]], origin: str,
    path: Path,
) -> None:  # fmt: skip
    names = [peer for peer, _ in known]
    middles = [spread[0] for _, spread in known]
    lines = [[spread[0] - spread[1] for _, spread in known]]
    lines.append([spread[2] - spread[0] for _, spread in known])
    figure, axes = pyplot.subplots(figsize=(8, 1.5 + 0.42 * len(known)), layout="constrained")
    wide = min(middles) > 0 and max(middles) > LOG_FROM * min(middles)
    if wide:
        axes.set_xscale("log")
        ticker: Any = import_module("matplotlib.ticker")
        axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.4g}"))
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())
        axes.grid(axis="x", which="both", color="#e6e6e6", linewidth=0.6)
    else:
        colours = [OUR_COLOUR if name.startswith(OURS) else THEIR_COLOUR for name in names]
        axes.barh(names, middles, height=0.6, color=colours, alpha=0.55)
        axes.grid(axis="x", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    for row, (name, middle) in enumerate(zip(names, middles, strict=True)):
        axes.errorbar(
            middle, row, xerr=[[lines[0][row]], [lines[1][row]]], fmt="o", markersize=6,
            capsize=4, color=OUR_COLOUR if name.startswith(OURS) else "#555555",
            markerfacecolor="white" if name in YARDSTICKS else None,
        )  # fmt: skip
        axes.annotate(
            f"{middle:,.3g}" if middle < 100 else f"{middle:,.0f}",
            (middle + lines[1][row], row), xytext=(8, 0), textcoords="offset points",
            va="center", weight="bold" if name == OURS else "normal",
        )  # fmt: skip
    axes.set_yticks(range(len(names)), [LABELS.get(name, name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.margins(x=0.15)
    if not wide:
        axes.set_xlim(left=0)
    better = "less is better" if chart.less_is_better else "more is better"
    axes.set_xlabel(f"{chart.unit} ({better}{'; logarithmic' if wide else ''})")
    figure.suptitle(chart.title, x=0.01, ha="left", fontsize=12, weight="bold")
    axes.set_title(origin, loc="left", fontsize=8, color="#555555")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
