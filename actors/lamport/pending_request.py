"""What a node wants for its own clients: tickets that wait, and those its requests are for."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from fencelock.actors.lamport.order import Turn
from fencelock.actors.message import Instant


class Ticket(NamedTuple):
    """One acquisition through this node."""

    number: int
    session: str
    owner: str
    since: Instant


@dataclass(slots=True)
class PendingRequest:
    """The request this node has out for a lock, and the ticket it is for."""

    ticket: Ticket
    turn: Turn | None = None
    """Its place, None until the clock has stamped it and it came back."""
    granted_at: Instant | None = None
    withdrawn: bool = False
    """Given up before it was stamped: to be released as soon as the stamp is known."""


class PendingRequests:
    """Per lock, the tickets in line, first come first served, and at most one bid (M5)."""

    def __init__(self) -> None:
        self.out: dict[str, PendingRequest] = {}
        self.lines: dict[str, OrderedDict[int, Ticket]] = {}
        self.tickets = 0
        """In line or out, of all locks."""

    def queue(self, lock: str, ticket: Ticket) -> None:
        """Put ``ticket`` in line for ``lock``."""
        self.lines.setdefault(lock, OrderedDict())[ticket.number] = ticket
        self.tickets += 1

    def in_line(self, lock: str) -> list[Ticket]:
        """Return the tickets that have no bid yet, in order."""
        return list(self.lines.get(lock, OrderedDict()).values())

    def begin(self, lock: str) -> bool:
        """Make a bid for the first ticket in line, if there is one and no bid is out."""
        line = self.lines.get(lock)
        if line is None or lock in self.out:
            return False
        _, ticket = line.popitem(last=False)
        self.out[lock] = PendingRequest(ticket)
        if not line:
            del self.lines[lock]
        return True

    def leave(self, lock: str, number: int) -> bool:
        """Take a ticket out of the line; False if it is not there."""
        line = self.lines.get(lock)
        if line is None or number not in line:
            return False
        del line[number]
        self.tickets -= 1
        if not line:
            del self.lines[lock]
        return True

    def end(self, lock: str) -> None:
        """Forget the bid for ``lock`` and its ticket."""
        del self.out[lock]
        self.tickets -= 1

    def hoping(self) -> list[str]:
        """Return the locks with a bid that is not granted, in the order of the bids."""
        return [lock for lock, bid in self.out.items() if bid.granted_at is None]
