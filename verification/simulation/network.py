"""The network between nodes, and production's frames and checks over it.

Frames are lost, repeated, late, out of order, or cut off. A link is up when both ends live. It is
down when one dies, if the other end notices that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from fencelock.actors.message import NS_PER_MS, NS_PER_US
from fencelock.actors.role_message import LinkDown, LinkRefused, LinkUp
from fencelock.transport.admission import (
    CLIENT_FRAME_BYTES_MAX,
    FrameValidator,
    check_client_size,
    has_few_arrays,
)
from fencelock.transport.client_queue import ClientQueue
from fencelock.transport.connections import Connection
from fencelock.transport.frame import Frame, encode_frame
from fencelock.transport.listener import Arrival
from fencelock.verification.simulation.faults import Faults
from fencelock.verification.simulation.violation import ViolationError

if TYPE_CHECKING:
    from fencelock.verification.simulation.node import EventQueue, SimulatedNode


NOTICED_SHARE = 0.7
"""Share of ended links that the other side notices; a cut cable sends nothing."""

HEARD_MS_MAX = 50
"""Longest time until a node learns of a change of a link (ms)."""


class Cut(NamedTuple):
    """A link that carries nothing for a while."""

    until: int
    """True time (ns)."""
    holds: bool
    """Whether frames wait for the end, as behind TCP, or are lost."""


Link = tuple[str, str]
"""A link, from its first node to its second."""


def between(here: Iterable[str], there: Sequence[str]) -> list[Link]:
    """Return the links between two groups of nodes, in both directions."""
    return [link for a in here for b in there for link in ((a, b), (b, a))]


def in_words(links: Iterable[Link]) -> str:
    return ", ".join(f"{source} to {to}" for source, to in links)


class Network:
    """Decides the fate of each frame."""

    def __init__(self, faults: Faults, random: Random, fault_counts: Counter[str]) -> None:
        self.faults = faults
        self.fault_counts = fault_counts
        self.calm = False
        """Whether all links are good from now on."""
        self.clear_at = 0
        """Time by which all frames have arrived that were on their way when the faults ended. A
        link that keeps the order delivers nothing before the frames that a cut has held back."""
        self._random = random
        self._cuts: dict[Link, Cut] = {}
        self._last: dict[Link, int] = {}

    def cut(self, links: list[Link], cut: Cut) -> None:
        """Stop ``links``, each from its first node to its second."""
        for link in links:
            self._cuts[link] = cut

    def mend(self) -> None:
        """Make every link good and keep it so. Frames in flight still arrive."""
        self.calm = True
        self.clear_at = max(self._last.values(), default=0)
        self._cuts.clear()

    def unmend(self) -> None:
        self.calm = False

    def arrivals(self, source: str, to: str, time: int) -> list[int]:
        """Return the times at which a frame that leaves now arrives: none, one or several (ns)."""
        link = (source, to)
        ready = time
        if self._cuts:
            cut = self._cuts.get(link)
            if cut is not None and cut.until <= time:
                del self._cuts[link]
            elif cut is not None:
                if not cut.holds:
                    self.fault_counts["cut off"] += 1
                    return []
                self.fault_counts["held by a cut"] += 1
                ready = cut.until
        if self.calm:
            return [self._in_order(link, ready)]
        times = [ready]
        if self._happens(self.faults.loss_per_mille):
            self.fault_counts["lost"] += 1
            times = []
        if self._happens(self.faults.repeat_per_mille):
            self.fault_counts["repeated"] += 1
            times.append(ready)
        return [self._arrival(link, at) for at in times]

    def _happens(self, per_mille: int) -> bool:
        return per_mille > 0 and self._random.randrange(1_000) < per_mille

    def _arrival(self, link: Link, ready: int) -> int:
        if self._happens(self.faults.late_per_mille):
            self.fault_counts["very late"] += 1
            return ready + self._random.randrange(self.faults.late_ms * NS_PER_MS)
        if not self.faults.reordering:
            return self._in_order(link, ready)
        mean = self.faults.delay_us * NS_PER_US
        arrival = ready + int(self._random.expovariate(1.0) * mean)
        if arrival < self._last.get(link, 0):
            self.fault_counts["overtaken"] += 1
        self._last[link] = max(arrival, self._last.get(link, 0))
        return arrival

    def _in_order(self, link: Link, ready: int) -> int:
        arrival = max(ready + self.faults.delay_us * NS_PER_US, self._last.get(link, 0))
        if not self.faults.reordering:
            self._last[link] = arrival
            return arrival
        return ready + self.faults.delay_us * NS_PER_US


class SimulatedLinks:
    """Sends roles `LinkUp` and `LinkDown`. Members and clients are linked with members."""

    def __init__(
        self, nodes: dict[str, SimulatedNode], random: Random, after: Callable[..., None]
    ) -> None:
        self._nodes = nodes
        self._random = random
        self._after = after
        self._down: dict[Link, None] = {}
        """Node and peer of each link that the node knows to be down, in the order of the events."""

    def begin(self, node: SimulatedNode) -> None:
        """Notify a node that was switched on of the others, and the others of it."""
        for other in self._nodes.values():
            if other is node or not other.up:
                continue
            if other.member:
                self._later(self._tell_up, node, other)
            if node.member:
                self._later(self._tell_up, other, node)

    def end(self, node: SimulatedNode) -> None:
        """Notify the nodes that notice the death of ``node``."""
        for other in self._nodes.values():
            if other is not node and other.up and node.member:
                self._notice(other, node)

    def cut(self, links: list[Link]) -> None:
        """Notify the nodes that notice that nothing comes through ``links`` any more."""
        for source, to in links:
            if self._nodes[source].member:
                self._notice(self._nodes[to], self._nodes[source])

    def mend(self) -> None:
        """Notify the nodes that know of a link that is down that it is up again."""
        for name, peer in self._down:
            if self._nodes[peer].up:
                self._later(self._tell_up, self._nodes[name], self._nodes[peer])

    def _notice(self, node: SimulatedNode, peer: SimulatedNode) -> None:
        if self._random.random() < NOTICED_SHARE:
            self._later(self._tell_down, node, peer)

    def _later(self, tell: Callable[..., None], node: SimulatedNode, peer: SimulatedNode) -> None:
        wait = self._random.randrange(HEARD_MS_MAX * NS_PER_MS)
        self._after(wait, tell, node, node.boot, peer, peer.boot)

    def _tell_up(self, node: SimulatedNode, boot: int, peer: SimulatedNode, peer_boot: int) -> None:
        if node.up and peer.up and (node.boot, peer.boot) == (boot, peer_boot):
            self._down.pop((node.name, peer.name), None)
            node.notice(LinkUp(node=peer.name))

    def _tell_down(
        self, node: SimulatedNode, boot: int, peer: SimulatedNode, peer_boot: int
    ) -> None:
        if node.up and (node.boot, peer.boot) == (boot, peer_boot):
            self._down[node.name, peer.name] = None
            node.notice(LinkDown(node=peer.name))


OVERSIZED = "wire.oversized"
"""The counter of frames that are too large for their sender."""

OTHER_GROUP = "wire.other_group"
"""The counter of frames of another group."""

CLUSTER = "simulated"
"""The cluster id in every frame."""


class VirtualLinks:
    """The simulated counterpart of a node's `SocketHub`, without sockets (Links).

    A routing id names the life of its node, as on a real node. No simulated process sends a
    frame that does not pass, so such a frame is a violation.

    Args:
        queue: is told which life of a node sent the frames that are being delivered.

    """

    def __init__(self, machine: SimulatedNode, queue: EventQueue) -> None:
        peers = set(machine.world.members) - {machine.name}
        self.cluster = CLUSTER
        self._group = 0
        self._machine = machine
        self._queue = queue
        self._peers = peers
        self._former: set[str] = set()
        """Nodes that were members: frames that they sent before they learned of the change may be
        too large for a client, or have too many arrays."""
        self._client = not machine.member
        self._admission = FrameValidator(machine.name, CLUSTER, client=self._client, members=peers)
        # Turns take no virtual time: nobody pauses.
        self._clients = ClientQueue(clock=lambda: 0)
        self._senders: dict[tuple[str, int], Connection] = {}
        """By client, and its life: the routing id is the number of that."""
        self.waiting: Collection[str] = self._clients.owners
        self._frames: list[tuple[str, int, bytes]] = []
        self._news: list[LinkUp | LinkDown | LinkRefused] = []

    @property
    def group(self) -> int:
        """The group of this node, 0 while it knows none."""
        world, stands_in = self._machine.world, self._machine.stands_in
        return next(iter(world.groups), 0) if stands_in else self._group

    def join(self, group: int) -> None:
        self._group = self._admission.group = group
        self._machine.world.joined(self._machine.name, group)

    @property
    def idle(self) -> bool:
        return not (self._frames or self._news or self.waiting)

    def arrive(self, link: str, boot: int, raw: bytes) -> None:
        """Let a frame wait that the node ``link`` sent in its life ``boot``."""
        if link in self._peers:
            self._frames.append((link, boot, raw))
            return
        sender = self._senders.get((link, boot))
        if sender is None:
            sender = Connection(-1, None, identity=b"%x" % boot, name=link, owner=link)
            self._senders[link, boot] = sender
        if not self._clients.put(sender, raw):
            self._machine.world.fault_counts["client flooded"] += 1

    def change(self, news: LinkUp | LinkDown) -> None:
        self._news.append(news)

    @property
    def has_events(self) -> bool:
        return bool(self._news)

    def events(self) -> list[LinkUp | LinkDown | LinkRefused]:
        news, self._news = self._news, []
        return news

    def receive_members(self, most: int) -> Iterable[Arrival]:
        taken, self._frames = self._frames[:most], self._frames[most:]
        return self._delivered([(boot, self._admit(link, raw)) for link, boot, raw in taken])

    def receive_clients(self, most: int, within_ns: int) -> tuple[Iterable[Arrival], int]:
        """Return frames of clients with about ``most`` envelopes, each client in turn."""

        def opened(sender: Connection, raw: bytes) -> Frame:
            return self._admit(sender.name, raw)[1]

        served, used = self._clients.serve(most, within_ns, opened)
        arrivals = [(int(one.identity, 16), (one.name, frame)) for one, frame in served]
        return self._delivered(arrivals), used

    def send(self, link: str, frame: Frame) -> None:
        raw = encode_frame(frame, link if self._client else "")
        if len(raw) > CLIENT_FRAME_BYTES_MAX:
            check_client_size(frame, len(raw), client=self._client)
        self._machine.world.carry(self._machine.name, self._machine.boot, link, raw)

    def poll(self, timeout_ms: int | None, expects_reply: bool) -> None:
        """Do nothing: the world wakes its nodes."""

    def ring(self) -> None:
        """Do nothing: there is one thread."""

    def connect(self, node: str, endpoint: str) -> None:
        """Take frames of ``node`` as a member's: every simulated node can be reached."""
        if self._client or node not in self._peers:
            self._news.append(LinkUp(node=node))
        self._peers.add(node)

    def disconnect(self, node: str) -> None:
        self._peers.discard(node)
        self._former.add(node)

    def close(self) -> None:
        """Do nothing."""

    def _admit(self, link: str, raw: bytes) -> Arrival:
        frame = self._admission.admit(link, raw)
        former = link in self._former and has_few_arrays(raw, member=True)
        if (
            not isinstance(frame, Frame)
            and former
            and (frame.counter == OVERSIZED or not has_few_arrays(raw, member=False))
        ):
            self._machine.world.fault_counts["too large for a former member"] += 1
            return (link, Frame(CLUSTER, 0, 0, ()))
        if not isinstance(frame, Frame) and frame.counter == OTHER_GROUP:
            self._machine.world.fault_counts["of another group"] += 1
            return (link, Frame(CLUSTER, 0, 0, ()))
        if not isinstance(frame, Frame):
            raise ViolationError(
                f"{self._machine.name} drops a frame of {link}: {frame.counter} {frame.detail}"
            )
        return (link, frame)

    def _delivered(self, arrivals: Sequence[tuple[int, Arrival]]) -> Iterator[Arrival]:
        """Yield arrivals; while an arrival is delivered, the queue knows its sender's life."""
        for boot, arrival in arrivals:
            self._queue.boot = boot
            yield arrival
        self._queue.boot = self._machine.boot
