"""A proxy that proposes each command at once, for tests of the effects of one event."""

from __future__ import annotations

from fencelock.actors.effect import Effect, Effects, Send
from fencelock.actors.message import Address, Event, Instant
from fencelock.actors.paxos.event import Gather, ProposalBatch
from fencelock.actors.proxy.proxy import Proxy


class UnbatchedProxy(Proxy):
    """A proxy of the log that makes each event a turn by itself, and takes batches apart."""

    def handle(self, sender: Address, event: Event, now: Instant) -> Effects:
        """Handle ``event``, then the end of its turn."""
        effects = super().handle(sender, event, now)
        if Send(self.address, Gather()) not in effects:
            return effects
        rest = [effect for effect in effects if effect != Send(self.address, Gather())]
        proposed: list[Effect] = []
        for effect in super().handle(self.address, Gather(), now):
            if isinstance(effect, Send) and isinstance(effect.message, ProposalBatch):
                proposed += [Send(effect.to, propose) for propose in effect.message.each()]
            else:
                proposed.append(effect)
        return [*rest, *proposed]
