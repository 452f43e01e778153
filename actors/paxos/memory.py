"""Roles of the log on a node that keeps nothing on disk; `Bootstrap` decides who votes there."""

from __future__ import annotations

from typing import Any

from fencelock.actors.effect import Checkpoint, Effects, Persist
from fencelock.actors.message import Address, Instant
from fencelock.actors.paxos.acceptor import Acceptor
from fencelock.actors.paxos.catchup import CatchUp
from fencelock.actors.paxos.leader import Leader


def without_records(effects: Effects) -> Effects:
    """Return ``effects`` less what is for a journal: nothing of it outlives the process."""
    return [effect for effect in effects if not isinstance(effect, Persist | Checkpoint)]


class MemoryAcceptor(Acceptor):
    """An acceptor whose promises end with its life, which has a journal id of its own."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        """Judge one ballot."""
        return without_records(super().handle(sender, event, now))


class MemoryLeader(Leader):
    """A leader whose rounds are its life's own: each generation of the group has others."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        """Stand, lead, or give way."""
        return without_records(super().handle(sender, event, now))


class MemoryCatchUp(CatchUp):
    """A catch-up that fetches again what it had before a restart."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        """Ask, or answer."""
        return without_records(super().handle(sender, event, now))
