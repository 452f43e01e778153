"""Figures with a bar to meet, as a table, as a document for programs, and as charts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from fencelock.cluster.svg import COLOURS, PALE, Picture

WHOLE_FROM = 100
"""Figures from here on are shown without decimals, which would be noise."""


@dataclass(frozen=True, slots=True)
class NotedFigure:
    """One figure without a comparison.

    Attributes:
        key: its name for programs, unit last.
        what: its name for people.
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
        unit: of ``ours`` and ``other``.
        ours: the median over the rounds.
        other: the same of the other side, or None if there is nothing to compare.
        ratio: the median of the rounds' ratios, ours by theirs.
        bar: the condition to meet, in words; empty if there is none.

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


WIDTH, HEIGHT = 760.0, 340.0
LEFT, RIGHT, TOP, BOTTOM = 74.0, 20.0, 58.0, 48.0
"""Room around the axes, for their texts."""

ROW = 26.0
"""Height of a bar and the gap to the next."""
MARKS_MAX = 8
"""Gaps between the marks of an axis."""

NAME = 250.0
"""Width of the names of bars."""

FIGURE = 90.0
"""Room for the figure behind a bar."""

LOG_FROM = 10
"""If the largest median is this many times the smallest, the axis of spreads is logarithmic."""

Points = Sequence[tuple[float, float]]
Spread = tuple[float, float, float]
"""The median, the least and the most of some rounds."""


def line_chart(
    title: str,
    series: Mapping[str, Points],
    across: str,
    up: str,
    about: str = "",
    *,
    logarithmic: bool = False,
) -> str:
    """Return a chart of lines, by name, whose vertical axis begins at 0.

    The points of each line are in order. A ``logarithmic`` horizontal axis has a mark for each
    value; all are above 0.
    """
    picture = Picture(WIDTH, HEIGHT, title)
    _heading(picture, title, about)
    values = sorted({x for points in series.values() for x, _ in points}) or [0.0]
    marks_across = values if logarithmic else _marks(values[0], values[-1])
    marks_up = _marks(0.0, max((y for points in series.values() for _, y in points), default=1.0))
    scale = math.log if logarithmic else float
    low, high = scale(values[0]), scale(values[-1])
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x_of(value: float) -> float:
        return LEFT + (right - LEFT) * (scale(value) - low) / ((high - low) or 1.0)

    def y_of(value: float) -> float:
        return bottom - (bottom - TOP) * value / marks_up[-1]

    for mark in marks_up:
        picture.line([(LEFT, y_of(mark)), (right, y_of(mark))], PALE)
        picture.text(LEFT - 6, y_of(mark) + 4, f"{mark:,g}", anchor="end")
    for mark in marks_across:
        if low <= scale(mark) <= high:
            picture.line([(x_of(mark), bottom), (x_of(mark), bottom + 4)])
            picture.text(x_of(mark), bottom + 17, f"{mark:,g}", anchor="middle")
    picture.line([(LEFT, bottom), (right, bottom)])
    picture.text((LEFT + right) / 2, HEIGHT - 10, across, anchor="middle")
    picture.text(LEFT, TOP - 6, up)
    place = right
    for number, (name, points) in reversed(list(enumerate(series.items()))):
        colour = COLOURS[number % len(COLOURS)]
        picture.line([(x_of(x), y_of(y)) for x, y in points], colour, 1.6)
        if logarithmic:
            for x, y in points:
                picture.dot(x_of(x), y_of(y), colour, title=f"{name}: {y:,.0f} at {x:g}")
        if len(series) > 1:
            picture.text(place, TOP - 6, name, colour=colour, anchor="end", bold=True)
            place -= 14 + 6.5 * len(name)
    return str(picture)


def bar_chart(title: str, bars: Sequence[tuple[str, float]], unit: str, about: str = "") -> str:
    """Return a chart of horizontal bars from 0 on, in the order of ``bars``."""
    picture = Picture(WIDTH, TOP + ROW * len(bars) + 24, title)
    _heading(picture, title, about)
    most = max((value for _, value in bars), default=0.0) or 1.0
    for number, (name, value) in enumerate(bars):
        top = TOP + ROW * number
        width = (WIDTH - NAME - RIGHT - FIGURE) * value / most
        picture.text(NAME - 8, top + 15, name, anchor="end")
        picture.rectangle(NAME, top + 2, width, ROW - 8, COLOURS[0])
        picture.text(NAME + width + 6, top + 15, f"{value:,.0f}")
    picture.text(NAME, TOP + ROW * len(bars) + 14, unit)
    return str(picture)


def spread_chart(
    title: str, rows: Sequence[tuple[str, Spread]], unit: str, about: str = "", ours: str = ""
) -> str:
    """Return a chart of medians, each as a dot on a line from the least to the most.

    Rows whose names begin with ``ours`` have another colour.
    """
    picture = Picture(WIDTH, TOP + ROW * len(rows) + 24, title)
    _heading(picture, title, about)
    middles = [middle for _, (middle, _, _) in rows]
    wide = min(middles) > 0 and max(middles) > LOG_FROM * min(middles)
    scale = math.log if wide else float
    low = scale(min(least for _, (_, least, _) in rows)) if wide else 0.0
    span = scale(max(most for _, (_, _, most) in rows)) - low or 1.0

    def x_of(value: float) -> float:
        return NAME + (WIDTH - NAME - RIGHT - FIGURE) * (scale(value) - low) / span

    for number, (name, (middle, least, most)) in enumerate(rows):
        y, colour = TOP + ROW * number + 11, COLOURS[0 if name.startswith(ours) else -1]
        picture.text(NAME - 8, y + 4, name, anchor="end")
        picture.line([(x_of(least), y), (x_of(most), y)], colour, 2.0)
        picture.dot(x_of(middle), y, colour, 4.0)
        picture.text(
            x_of(most) + 8, y + 4, f"{middle:,.0f}" if middle >= WHOLE_FROM else f"{middle:.3g}"
        )
    axis = f"{unit}, on a logarithmic axis" if wide else unit
    picture.text(NAME, TOP + ROW * len(rows) + 14, axis)
    return str(picture)


def _heading(picture: Picture, title: str, about: str) -> None:
    picture.text(12, 20, title, 13, bold=True)
    picture.text(12, 36, about, 10, colour="#666666")


def _marks(low: float, high: float) -> list[float]:
    """Return a few round numbers from ``low`` or below to ``high`` or above."""
    span = (high - low) or 1.0
    step = 10.0 ** math.floor(math.log10(span / 4))
    step *= next(times for times in (1, 2, 5, 10) if span / (step * times) <= MARKS_MAX)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [number * step for number in range(first, max(last, first + 1) + 1)]
