"""The logical clock of a node: an actor that counts all frames that leave or arrive.

Every frame needs a stamp, so the host calls `Clock.departing` and `Clock.arrived` without a turn
of the role. Messages that a role posts, and questions, reach it as events.

A stamp of another member is bounded: one at the end of logical time would leave no stamp for any
later frame. A node starts its clock at its date, in microseconds, and sends less than one frame in
each. So a stamp is at most `AHEAD_US` above the receiver's own date, unless their dates differ by
more. The limit moves with real time. So members that a forged stamp pushed up to their limits stay
below them, and below the limits of the others once the difference of their dates has passed. A
frame beyond the limit is refused whole, and its receiver must not deliver what it carries:
`lamport` would miss a request, but receives it again with a later frame.

Source: Lamport 1978, implementation rules IR1 (count between any two events) and
IR2 (a message carries its time; its receiver continues from later than that).
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fencelock.actors.api.role_request import ClockTime, ReadClock
from fencelock.actors.effect import Effects, Observe, Send
from fencelock.actors.message import (
    NS_PER_US,
    Address,
    Instant,
    Int64,
    Local,
    Message,
    address_of,
    node_of,
)
from fencelock.actors.repeated import ImpossibleMessages
from fencelock.actors.role import Facts, Host, Role, Summary

STAMP_MAX = (1 << 56) - 1
"""Stamps fit 56 bits, so that a stamp and the number of a node (7 bits) pack into a fence."""

AHEAD_US = 1 << 53
"""The most by which a member's stamp may be above a receiver's date (us): 285 years. A host whose
clock has stopped starts in 1970, and must still accept the stamps of the others."""


class Stamped(Message):
    """A message with its logical send time; 0 until the clock has set it."""

    stamp: Int64 = 0


class Post(Local):
    """From a role: stamp ``message`` and have it carried to ``nodes``, in the order posted."""

    nodes: tuple[str, ...]
    message: Stamped


class Carry(Local):
    """To the channel: ``message`` is stamped; send it to ``nodes``, in this order."""

    nodes: tuple[str, ...]
    message: Stamped


class Clock(Role[Post | ReadClock]):
    """Counts events of one node and stamps what leaves it.

    Invariants:
        time-rises: ``time`` never decreases, and rises with every stamp.

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
        self.limit = start + AHEAD_US
        """The highest stamp that is accepted without a look at the time."""
        self._start = start
        self._began: Instant | None = None
        self._impossible = ImpossibleMessages(node_of(address))

    def begin(self, now: Instant) -> Effects:
        """Note when this life began: the limit of stamps rises from then on."""
        self._began = now
        return ()

    def handle(self, sender: Address, event: Post | ReadClock, now: Instant) -> Effects:
        match event:
            case Post():
                return self._on_post(event)
            case ReadClock():
                return (Send(sender, ClockTime(time=self.time)),)

    def summary(self) -> Summary:
        return (("time", self.time),)

    def facts(self, now: Instant) -> Facts:
        return (*self.summary(), ("highest stamp accepted", self.limit))

    def departing(self) -> int:
        """Return the stamp of the frames that are about to leave together."""
        self.time += 1  # IR1
        assert self.time <= STAMP_MAX
        return self.time

    def arrived(self, stamp: int) -> bool:
        """Go on from later than ``stamp``, of a peer's frame whose messages come after this.

        Return False, and do nothing, if it is above ``limit``: see `arrived_far`.
        """
        if not 0 <= stamp <= self.limit:
            return False
        self.time = max(self.time, stamp) + 1  # IR2
        return True

    def arrived_far(self, node: str, stamp: int, now: Instant) -> Effects:
        """Raise the limit to that of ``now``, and accept ``stamp`` of ``node`` if it fits.

        If this returns any effects, it does not, and the frame must be dropped.
        """
        if self._began is not None:
            self.limit = self._start + AHEAD_US + (now - self._began) // NS_PER_US
        if self.arrived(stamp):
            return ()
        text = (
            f"a frame with the logical time {stamp}, and {self.limit} is allowed. If it repeats "
            f"this, check the date of its host, or stop it"
        )
        sender = address_of(node, "clock")
        return self._impossible.report(sender, "clock.impossible_stamp", text, now)

    def _on_post(self, post: Post) -> Effects:
        if self.channel is None:
            return (Observe("clock.nobody_carries"),)
        unstamped: Any = post.message
        stamped = replace(unstamped, stamp=self.departing())
        return (Send(self.channel, Carry(nodes=post.nodes, message=stamped)),)
