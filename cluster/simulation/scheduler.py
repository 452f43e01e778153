"""The scheduler of one life of a simulated node: its roles, and the effects they cause."""

from __future__ import annotations

import heapq
import re
import traceback
from collections import deque
from collections.abc import Mapping
from typing import Any

from fencelock.actors.effect import (
    Checkpoint,
    Effect,
    Effects,
    Observe,
    Persist,
    Retire,
    Send,
    Spawn,
    Wake,
)
from fencelock.actors.lock.backend import Report, Reported
from fencelock.actors.lock.self_report import Counted
from fencelock.actors.message import (
    NS_PER_MS,
    Address,
    Event,
    Instant,
    Local,
    Timer,
    address_of,
    ms_between,
    node_of,
    role_of,
)
from fencelock.actors.notice import Notice
from fencelock.actors.role import Role
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.simulation.environment import Machine
from fencelock.cluster.simulation.trace import Delivered
from fencelock.cluster.simulation.violation import ViolationError
from fencelock.transport.frame import Envelope

TURN_MAX = 50_000
"""Limit of deliveries in one turn; beyond it the roles of a node keep each other busy for ever."""


class Stage:
    """Runs roles until nothing is left to handle. It is their `Host`.

    Sends inside the node are delivered in the order of sending, exactly once, at the
    same virtual time. Effects after a `Persist` are held back until `release`.

    Args:
        node: the node of the roles, with its clock and disk.

    """

    def __init__(self, node: Machine) -> None:
        self.node = node
        self.world = node.world
        self.roles: dict[Address, Role[Any]] = {}
        self.outbox: dict[str, list[Envelope]] = {}
        """The messages that leave at the end of the turn, by node."""
        self.counters: dict[str, int] = {}
        self._here = address_of(node.name, "node")
        self._begun = node.now()
        self._queue: deque[tuple[Address, Address, Event, int]] = deque()
        self._holding: set[Address] = set()
        self._held: list[tuple[Address, Effect]] = []
        self._timers: list[tuple[int, int, Address, Timer]] = []
        self._timer_count = 0

    def open(self, cast: RoleSet) -> None:
        """Make all roles, then let each begin, then send the openings."""
        for spawn in cast.roles:
            self._build(spawn)
        for spawn in cast.roles:
            self._begin(self.roles[spawn.address])
        for send in cast.openings:
            self._send(self._here, send.to, send.message)

    def put(self, sender: Address, to: Address, event: Event, boot: int) -> None:
        """Queue ``event``, which a node of that boot sent."""
        self._queue.append((sender, to, event, boot))

    def tell_all(self, event: Local) -> None:
        """Queue ``event`` from the host for every role that accepts its type."""
        for address, role in self.roles.items():
            if type(event) in role.accepts:
                self.put(self._here, address, event, self.node.boot)

    def run(self) -> None:
        """Handle everything queued, and all that follows from it."""
        for _ in range(TURN_MAX):
            if not self._queue:
                return
            self._deliver(*self._queue.popleft())
        raise ViolationError(f"{self.node.name}: no end of its turn in {TURN_MAX} deliveries")

    def release(self) -> None:
        """Perform the held effects: all records written are durable now."""
        held, self._held = self._held, []
        self._holding.clear()
        for source, effect in held:
            self._do(source, effect)

    def next_timer(self) -> int | None:
        """Return the time at which the next timer is due, on the node's own clock (ns)."""
        return self._timers[0][0] if self._timers else None

    def ring(self) -> None:
        """Queue every timer that is due."""
        now = self.now()
        while self._timers and self._timers[0][0] <= now:
            _, _, role, timer = heapq.heappop(self._timers)
            self._queue.append((role, role, timer, self.node.boot))

    def now(self) -> Instant:
        """Read the node's own clock."""
        return self.node.now()

    def adopt(self, role: Role[Any]) -> None:
        """Run ``role`` from now on."""
        self.roles[role.address] = role
        self._begin(role)

    def perform(self, source: Address, effects: Effects) -> None:
        """Carry out ``effects``; those after a `Persist` wait until it is durable."""
        for effect in effects:
            if isinstance(effect, Observe):
                self.world.marks[effect.name] += effect.count
                self.counters[effect.name] = self.counters.get(effect.name, 0) + effect.count
            elif isinstance(effect, Persist):
                self.node.disk.append(role_of(source), effect.record)
                self._holding.add(source)
            elif isinstance(effect, Checkpoint):
                self.node.disk.checkpoint(role_of(source), effect.records)
                self._holding.add(source)
            elif source in self._holding:
                self._held.append((source, effect))
            else:
                self._do(source, effect)

    def _do(self, source: Address, effect: Effect) -> None:
        match effect:
            case Send(to, event):
                self._send(source, to, event)
            case Wake(after_ms, timer):
                self._wake(source, after_ms, timer)
            case Spawn():
                self._build(effect)
                self._begin(self.roles[effect.address])
            case Retire(address):
                self.roles.pop(address, None)
            case Observe() | Persist() | Checkpoint():
                raise AssertionError("these are never held back")

    def _send(self, source: Address, to: Address, event: Event) -> None:
        node = node_of(to)
        if node == self.node.name and to not in self.roles:
            self._without_role(source, to, event)  # As on a real node: it is not kept for later.
        elif node == self.node.name:
            self._queue.append((source, to, event, self.node.boot))
        elif isinstance(event, Local):
            raise ViolationError(f"{source} sent {event!r}, which is local, to {to}")
        else:
            message: Any = event
            self.outbox.setdefault(node, []).append(Envelope(to, source, message))

    def _wake(self, role: Address, after_ms: int, timer: Timer) -> None:
        self._timer_count += 1
        due = self.now() + max(0, after_ms) * NS_PER_MS + self.world.lateness()
        heapq.heappush(self._timers, (due, self._timer_count, role, timer))

    def _build(self, spawn: Spawn) -> None:
        if spawn.address in self.roles or node_of(spawn.address) != self.node.name:
            raise ViolationError(f"{self.node.name} cannot spawn a role at {spawn.address}")
        make: Any = spawn.role
        self.roles[spawn.address] = make(spawn.address, self, **spawn.arguments)

    def _begin(self, role: Role[Any]) -> None:
        try:
            effects = role.begin(self.now())
        except Exception as error:
            raise _broken(role, "its first turn", error) from error
        self.perform(role.address, effects)

    def _deliver(self, sender: Address, to: Address, event: Event, boot: int) -> None:
        world = self.world
        role = self.roles.get(to)
        if role is None:
            self._without_role(sender, to, event)
            return
        delivered = Delivered(world.time, self.node.name, sender, to, event, boot)
        world.record(delivered)
        if type(event) not in role.accepts:
            world.marks["role.stranger_dropped"] += 1
            return
        try:
            effects = role.handle(sender, event, self.now())
        except Exception as error:
            raise _broken(role, f"{event!r} from {sender}", error) from error
        for judge in world.judges:
            judge.handled(delivered, effects)
        self.perform(to, effects)

    def _without_role(self, sender: Address, to: Address, event: Event) -> None:
        if to == self._here and isinstance(event, Report):
            counted = tuple(Counted(name, times) for name, times in sorted(self.counters.items()))
            uptime_ms = ms_between(self._begun, self.now())
            self.put(to, sender, Reported(uptime_ms=uptime_ms, counters=counted), self.node.boot)
        elif isinstance(event, Notice):
            self.world.marks[f"notice.{event.level.name.lower()}"] += 1
            self.world.mishap(self.node.name, event.text)
        else:
            self.world.marks["host.nobody_there"] += 1


def _broken(role: Role[Any], doing: str, error: Exception) -> ViolationError:
    told = "".join(traceback.format_exception(error))
    return ViolationError(f"{role.address} broke in {doing}\n{told}with {_shown(role.state())}")


def _shown(state: Mapping[str, Any]) -> str:
    """Return a role's state as text, with the objects in it, and without memory addresses."""
    parts: list[str] = []
    for name, value in state.items():
        text = repr(value)
        inside: dict[str, Any] = getattr(value, "__dict__", {})
        parts.append(f"{name}={inside!r}" if " at 0x" in text and inside else f"{name}={text}")
    return re.sub(r" at 0x[0-9a-f]+", "", ", ".join(parts))
