"""Whether this process was forked: counted, since to ask the system for it takes a call."""

from __future__ import annotations

import os


class ForkCounter:
    """What a process knows of its forks."""

    forks = 0
    """How often this process, or one it comes from, was forked off. What was made under another
    count was made by a parent."""


def _note_fork() -> None:
    ForkCounter.forks += 1


os.register_at_fork(after_in_child=_note_fork)
