"""Formatting a cluster's answers: as text for people, and as JSON for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

from fencelock.actors.api.message import Contender

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))
_ENVELOPE = frozenset({"session", "request"})
"""Fields that only match a reply with its request; of no use to a reader."""


def as_plain(value: Any) -> Any:
    """Return a message, with all that is in it, as JSON values: fields become keys."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: as_plain(getattr(value, name)) for name in names if name not in _ENVELOPE}
    if hasattr(value, "_asdict"):
        return {name: as_plain(part) for name, part in value._asdict().items()}
    if isinstance(value, tuple):
        return [as_plain(part) for part in cast("Sequence[object]", value)]
    return value


def duration(ms: int) -> str:
    """Return ``ms`` milliseconds in the two largest units that fit, like ``2h 5m``."""
    if ms < 1_000:  # noqa: PLR2004 (a second)
        return f"{ms}ms"
    parts: list[str] = []
    for unit, size in _UNITS:
        count, ms = divmod(ms, size)
        if count or parts:
            parts.append(f"{count}{unit}")
        if len(parts) == 2:  # noqa: PLR2004 (as the docstring says)
            break
    return " ".join(part for part in parts if part[0] != "0")


def address(contender: Contender) -> str:
    """Return the ids by which the cluster knows an owner: node, session and owner."""
    parts = (contender.node, contender.session, contender.owner)
    return "/".join(part for part in parts if part)


def person(contender: Contender) -> str:
    """Return an owner's label, or its ids if it has none."""
    return contender.label or address(contender)


def in_full(contender: Contender) -> str:
    """Return an owner's label, if it has one, and its ids."""
    if not contender.label:
        return address(contender)
    return f"{contender.label} ({address(contender)})"
