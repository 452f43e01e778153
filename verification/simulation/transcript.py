"""Runs for people to read: the transcripts of short scenes of `paxos`, and space-time diagrams.

A scene runs in a calm world with a fixed seed, so its text is the same each time. The texts are in
``docs/transcripts/``; a test regenerates and compares them.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from itertools import groupby, starmap
from typing import Any, NamedTuple

from msgspec.structs import replace

from fencelock.actors.api.lock_message import Acquire, Granted, Refused, Release, Released
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
    node_of,
)
from fencelock.actors.paxos.event import (
    Adopted,
    Decided,
    HeartbeatDue,
    ProposalBatch,
    SpreadDecisions,
    Suspect,
)
from fencelock.actors.paxos.wire import Ballot, Batch
from fencelock.actors.role import Role
from fencelock.actors.role_message import LinkDown
from fencelock.actors.trace import line_of, messages
from fencelock.cluster.diagram import GRANTED, ROUTINE, chosen, space_time
from fencelock.cluster.diagram import Event as DiagramEvent
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.lock_machine import read_command
from fencelock.cluster.node.topology import NodeContext, make_roles_of
from fencelock.verification.simulation.trace import Delivery, Mishap
from fencelock.verification.simulation.violation import Judge
from fencelock.verification.simulation.workload import client_session
from fencelock.verification.simulation.world import World

SEED = 1
NODES = ("n1", "n2", "n3")
TTL_MS = 10_000
SETTLED_MS = 3_006
"""Time after which the nodes have a leader, and the clients no reason to look for another (ms)."""
STEP_MS = 1
PATIENCE_MS = 10_000
"""Longest part of a scene (ms); a scene that takes longer is a bug."""
DIGITS_MAX = 10
"""Numbers with more digits, such as ids and readings of a clock, are shortened."""
DIGITS_SHOWN = 4

LEGEND = """\
One line an event: the time (ms), the role that handles it, the sender, the event. `NODE/node` is
the host of a role. Indented below are the effects that the role returned, in order; those after a
`persist` happen once the record is on disk. A message has its fields where it is handled, and only
its name where it is sent. Fields with their default are left out. `..7330` are the last digits of a
long number (an id, a fence, or the reading of a clock). `1.n1` is the ballot of round 1 of the
leader on n1. `alice/caller` stands for a thread of a user's program that calls `Lock.acquire` and
`Lock.release`.
"""


class Call(Local):
    """Send ``request`` to the client's session, as a thread of a user's program does."""

    request: Message


class Caller(Role[Call | Granted | Released | Refused]):
    """Stands for the threads of a user's program."""

    def handle(
        self, sender: Address, event: Call | Granted | Released | Refused, now: Instant
    ) -> Effects:
        if not isinstance(event, Call):
            return ()
        return (Send(address_of(node_of(self.address), "session"), event.request),)


