"""Counts forks, so that an object can tell that a parent process made it."""

from __future__ import annotations

import os


class ForkCounter:
    """Counts the forks that led to this process: cheaper than asking the system for its id."""

    forks = 0
    """An object that was made under another count belongs to a parent."""


def _note_fork() -> None:
    ForkCounter.forks += 1


if hasattr(os, "register_at_fork"):  # Windows has no forks.
    os.register_at_fork(after_in_child=_note_fork)
