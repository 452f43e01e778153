"""The exit statuses of the ``fencelock`` command, and the line with which a command ends.

The library that draws tables takes longer to import than `fencelock lock` has for its start, so it
is imported for a line only.
"""

from __future__ import annotations

import sys
from enum import IntEnum


class ExitStatus(IntEnum):
    """The exit status of a command. A status has the same meaning in all commands.

    A command under `fencelock lock` that ends by itself passes its own status on; one that ends by
    signal ``n`` gives `SIGNALLED` + ``n``, as in a shell.
    """

    FAILED = 1
    """Not done: no node answered in time, or a simulation or a benchmark found a fault."""

    REFUSED = 2
    """An argument or the configuration is wrong, or the cluster refused the request."""

    UNSERVED = 3
    """Nodes answer, but without a leader or a majority they serve nobody."""

    DECLINED = 4
    """The operator did not confirm: nothing was changed."""

    NO_ANSWER = 69
    """No node answered in time, and the command did not run (``EX_UNAVAILABLE``)."""

    BUG = 70
    """A role broke an invariant, or the disk failed (``EX_SOFTWARE`` of ``sysexits.h``)."""

    LOST = 74
    """The lock was lost while the command ran (``EX_IOERR``)."""

    NOT_ACQUIRED = 75
    """Another holds the lock, and the command did not run (``EX_TEMPFAIL``)."""

    WRONG_CLUSTER = 78
    """The nodes belong to another cluster, and the command did not run (``EX_CONFIG``)."""

    NOT_EXECUTABLE = 126
    """The command is no program, as in a shell."""

    NO_COMMAND = 127
    """There is no such command, as in a shell."""

    INTERRUPTED = 130
    """Ctrl-C."""


SIGNALLED = 128
"""Added to the number of the signal that ended a command."""


def say(text: str, *, err: bool = False) -> None:
    """Print one paragraph, harmless, wrapped at words on a terminal."""
    from fencelock.cluster.cli.screen import print_line  # noqa: PLC0415 (rich)

    print_line(text, err=err)


def at_terminal() -> bool:
    """Return whether standard input is a terminal. It may be closed, as by a service manager."""
    return sys.stdin is not None and sys.stdin.isatty()


class Unanswered(Exception):  # noqa: N818  (it is an outcome of a look)
    """There is nothing to show: no node could answer, and the text says why."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code
