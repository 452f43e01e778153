"""The command lines of programs that measure."""

from __future__ import annotations

import argparse


def options_of(doc: str | None, **numbers: tuple[float, str]) -> argparse.Namespace:
    """Return ``--json`` and an option for each of ``numbers``, by its default and its help."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    for name, (default, text) in numbers.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=type(default), default=default, help=text)
    return parser.parse_args()
