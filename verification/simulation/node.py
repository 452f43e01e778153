"""A simulated node: it connects its roles with the world, and its lives begin and end."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fencelock.actors.bootstrap_message import Founding
from fencelock.actors.message import NS_PER_MS, Address, Instant, Local, Message
from fencelock.actors.role_message import LinkDown, LinkUp
from fencelock.cluster.host.gateway import Gateway, Pace, turn
from fencelock.cluster.node.topology import MakeRoles, NodeContext, ProtocolSettings
from fencelock.verification.simulation.disk import Disk
from fencelock.verification.simulation.drift import DriftingClock
from fencelock.verification.simulation.frames import VirtualLinks
from fencelock.verification.simulation.scheduler import SimulatedScheduler
from fencelock.verification.simulation.violation import ViolationError

if TYPE_CHECKING:
    from fencelock.verification.simulation.world import World

TURNS_MAX = 100
"""Turns in a row; after more the roles of a node keep each other busy forever. The frames that one
client sent while it was cut off take some tens: a turn takes only so many of each client."""


class SimulatedNode:
    """One machine: the real scheduler, gateway and turns over a virtual clock, network and disk.

    A turn that wrote records waits for the disk at the point where a dispatcher syncs its journal.
    """

    def __init__(
        self,
        world: World,
        name: str,
        make_roles: MakeRoles,
        *,
        member: bool,
        settings: ProtocolSettings,
    ) -> None:
        self.world, self.name, self.make_roles = world, name, make_roles
        self.member, self.settings = member, settings
        self.stands_in = False
        """Whether it is no member, but sends to members' roles as a node of their group does."""
        self.disk = Disk()
        self.clock = DriftingClock(0)
        self.dated = True
        """Whether its logical clock begins at the date, as a real node's does, or at 0."""
        self.lives = 0
        self.boot = 0
        self.up = False
        self.paused = False
        self.syncing = False
        self._alarm = 0
        self._alarm_at: int | None = None
        self._begin_life()

    def _begin_life(self) -> None:
        """Forget all that is in memory."""
        self.scheduler = SimulatedScheduler(self)
        self.links = VirtualLinks(self, self.scheduler.queue)
        members = frozenset(self.world.members) if self.member else frozenset[str]()
        self.gateway = self._make_gateway(members)
        self._pace = Pace(lambda: 0)  # No turn takes virtual time.
        self._amid: Iterator[None] | None = None
        """The turn that waits for the disk."""

    def _make_gateway(self, members: frozenset[str]) -> Gateway:
        return Gateway(self.scheduler, self.links, members)

    def now(self) -> Instant:
        return Instant(self.clock.read(self.world.time))

    def power_on(self) -> None:
        """Begin a new life, with a new boot id, its roles, and the disk's content."""
        assert not self.up
        nodes = self.world.streams.nodes
        self.up, self.lives, self.boot = True, self.lives + 1, nodes.getrandbits(63)
        self.clock.restart(nodes.randrange(10**12), self.world.time)
        self.world.mishap(self.name, f"begins life {self.lives}")
        self._begin_life()
        self.disk.open(self.world.streams.fork(f"journal/{self.name}/{self.lives}"))
        context = NodeContext(
            node=self.name,
            nodes=self.world.members,
            boot=self.boot,
            random=self.world.streams.fork(f"nodes/{self.name}/{self.lives}"),
            first_stamp=self.world.date_us() if self.dated else 0,
            settings=self.settings,
            journal=self.disk.records(),
            journal_id=self.disk.journal_id,
            journal_secret=self.disk.journal_id,
            founding=Founding.NEW if self.world.may_found else Founding.NO,
        )
        self._judged(lambda: self.scheduler.open(self.make_roles(context)))
        self._turn()

    def crash(self, *, loses_tail: bool) -> None:
        """Die at once. Memory is gone; of the disk remains what `Disk.crash` says."""
        assert self.up
        lost = self.disk.crash(self.world.streams.disk, loses_tail=loses_tail)
        self.up = self.paused = self.syncing = False
        self._begin_life()
        self._set_alarm()
        self.world.fault_counts["records lost"] += lost
        self.world.mishap(self.name, f"crashes and loses {lost} unsynced records")
        for judge in self.world.judges:
            judge.crashed(self.name, self.boot)

    def pause(self) -> None:
        """Handle nothing from now on; arrivals wait."""
        self.paused = True
        self.world.mishap(self.name, "is paused")

    def resume(self) -> None:
        """Handle all that came meanwhile, at once."""
        self.paused = False
        self.world.mishap(self.name, "is resumed")
        self._turn()

    def run_clock_at(self, rate: int) -> None:
        """Make the clock run at ``rate`` millionths of true time."""
        self.clock.run_at(rate, self.world.time)
        self.world.mishap(self.name, f"has a clock at {rate} ppm of true")
        self._set_alarm(moved=True)

    def jump_clock(self, by_ms: int) -> None:
        self.clock.jump(by_ms * NS_PER_MS, self.world.time)
        self.world.mishap(self.name, f"has a clock that jumps {by_ms} ms")
        self._set_alarm(moved=True)

    def tell(self, to: Address, event: Message | Local) -> None:
        """Send ``event`` to a role of this node, as the node itself."""
        self.scheduler.tell(to, event)
        self._turn()

    def notice(self, news: LinkUp | LinkDown) -> None:
        self.links.change(news)
        self._turn()

    def arrive(self, link: str, boot: int, frame: bytes) -> None:
        """Take a frame from the node ``link``, sent in its life ``boot``."""
        if not self.up:
            self.world.fault_counts["sent to a dead node"] += 1
            return
        self.links.arrive(link, boot, frame)
        self._turn()

    def _turn(self) -> None:
        if not self.up or self.paused or self.syncing:
            return
        self._judged(self._take_turns)
        self._set_alarm()

    def _take_turns(self) -> None:
        """Take turns until nothing is left to do, or until a turn waits for the disk."""
        scheduler = self.scheduler
        for _ in range(TURNS_MAX):
            if self._amid is None:
                self._amid = turn(scheduler, self.gateway, self.links, self._pace)
            for _ in self._amid:
                self._judge_records()
                self._begin_sync()
                return
            self._amid = None
            self._judge_records()
            if not scheduler.ready and not scheduler.sync_due and self.links.idle:
                return
        raise ViolationError(f"{self.name}: no end of its turn in {TURNS_MAX} turns")

    def _judge_records(self) -> None:
        """Check that the scheduler gives the journal exactly the records that its roles wrote."""
        written = sum(
            len(one.records) + one.alone + (one.mark is not None) for one in self.disk.tail
        )
        if written != len(self.scheduler.records):
            raise ViolationError(
                f"{self.name}: {written} records were written, "
                f"{len(self.scheduler.records)} would be in the journal"
            )

    def _judged(self, run: Callable[[], None]) -> None:
        """Call ``run``; an error for which a dispatcher would stop is a violation."""
        try:
            run()
        except ViolationError:
            raise
        except Exception as error:
            told = "".join(traceback.format_exception(error))
            raise ViolationError(f"{self.name} broke\n{told}") from error

    def _begin_sync(self) -> None:
        """Wait for the disk, as a dispatcher does; nothing is handled meanwhile."""
        self.syncing = True
        self.world.after(self.world.sync_time(self.name, self.boot), self._synced, self.boot)

    def _synced(self, boot: int) -> None:
        if not self.up or self.boot != boot:
            return  # It crashed before its disk was done.
        self.disk.sync()
        self.syncing = False
        self._turn()

    def _set_alarm(self, *, moved: bool = False) -> None:
        """Ask the world to be woken for the next timer; ``moved`` is when the clock changed."""
        due = self.scheduler.next_wake() if self.up else None
        if due == self._alarm_at and not moved:
            return
        self._alarm += 1
        self._alarm_at = due
        if due is not None:
            at = max(self.world.time, self.clock.reaches(due)) + self.world.lateness()
            self.world.at(at, self._ring, self._alarm)

    def _ring(self, alarm: int) -> None:
        if alarm == self._alarm:
            self._alarm_at = None
            self._turn()
