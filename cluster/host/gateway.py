"""The gateway of a node: frames in and out, each stamped by the node's clock, and its turns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from time import thread_time_ns
from typing import TYPE_CHECKING, Protocol

from fencelock.actors.clock import Clock
from fencelock.actors.effect import Connect, Disconnect, JoinGroup
from fencelock.actors.error import ConfigError
from fencelock.actors.message import address_of
from fencelock.actors.role_message import LinkDown, LinkRefused, LinkUp
from fencelock.cluster.host.scheduler import INBOX_MAX, Scheduler
from fencelock.transport.cbor import FrameTooLargeError
from fencelock.transport.frame import EnvelopeItems, Frame
from fencelock.transport.log import note

if TYPE_CHECKING:
    from fencelock.transport.listener import Arrival

FRAME_MESSAGES_MAX = 256
"""Limit of messages in one frame, which a receiver handles at once; far below the byte limit."""

TURN_MAX = 4_096
"""Role turns before the dispatcher looks at sockets, timers and the disk again."""

TURN_FRAMES_MAX = 128
"""Frames taken from the sockets in one turn: more than a turn decodes of clients (`CLIENTS_NS`).
With half as many, p99 of a pair beside a flood of frames was three times as high."""

TURN_NS = 10_000_000
"""Processor time that a turn should take (ns, 10 ms): timers and members wait for its end."""

CLIENTS_NS = 2_000_000
"""Time for decoding frames of clients in one turn (ns, 2 ms)."""

CLIENT_ENVELOPES_MAX = 256
"""The most envelopes of clients in one turn."""

CLIENT_ENVELOPES_MIN = 4
"""The lower bound of that limit: any turn may take so many envelopes of clients."""


class Links(Protocol):
    """A node's connections; see `fencelock.transport.hub.SocketHub`, which documents them."""

    cluster: str
    waiting: Collection[str]

    @property
    def group(self) -> int: ...
    @property
    def has_events(self) -> bool: ...
    def join(self, group: int) -> None: ...
    def poll(self, timeout_ms: int | None, expects_reply: bool) -> None: ...
    def ring(self) -> None: ...
    def receive_members(self, most: int) -> Iterable[Arrival]: ...
    def receive_clients(self, most: int, within_ns: int, /) -> tuple[Iterable[Arrival], int]: ...
    def events(self) -> list[LinkUp | LinkDown | LinkRefused]: ...
    def send(self, link: str, frame: Frame) -> None: ...
    def connect(self, node: str, endpoint: str) -> None: ...
    def disconnect(self, node: str) -> None: ...
    def close(self) -> None: ...


