"""Packages and programs without which a test is skipped, but never in CI."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest


def package(name: str, where: str = "it is in the extra 'examples' or 'redis'") -> None:
    """Skip the test if the package ``name`` is missing; in CI, fail. ``where`` says where it is."""
    if importlib.util.find_spec(name) is None:
        _without(f"{name} is not installed: {where}")


def program(name: str, *places: str) -> str:
    """Return the path of a program, also from folders like ``usr/lib/*/bin``; else as above."""
    found = shutil.which(name)
    for place in places:
        found = found or next(map(str, sorted(Path("/").glob(f"{place}/{name}"))), None)
    if found is None:
        _without(f"{name} is not installed: .ci/run installs it with apt as root")
    assert found is not None
    return found


def _without(reason: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
