"""The roles that a host runs: the set it begins with, its record of each, and descriptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from fencelock.actors.api.role_request import (
    FACT_CHARS_MAX,
    FACTS_MAX,
    ROLE_COUNTERS_MAX,
    ROLES_MAX,
    SUMMARY_MAX,
    VALUE_CHARS_MAX,
    Counted,
    Fact,
    RoleDescription,
    RoleState,
)
from fencelock.actors.effect import Effects, Send, Spawn
from fencelock.actors.message import Address, Instant, Local, role_of
from fencelock.actors.role import Role, Summary


class Closing(NamedTuple):
    """A message to a role of a node that stops in order."""

    to: Address
    message: Local
    within_ms: int
    """Longest wait for the role's answer (ms)."""


@dataclass(frozen=True, slots=True)
class RoleSet:
    """The roles a node begins with, and the first and the last messages sent to them."""

    roles: tuple[Spawn, ...]
    openings: tuple[Send, ...] = ()
    """Sent by ``node/node`` when every role had its first turn."""
    closings: tuple[Closing, ...] = ()
    """Sent one after the other, each when the previous one got its reply or timed out."""

    @property
    def closing_s(self) -> float:
        """The longest wait for the answers to the closings (s)."""
        return sum(closing.within_ms for closing in self.closings) / 1000


Handle = Callable[[Address, Any, Instant], Effects]
"""The handler of a role, or what watches it."""


class RoleSlot:
    """One running role: its hot attributes looked up once, and whether it may act."""

    __slots__ = (
        "accepts",
        "address",
        "counters",
        "dead",
        "handle",
        "held",
        "name",
        "role",
        "stops_alone",
    )

    def __init__(self, role: Role[Any], *, stops_alone: bool = False) -> None:
        self.role = role
        self.address = role.address
        self.name = role_of(role.address)
        self.handle: Handle = role.handle
        self.accepts = role.accepts
        """The event types that reach `handle`; none once the role is retired."""
        self.counters: Counter[str] = Counter()
        """Counts of this role's `Observe` effects, by name."""
        self.held = False
        """Whether this role persisted in the current turn: its later effects wait for the disk."""
        self.dead = False
        self.stops_alone = stops_alone
        """Whether a thread started this role on a running node: it may stop without the node."""


NoteFault = Callable[[str, Exception], None]
"""Logs and counts an exception that costs only what was being done."""


def describe(role_slot: RoleSlot, waiting: int, note_fault: NoteFault) -> RoleDescription:
    """Describe the role of ``role_slot``, for which ``waiting`` events wait."""
    summary: Summary
    try:
        summary = role_slot.role.summary()
    except Exception as error:  # noqa: BLE001  # Nothing was changed.
        note_fault(f"the summary of {role_slot.address}", error)
        summary = (("summary", "cannot be made: see the log"),)
    return RoleDescription(
        name=role_of(role_slot.address),
        kind=type(role_slot.role).__name__,
        waiting=waiting,
        summary=tuple(
            Fact(name[:VALUE_CHARS_MAX], _in_words(value)[:VALUE_CHARS_MAX])
            for name, value in summary[:SUMMARY_MAX]
        ),
        counters=counted(role_slot.counters)[:ROLE_COUNTERS_MAX],
    )


def state_of(role_slot: RoleSlot, now: Instant, note_fault: NoteFault) -> RoleState:
    shown: Summary
    try:
        shown = tuple(islice(role_slot.role.facts(now), FACTS_MAX + 1))
    except Exception as error:  # noqa: BLE001  # Nothing was changed.
        note_fault(f"the facts of {role_slot.address}", error)
        shown = (("facts", "cannot be made: see the log"),)
    facts = tuple(
        Fact(name[:FACT_CHARS_MAX], _in_words(value)[:FACT_CHARS_MAX]) for name, value in shown
    )
    return RoleState(
        name=role_slot.name,
        kind=type(role_slot.role).__name__,
        facts=facts[:FACTS_MAX],
        more=len(facts) > FACTS_MAX,
    )


def _in_words(value: str | int) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def describe_all(
    role_slots: Iterable[RoleSlot], waiting: Counter[RoleSlot], note_fault: NoteFault
) -> tuple[RoleDescription, ...]:
    """Describe the roles of a node, those that started first, at most `ROLES_MAX`."""
    return tuple(
        describe(role_slot, waiting[role_slot], note_fault)
        for role_slot in islice(role_slots, ROLES_MAX)
    )


def counted(counters: Counter[str]) -> tuple[Counted, ...]:
    return tuple(Counted(name, times) for name, times in sorted(counters.items()))
