"""A ticket as one leader has it in its table. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from fencelock.actors.bakery.ticket import Ticket, Who
from fencelock.actors.message import Instant


class Phase(Enum):
    """Where a ticket stands in one leader's table."""

    ENTERING = "enters"
    WAITING = "waits"
    HOLDING = "holds"
    """This leader voted for it, which is the grant record: it votes for nobody else."""


class Key(NamedTuple):
    """One request for a lock."""

    who: Who
    request: int


@dataclass(slots=True, eq=False)
class Entry:
    """A ticket in the table.

    Attributes:
        owner: the leader that takes its steps.
        until: of a hold: when its lease is over. Else: when a copy is forgotten that its
            owner did not repeat; None for a ticket of this leader's own. Only the table sets it.
        round: the highest round of votes that was asked for.
        fence: under which it holds, 0 while it does not.
        shelf: where `Expiry` has it, None for nowhere.

    """

    ticket: Ticket
    owner: str
    phase: Phase
    since: Instant
    until: Instant | None
    round: int = 0
    fence: int = 0
    shelf: int | None = None

    @property
    def key(self) -> Key:
        """Return which request it is."""
        return Key(self.ticket.who, self.ticket.request)

    def is_over(self, now: Instant) -> bool:
        """Return whether its lease, or its time as a copy, is over."""
        return self.until is not None and self.until <= now


def is_named(entry: Entry, request: int, fence: int) -> bool:
    """Return whether a drop of ``request``, or of ``fence`` (each may be 0), means ``entry``."""
    return entry.ticket.request <= request or (fence > 0 and entry.fence == fence)
