"""The gateway of a node: frames in and out, each through the node's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loguru import logger

from fencelock.actors.clock import Arrived, Clock, Departing
from fencelock.actors.link import LinkRefused
from fencelock.actors.message import address_of
from fencelock.transport.frame import EnvelopeItems, Frame, FrameTooLargeError

if TYPE_CHECKING:
    from fencelock.cluster.host.links import Links
    from fencelock.cluster.host.scheduler import Scheduler

FRAME_ENVELOPES_MAX = 256
"""Limit of messages in one frame: a receiver handles them at once; far below a frame's bytes."""

VIEW = 0
"""The number of the membership in force; it never changes yet."""

_DEPARTING = Departing()


class Gateway:
    """Stamps and sends the roles' messages for other nodes, and delivers those that arrive.

    Args:
        scheduler: the roles of this node.
        hub: the sockets.
        members: the nodes whose stamps move the clock. A client's stamp does not, or any
            stranger could push logical time to its end.

    """

    def __init__(self, scheduler: Scheduler, hub: Links, members: frozenset[str]) -> None:
        self._stage = scheduler
        self._bridge = hub
        self._members = members
        self._clock = address_of(scheduler.node, "clock")

    def take(self, most: int) -> None:
        """Deliver up to ``most`` frames of members, and all events of links."""
        for event in self._bridge.events():
            if isinstance(event, LinkRefused):
                logger.error("node {}: link to {}: {}", self._stage.node, event.node, event.detail)
            self._stage.tell_all(event)
        arrive = self._stage.arrive
        for link, frame in self._bridge.receive_members(most):
            if link in self._members:
                self._clock_after(Arrived(stamp=frame.stamp))
            arrive(frame.envelopes)

    def take_clients(self, most: int, within_ns: int) -> int:
        """Deliver up to ``most`` envelopes of clients; return how many there were.

        A frame that is dropped counts as an envelope. No frame is decoded after ``within_ns``.
        """
        arrivals, taken = self._bridge.receive_clients(most, within_ns)
        for _, frame in arrivals:
            self._stage.arrive(frame.envelopes)
        return taken

    def flush(self) -> None:
        """Send each peer's messages in one frame, or in several if one would be too large."""
        for link, envelopes in self._stage.outboxes.take().items():
            if len(envelopes) <= FRAME_ENVELOPES_MAX:
                self._send(link, envelopes)
                continue
            for start in range(0, len(envelopes), FRAME_ENVELOPES_MAX):
                self._send(link, envelopes[start : start + FRAME_ENVELOPES_MAX])

    def _send(self, link: str, envelopes: list[EnvelopeItems]) -> None:
        stamp = self._clock_after(_DEPARTING)
        try:
            self._bridge.send(link, Frame(self._bridge.cluster, VIEW, stamp, tuple(envelopes)))
        except FrameTooLargeError:
            if len(envelopes) == 1:
                self._stage.counters["host.message_too_large"] += 1
                return
            half = len(envelopes) // 2
            self._send(link, envelopes[:half])
            self._send(link, envelopes[half:])

    def _clock_after(self, event: Departing | Arrived) -> int:
        """Let the clock handle ``event``, and return its new time; 0 on a node without a clock."""
        scheduler = self._stage
        role_slot = scheduler.cells.get(self._clock)
        if role_slot is None:
            return 0
        clock = role_slot.role
        assert isinstance(clock, Clock)
        effects = clock.handle(scheduler.here, event, scheduler.now())
        if effects:
            scheduler.perform(self._clock, effects)
        return clock.time
