"""The one way in which a run fails."""

from __future__ import annotations


class ViolationError(Exception):
    """A promise was broken; the text says which, by whom and when."""
