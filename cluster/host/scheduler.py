"""The scheduler: a node's roles and their waiting events; one thread at a time, no sockets."""

from __future__ import annotations

import heapq
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pykka

from fencelock.actors.api.lock_message import Abandon
from fencelock.actors.api.name import without_secret
from fencelock.actors.api.role_request import DescribeRole, ReadState, RoleDescription, RoleState
from fencelock.actors.effect import (
    Checkpoint,
    CheckpointEnd,
    CheckpointPart,
    Connect,
    Disconnect,
    Effect,
    Effects,
    Fault,
    JoinGroup,
    Observe,
    Persist,
    Retire,
    Send,
    Spawn,
    Wake,
)
from fencelock.actors.histogram import Histogram
from fencelock.actors.message import (
    NS_PER_MS,
    NS_PER_US,
    Address,
    Event,
    Instant,
    Local,
    Message,
    Timer,
    address_of,
    ms_between,
    node_of,
)
from fencelock.actors.proxy.event import DropAsk, PassAsk, Report, Reported
from fencelock.actors.role import Role
from fencelock.actors.role_message import SYNC_REPORT_MS, DiskSynced, RoleNotice
from fencelock.actors.table.poison import PoisonError
from fencelock.cluster.host.pending_asks import WAKING_MS, AskReply, PendingAsks
from fencelock.cluster.host.role_asks import RoleAsks
from fencelock.cluster.host.role_set import (
    RoleSet,
    RoleSlot,
    counted,
    describe,
    describe_all,
    state_of,
)
from fencelock.cluster.log import Repeated
from fencelock.transport.frame import NAMES_KEPT, EnvelopeItems
from fencelock.transport.log import FaultLog, mask, note

