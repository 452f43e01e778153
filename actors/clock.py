"""The logical clock of a node: an actor that counts all frames that leave or arrive.

Every frame needs a stamp, so the host calls `Clock.departing` and `Clock.arrived` without a turn
of the role. Messages that a role posts, and questions, reach it as events.

Source: Lamport 1978, implementation rules IR1 (count between any two events) and
IR2 (a message carries its time; its receiver continues from later than that).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fencelock.actors.effect import Effects, Observe, Send
from fencelock.actors.message import Address, Instant, Local, Message, local
from fencelock.actors.role import Host, Role, Summary
from fencelock.actors.role_message import ClockTime, ReadClock

STAMP_MAX = (1 << 56) - 1
"""Stamps fit 56 bits, so that a stamp and the number of a node (7 bits) pack into a fence."""


class Stamped(Message):
    """A message with a field ``stamp``: its logical send time; 0 until the clock has set it."""

    __slots__ = ()


@local
class Post(Local):
    """From a role: stamp ``message`` and have it carried to ``nodes``, in the order posted."""

    nodes: tuple[str, ...]
    message: Stamped


@local
class Carry(Local):
    """To the channel: ``message`` is stamped; send it to ``nodes``, in this order."""

    nodes: tuple[str, ...]
    message: Stamped


class Clock(Role[Post | ReadClock]):
    """Counts events of one node and stamps what leaves it.

    Invariants:
        M2  ``time`` never decreases, and rises with every stamp.

    Args:
        start: the initial time, 0 to `STAMP_MAX`; the first stamp is one more.
        channel: the role that carries posted messages, None where no protocol posts.

    """

    def __init__(
        self, address: Address, host: Host, *, start: int = 0, channel: Address | None = None
    ) -> None:
        super().__init__(address, host)
        self.time = start
        self.channel = channel

    def handle(self, sender: Address, event: Post | ReadClock, now: Instant) -> Effects:
        """Stamp a message, or reply with the logical time. Physical time is ignored."""
        del now
        match event:
            case Post():
                return self._on_post(event)
            case ReadClock():
                return (Send(sender, ClockTime(time=self.time)),)

    def summary(self) -> Summary:
        """Return the logical time."""
        return (("time", self.time),)

    def departing(self) -> int:
        """Return the stamp of the frames that are about to leave together."""
        self.time += 1  # IR1
        assert self.time <= STAMP_MAX
        return self.time

    def arrived(self, stamp: int) -> Effects:
        """Go on from later than ``stamp``, of a peer's frame whose messages come after this."""
        if not 0 <= stamp < STAMP_MAX:
            return (Observe("clock.impossible_stamp"),)
        self.time = max(self.time, stamp) + 1  # IR2
        return ()

    def _on_post(self, post: Post) -> Effects:
        if self.channel is None:
            return (Observe("clock.nobody_carries"),)
        unstamped: Any = post.message
        stamped = replace(unstamped, stamp=self.departing())
        return (Send(self.channel, Carry(nodes=post.nodes, message=stamped)),)
