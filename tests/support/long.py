"""Cases of a test that need so much processor time that only ``pytest -m long`` runs them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def with_long(cases: Iterable[str], *long: str) -> list[Any]:
    """Return the cases of a test, those of ``long`` marked as such."""
    known = [*cases]
    assert set(long) <= set(known), "is no case"
    return [pytest.param(one, marks=pytest.mark.long) if one in long else one for one in known]
