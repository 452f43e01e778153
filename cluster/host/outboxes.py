"""Outgoing messages of a turn, collected by receiver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from fencelock.actors.message import Address, Message, node_of
from fencelock.transport.frame import EnvelopeItems
from fencelock.transport.name import NAMES_KEPT


class Outboxes:
    """Envelopes to send, by the receiving node or client.

    Attributes:
        boxes: the waiting envelopes. Code may append to them without `put` for addresses in
            ``nodes``, which is the path of most messages. It must not append a `Local`,
            which has no encoding.
        nodes: the node of each remote address that was recently sent to.

    """

    def __init__(self) -> None:
        self.boxes: defaultdict[str, list[Any]] = defaultdict(list)
        self.nodes: dict[Address, str] = {}

    def put(self, to: Address, sender: Address, message: Message) -> None:
        """Add ``message``, and remember the node of ``to``."""
        node = node_of(to)
        self.boxes[node].append((to, sender, message))
        if len(self.nodes) >= NAMES_KEPT:
            self.nodes.clear()
        self.nodes[to] = node

    def take(self) -> Mapping[str, list[EnvelopeItems]]:
        """Return the envelopes and start anew; not during `Scheduler.work`, which adds some."""
        boxes, self.boxes = self.boxes, defaultdict(list)
        return boxes
