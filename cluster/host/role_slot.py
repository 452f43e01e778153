"""The dispatcher's record of one role that it runs."""

from __future__ import annotations

from typing import Any

from fencelock.actors.role import Role


class RoleSlot:
    """One running role: its hot attributes looked up once, and whether it may act."""

    __slots__ = ("accepts", "address", "dead", "handle", "held", "role")

    def __init__(self, role: Role[Any]) -> None:
        self.role = role
        self.address = role.address
        self.handle = role.handle
        self.accepts = role.accepts
        """The event types that reach `handle`; none once the role is retired."""
        self.held = False
        """Whether this role persisted in the current turn: its later effects wait for the disk."""
        self.dead = False