if TYPE_CHECKING:
    from fencelock.cluster.node.storage.record import Mark

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that keeps counting while the machine sleeps, so that a lease cannot outlive a
suspend."""

INBOX_MAX = 10_000
"""Limit of waiting events on a node. Above it, nothing more enters from outside. Roles share one
thread, so a backlog of one delays all. Releases and cancels of local threads are still accepted:
otherwise the lock of a caller that continues without them would stay held forever."""

SLOW_NS = 100_000_000
"""Syncs, and turns without their syncs, that take longer are logged (ns, 100 ms)."""

BACKLOG_MAX = 1_000_000
"""Limit of waiting events of any kind on a node; more mean that roles of ours flood each other."""

WAITING_PARTS_MAX = 4
"""Parts of a checkpoint that may wait for a sync of other records; with the last, one is due.
A sync of 512 KiB takes hardly longer than one of 128."""

READ_CLOCK = cast("Callable[[], Instant]", partial(time.clock_gettime_ns, CLOCK))
"""Reads `CLOCK`; it is called once for each event, so it is no Python function."""


class RoleFailedError(Exception):
    """A role raised an exception: our bug. The node stops; its log has the event and the state."""


class Scheduler:
    """Runs roles in the order in which events arrive, and performs the effects they return.

    Once a role persists in a turn, its sends and other later effects are held until
    `release_held`; the dispatcher syncs the journal before that. A part of a checkpoint holds no
    effects, so it waits for the next records that do: a sync of its own would delay
    requests.

    Args:
        node: the node that the roles belong to.
        welcome: called with each new role, before its first turn.
        counters: the host's counters, with those of retired roles added.
        clock: reads the clock of this machine (ns), which never goes back.

    Attributes:
        now: the same clock (Host).
        ready: the waiting events with their receivers, first come, first served.

    """

    def __init__(
        self,
        node: str,
        welcome: Callable[[RoleSlot], None],
        counters: Counter[str],
        clock: Callable[[], Instant] = READ_CLOCK,
    ) -> None:
        self.node = node
        self.now = clock
        self.counters = counters
        self._welcome = welcome
        self.roles: dict[Address, RoleSlot] = {}
        self.asks = PendingAsks(node)
        self._role_asks = RoleAsks(self, INBOX_MAX)
        """Requests of other processes to roles."""
        self.listeners: dict[Address, Callable[[Event], None]] = {}
        """Callbacks for messages to addresses without a role, called on the roles' thread."""
        self.ready: deque[tuple[RoleSlot, Address, Event]] = deque()
        self.records: list[tuple[str, Message | Mark | None]] = []
        """Records to be written next; None drops the role's earlier ones."""
        self.outgoing: defaultdict[str, list[EnvelopeItems]] = defaultdict(list)
        """Messages for other nodes and clients, by their receiver."""
        self.timers: list[tuple[int, int, RoleSlot, Timer]] = []
        """A heap of the set timers, with the times when they are due (ns)."""
        self.here = address_of(node, "node")
        self.relink: Callable[[Connect | Disconnect | JoinGroup], None] = _without_links
        """Opens or closes a link to another node, or names the group of all; a gateway sets it."""
        self._began = self.now()
        self._timer_number = 0
        self._nodes: dict[Address, str] = {}
        """The node of each remote address that was recently sent to."""
        self._performing: deque[tuple[RoleSlot, Effects]] = deque()
        """Effects to be performed next: of roles that began, or held ones."""
        self._held: list[tuple[RoleSlot, Effects]] = []
        self._holding: list[RoleSlot] = []
        self._parts = 0
        """Parts of checkpoints in ``records``."""
        self.sync_due = False
        """Whether ``records`` shall be made durable now."""
        self._opening = False
        self._syncs = self._sync_ns = self._syncs_reported_at = 0
        self._syncs_since = Instant(0)
        """The time at which the first unreported sync began."""
        self._slow_syncs = Repeated(node, clock)
        self._faults = FaultLog(node, clock, self._count)
        self.synced_ns = 0
        """Time of all syncs of the journal (ns)."""
        self.sync_times = Histogram()
        self.frames_in = self.frames_out = 0

    def open(self, role_set: RoleSet) -> None:
        """Start all roles of ``role_set``, then give each its first turn and post the openings."""
        self._opening = True
        for spawn in role_set.roles:
            spawn.role.start(spawn.address, self, **spawn.arguments)
        self._opening = False
        for role_slot in list(self.roles.values()):
            self._begin(role_slot)
        self.work(0)
        for send in role_set.openings:
            self.post(self.roles[send.to], self.here, send.message)

    def adopt(self, role: Role[Any], *, stops_alone: bool = False) -> None:
        """Register ``role``, add it, and give it its first turn (Host).

        The roles of a `RoleSet` get theirs once all of them are added.
        """
        assert node_of(role.address) == self.node
        assert role.address not in self.roles, f"{role.address} is running already"
        role_slot = RoleSlot(role, stops_alone=stops_alone)
        if stops_alone:
            role_slot.handle = partial(_handled_without_records, role)
        self._welcome(role_slot)
        self._register(role)
        self.roles[role.address] = role_slot
        if not self._opening:
            self._begin(role_slot)

    def retire(self, role_slot: RoleSlot) -> None:
        """Remove a role. Its waiting events are dropped, and requests to it fail."""
        if role_slot.dead:
            return
        role_slot.dead = True
        role_slot.accepts = frozenset()
        del self.roles[role_slot.address]
        self._keep_counters(role_slot)
        self.asks.fail(f"{role_slot.address} has stopped", role=role_slot.address)
        role: Any = role_slot.role
        role._stop()  # Pykka's own last step: registry, event, ``on_stop``.

    def _register(self, role: Role[Any]) -> None:
        pykka.ActorRegistry.register(role.actor_ref)

    def _keep_counters(self, role_slot: RoleSlot) -> None:
        """Add the counters of a role that retires to the host's."""
        self.counters.update(role_slot.counters)

    def reply_for(
        self, role_slot: RoleSlot, request: DescribeRole | ReadState
    ) -> RoleDescription | RoleState:
        """Answer ``request`` for its role, ahead of the events that wait for the role."""
        if isinstance(request, ReadState):
            return state_of(role_slot, self.now(), self.note_fault)
        waiting = sum(waits is role_slot for waits, _, _ in self.ready)
        return describe(role_slot, waiting, self.note_fault)

    def post(self, role_slot: RoleSlot, sender: Address, event: Event) -> None:
        self.ready.append((role_slot, sender, event))

    def abandon(self, reply: AskReply) -> None:
        """Forget a request that no caller waits for, and notify its role.

        The answer may just have arrived unread. The role is notified anyway: otherwise a grant that
        no caller received would be held forever.
        """
        self.asks.abandon(reply)
        if reply.address is None or reply.role is None:
            return  # The request was refused.
        role_slot = self.roles.get(reply.role)
        if role_slot is not None and Abandon in role_slot.accepts:
            self.post(role_slot, reply.address, Abandon())

    def tell_all(self, event: Local) -> None:
        for role_slot in list(self.roles.values()):
            if type(event) in role_slot.accepts:
                self.post(role_slot, self.here, event)

    def work(self, most: int) -> None:  # noqa: PLR0912  (the path of every message)
        """Perform waiting effects, and give turns until no event waits, at most ``most``.

        Raises:
            RoleFailedError: a role raised an exception, which only a bug of ours can cause.

        """
        ready, performing, slots, now = self.ready, self._performing, self.roles, self.now
        outgoing, nodes = self.outgoing, self._nodes
        assert len(ready) < BACKLOG_MAX, f"{BACKLOG_MAX} events wait on node {self.node}"
        while True:
            if performing:
                role_slot, effects = performing.popleft()
            elif ready and most > 0:
                most -= 1
                role_slot, sender, event = ready.popleft()
                if type(event) not in role_slot.accepts:
                    role_slot.counters["role.stranger_dropped"] += not role_slot.dead
                    continue
                handle = role_slot.handle
                try:
                    effects = handle(sender, event, now())
                except Exception as error:
                    failure = self._failed(role_slot, event, sender, error)
                    if role_slot.stops_alone:
                        self.retire(role_slot)
                        continue
                    raise failure from error
            else:
                return
            for effect in effects:
                if type(effect) is Send and not role_slot.held:
                    to = effect.to
                    target = slots.get(to)
                    if target is not None:
                        ready.append((target, role_slot.address, effect.message))
                    elif (node := nodes.get(to)) is not None:
                        # A `Local`, which has no encoding, is never sent to another node.
                        message: Any = effect.message
                        outgoing[node].append((to, role_slot.address, message))
                    else:
                        self._send_out(role_slot, to, effect.message)
                elif type(effect) is Observe:
                    role_slot.counters[effect.name] += effect.count
                elif type(effect) is Persist:
                    self._write(role_slot, (effect.record,))
                elif type(effect) is Checkpoint:
                    self._write(role_slot, (None, *effect.records))
                elif type(effect) is CheckpointPart:
                    self._write_part(role_slot, effect)
                elif type(effect) is CheckpointEnd:
                    self._write(role_slot, (_marks().END,))
                elif role_slot.held:
                    self._held.append((role_slot, (effect,)))
                else:
                    self._perform_here(role_slot, effect)

    def ring_alarms(self) -> None:
        now, timers = self.now(), self.timers
        while timers and timers[0][0] <= now:
            _, _, role_slot, timer = heapq.heappop(timers)
            if not role_slot.dead:
                self.ready.append((role_slot, role_slot.address, timer))

    def idle_ms(self) -> int | None:
        """Return the time until the next timer is due (ms, rounded up), None for no limit."""
        if self.ready or self._performing:
            return 0
        if not self.timers:
            return WAKING_MS if self.asks.waking else None
        ahead = max(0, -(-(self.timers[0][0] - self.now()) // NS_PER_MS))
        return min(ahead, WAKING_MS) if self.asks.waking else ahead

    def release_held(self) -> None:
        """Perform the effects that waited for the disk; every record of the turn is durable now."""
        held, self._held = self._held, []
        self.records, self._parts, self.sync_due = [], 0, False
        for role_slot in self._holding:
            role_slot.held = False
        self._holding.clear()
        self._performing.extend(held)
        self.work(0)

    def note_sync(self, began: Instant) -> None:
        """Count a sync of the journal that began at ``began``, and report now and then."""
        now = self.now()
        if not self._syncs:
            self._syncs_since = began
        self._syncs += 1
        self._sync_ns += now - began
        self.synced_ns += now - began
        self.sync_times.add(now - began)
        if now - began > SLOW_NS:
            text = (
                "the disk took {worst} ms to sync the journal{times}: requests waited for it. Look "
                "at what else uses this disk, and whether it is failing"
            )
            self._slow_syncs.add(ms_between(began, now), text, event="slow_sync")
        if now - self._syncs_reported_at >= SYNC_REPORT_MS * NS_PER_MS:
            mean_us = self._sync_ns // self._syncs // NS_PER_US
            self.tell_all(DiskSynced(mean_us=mean_us, since=self._syncs_since))
            self._syncs, self._sync_ns, self._syncs_reported_at = 0, 0, now
            self.sync_times.fold()

    def perform(self, source: Address, effects: Effects) -> None:
        """Carry out ``effects`` of the role at ``source`` before the next event (Host)."""
        self._performing.append((self.roles[source], effects))

    def note_fault(self, doing: str, error: Exception) -> None:
        """Log and count ``error``, which costs only what was being done."""
        self._faults.note(doing, error)

    def _count(self, name: str, count: int) -> None:
        self.counters[name] += count

    def _begin(self, role_slot: RoleSlot) -> None:
        try:
            effects = role_slot.role.begin(self.now())
            if role_slot.stops_alone:
                _check_without_records(role_slot.role, effects)
        except Exception as error:
            failure = self._failed(role_slot, None, role_slot.address, error)
            if role_slot.stops_alone:
                self.retire(role_slot)
            raise failure from error
        self._performing.append((role_slot, effects))

    def _failed(
        self, role_slot: RoleSlot, event: Event | None, sender: Address, error: Exception
    ) -> Exception:
        """Log a bug of ours with the event and the role's state; return the fatal error."""
        if isinstance(error, PoisonError):  # Its text says what to do.
            text = without_secret(str(error))
            note(self.node, "CRITICAL", text, error, role=role_slot.address, event="poison")
            return RoleFailedError(text)
        state = without_secret(repr(dict(role_slot.role.state())))
        seen = without_secret(repr(event))
        mask(error)
        text = f"role {role_slot.address} failed on {seen} from {sender}; its state was {state}"
        about = {"role": role_slot.address, "event": seen, "sender": sender, "state": state}
        note(self.node, "CRITICAL", text, error, **about)
        return RoleFailedError(without_secret(f"{role_slot.address} failed on {seen}: {error!r}"))

    def _perform_here(self, role_slot: RoleSlot, effect: Effect) -> None:
        """Carry out an effect that is rarer than those in `work`."""
        if isinstance(effect, Wake):
            self._timer_number += 1
            due = self.now() + effect.after_ms * NS_PER_MS
            heapq.heappush(self.timers, (due, self._timer_number, role_slot, effect.timer))
        elif isinstance(effect, Spawn):
            later, self._performing = self._performing, deque()
            effect.role.start(effect.address, self, **effect.arguments)
            self.work(0)  # The new role's first effects precede the others of this role.
            self._performing = later
        elif isinstance(effect, Connect | Disconnect | JoinGroup):
            self.relink(effect)
        elif isinstance(effect, Fault):
            self.note_fault(f"{role_slot.address}: {effect.doing}", effect.error)
        elif isinstance(effect, Retire) and (retired := self.roles.get(effect.address)) is not None:
            self.retire(retired)

    def _write_part(self, role_slot: RoleSlot, part: CheckpointPart) -> None:
        name = role_slot.name
        self._parts += 1
        if self._parts >= WAITING_PARTS_MAX:
            self.sync_due = True
        if part.first:
            self.records.append((name, _marks().BEGIN))
        self.records += [(name, record) for record in part.records]

    def _write(self, role_slot: RoleSlot, records: Sequence[Message | Mark | None]) -> None:
        name = role_slot.name
        for record in records:
            self.records.append((name, record))
        if not role_slot.held:
            role_slot.held = True
            self._holding.append(role_slot)
            self.sync_due = True

    def _send_out(self, role_slot: RoleSlot, to: Address, message: Message | Local) -> None:
        """Send to another node, to an open request, or to the host."""
        if self.asks.deliver(to, message):
            return
        node = node_of(to)
        if node != self.node:
            assert isinstance(message, Message), f"{message} is local and cannot go to {to}"
            if len(self._nodes) >= NAMES_KEPT:
                self._nodes.clear()
            self._nodes[to] = node
            self.outgoing[node].append((to, role_slot.address, message))
        elif (listener := self.listeners.get(to)) is not None:
            listener(message)
        elif to == self.here and type(message) is Report:
            self.post(role_slot, self.here, self._report(roles=message.roles))
        elif type(message) is PassAsk:
            self._role_asks.begin(role_slot, message)
        elif type(message) is DropAsk:
            self._role_asks.drop(message)
        elif type(message) is RoleNotice:
            self._write_notice(message)
        else:
            self.counters["host.nobody_there"] += 1

    def _write_notice(self, notice: RoleNotice) -> None:
        note(self.node, notice.level.name, notice.text, **dict(notice.fields))

    def uptime_ms(self) -> int:
        return ms_between(self._began, self.now())

    def total_counters(self) -> Counter[str]:
        total = Counter(self.counters)
        for role_slot in self.roles.values():
            if role_slot.counters:
                total.update(role_slot.counters)
        return total

    def _report(self, *, roles: bool) -> Reported:
        described: tuple[RoleDescription, ...] = ()
        if roles:
            waiting = Counter(role_slot for role_slot, _, _ in self.ready)
            described = describe_all(self.roles.values(), waiting, self.note_fault)
        counters = counted(self.total_counters())
        return Reported(uptime_ms=self.uptime_ms(), counters=counters, roles=described)


def _handled_without_records(
    role: Role[Any], sender: Address, event: Event, now: Instant
) -> Effects:
    """Let a role that was added to a running node handle ``event``."""
    effects = role.handle(sender, event, now)
    _check_without_records(role, effects)
    return effects


def _check_without_records(role: Role[Any], effects: Effects) -> None:
    """Refuse records of a role that the node would not have again after a restart.

    Raises:
        TypeError: naming the role.

    """
    if any(isinstance(effect, Persist | Checkpoint | CheckpointPart) for effect in effects):
        raise TypeError(f"{role.address} persists, which only the roles of the protocol may")


def _marks() -> type[Mark]:
    from fencelock.cluster.node.storage.record import Mark  # noqa: PLC0415 (clients have no journal)

    return Mark


def _without_links(effect: Connect | Disconnect | JoinGroup) -> None:
    """Do nothing: without a gateway there is no link."""
    del effect
