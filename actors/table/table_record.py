"""Records of a snapshot of the table of locks. Tag 0x9a."""

from __future__ import annotations

from typing import NamedTuple

from fencelock.actors.message import Message, message
from fencelock.actors.table.outcome import Denial, Forced


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
    """A `Session`, without its owner states."""

    number: int
    name: str
    label: str
    ttl_ms: int
    version: int
    deadline_ms: int
    floor: int


class HoldRecord(NamedTuple):
    """A `Hold`."""

    fence: int
    label: str
    since_ms: int
    request: int
    times: int
    level: int


class WaitRecord(NamedTuple):
    """A `Wait`. Its deadline is log time, so it does not depend on any clock."""

    ticket: int
    label: str
    since_ms: int
    due_ms: int | None


class ClaimantRecord(NamedTuple):
    """An `OwnerState`; ``session`` is the number of its session.

    Its outcome is in ``freed``, the count left, or in ``denial`` and ``detail``.
    """

    session: int
    owner: str
    lock: str
    request: int
    releasing: bool
    freed: int | None
    denial: Denial | None
    detail: str
    lost: int
    quiet_ms: int
    hold: HoldRecord | None
    wait: WaitRecord | None


@message(0x9A)
class TablePart(Message):
    """Part ``index`` of the ``count`` parts of a snapshot."""

    index: int
    count: int
    head: TableHead
    sessions: tuple[SessionRecord, ...]
    owner_states: tuple[ClaimantRecord, ...]
    audit: tuple[Forced, ...]


TableSnapshot = tuple[TablePart, ...]
"""All parts, in order."""

Record = SessionRecord | ClaimantRecord | Forced
"""All records of a part, without the head."""
