"""A simulated node: the host of its roles, with lives that begin and end."""

from __future__ import annotations

from typing import Any

from fencelock.actors.clock import Arrived, Clock, Departing
from fencelock.actors.message import NS_PER_MS, Address, Event, Instant, Local, address_of
from fencelock.cluster.simulation.disk import Disk
from fencelock.cluster.simulation.drift import DriftingClock
from fencelock.cluster.simulation.environment import Environment
from fencelock.cluster.simulation.scheduler import Stage
from fencelock.cluster.topology import NodeContext, Recipe, Settings
from fencelock.transport.frame import Frame, decode_frame, encode_frame

CLUSTER = "simulated"
"""The cluster id in every frame."""


class SimulatedNode:
    """One machine. As on a real node, one dispatcher runs all roles, in turns.

    A turn handles arrivals until nothing is left, and sends one frame to each peer. If
    records were written in the turn, the node waits for its disk, and then performs the
    effects that its roles put behind a `Persist`.

    Args:
        world: the world of the node.
        name: its id.
        recipe: sets up the roles of each life.
        member: whether it is one of the cluster's nodes; if not, it is a client.
        settings: for the recipe.

    """

    def __init__(
        self, world: Environment, name: str, recipe: Recipe, *, member: bool, settings: Settings
    ) -> None:
        self.world = world
        self.name = name
        self.recipe = recipe
        self.member = member
        self.settings = settings
        self.disk = Disk()
        self.clock = DriftingClock(0)
        self.dated = True
        """Whether its logical clock begins at the date, as a real node's does, or at 0."""
        self.lives = 0
        self.boot = 0
        self.up = False
        self.paused = False
        self.syncing = False
        self.scheduler = Stage(self)
        self._clock_role = address_of(name, "clock")
        self._waiting: list[tuple[str, int, bytes]] = []
        self._alarm = 0
        self._alarm_at: int | None = None

    def now(self) -> Instant:
        """Read the node's own clock."""
        return Instant(self.clock.read(self.world.time))

    def power_on(self) -> None:
        """Begin a new life: with a new boot id, the roles of the recipe, and the disk's records."""
        assert not self.up
        nodes = self.world.streams.nodes
        self.up, self.lives, self.boot = True, self.lives + 1, nodes.getrandbits(63)
        self.clock.restart(nodes.randrange(10**12), self.world.time)
        self.world.mishap(self.name, f"begins life {self.lives}")
        self.scheduler = Stage(self)
        self.disk.open(self.world.streams.fork(f"journal/{self.name}/{self.lives}"))
        seat = NodeContext(
            node=self.name,
            nodes=self.world.members,
            boot=self.boot,
            random=self.world.streams.fork(f"nodes/{self.name}/{self.lives}"),
            first_stamp=self.world.date_us() if self.dated else 0,
            settings=self.settings,
            journal=self.disk.records(),
            journal_id=self.disk.journal_id,
        )
        self.scheduler.open(self.recipe(seat))
        self._turn()

    def crash(self, *, loses_tail: bool) -> None:
        """Die at once. Memory is gone; the disk keeps what `Disk.crash` leaves."""
        assert self.up
        lost = self.disk.crash(self.world.streams.disk, loses_tail=loses_tail)
        self.up = self.paused = self.syncing = False
        self.scheduler = Stage(self)
        self._waiting = []
        self._set_alarm()
        self.world.faults["records lost"] += lost
        self.world.mishap(self.name, f"crashes and loses {lost} unsynced records")
        for judge in self.world.judges:
            judge.crashed(self.name, self.boot)

    def pause(self) -> None:
        """Handle nothing from now on; arrivals wait."""
        self.paused = True
        self.world.mishap(self.name, "is paused")

    def resume(self) -> None:
        """Handle all that arrived meanwhile, at once."""
        self.paused = False
        self.world.mishap(self.name, "is resumed")
        self._turn()

    def run_clock_at(self, rate: int) -> None:
        """Let the clock run at ``rate`` millionths of true time."""
        self.clock.run_at(rate, self.world.time)
        self.world.mishap(self.name, f"has a clock at {rate} ppm of true")
        self._set_alarm(moved=True)

    def jump_clock(self, by_ms: int) -> None:
        """Let the clock jump forward."""
        self.clock.jump(by_ms * NS_PER_MS, self.world.time)
        self.world.mishap(self.name, f"has a clock that jumps {by_ms} ms")
        self._set_alarm(moved=True)

    def tell(self, to: Address, event: Event) -> None:
        """Send ``event`` to a role of this node, as the node itself."""
        self.scheduler.put(address_of(self.name, "node"), to, event, self.boot)
        self._turn()

    def tell_all(self, event: Local) -> None:
        """Send ``event`` to every role of this node that accepts its type."""
        self.scheduler.tell_all(event)
        self._turn()

    def arrive(self, link: str, boot: int, frame: bytes) -> None:
        """Receive a frame from the node ``link``, sent in its life ``boot``."""
        if not self.up:
            self.world.faults["sent to a dead node"] += 1
            return
        self._waiting.append((link, boot, frame))
        self._turn()

    def _turn(self) -> None:
        if not self.up or self.paused or self.syncing:
            return
        arrived, self._waiting = self._waiting, []
        for link, boot, data in arrived:
            self._unpack(link, boot, decode_frame(data))
        self.scheduler.ring()
        self.scheduler.run()
        self._depart()
        self._set_alarm()
        if self.disk.tail:
            self._begin_sync()

    def _unpack(self, link: str, boot: int, frame: Frame) -> None:
        if link in self.world.members and self._clock_role in self.scheduler.roles:
            sender = address_of(self.name, "node")
            self.scheduler.put(sender, self._clock_role, Arrived(stamp=frame.stamp), self.boot)
        for to, sender, message in frame.envelopes:
            self.scheduler.put(sender, to, message, boot)

    def _depart(self) -> None:
        """Send one frame to each peer that has messages."""
        outbox, self.scheduler.outbox = self.scheduler.outbox, {}
        for peer, envelopes in outbox.items():
            frame = Frame(CLUSTER, 0, self._stamp(), tuple(envelopes))
            self.world.carry(self.name, self.boot, peer, encode_frame(frame))

    def _stamp(self) -> int:
        clock: Any = self.scheduler.roles.get(self._clock_role)
        if not isinstance(clock, Clock):
            return 0
        self.scheduler.put(address_of(self.name, "node"), self._clock_role, Departing(), self.boot)
        self.scheduler.run()
        return clock.time

    def _begin_sync(self) -> None:
        """Wait for the disk, as a dispatcher does; nothing is handled meanwhile."""
        self.syncing = True
        self.world.after(self.world.sync_time(self.name, self.boot), self._synced, self.boot)

    def _synced(self, boot: int) -> None:
        if not self.up or self.boot != boot:
            return  # It crashed before its disk was done.
        self.disk.sync()
        self.syncing = False
        self.scheduler.release()
        self._turn()

    def _set_alarm(self, *, moved: bool = False) -> None:
        """Have the world wake this node for the next timer; ``moved`` if the clock changed."""
        due = self.scheduler.next_timer() if self.up else None
        if due == self._alarm_at and not moved:
            return
        self._alarm += 1
        self._alarm_at = due
        if due is not None:
            at = max(self.world.time, self.clock.reaches(due))
            self.world.at(at, self._ring, self._alarm)

    def _ring(self, alarm: int) -> None:
        if alarm == self._alarm:
            self._alarm_at = None
            self._turn()
