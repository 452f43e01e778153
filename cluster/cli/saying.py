"""One line for a person, and the error that becomes one. Commands that print no table need no more.

The library that draws tables takes longer to import than `fencelock lock` has for its start.
"""

from __future__ import annotations

import json
import sys


def say(text: str, *, err: bool = False) -> None:
    """Print one paragraph, harmless, wrapped at words on a terminal."""
    from fencelock.cluster.cli.screen import print_line  # noqa: PLC0415 (rich)

    print_line(text, err=err)


def at_terminal() -> bool:
    """Return whether standard input is a terminal. It may be closed, as by a service manager."""
    return sys.stdin is not None and sys.stdin.isatty()


def done(plain: object, text: str, *, as_json: bool) -> None:
    """Print what a command has done: one JSON object, or a line for a person."""
    if as_json:
        print(json.dumps(plain, indent=2))
    else:
        say(text)


class Unanswered(Exception):  # noqa: N818  (it is an outcome of a look)
    """There is nothing to show: no node could answer, and the text says why."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code
