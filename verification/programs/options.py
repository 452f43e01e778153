"""The command lines of programs that measure, and their results."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console

from fencelock.verification.bench.report import BarFigure, table_of


def options_of(doc: str | None, **numbers: tuple[float, str]) -> argparse.Namespace:
    """Return ``--json`` and an option for each of ``numbers``, by its default and its help."""
    return parser_of(doc, **numbers).parse_args()


def parser_of(doc: str | None, **numbers: tuple[float, str]) -> argparse.ArgumentParser:
    """Return what `options_of` parses with, for a program that has further options."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    for name, (default, text) in numbers.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=type(default), default=default, help=text)
    return parser


def reported(
    title: str, ours: str, other: str, figures: Sequence[BarFigure], *, as_json: bool
) -> int:
    """Print figures as a table or as one JSON object; return 1 if a bar is missed, else 0."""
    ok = all(figure.met for figure in figures)
    if as_json:
        print(json.dumps({"ok": ok, "figures": [asdict(figure) for figure in figures]}))
    else:
        Console().print(table_of(title, ours, other, figures))
    return 0 if ok else 1
