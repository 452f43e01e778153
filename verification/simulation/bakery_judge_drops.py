"""The judge of dropped requests in `bakery`: no table that is handed over restores them."""

from __future__ import annotations

from typing import Any

from fencelock.actors.bakery.config import quorum
from fencelock.actors.bakery.message import DropTicket, Lead, Merged
from fencelock.actors.bakery.ticket import Who
from fencelock.actors.effect import Effects, Send
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationReport
from fencelock.verification.simulation.world import World


class DropsJudge:
    """Judges dropped-stays-dropped where tables are merged."""

    def __init__(self, world: World, violation_report: ViolationReport) -> None:
        self.world = world
        self.violation_report = violation_report
        self.dropped: dict[tuple[str, Who], dict[int, dict[str, int]]] = {}
        """By owner and epoch: the last request that each leader dropped for its client."""
        self.gone: dict[tuple[str, Who], dict[int, int]] = {}
        """By owner and epoch: the last request that a quorum dropped."""

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        role: Any = self.world.role_at(delivered.to)
        event = delivered.event
        if isinstance(event, DropTicket) and role.epoch_state.epoch == event.epoch:
            self._note(delivered.node, role, event)
        if isinstance(event, Lead) and event.empty:  # Two were lost, and all that they knew.
            self.dropped.clear()
            self.gone.clear()
        for effect in effects:
            if type(effect) is not Send:
                continue
            if type(effect.message) is DropTicket:
                self._note(delivered.node, role, effect.message)
            elif type(effect.message) is Merged:
                self._judge(delivered.node, role, effect.message.epoch)

    def _note(self, node: str, role: Any, word: DropTicket) -> None:
        if word.mine:
            return
        owner = (word.lock, word.who)
        known = self.dropped.setdefault(owner, {}).setdefault(word.epoch, {})
        known[node] = role.tickets.tombstones.of(*owner).dropped
        enough = quorum(role.epoch_state.keepers)
        if len(known) >= enough:
            agreed = sorted(known.values(), reverse=True)[enough - 1]
            gone = self.gone.setdefault(owner, {})
            gone[word.epoch] = max(agreed, gone.get(word.epoch, 0))

    def _judge(self, node: str, role: Any, ready_for: int) -> None:
        """Check that requests dropped in earlier epochs stay dropped.

        A leader that becomes ready late, after a quorum without it has begun to serve, learns of
        that quorum's drops as any leader does.
        """
        for entry in role.tickets.entries():
            ticket = entry.ticket
            gone = self.gone.get((ticket.lock, ticket.who), {})
            if any(ticket.request <= gone[epoch] for epoch in gone if epoch < ready_for):
                told = f"request {ticket.request} of {ticket.who} at {ticket.lock!r}"
                self.violation_report(
                    "dropped-stays-dropped",
                    f"{node} is ready to lead with {told}, which a quorum dropped",
                )
