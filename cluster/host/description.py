"""Descriptions of the roles that a host runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from fencelock.actors.api.self_report import Counted
from fencelock.actors.message import role_of
from fencelock.actors.role_message import (
    COUNTERS_MAX,
    ROLES_MAX,
    SUMMARY_MAX,
    VALUE_CHARS_MAX,
    Fact,
    RoleDescription,
)
from fencelock.cluster.host.role_slot import RoleSlot


def describe(role_slot: RoleSlot, waiting: int) -> RoleDescription:
    """Describe the role of ``cell``, for which ``waiting`` events wait."""
    return RoleDescription(
        name=role_of(role_slot.address),
        kind=type(role_slot.role).__name__,
        waiting=waiting,
        summary=tuple(
            Fact(name[:VALUE_CHARS_MAX], _in_words(value)[:VALUE_CHARS_MAX])
            for name, value in role_slot.role.summary()[:SUMMARY_MAX]
        ),
        counters=counted(role_slot.counters)[:COUNTERS_MAX],
    )


def _in_words(value: str | int) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def describe_all(
    cells: Iterable[RoleSlot], waiting: Counter[RoleSlot]
) -> tuple[RoleDescription, ...]:
    """Describe the roles of a node, those that started first, at most `ROLES_MAX`."""
    return tuple(describe(role_slot, waiting[role_slot]) for role_slot in islice(cells, ROLES_MAX))


def counted(counters: Counter[str]) -> tuple[Counted, ...]:
    """Return ``counters`` by name."""
    return tuple(Counted(name, times) for name, times in sorted(counters.items()))
