"""Output of the commands: tables that fit the terminal, texts of peers made harmless, live views.

Names and reasons come from nodes and clients that nobody checked. Every text is printed through
this module, which escapes control characters and never reads rich's markup.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fencelock.cluster.cli.exit_status import ExitStatus, Unanswered, say
from fencelock.cluster.log import printable

WATCH_S = 1.0
"""Pause between two looks of ``--watch`` (s)."""

PROSE_WIDTH_MIN = 24
"""Least width of a column of sentences (columns), which are wrapped at words."""

JOIN, INDENT = ", ", 4


def confirm(question: str, *, declined: str) -> None:
    """Ask the operator; if the reply is not yes, print ``declined`` and exit."""
    try:
        confirmed = typer.confirm(question, err=True)
    except typer.Abort:  # The end of the input, or Ctrl-C at the prompt.
        typer.echo(err=True)
        confirmed = False
    if not confirmed:
        typer.echo(declined, err=True)
        raise typer.Exit(ExitStatus.DECLINED)


class Column(NamedTuple):
    """A column of `Rows`."""

    name: str
    right: bool = False
    """Whether its values are numbers, which are right-aligned."""
    prose: bool = False
    """Whether its values are sentences, which may be wrapped."""


class Phrase(str):
    """A value of a column that makes no sense after the column's name, such as ``2 of 3 left``."""

    __slots__ = ()


Cell = str | Text | tuple[str, ...]


class Rows:
    """A table, or where the terminal is too narrow for its names, a paragraph for each row.

    The first column names the row. Columns without any value are left out. Nothing is cut off, and
    a name is only broken if it is wider than the terminal. A `Text` keeps its style, a tuple has
    several lines. A paragraph names the column before each of them, unless the value is a `Phrase`.
    """

    def __init__(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
        texts = [[_text(cell) for cell in row] for row in rows]
        used = [place for place in range(len(columns)) if any(row[place].plain for row in texts)]
        self.columns = [columns[place] for place in used]
        self.rows = [[row[place] for place in used] for row in texts]
        self._phrases = [[isinstance(row[place], Phrase) for place in used] for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [
            max(Text(column.name).cell_len, *map(_width, cells))
            for column, *cells in zip(self.columns, *self.rows, strict=True)
        ]
        least = sum(
            min(width, PROSE_WIDTH_MIN) if column.prose else width
            for column, width in zip(self.columns, widths, strict=True)
        )
        if not self.rows or least + 3 * len(widths) + 1 <= options.max_width:
            yield self._table()
        else:
            yield from self._paragraphs(options.max_width)

    def _table(self) -> Table:
        table = Table(box=SIMPLE_HEAD, padding=(0, 1))
        for column in self.columns:
            table.add_column(
                column.name,
                justify="right" if column.right else "left",
                no_wrap=not column.prose,
                min_width=PROSE_WIDTH_MIN if column.prose else None,
            )
        for row in self.rows:
            table.add_row(*row)
        return table

    def _paragraphs(self, width: int) -> RenderResult:
        yield Text()
        for (name, *values), (_, *phrases) in zip(self.rows, self._phrases, strict=True):
            yield Text.assemble(" ", name, style="bold")
            line = Text()
            for column, value, phrase in zip(self.columns[1:], values, phrases, strict=True):
                for part in value.split("\n") if value.plain else ():
                    named = part if phrase else Text.assemble((f"{column.name} ", "dim"), part)
                    if line and INDENT + line.cell_len + len(JOIN) + named.cell_len > width:
                        yield Padding.indent(line, INDENT)
                        line = Text()
                    line = Text(JOIN).join([line, named]) if line else named
            yield Padding.indent(line, INDENT)
        yield Text()


def _width(text: Text) -> int:
    return max(part.cell_len for part in text.split("\n", allow_blank=True))


def _text(cell: Cell) -> Text:
    """Return a value without control characters, but for the line ends of a tuple."""
    if isinstance(cell, tuple):
        return Text("\n".join(map(printable, cell)))
    return Text(printable(cell)) if isinstance(cell, str) else line(cell.plain, str(cell.style))


def line(text: str, style: str = "") -> Text:
    return Text(printable(text), style)


def print_line(text: str, *, err: bool) -> None:
    _print(Console(stderr=err, highlight=False), line(text))


def _print(console: Console, part: RenderableType) -> None:
    console.print(part, soft_wrap=isinstance(part, Text) and not console.is_terminal)


class View(NamedTuple):
    """The result of one look at a cluster."""

    parts: Sequence[RenderableType]
    exit_code: int = 0


def json_view(plain: Any, exit_code: int = 0) -> View:
    """Return ``plain`` as JSON. Its strings escape characters that are not ASCII."""
    return View([Text(json.dumps(plain, indent=2))], exit_code)


def present(look: Callable[[], View], *, watch: bool, failed: int | None = None) -> int:
    """Print what ``look`` returns, with ``watch`` again and again; return the exit status.

    ``failed``, if given, is the exit status if no node could answer, for any reason.
    """
    console = Console(highlight=False)
    if not watch:
        try:
            view = look()
        except Unanswered as problem:
            say(str(problem), err=True)
            return problem.exit_code if failed is None else failed
        for part in view.parts:
            _print(console, part)
        return view.exit_code

    def again() -> Group:
        try:
            return Group(*look().parts)
        except Unanswered as problem:
            return Group(line(str(problem), "red"))

    try:
        if not console.is_terminal:
            while True:
                console.print(again())
                time.sleep(WATCH_S)
        with Live(again(), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(WATCH_S)
                live.update(again(), refresh=True)
    except KeyboardInterrupt:
        return 0
