"""Roles of the log on a node that keeps nothing on disk; see `Founder` for who votes there."""

from __future__ import annotations

from typing import Any

from holdfast.actors.effect import Checkpoint, Effects, Observe, Persist, Send
from holdfast.actors.message import Address, Instant, node_of
from holdfast.actors.paxos.acceptor import Acceptor
from holdfast.actors.paxos.catchup import CatchUp
from holdfast.actors.paxos.event import Suspect
from holdfast.actors.paxos.handover_event import Succeed
from holdfast.actors.paxos.leader import Leader


def without_records(effects: Effects) -> Effects:
    """Return ``effects`` less what is for a journal: nothing of it outlives the process."""
    return [effect for effect in effects if not isinstance(effect, Persist | Checkpoint)]


class MemoryAcceptor(Acceptor):
    """An acceptor whose promises end with its life, which therefore is the only one to vote."""

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


class SilentAcceptor(MemoryAcceptor):
    """The acceptor of a node that came back: it learns which votes won, and casts none.

    It takes note of all that it is asked to accept, and says nothing of it to any other
    node: neither that it promised, nor accepted, nor will keep to the master for a lease.
    """

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        """Learn from one ballot."""
        effects = super().handle(sender, event, now)
        return [
            effect
            for effect in effects
            if not isinstance(effect, Send) or node_of(effect.to) == self.node
        ]


class IdleLeader(MemoryLeader):
    """The leader of a node that came back: it never stands."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        """Follow."""
        if isinstance(event, Suspect | Succeed):
            return (Observe("paxos.cannot_stand"),)
        return super().handle(sender, event, now)
