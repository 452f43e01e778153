"""Reliable channels, as Lamport assumes them: messages arrive once, in the order of sending.

Source: the Erlang essay: "we can ensure that messages are received by using timeouts
and message acknowledgment, and we can ensure that message order is maintained by
adding a 'message number'".
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fencelock.actors.clock import Carry
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.lamport.wire import (
    Acknowledge,
    AskDue,
    Busy,
    Confirm,
    ConfirmDue,
    Content,
    Delivered,
    Greet,
    Hello,
    Introduce,
    Neighbors,
    Parcel,
    PeerJoined,
    Probe,
    Release,
    Request,
    ResendDue,
    Welcome,
)
from fencelock.actors.message import Address, Instant, address_of, node_of
from fencelock.actors.role import Host, Role, Summary

T = TypeVar("T")

CHANNEL_WINDOW = 256
"""Parcels in flight to one peer, and early ones held back from it: some 64 KiB of requests."""


class Outgoing(Generic[T]):
    """Contents that a peer has not confirmed: sent within the window, or waiting for room in it.

    Invariants:
        window-bounds-sent: ``first <= sent <= first + CHANNEL_WINDOW``, and ``sent`` exceeds
            nothing ever pushed.
    """

    def __init__(self) -> None:
        self.first = 0
        """The number of ``contents[0]``: everything below is confirmed."""
        self.sent = 0
        """All numbers below it were sent at least once."""
        self.contents: deque[T] = deque()

    def __len__(self) -> int:
        return len(self.contents)

    def push(self, content: T) -> None:
        self.contents.append(content)

    def last_unsent(self) -> T | None:
        """Return the content that was pushed last, or None if it was sent."""
        unsent = self.sent < self.first + len(self.contents)
        return self.contents[-1] if unsent else None

    def drop_last(self) -> None:
        assert self.last_unsent() is not None
        self.contents.pop()

    def fresh(self) -> list[tuple[int, T]]:
        """Return the contents that can be sent for the first time now, and count them as sent."""
        end = min(self.first + CHANNEL_WINDOW, self.first + len(self.contents))
        fresh = [(number, self.contents[number - self.first]) for number in range(self.sent, end)]
        self.sent = max(self.sent, end)
        assert self.first <= self.sent <= self.first + CHANNEL_WINDOW  # window-bounds-sent
        return fresh

    def unconfirmed(self) -> list[tuple[int, T]]:
        """Return the contents that were sent and are not confirmed, oldest first."""
        numbers = range(self.first, self.sent)
        return [(number, self.contents[number - self.first]) for number in numbers]

    def confirm(self, number: int) -> bool:
        """Drop all below ``number``; if that was never sent, return False and change nothing."""
        if not 0 <= number <= self.sent:
            return False
        while self.first < number:
            self.contents.popleft()
            self.first += 1
        return True


class Incoming(Generic[T]):
    """Contents from a peer: delivered up to the first gap, and early ones held back behind it."""

    def __init__(self) -> None:
        self.expected = 0
        """All numbers below it were delivered."""
        self.early: dict[int, T] = {}

    def accept(self, number: int, content: T) -> tuple[str, list[T]]:
        """Take ``content``; return the contents to deliver now, in order.

        If that is none, a counter comes first that says why.
        """
        if number < self.expected or number in self.early:
            return "lamport.repeat_dropped", []
        if number >= self.expected + CHANNEL_WINDOW:
            return "lamport.beyond_dropped", []  # It will be sent again.
        self.early[number] = content
        if number != self.expected:
            return "lamport.early_held", []
        ready: list[T] = []
        while self.expected in self.early:
            ready.append(self.early.pop(self.expected))
            self.expected += 1
        return "", ready


RESEND_MS = 200
"""First interval of resending (ms): many round trips of a local network, few of a wide one."""

RESEND_MS_MAX = 1_600
"""Longest interval of resending (ms): a peer that comes back is served this soon."""


@dataclass(slots=True)
class Peer:
    """A channel's state for one other node."""

    node: str
    address: Address
    boot: int | None = None
    """The life it is in, once it has answered."""
    outgoing: Outgoing[Content] = field(default_factory=Outgoing[Content])
    incoming: Incoming[Content] = field(default_factory=Incoming[Content])
    changes: deque[int] = field(default_factory=deque[int])
    """The numbers of the requests and releases that it has not confirmed."""
    busy: bool = False
    """Whether these are too many for another request, or for a welcome."""
    nonce: int | None = None
    """Number of the request that it has not answered, or None if there is none."""
    ask_ms: int = RESEND_MS
    ask_armed: bool = False
    resend_ms: int = RESEND_MS
    resend_armed: bool = False
    resend_first: int = 0
    """The oldest unconfirmed number when the resend timer was set: shows progress."""
    owed: int = 0
    """Parcels that arrived since the last confirmation."""
    confirm_armed: bool = False

    def meet(self, boot: int) -> None:
        """Start over with the life ``boot``, with nothing sent or received."""
        self.boot = boot
        self.outgoing = Outgoing()
        self.changes.clear()
        self.incoming = Incoming()
        self.owed = 0
        self.resend_ms = RESEND_MS


