"""What a snapshot of the table of locks is written in. Tag 0x9a."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.actors.lock.outcome import Denied, Forced, Freed, Held
from holdfast.actors.message import Message, message


class TableHead(NamedTuple):
    """The counters of a table, the same in every part of a snapshot."""

    time_ms: int
    fence: int
    tickets: int
    opened: int
    signs: int
    extended_ms: int
    extended_version: int


class SessionRecord(NamedTuple):
    """A `Session`, less its owners."""

    number: int
    name: str
    label: str
    ttl_ms: int
    version: int
    deadline_ms: int
    floor: int


class OwnerRecord(NamedTuple):
    """An `Owner`, less its claims; ``session`` is the number of its session."""

    session: int
    name: str
    request: int
    lock: str
    releasing: bool
    outcome: Held | Freed | Denied | None


class LossRecord(NamedTuple):
    """A fence that an owner lost by force and has not heard of."""

    session: int
    owner: str
    lock: str
    fence: int


class HoldRecord(NamedTuple):
    """A `Hold`."""

    fence: int
    session: int
    owner: str
    lock: str
    label: str
    since_ms: int
    request: int
    times: int
    level: int


class WaitRecord(NamedTuple):
    """A `Wait`. Its deadline is log time: how long is left does not depend on any clock."""

    ticket: int
    session: int
    owner: str
    request: int
    lock: str
    label: str
    since_ms: int
    due_ms: int | None


@message(0x9A)
class TablePart(Message):
    """Part ``index`` of the ``count`` of a snapshot."""

    index: int
    count: int
    head: TableHead
    sessions: tuple[SessionRecord, ...]
    owners: tuple[OwnerRecord, ...]
    losses: tuple[LossRecord, ...]
    holds: tuple[HoldRecord, ...]
    waits: tuple[WaitRecord, ...]
    audit: tuple[Forced, ...]


TableSnapshot = tuple[TablePart, ...]
"""All parts, in order."""

Record = SessionRecord | OwnerRecord | LossRecord | HoldRecord | WaitRecord | Forced
"""All that a part may hold, less the head."""
