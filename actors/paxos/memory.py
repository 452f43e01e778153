"""Roles of the log on a node without a disk; `Bootstrap` decides which of them vote."""

from __future__ import annotations

from typing import Any

from fencelock.actors.effect import Checkpoint, Effects, Persist
from fencelock.actors.message import Address, Instant
from fencelock.actors.paxos.acceptor import Acceptor
from fencelock.actors.paxos.catchup import CatchUp
from fencelock.actors.paxos.leader import Leader


def without_records(effects: Effects) -> Effects:
    """Return ``effects`` without those for a journal: nothing outlives the process."""
    return [effect for effect in effects if not isinstance(effect, Persist | Checkpoint)]


class MemoryAcceptor(Acceptor):
    """An acceptor whose promises end with the process, under a journal id of its own."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        """Handle a message of a leader, or news from the replica."""
        return without_records(super().handle(sender, event, now))


class MemoryLeader(Leader):
    """A leader whose rounds end with the process: each generation of the group has its own."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        """Stand, lead, or give way."""
        return without_records(super().handle(sender, event, now))


class MemoryCatchUp(CatchUp):
    """A catch-up that fetches everything again after a restart."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        """Send a fetch, or answer one."""
        return without_records(super().handle(sender, event, now))
