"""What waits for other nodes and for clients until the turn ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from fencelock.actors.message import Address, Message, node_of
from fencelock.transport.frame import EnvelopeItems
from fencelock.transport.name import NAMES_KEPT


class Outboxes:
    """Envelopes to be sent, by the node or the client that they go to.

    Attributes:
        boxes: what waits. What goes to an address in ``nodes`` may be put in without `put`:
            the way of most messages. No `Local` may; one that is there has no encoding.
        nodes: the node of each address elsewhere that was sent to lately.

    """

    def __init__(self) -> None:
        self.boxes: defaultdict[str, list[Any]] = defaultdict(list)
        self.nodes: dict[Address, str] = {}

    def put(self, to: Address, sender: Address, message: Message) -> None:
        """Let ``message`` wait, and note where ``to`` is."""
        node = node_of(to)
        self.boxes[node].append((to, sender, message))
        if len(self.nodes) >= NAMES_KEPT:
            self.nodes.clear()
        self.nodes[to] = node

    def take(self) -> Mapping[str, list[EnvelopeItems]]:
        """Return what waits, and begin anew; not amid `Stage.work`, which puts into these boxes."""
        boxes, self.boxes = self.boxes, defaultdict(list)
        return boxes
