"""Requests of a node for its own clients: waiting tickets, and tickets with a request."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from fencelock.actors.lamport.order import Turn
from fencelock.actors.message import Instant


class Ticket(NamedTuple):
    """One acquire through this node."""

    number: int
    session: str
    owner: str
    since: Instant


@dataclass(slots=True)
class PendingRequest:
    """This node's request for a lock, and the ticket that it is for."""

    ticket: Ticket
    turn: Turn | None = None
    """Its place, None until the clock has stamped it and it came back."""
    granted_at: Instant | None = None
    withdrawn: bool = False
    """Whether it was given up before it was stamped: it is released once the stamp is known."""


class PendingRequests:
    """Per lock, the waiting tickets, first come first served, and at most one request (M5)."""

    def __init__(self) -> None:
        self.out: dict[str, PendingRequest] = {}
        self.lines: dict[str, OrderedDict[int, Ticket]] = {}
        self.tickets = 0
        """Number of tickets, waiting or with a request, of all locks."""

    def queue(self, lock: str, ticket: Ticket) -> None:
        """Append ``ticket`` to the line for ``lock``."""
        self.lines.setdefault(lock, OrderedDict())[ticket.number] = ticket
        self.tickets += 1

    def in_line(self, lock: str) -> list[Ticket]:
        """Return the tickets that have no request yet, in order."""
        return list(self.lines.get(lock, OrderedDict()).values())

    def begin(self, lock: str) -> bool:
        """Begin a request for the first ticket in line, if there is one and no request is out."""
        line = self.lines.get(lock)
        if line is None or lock in self.out:
            return False
        _, ticket = line.popitem(last=False)
        self.out[lock] = PendingRequest(ticket)
        if not line:
            del self.lines[lock]
        return True

    def leave(self, lock: str, number: int) -> bool:
        """Remove a ticket from the line; return False if it is not there."""
        line = self.lines.get(lock)
        if line is None or number not in line:
            return False
        del line[number]
        self.tickets -= 1
        if not line:
            del self.lines[lock]
        return True

    def end(self, lock: str) -> None:
        """Drop the request for ``lock`` and its ticket."""
        del self.out[lock]
        self.tickets -= 1

    def hoping(self) -> list[str]:
        """Return the locks with a request that is not granted, in the order of the requests."""
        return [lock for lock, bid in self.out.items() if bid.granted_at is None]
