"""Queries about the table of locks, which do not change it, and their answers."""

from __future__ import annotations

from fencelock.actors.message import Local, local
from fencelock.actors.table.report import LockLine, LockReport


@local
class LookUp(Local):
    """Query for the holder and the waiters of ``lock``. Answered by `Looked`."""

    lock: str


@local
class Looked(Local):
    """The report of a lock, held or free."""

    report: LockReport


@local
class Browse(Local):
    """Query for held locks, as `LockTable.listing`. Answered by `Browsed`."""

    prefix: str
    after: str
    most: int


@local
class Browsed(Local):
    """A page of held locks, sorted by name; ``more`` come after it."""

    lines: tuple[LockLine, ...]
    more: bool


Question = LookUp | Browse
Reading = Looked | Browsed
