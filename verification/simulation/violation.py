"""The one way in which a run fails."""

from __future__ import annotations


class ViolationError(Exception):
    """A promise was broken; the text names it, the node and the time."""
