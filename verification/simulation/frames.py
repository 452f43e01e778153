"""The links of a simulated node: production's frames and checks over the virtual network."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from fencelock.actors.role_message import LinkDown, LinkRefused, LinkUp
from fencelock.transport.admission import CLIENT_BYTES_MAX, FrameValidator, check_client_size
from fencelock.transport.client_queue import ClientQueue, QueuedFrame
from fencelock.transport.frame import Frame, encode_frame
from fencelock.transport.listener import Arrival
from fencelock.verification.simulation.scheduler import EventQueue
from fencelock.verification.simulation.violation import ViolationError

if TYPE_CHECKING:
    from fencelock.verification.simulation.node import SimulatedNode

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
        machine: the node.
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
        too large."""
        self._client = not machine.member
        self._admission = FrameValidator(machine.name, CLUSTER, client=self._client, members=peers)
        # Turns take no virtual time: nobody pauses.
        self._clients = ClientQueue(clock=lambda: 0)
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
        """Whether nothing waits to be received."""
        return not (self._frames or self._news or self.waiting)

    def arrive(self, link: str, boot: int, raw: bytes) -> None:
        """Let a frame wait that the node ``link`` sent in its life ``boot``."""
        if link in self._peers:
            self._frames.append((link, boot, raw))
        elif not self._clients.put(link, QueuedFrame(b"%s#%x" % (link.encode(), boot), -1, raw)):
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
        del within_ns  # Decoding takes no virtual time.
        taken: list[tuple[int, Arrival]] = []
        left = most
        self._clients.begin_turn(most)
        while left > 0 and (due := self._clients.take()) is not None:
            owner, lane, waiting = due
            arrival = self._admit(owner.name, waiting.raw)
            count = len(arrival[1].envelopes) or 1
            left -= count
            lane.room -= count
            taken.append((int(waiting.identity.rpartition(b"#")[2], 16), arrival))
        return self._delivered(taken), most - left

    def send(self, link: str, frame: Frame) -> None:
        """Let ``frame`` travel."""
        raw = encode_frame(frame, link if self._client else "")
        if len(raw) > CLIENT_BYTES_MAX:
            check_client_size(frame, len(raw), client=self._client)
        self._machine.world.carry(self._machine.name, self._machine.boot, link, raw)

    def poll(self, timeout_ms: int | None) -> None:
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
        if not isinstance(frame, Frame) and link in self._former and frame.counter == OVERSIZED:
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
