"""A ticket in one leader's table. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from fencelock.actors.bakery.ticket import Ticket, Who
from fencelock.actors.message import Instant


class Phase(Enum):
    """State of a ticket in one leader's table."""

    ENTERING = "enters"
    WAITING = "waits"
    HOLDING = "holds"
    """This leader voted for it, which is the grant record: it votes for no other."""


class Key(NamedTuple):
    """One request for a lock."""

    who: Who
    request: int


@dataclass(slots=True, eq=False)
class Entry:
    """A ticket in the table.

    Attributes:
        owner: the leader that takes its steps.
        until: of a hold: the end of its lease. Else: the time at which a copy is forgotten that
            its owner did not repeat; None for this leader's own ticket. Only the table sets it.
        round: the highest round in which votes were requested.
        fence: the fence under which it holds, 0 while it does not.
        shelf: its place in `Expiry`, None for none.

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
        """Return the request of this entry."""
        return Key(self.ticket.who, self.ticket.request)

    def is_over(self, now: Instant) -> bool:
        """Return whether its lease, or its time as a copy, is over."""
        return self.until is not None and self.until <= now


def is_named(entry: Entry, request: int, fence: int) -> bool:
    """Return whether ``entry`` is meant by a drop of ``request``, or ``fence`` (each may be 0)."""
    return entry.ticket.request <= request or (fence > 0 and entry.fence == fence)