CONFIRM_DELAY_MS = 20
"""Delay of a confirmation until another message can carry it (ms), far below `RESEND_MS`."""

CONFIRM_AT = CHANNEL_WINDOW // 4
"""Parcels after which a confirmation is sent at once, so that the window stays open."""

REFILL_AT = 3 * CHANNEL_WINDOW // 4
"""A busy peer gets requests again once it has fewer unconfirmed requests and releases than this.
Peers confirm `CONFIRM_AT` at a time, so the window does not run empty."""

REPLACES: dict[type[Content], tuple[type[Content], ...]] = {
    Acknowledge: (Acknowledge,),
    Probe: (Acknowledge, Probe),
}
"""For each content of which only the stamp counts, the contents that it replaces, if these were
pushed last and are not sent yet. A probe also asks for a reply: no acknowledgement replaces it."""


Mail = Parcel | Confirm | Hello | Introduce
"""Messages between channels."""


Received = Neighbors | Carry | Mail | ResendDue | ConfirmDue | AskDue


class ReliableChannel(Role[Received]):
    """Carries the contents of a node's `LockProcess` to the others, and theirs to it.

    Boot ids tell the lives of a node apart but do not order them, and a frame of a
    former life may arrive at any time. So a life is accepted only if it answers a request
    (``nonce``) sent after the life known before. The life that answers ran after the request,
    and lives of a node follow each other, so it is never an older one.

    A peer may send and confirm nothing, by fault or by intent, and each of its requests and probes
    is acknowledged. To leave them unread would stop two members for good that have too much for
    each other: neither would read what the other waits to have confirmed. Instead, an
    acknowledgement that waits for room in the window is replaced if the next content is another
    one: that is evidence for all that the former was, since only the stamp counts. A probe replaces
    acknowledgements and probes in the same way. So at most one of each waits after every other
    content, and the process begins nothing while a peer has a window of these to confirm (`Busy`).
    What it has begun it ends: a release follows each request.

    Invariants:
        delivered-is-a-prefix: Between two lives, the delivered contents are at all times a prefix
            of those carried, without those that were replaced; each pair of lives has its own
            streams, begun once.

    Args:
        node: the node this channel is on.
        boot: the id of this life of the node.
        process: the receiver of contents.

    """

    def __init__(
        self, address: Address, host: Host, *, node: str, boot: int, process: Address
    ) -> None:
        super().__init__(address, host)
        self.node = node
        self.boot = boot
        self.process = process
        self.peers: dict[str, Peer] = {}
        self.nonces = 0

    def handle(self, sender: Address, event: Received, now: Instant) -> Effects:
        """Process one event. Time passes for a channel only through its timers."""
        match event:
            case Neighbors():
                role = self.address.partition("/")[2]
                others = sorted(set(event.nodes) - {self.node})
                self.peers = {node: Peer(node, address_of(node, role)) for node in others}
                return [effect for peer in self.peers.values() for effect in self._ask(peer)]
            case Carry():
                return self._on_carry(event)
            case ResendDue():
                return self._on_resend_due(self.peers[event.node])
            case ConfirmDue():
                peer = self.peers[event.node]
                peer.confirm_armed = False
                return [self._confirm(peer)] if peer.owed else []
            case AskDue():
                return self._on_ask_due(self.peers[event.node])
            case Parcel() | Confirm() | Hello() | Introduce():
                known = self.peers.get(node_of(sender))
                if known is None or sender != known.address:
                    return (Observe("lamport.stranger_dropped"),)
                return self._on_peer(known, event)

    def summary(self) -> Summary:
        return (("peers", ", ".join(self.peers)),)

    def _on_peer(self, peer: Peer, event: Mail) -> Effects:
        match event:
            case Parcel():
                return self._on_parcel(peer, event)
            case Confirm():
                if not self._meets(peer, event):
                    return [Observe("lamport.other_life_dropped"), *self._ask(peer)]
                return self._on_confirmed(peer, event.confirmed)
            case Hello():
                introduce = Introduce(boot=self.boot, your_boot=event.boot, nonce=event.nonce)
                greeted = self._ask(peer) if event.boot != peer.boot else []
                return [Send(peer.address, introduce), *greeted]
            case Introduce():
                return self._on_introduce(peer, event)

    def _on_carry(self, carry: Carry) -> Effects:
        content = carry.message
        assert isinstance(content, Request | Acknowledge | Release | Greet | Welcome | Probe)
        effects: list[Effect] = []
        for node in carry.nodes:
            if node == self.node:
                effects.append(Send(self.process, Delivered(origin=node, message=content)))
            else:
                effects += self._carry(self.peers[node], content)
        return effects

    def _carry(self, peer: Peer, content: Content) -> list[Effect]:
        if peer.boot is None:  # When it joins, the process starts over with it.
            return [Observe("lamport.unaddressed_dropped")]
        outgoing, replaces = peer.outgoing, REPLACES.get(type(content), ())
        waited = len(outgoing)
        while isinstance(outgoing.last_unsent(), replaces):
            outgoing.drop_last()
        replaced = waited - len(outgoing)
        outgoing.push(content)
        if replaced:
            return [Observe("lamport.replaced", replaced)]  # The window is full.
        if not replaces:
            peer.changes.append(outgoing.first + len(outgoing) - 1)
        return [*self._send_fresh(peer), *self._report_waiting(peer)]

    # Messages of a known life.

    def _on_parcel(self, peer: Peer, parcel: Parcel) -> Effects:
        if not self._meets(peer, parcel):
            return [Observe("lamport.other_life_dropped"), *self._ask(peer)]
        effects = self._on_confirmed(peer, parcel.confirmed)
        counter, contents = peer.incoming.accept(parcel.number, parcel.content)
        if counter:
            effects.append(Observe(counter))
        effects += [
            Send(self.process, Delivered(origin=peer.node, message=content)) for content in contents
        ]
        peer.owed += 1
        if peer.owed >= CONFIRM_AT:
            effects.append(self._confirm(peer))
        elif not peer.confirm_armed:
            peer.confirm_armed = True
            effects.append(Wake(CONFIRM_DELAY_MS, ConfirmDue(node=peer.node)))
        return effects

    def _meets(self, peer: Peer, event: Parcel | Confirm) -> bool:
        """Return whether ``event`` is between the known life of ``peer`` and this one of ours."""
        return event.boot == peer.boot and event.your_boot == self.boot

    def _on_confirmed(self, peer: Peer, number: int) -> list[Effect]:
        before = peer.outgoing.first
        if not peer.outgoing.confirm(number):
            return [Observe("lamport.impossible_confirm")]
        if peer.outgoing.first == before:
            return []
        peer.resend_ms = RESEND_MS
        return [*self._send_fresh(peer), *self._report_waiting(peer)]

    def _report_waiting(self, peer: Peer) -> list[Effect]:
        """Notify the process if a peer has too much to confirm, or no longer."""
        while peer.changes and peer.changes[0] < peer.outgoing.first:
            peer.changes.popleft()
        # Acknowledgements do not count: else a peer that requests much would stop our requests.
        busy = len(peer.changes) >= (REFILL_AT if peer.busy else CHANNEL_WINDOW)
        if busy is peer.busy:
            return []
        peer.busy = busy
        return [Send(self.process, Busy(node=peer.node, busy=busy))]

    def _send_fresh(self, peer: Peer) -> list[Effect]:
        effects = self._send(peer, peer.outgoing.fresh())
        if effects and not peer.resend_armed:
            effects.append(self._arm_resend(peer))
        return effects

    def _send(self, peer: Peer, numbered: list[tuple[int, Content]]) -> list[Effect]:
        if not numbered:
            return []
        assert peer.boot is not None
        peer.owed = 0  # Each parcel confirms.
        confirmed = peer.incoming.expected
        return [
            Send(
                peer.address,
                Parcel(
                    boot=self.boot,
                    your_boot=peer.boot,
                    number=number,
                    confirmed=confirmed,
                    content=content,
                ),
            )
            for number, content in numbered
        ]

    def _confirm(self, peer: Peer) -> Send:
        assert peer.boot is not None
        peer.owed = 0
        confirmed = peer.incoming.expected
        confirm = Confirm(boot=self.boot, your_boot=peer.boot, confirmed=confirmed)
        return Send(peer.address, confirm)

    def _arm_resend(self, peer: Peer) -> Wake:
        peer.resend_armed = True
        peer.resend_first = peer.outgoing.first
        return Wake(peer.resend_ms, ResendDue(node=peer.node))

    def _on_resend_due(self, peer: Peer) -> Effects:
        peer.resend_armed = False
        unconfirmed = peer.outgoing.unconfirmed()
        if not unconfirmed:
            return ()
        if peer.outgoing.first != peer.resend_first:
            return (self._arm_resend(peer),)  # There is progress; the rest was sent later.
        peer.resend_ms = min(2 * peer.resend_ms, RESEND_MS_MAX)
        again = self._send(peer, unconfirmed)
        return [*again, Observe("lamport.resent", len(again)), self._arm_resend(peer)]

    # Lives.

    def _ask(self, peer: Peer) -> list[Effect]:
        if peer.nonce is not None:
            return []
        self.nonces += 1
        peer.nonce = self.nonces
        if peer.ask_armed:
            return []  # We asked a moment ago; the timer asks again.
        return self._send_hello(peer)

    def _send_hello(self, peer: Peer) -> list[Effect]:
        assert peer.nonce is not None
        peer.ask_armed = True
        return [
            Send(peer.address, Hello(boot=self.boot, nonce=peer.nonce)),
            Wake(peer.ask_ms, AskDue(node=peer.node)),
        ]

    def _on_ask_due(self, peer: Peer) -> Effects:
        peer.ask_armed = False
        if peer.nonce is None:
            return ()
        peer.ask_ms = min(2 * peer.ask_ms, RESEND_MS_MAX)
        return self._send_hello(peer)

    def _on_introduce(self, peer: Peer, introduce: Introduce) -> Effects:
        if introduce.your_boot != self.boot or introduce.nonce != peer.nonce:
            return (Observe("lamport.late_introduce_dropped"),)
        peer.nonce = None
        peer.ask_ms = RESEND_MS
        if introduce.boot == peer.boot:
            return ()
        peer.meet(introduce.boot)
        return [
            Send(self.process, PeerJoined(node=peer.node, boot=introduce.boot)),
            *self._report_waiting(peer),
            Observe("lamport.peer_joined"),
        ]
