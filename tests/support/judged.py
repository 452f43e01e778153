"""Runs that a judge ends."""

from __future__ import annotations

from collections.abc import Callable

from fencelock.cluster.simulation.violation import ViolationError


def is_violated(run: Callable[[], object]) -> bool:
    """Return whether a judge finds a violation in ``run``."""
    try:
        run()
    except ViolationError:
        return True
    return False
