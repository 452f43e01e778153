"""Modules that only POSIX systems have, imported when needed: clients run on Windows, too."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from fencelock.actors.error import UnsupportedError

A_NODE = "a node"


@cache
def posix(module: str, what: str) -> Any:
    """Return ``module``, which ``what`` needs.

    Raises:
        UnsupportedError: this system does not have it.

    """
    try:
        return import_module(module)
    except ImportError:
        raise UnsupportedError(
            f"{what} needs a POSIX system such as Linux or macOS: this one has no {module}. "
            "Clients run on it."
        ) from None
