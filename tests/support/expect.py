"""Values that a test narrows to what it expects, or fails."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 60
"""The longest wait for an event that a test expects (s)."""


def present(value: T | None) -> T:
    """Return ``value``, which must not be None."""
    assert value is not None
    return value


def checked(kind: type[T], value: object) -> T:
    """Return ``value``, which must be of ``kind``."""
    assert isinstance(value, kind), value
    return value


def only(kind: type[T], values: Iterable[object]) -> T:
    """Return the only one of ``values``, which must be of ``kind``."""
    (value,) = values
    return checked(kind, value)
