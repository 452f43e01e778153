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
