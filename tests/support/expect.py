"""Values that a test narrows to what it expects, or fails."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

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


def with_long(cases: Iterable[str], *long: str) -> list[Any]:
    """Return the cases of a test, those of ``long`` marked as such."""
    known = [*cases]
    assert set(long) <= set(known), "is no case"
    return [pytest.param(one, marks=pytest.mark.long) if one in long else one for one in known]
