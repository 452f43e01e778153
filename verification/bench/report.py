"""Figures with a bar to meet, as a table for people and as a document for programs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

WHOLE_FROM = 100
"""Figures from here on are shown without decimals, which would be noise."""


@dataclass(frozen=True, slots=True)
class NotedFigure:
    """One figure without a comparison.

    Attributes:
        key: its name for programs, unit last.
        what: its name for people.
        value: the figure.
        unit: of ``value``.
        note: how it came about.
        rounds: the values of which ``value`` is the median, where it is one.

    """

    key: str
    what: str
    value: float
    unit: str
    note: str = ""
    rounds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class BarFigure:
    """One line of a report: our figure, the other's, their ratio, and the bar it has to meet.

    Attributes:
        name: of the measurement.
        unit: of ``ours`` and ``other``.
        ours: the median over the rounds.
        other: the same of the other side, or None if there is nothing to compare.
        ratio: the median of the rounds' ratios, ours by theirs.
        bar: the condition to meet, in words; empty if there is none.
        met: whether it is met.

    """

    name: str
    unit: str
    ours: float
    other: float | None
    ratio: float | None
    bar: str
    met: bool


def p50_p99(took: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile, 0 for fewer than two values."""
    cuts = statistics.quantiles(took, n=100, method="inclusive") if len(took) > 1 else [0.0] * 99
    return cuts[49], cuts[98]


def higher_is_better(
    name: str, unit: str, ours: Sequence[float], other: Sequence[float], at_least: float | None
) -> BarFigure:
    """Compare rounds of a rate; the bar is a ratio of at least ``at_least``, or None for none."""
    met = at_least is None or _ratio(ours, other) >= at_least
    return _compared(name, unit, ours, other, "" if at_least is None else f">= {at_least}x", met)


def below(name: str, unit: str, ours: float, limit: float) -> BarFigure:
    """Compare one measurement with a limit that it must stay under."""
    return BarFigure(name, unit, ours, None, None, f"< {limit}", ours < limit)


def alone(name: str, unit: str, ours: Sequence[float]) -> BarFigure:
    """Return a figure without a comparison: the median of its rounds."""
    return BarFigure(name, unit, statistics.median(ours), None, None, "", True)


def lower_is_better(
    name: str, unit: str, ours: Sequence[float], other: Sequence[float], at_most: float | None
) -> BarFigure:
    """Compare rounds of a duration; the bar is a ratio of at most ``at_most``, or None for none."""
    met = at_most is None or _ratio(ours, other) <= at_most
    return _compared(name, unit, ours, other, "" if at_most is None else f"<= {at_most}x", met)


def compared_times(
    name: str,
    ours: Sequence[Sequence[float]],
    other: Sequence[Sequence[float]],
    p50_most: float | None,
    p99_most: float | None,
) -> list[BarFigure]:
    """Compare p50 and p99 of rounds of durations (s), each with its bar, or None for none."""
    mine, theirs = ([p50_p99(one) for one in rounds] for rounds in (ours, other))
    return [
        lower_is_better(
            f"{name}, {what}",
            "us",
            [1e6 * cuts[at] for cuts in mine],
            [1e6 * cuts[at] for cuts in theirs],
            most,
        )
        for at, (what, most) in enumerate((("p50", p50_most), ("p99", p99_most)))
    ]


def _ratio(ours: Sequence[float], other: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, other, strict=True))


def _compared(
    name: str, unit: str, ours: Sequence[float], other: Sequence[float], bar: str, met: bool
) -> BarFigure:
    mine, theirs = statistics.median(ours), statistics.median(other)
    return BarFigure(name, unit, mine, theirs, _ratio(ours, other), bar, met)


def table_of(title: str, ours: str, other: str, figures: Sequence[BarFigure]) -> Table:
    """Return the figures as a table; ``ours`` and ``other`` head their columns."""
    table = Table(title=title)
    table.add_column("what")
    for column in (ours, other, "ratio"):
        table.add_column(column, justify="right")
    table.add_column("bar")
    table.add_column("")
    for figure in figures:
        verdict = "" if not figure.bar else "[green]met[/]" if figure.met else "[red]MISSED[/]"
        table.add_row(
            figure.name,
            _with_unit(figure.ours, figure),
            "" if figure.other is None else _with_unit(figure.other, figure),
            "" if figure.ratio is None else f"{figure.ratio:.2f}x",
            figure.bar,
            verdict,
        )
    return table


def readings_table(title: str, readings: Sequence[NotedFigure]) -> Table:
    """Return a table of figures without a bar, with a note on each."""
    table = Table(title=title)
    table.add_column("what")
    table.add_column("figure", justify="right")
    table.add_column("unit")
    table.add_column("how", overflow="fold")
    for reading in readings:
        figure = _digits(reading.value)
        if len(reading.rounds) > 1:
            figure += f" ({_digits(min(reading.rounds))} to {_digits(max(reading.rounds))})"
        table.add_row(reading.what, figure, reading.unit, reading.note)
    return table


def _with_unit(value: float, figure: BarFigure) -> str:
    return f"{_digits(value)} {figure.unit}"


def _digits(value: float) -> str:
    return f"{value:,.{0 if value >= WHOLE_FROM else 2}f}"
