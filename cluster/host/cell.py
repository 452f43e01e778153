"""What the dispatcher knows of one role that it runs."""

from __future__ import annotations

from typing import Any

from holdfast.actors.role import Role

INBOX_MAX = 10_000
"""Events from outside that may wait for one role; more are refused at the door."""

BACKLOG_MAX = 1_000_000
"""Events of any kind that may wait for one role; more mean that roles of ours flood another."""


class Cell:
    """One running role: its hot attributes looked up once, and what waits for it."""

    __slots__ = ("accepts", "address", "dead", "handle", "held", "queued", "role")

    def __init__(self, role: Role[Any]) -> None:
        self.role = role
        self.address = role.address
        self.handle = role.handle
        self.accepts = role.accepts
        self.queued = 0
        self.held = False
        """Whether this role persisted in the current turn: its later effects wait for the disk."""
        self.dead = False
