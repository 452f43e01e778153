"""What may be asked of the table of locks without changing it, and its answers."""

from __future__ import annotations

from fencelock.actors.lock.report import LockLine, LockReport
from fencelock.actors.message import Local, local


@local
class LookUp(Local):
    """Who holds ``lock``, and who waits for it? Answered by `Looked`."""

    lock: str


@local
class Looked(Local):
    """What is known of a lock, held or free."""

    report: LockReport


@local
class Browse(Local):
    """Which locks are held? As `LockTable.listing`; answered by `Browsed`."""

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
