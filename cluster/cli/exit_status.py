"""The exit statuses of the ``fencelock`` command."""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """What a command tells the shell. A status has the same meaning in all commands.

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

    BUG = 70
    """A role broke an invariant, or the disk failed (``EX_SOFTWARE`` of ``sysexits.h``)."""

    LOST = 74
    """The lock was lost while the command ran (``EX_IOERR``)."""

    NOT_ACQUIRED = 75
    """The lock was not acquired, and the command did not run (``EX_TEMPFAIL``)."""

    NO_COMMAND = 127
    """There is no such command, as in a shell."""

    INTERRUPTED = 130
    """Ctrl-C."""


SIGNALLED = 128
"""Added to the number of the signal that ended a command."""
