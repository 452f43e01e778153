"""The start of the ``fencelock`` command. It prints errors that a user can mend as one line."""

from __future__ import annotations

import os
import sys

from fencelock.actors.error import FencelockError
from fencelock.cluster.cli.exit_status import ExitStatus
from fencelock.cluster.cli.options import NotPlainError, WrongUsageError, run_plain
from fencelock.cluster.log import printable


def _ran_plainly(line: tuple[str, ...]) -> bool:
    """Run the command that cron runs, if its line is plain; see `fencelock.cluster.cli.options`."""
    if line[:1] != ("lock",) or any(name.startswith("_FENCELOCK_COMPLETE") for name in os.environ):
        return False
    from fencelock.cluster.cli.lock import lock  # noqa: PLC0415 (as late as the others)

    try:
        run_plain(lock, line[1:])
    except (NotPlainError, WrongUsageError):  # Typer words it. Nothing was done.
        return False
    return True


def main(*arguments: str) -> None:
    """Run the command line; print errors that a user can mend in red and without a traceback.

    Without ``arguments``, the command and its arguments are those of the process.
    """
    try:
        if not _ran_plainly(arguments or tuple(sys.argv[1:])):
            from fencelock.cluster.cli.main import app  # noqa: PLC0415 (typer)

            app(arguments or None)
    except FencelockError as error:
        text = "\n".join(map(printable, str(error).split("\n")))
        from rich.console import Console  # noqa: PLC0415 (see exit_status.py)

        console = Console(stderr=True)
        console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(ExitStatus.REFUSED)
    except KeyboardInterrupt:
        sys.exit(ExitStatus.INTERRUPTED)
