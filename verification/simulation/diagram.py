"""The messages of a run, for its space-time diagram."""

from __future__ import annotations

from fencelock.actors.effect import Effects
from fencelock.actors.message import node_of
from fencelock.actors.trace import line_of, messages
from fencelock.cluster.diagram import GRANTED, ROUTINE, Event, chosen, space_time
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import Judge

NS_PER_US = 1_000

EVENTS = 200
"""Events in a diagram."""

BEFORE = 50
"""Events before the first grant, of these."""


class Recorder(Judge):
    """Records what nodes and clients send and receive; it judges nothing."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        role, time = delivered.to, delivered.time // NS_PER_US
        for one in messages(role, delivered.sender, delivered.event, effects, "", local=False):
            line = line_of(len(self.events), time, role, one)
            self.events.append(Event(node_of(role), line))

    def drawn(self, title: str) -> str:
        """Return the diagram of `EVENTS` events around the first grant."""
        events = chosen(self.events, None, ROUTINE)
        granted = [at for at, one in enumerate(events) if one.line.kind == GRANTED]
        first = max(0, granted[0] - BEFORE) if granted else 0
        return space_time(events[first : first + EVENTS], title)
