"""Charts of a comparison, by matplotlib."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from compare_bars import OURS, Results, over_rounds

CHARTS = (
    ("pair", "p50_us", "One client, one lock: acquire and release, p50 (us)"),
    ("distinct", "pairs_per_s", "2 processes of 64 threads, distinct locks (pairs/s)"),
    ("handover", "handovers_per_s", "2 processes of 4 threads, one lock (hand-overs/s)"),
    ("failover", "gap_s", "Leader killed under load: time without grants (s)"),
)
"""Workload, which is also the file's name, its figure, and the title."""
OUR_COLOUR, THEIR_COLOUR = "#1b6ca8", "#b8bfc6"


def missing() -> str | None:
    """Return what to install for charts; None if nothing is missing."""
    return None if find_spec("matplotlib") else "pip install matplotlib"


def plot(results: Results, folder: Path) -> list[Path]:
    """Write a chart for each workload that was measured into ``folder``; return which.

    A bar is the median over the rounds, the line on it the spread.
    """
    import_module("matplotlib").use("Agg")
    pyplot: Any = import_module("matplotlib.pyplot")
    written: list[Path] = []
    for workload, figure, title in CHARTS:
        found = {peer: over_rounds(results, peer, workload, figure) for peer in results["peers"]}
        known = {peer: spread for peer, spread in found.items() if spread is not None}
        if known:
            _chart(pyplot, known, title, folder / f"{workload}.png")
            written.append(folder / f"{workload}.png")
    return written


def _chart(
    pyplot: Any, known: dict[str, tuple[float, float, float]], title: str, path: Path
) -> None:
    middles = [spread[0] for spread in known.values()]
    below = [spread[0] - spread[1] for spread in known.values()]
    above = [spread[2] - spread[0] for spread in known.values()]
    colours = [OUR_COLOUR if peer == OURS else THEIR_COLOUR for peer in known]
    figure, axes = pyplot.subplots(figsize=(7, 0.6 + 0.45 * len(known)), layout="constrained")
    axes.barh(list(known), middles, xerr=[below, above], color=colours, capsize=3)
    axes.invert_yaxis()
    if max(middles) > 20 * min(middles):
        axes.set_xscale("log")
    for row, spread in enumerate(known.values()):
        axes.annotate(
            f"{spread[0]:,.3g}" if spread[0] < 100 else f"{spread[0]:,.0f}",
            (spread[2], row), xytext=(5, 0), textcoords="offset points", va="center",
        )  # fmt: skip
    axes.margins(x=0.15)
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
