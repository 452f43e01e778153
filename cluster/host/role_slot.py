"""The dispatcher's record of one role that it runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fencelock.actors.role import Role


class RoleSlot:
    """One running role: its hot attributes looked up once, and whether it may act."""

    __slots__ = ("accepts", "address", "counters", "dead", "guest", "handle", "held", "role")

    def __init__(self, role: Role[Any], *, guest: bool = False) -> None:
        self.role = role
        self.address = role.address
        self.handle = role.handle
        self.accepts = role.accepts
        """The event types that reach `handle`; none once the role is retired."""
        self.counters: Counter[str] = Counter()
        """Counts of this role's `Observe` effects, by name."""
        self.held = False
        """Whether this role persisted in the current turn: its later effects wait for the disk."""
        self.dead = False
        self.guest = guest
        """Whether a thread started this role on a running node: it may stop without the node."""
