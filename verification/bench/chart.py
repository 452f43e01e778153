"""Charts of measurements, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fencelock.cluster.svg import COLOURS, PALE, Picture
from fencelock.verification.bench.report import WHOLE_FROM

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

    Args:
        title: its heading.
        series: for each line its points, in order.
        across: the text of the horizontal axis.
        up: the text of the vertical axis.
        about: a note below the heading.
        logarithmic: of the horizontal axis, which then has a mark for each value; all are above 0.

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
