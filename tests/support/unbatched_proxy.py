"""A proxy that proposes each command at once, for tests of the effects of one event."""

from __future__ import annotations

from fencelock.actors.effect import Effect, Effects, Send
from fencelock.actors.message import Address, Instant
from fencelock.actors.paxos.event import Gather, ProposalBatch
from fencelock.actors.paxos.proxy import LogProxy
from fencelock.actors.paxos.proxy_event import Heard


class UnbatchedProxy(LogProxy):
    """A `LogProxy` that makes each event a turn by itself, and takes batches apart."""

    def handle(self, sender: Address, event: Heard, now: Instant) -> Effects:
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