class Pace:
    """Takes fewer requests in a turn while turns are too long, and more when they are short again.

    It measures the processor time of the calling thread, so neither the disk nor other processes
    make a turn long.

    Args:
        clock: reads the thread's processor time (ns).

    Attributes:
        clock: reads that time.
        most: limit of client envelopes in the next turn.

    """

    __slots__ = ("clock", "most")

    def __init__(self, clock: Callable[[], int] = thread_time_ns) -> None:
        self.clock = clock
        self.most = CLIENT_ENVELOPES_MAX

    def end(self, began_ns: int, taken: int) -> None:
        """Adapt the limit to a turn that began at ``began_ns`` and took ``taken`` envelopes."""
        took_ns = self.clock() - began_ns
        if took_ns > TURN_NS:
            self.most = max(CLIENT_ENVELOPES_MIN, min(taken, self.most) // 2)
        elif self.most < CLIENT_ENVELOPES_MAX and took_ns < TURN_NS // 2:
            self.most = min(CLIENT_ENVELOPES_MAX, 2 * self.most)


class Gateway:
    """Stamps and sends the roles' messages for other nodes, and delivers those that arrive.

    Args:
        scheduler: the roles of this node.
        links: the sockets.
        members: the nodes whose stamps move the clock, at first. A client's stamp does not, or
            any stranger could push logical time to its end.

    """

    def __init__(self, scheduler: Scheduler, links: Links, members: frozenset[str]) -> None:
        self._scheduler = scheduler
        self._links = links
        self._members = set(members)
        self._linked: set[str] = set()
        """The peers to which a link was up at some time."""
        scheduler.relink = self._relink
        self._clock_at = address_of(scheduler.node, "clock")
        self._clock: Clock | None = None

    def tell_events(self) -> None:
        for event in self._links.events():
            self._note_link(event)
            self._scheduler.tell_all(event)

    def _note_link(self, event: LinkUp | LinkDown | LinkRefused) -> None:
        """Log a change of a link; a change of a client's link only at level DEBUG."""
        name, level = event.node, "INFO" if event.node in self._members else "DEBUG"
        match event:
            case LinkUp():
                self._linked.add(name)
                text, what = f"the link to {name} is up", "link_up"
            case LinkDown() if name not in self._linked:
                text = f"no link to {name} yet: it is not running, or its address is wrong"
                what = "link_down"
            case LinkDown():
                text = f"the link to {name} is down: it has stopped, or the network was cut"
                what, level = "link_down", "WARNING" if level == "INFO" else level
            case LinkRefused(by_key=True):
                text = f"the link to {name} is refused: {event.detail}"
                what, level = "link_refused", "ERROR"
            case LinkRefused():
                text = (
                    f"the node at the address of {name} and this process do not accept each other: "
                )
                text, what, level = text + event.detail, "link_refused", "ERROR"
        note(self._scheduler.node, level, text, event=what, peer=name)

    def _relink(self, effect: Connect | Disconnect | JoinGroup) -> None:
        if isinstance(effect, JoinGroup):
            assert self._links.group in (0, effect.group)
            self._links.join(effect.group)
        elif isinstance(effect, Connect):
            try:
                self._links.connect(effect.node, effect.endpoint)
            except ConfigError as error:  # It came in a message; a bad one must not stop us.
                self._scheduler.counters["host.endpoint_refused"] += 1
                text = f"no link to {effect.node}: {error}"
                note(self._scheduler.node, "ERROR", text, event="link_refused", peer=effect.node)
            self._members.add(effect.node)
        else:
            self._links.disconnect(effect.node)
            self._members.discard(effect.node)

    def arrive(self, arrivals: Iterable[Arrival]) -> None:
        """Queue the messages of frames; count those without a receiver or without room."""
        scheduler, members = self._scheduler, self._members
        slots, ready, counters = scheduler.roles, scheduler.ready, scheduler.counters
        for link, frame in arrivals:
            scheduler.frames_in += 1
            if (
                link in members
                and (clock := self._clock or self._find_clock()) is not None
                and not clock.arrived(frame.stamp)
                and (effects := clock.arrived_far(link, frame.stamp, scheduler.now()))
            ):
                scheduler.perform(self._clock_at, effects)
                continue
            for to, sender, message in frame.envelopes:
                role_slot = slots.get(to)
                if role_slot is None:
                    counters["host.nobody_there"] += 1
                elif len(ready) >= INBOX_MAX:
                    counters["host.inbox_full"] += 1
                else:
                    ready.append((role_slot, sender, message))

    def flush(self) -> None:
        """Send each peer's messages in one frame, or in several if one would be too large.

        A frame of a node without a clock has the stamp 0.
        """
        outgoing, self._scheduler.outgoing = self._scheduler.outgoing, defaultdict(list)
        clock = self._clock or self._find_clock()
        stamp = 0 if clock is None else clock.departing()
        links = self._links
        self._scheduler.frames_out += len(outgoing)
        for link, envelopes in outgoing.items():
            if len(envelopes) > FRAME_MESSAGES_MAX:
                self._send_halves(link, stamp, envelopes)
                continue
            try:
                links.send(link, Frame(links.cluster, links.group, stamp, envelopes))
            except Exception as error:  # noqa: BLE001  # Too large, or it cannot be encoded.
                self._send_halves(link, stamp, envelopes, error)

    def _send_halves(
        self, link: str, stamp: int, envelopes: list[EnvelopeItems], error: Exception | None = None
    ) -> None:
        """Send messages that do not fit into one frame, or of which one cannot be encoded.

        Encoding changes no state, so a message that fails alone in its frame is just dropped.
        """
        if len(envelopes) == 1:
            if isinstance(error, FrameTooLargeError):
                self._scheduler.counters["host.message_too_large"] += 1
            elif error is not None:
                self._scheduler.note_fault(f"sending {envelopes[0]!r}", error)
            return
        half = min(FRAME_MESSAGES_MAX, len(envelopes) // 2)
        for part in (envelopes[:half], envelopes[half:]):
            try:
                if len(part) > FRAME_MESSAGES_MAX:
                    self._send_halves(link, stamp, part)
                else:
                    links = self._links
                    links.send(link, Frame(links.cluster, links.group, stamp, tuple(part)))
            except Exception as failure:  # noqa: BLE001  # As above.
                self._send_halves(link, stamp, part, failure)

    def _find_clock(self) -> Clock | None:
        role_slot = self._scheduler.roles.get(self._clock_at)
        if role_slot is not None:
            assert isinstance(role_slot.role, Clock)
            self._clock = role_slot.role
        return self._clock


def turn(scheduler: Scheduler, gateway: Gateway, links: Links, pace: Pace) -> Iterator[bool]:
    """Receive messages, ring due timers, run roles until no event waits, and send their messages.

    Yields whenever ``scheduler.records`` must become durable. When it is resumed they are durable,
    and the effects that depend on them are performed. The value is whether frames were sent just
    before, to which replies may come soon. Dispatcher and simulator both run this. A step that has
    nothing to do is left out: on most wake-ups only one or two have.
    """
    asks = scheduler.asks
    if links.has_events:
        gateway.tell_events()
    if arrivals := links.receive_members(TURN_FRAMES_MAX):
        gateway.arrive(arrivals)
    if scheduler.timers and scheduler.timers[0][0] <= scheduler.now():
        scheduler.ring_alarms()
    taken = began_ns = 0
    if links.waiting:
        began_ns = pace.clock()
        arrivals, taken = links.receive_clients(pace.most, CLIENTS_NS)
        gateway.arrive(arrivals)
    scheduler.work(TURN_MAX)
    wrote = scheduler.sync_due
    while scheduler.sync_due:  # A role that a held effect spawns may also persist.
        expects_reply = bool(scheduler.outgoing)
        if expects_reply:
            gateway.flush()  # What needs no record leaves now: peers work meanwhile.
        if asks.settled or asks.waking:
            asks.wake()
        began = scheduler.now()
        yield expects_reply
        scheduler.note_sync(began)
        scheduler.release_held()
    if wrote and scheduler.ready:  # Others may wait only for the held effects: send them at once.
        if scheduler.outgoing:
            gateway.flush()
        scheduler.work(TURN_MAX)
    if scheduler.outgoing:
        gateway.flush()
    if asks.settled or asks.waking:
        asks.wake()  # After the frames: woken threads compete for this processor.
    if taken:
        pace.end(began_ns, taken)