class Scribe:
    """Writes down every event and its effects, in the order in which roles handle them (Judge)."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._began = world.time
        self._read = len(world.trace.entries)
        self.lines: list[str] = []
        self.heads: dict[type[Event], str] = {}
        """Headings above the next event of a type."""
        world.judges.append(self)
        world.begin_watchers.append(self.begun)

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        self._write_mishaps()
        event, source = delivered.event, f"<- {delivered.sender}"
        if type(event) in self.heads:
            self.head(self.heads.pop(type(event)))
        if isinstance(event, Timer):
            source = "   its timer"
        self._write(delivered.to, f"{source:<17} {compact(event)}")
        self._write_effects(effects, event)

    def begun(self, address: Address, effects: Effects) -> None:
        self._write_mishaps()
        self._write(address, "begins")
        self._write_effects(effects, None)

    def crashed(self, node: str, boot: int) -> None:
        self._write_mishaps()

    def head(self, text: str) -> None:
        self.lines += ["", f"--- {text}", ""]

    def _write_mishaps(self) -> None:
        entries = self._world.trace.entries
        for entry in entries[self._read :]:
            if isinstance(entry, Mishap):
                self._write(entry.node, entry.what)
        self._read = len(entries)

    def _write(self, place: str, text: str) -> None:
        us = (self._world.time - self._began) // NS_PER_US
        self.lines.append(f"{us / 1_000:8.3f}  {place:<14} {text}")

    def _write_effects(self, effects: Effects, event: Event | None) -> None:
        self.lines += [f"{'':12}{line}" for line in effect_lines(effects, event)]


def effect_lines(effects: Effects, event: Event | None) -> Iterator[str]:
    """Yield a line for each effect, or for several that send messages of one type."""
    for name, alike in groupby(effects, _name_sent):
        if name:
            receivers = Counter(effect.to for effect in alike if isinstance(effect, Send))
            yield f"send {name} to {', '.join(starmap(_counted, receivers.items()))}"
        else:
            for effect in alike:
                yield _effect_line(effect, event)


def _name_sent(effect: Effect) -> str:
    return type(effect.message).__name__ if isinstance(effect, Send) else ""


def _counted(name: str, count: int) -> str:
    return name if count == 1 else f"{name} ({count} times)"


def _effect_line(effect: Effect, event: Event | None) -> str:  # noqa: PLR0912  (one case each)
    match effect:
        case Wake():
            return f"wake in {effect.after_ms} ms with {type(effect.timer).__name__}"
        case Persist():
            same = effect.record == event
            return f"persist {type(event).__name__ if same else compact(effect.record)}"
        case Checkpoint():
            return f"checkpoint {compact(effect.records)}"
        case CheckpointPart():
            return f"part of a checkpoint {compact(effect.records)}"
        case CheckpointEnd():
            return "end of the checkpoint"
        case Spawn():
            of: type[Any] = effect.role
            return f"spawn {effect.address}, a {of.__name__}"
        case Retire():
            return f"retire {effect.address}"
        case Connect():
            return f"connect to {effect.node}"
        case Disconnect():
            return f"disconnect from {effect.node}"
        case JoinGroup():
            return f"join group {compact(effect.group)}"
        case Observe():
            return f"count {_counted(effect.name, effect.count)}"
        case Fault():
            return f"fault at {effect.doing}: {effect.error!r}"
        case Send():
            return f"send {_name_sent(effect)} to {effect.to}"


def compact(value: Any) -> str:
    """Return ``value`` in short: fields with their defaults are left out."""
    match value:
        case Ballot():
            return f"{value.round}.{node_of(value.leader)}" if value.round else "none"
        case Batch():
            commands = ", ".join(compact(command) for command in value.commands)
            return f"Batch({value.time_ms} ms, {compact(value.origin)}: {commands})"
        case Enum():
            return value.name
        case bool() | None:
            return str(value)
        case int():
            digits = str(value)
            return f"..{digits[-DIGITS_SHOWN:]}" if len(digits) > DIGITS_MAX else digits
        case str():
            return value if value and value.isprintable() and " " not in value else repr(value)
        case bytes():
            return compact(read_command(value))
        case _ if _is_tuple(value):
            return f"[{', '.join(map(compact, value))}]"
        case _:
            return _compact_fields(value)


def _is_tuple(value: object) -> bool:
    return type(value) is tuple


def _compact_fields(value: object) -> str:
    of = type(value)
    shown = [
        f"{name}={compact(field)}"
        for name, parameter in inspect.signature(of).parameters.items()
        if (field := getattr(value, name)) != parameter.default
    ]
    name = of.__name__
    return f"{name}({' '.join(shown)})" if shown else name


class Stage:
    """Three nodes and their clients, long enough after their start to have settled.

    Args:
        clients: the names of the clients; each opened its session with a lock that is free again.

    """

    def __init__(self, *clients: str) -> None:
        self.world = World(SEED)
        for name in NODES:
            self.world.add(name, make_roles_of("paxos"), member=True)
        for name in clients:
            self.world.add(name, _client, member=False)
        self.world.power_on_all()
        self.pause(SETTLED_MS)
        for name in clients:
            fence = self.fence_of(name, Acquire(lock="warm-up", owner="main", wait_ms=None))
            self.call(name, Release(lock="warm-up", fence=fence, owner="main"))
            self.until(name, Released)
        self.pause(SETTLED_MS)

    def pause(self, ms: int) -> None:
        self.world.run_for(ms)

    def call(self, client: str, request: Message) -> None:
        self.world.nodes[client].tell(address_of(client, "caller"), Call(request=request))

    def fence_of(self, client: str, request: Acquire) -> int:
        """Let ``client`` acquire a lock, and return its fence."""
        self.call(client, request)
        granted = self.until(client, Granted)
        assert isinstance(granted, Granted)
        return granted.fence

    def until(self, client: str, reply: type[Message]) -> Event:
        """Let time pass until ``client`` has its next ``reply``, and return it."""
        entries = self.world.trace.entries
        seen, end = len(entries), self.world.time + PATIENCE_MS * NS_PER_MS
        caller = address_of(client, "caller")
        while self.world.time < end:
            self.pause(STEP_MS)
            come = (one for one in entries[seen:] if isinstance(one, Delivery) and one.to == caller)
            for delivery in come:
                if isinstance(delivery.event, reply):
                    return delivery.event
            seen = len(entries)
        raise AssertionError(f"{client} has no {reply.__name__} after {PATIENCE_MS} ms")


def _client(context: NodeContext) -> RoleSet:
    proxies = tuple(address_of(node, "proxy") for node in NODES)
    session = client_session(context, proxies)
    session = replace(session, arguments={**session.arguments, "ttl_ms": TTL_MS})
    return RoleSet((session, Spawn(address_of(context.node, "caller"), Caller)))


class Scene(NamedTuple):
    """A scene: what it shows, and the function that plays it."""

    about: str
    play: Callable[[], Scribe]

    def text(self) -> str:
        return "\n".join((self.about, LEGEND.rstrip(), *self.play().lines, ""))


def acquire_and_release() -> Scribe:
    """Let alice acquire a lock that is free, and release it."""
    stage = Stage("alice")
    scribe = Scribe(stage.world)
    scribe.head("a thread of alice acquires the lock `jobs`")
    scribe.heads = {
        ProposalBatch: "the replica of the leader puts the request into the next slot",
        Decided: "a majority has it on disk, so the slot is decided; the table grants the lock",
        SpreadDecisions: "the other members learn that the slot is decided",
        HeartbeatDue: "a heartbeat renews the lease of the leader, as every 50 ms",
    }
    fence = stage.fence_of("alice", Acquire(lock="jobs", owner="main", wait_ms=None))
    stage.pause(QUIET_MS)
    scribe.head("alice releases the lock")
    stage.call("alice", Release(lock="jobs", fence=fence, owner="main"))
    stage.until("alice", Released)
    stage.pause(QUIET_MS)
    return scribe


def leader_death() -> Scribe:
    """Let the leader die while alice holds a lock for which bob waits."""
    stage = Stage("alice", "bob")
    fence = stage.fence_of("alice", Acquire(lock="jobs", owner="main", wait_ms=None))
    stage.pause(QUIET_MS)
    scribe = Scribe(stage.world)
    scribe.head("alice holds the lock `jobs`; a thread of bob asks for it and is queued")
    stage.call("bob", Acquire(lock="jobs", owner="main", wait_ms=None))
    stage.pause(QUEUED_MS)
    scribe.head("the leader dies; alice releases the lock before anybody knows")
    scribe.heads = {
        LinkDown: "links to n1 fail: the clients move to n2, which cannot reach a leader either",
        Suspect: "the lease of n1 has passed: n2 stands for election, under a higher ballot",
        Adopted: "a majority promised: n2 leads, and proposes their votes and then new commands",
        Decided: "a majority accepted: the release is decided, and bob has the lock",
    }
    stage.world.crash(LEADER)
    stage.call("alice", Release(lock="jobs", fence=fence, owner="main"))
    stage.until("bob", Granted)
    return scribe


QUIET_MS = 25
"""Time after which every member has learned of a slot (ms)."""

QUEUED_MS = 5
"""Time after which an acquire is queued, and not every member has learned of that (ms)."""

LEADER = "n1"
"""The node that leads when a scene begins."""

SCENES: Mapping[str, Scene] = {
    "acquire": Scene(
        "One acquire and one release of a free lock, on three nodes with the protocol paxos. "
        "n1 leads.\n",
        acquire_and_release,
    ),
    "leader-death": Scene(
        "The leader of three nodes dies while alice holds a lock and bob waits for it. "
        "n1 leads at first.\n",
        leader_death,
    ),
}


EVENTS = 200
"""Events in a diagram."""

BEFORE = 50
"""Events before the first grant, of these."""


class Recorder(Judge):
    """Records what nodes and clients send and receive; it judges nothing."""

    def __init__(self) -> None:
        self.events: list[DiagramEvent] = []

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        role, time = delivered.to, delivered.time // NS_PER_US
        for one in messages(role, delivered.sender, delivered.event, effects, "", local=False):
            line = line_of(len(self.events), time, role, one)
            self.events.append(DiagramEvent(node_of(role), line))

    def drawn(self, title: str) -> str:
        """Return the diagram of `EVENTS` events around the first grant."""
        events = chosen(self.events, None, ROUTINE)
        granted = [at for at, one in enumerate(events) if one.line.kind == GRANTED]
        first = max(0, granted[0] - BEFORE) if granted else 0
        return space_time(events[first : first + EVENTS], title)
