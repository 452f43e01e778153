"""Roles by hand: their effects, and dispatchers that run them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import pykka

from fencelock.actors.effect import Connect, Disconnect, Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import NS_PER_MS, Address, Event, Instant, Local, Timer
from fencelock.actors.role import Host, Role
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.storage.journal import Journal
from fencelock.transport.hub import SocketHub
from support.expect import PATIENCE_S

T0 = Instant(0)

M = TypeVar("M")


class NoHost:
    """A host for a role that is never adopted: its driver performs its effects."""

    def now(self) -> Instant:
        return T0

    def perform(self, source: Address, effects: Effects) -> None:
        raise AssertionError((source, effects))

    def adopt(self, role: Role[Any]) -> None:
        raise AssertionError(role)


HOST = NoHost()


def at(ms: int) -> Instant:
    """Return the instant ``ms`` milliseconds after `T0`."""
    return Instant(ms * NS_PER_MS)


def sends(effects: Effects) -> list[Send]:
    return [effect for effect in effects if isinstance(effect, Send)]


def sent(effects: Effects, kind: type[M], to: Address | None = None) -> list[M]:
    """Return the sent messages of ``kind``, to ``to`` or to any address."""
    return [
        send.message
        for send in sends(effects)
        if isinstance(send.message, kind) and (to is None or send.to == to)
    ]


def only_sent(effects: Effects, kind: type[M], to: Address | None = None) -> M:
    """Return the only sent message of ``kind``, to ``to`` or to any address."""
    (message,) = sent(effects, kind, to)
    return message


def not_counted(effects: Effects) -> list[Effect]:
    return [effect for effect in effects if not isinstance(effect, Observe)]


def counted(effects: Effects) -> list[str]:
    return [effect.name for effect in effects if isinstance(effect, Observe)]


R = TypeVar("R", bound=Role[Any])


class RoleHarness(Generic[R]):
    """Runs one role without a cluster: its timers fire, its sends are returned to the caller.

    Args:
        make: makes the role, given a host.

    Attributes:
        begun: the sends of the role when it began.
        now_ms: the time (ms).
        alarms: the timers that have not yet fired, with their times (ms).
        counted: the names the role observed, in order.
        links: the links that the role opened, by node, with their endpoints.

    """

    def __init__(self, make: Callable[[Host], R]) -> None:
        self.role = make(HOST)
        self.now_ms = 1_000
        self.alarms: list[tuple[int, Timer]] = []
        self.counted: list[str] = []
        self.links: dict[str, str] = {}
        self.begun = self._take(self.role.begin(self._now()))

    def receive(self, sender: Address, event: Event) -> list[Send]:
        """Deliver one event to the role and return its immediate sends."""
        assert type(event) in self.role.accepts, f"{event} would not reach the role"
        return self._take(self.role.handle(sender, event, self._now()))

    def run(self, ms: int) -> list[Send]:
        """Let ``ms`` milliseconds pass and return the role's sends meanwhile."""
        end = self.now_ms + ms
        sends: list[Send] = []
        while due := [alarm for alarm in self.alarms if alarm[0] <= end]:
            alarm = min(due, key=lambda alarm: alarm[0])
            self.alarms.remove(alarm)
            self.now_ms = max(self.now_ms, alarm[0])
            sends += self._take(self.role.handle(self.role.address, alarm[1], self._now()))
        self.now_ms = end
        return sends

    def _now(self) -> Instant:
        return Instant(self.now_ms * NS_PER_MS)

    def _take(self, effects: Effects) -> list[Send]:
        sends: list[Send] = []
        for effect in effects:
            self._perform(effect, sends)
        return sends

    def _perform(self, effect: Effect, sends: list[Send]) -> None:
        match effect:
            case Send():
                sends.append(effect)
            case Wake(after_ms, timer):
                assert after_ms > 0, f"{timer} would ring at once, forever"
                self.alarms.append((self.now_ms + after_ms, timer))
            case Observe(name, count):
                self.counted += [name] * count
            case Connect(node, endpoint):
                self.links[node] = endpoint
            case Disconnect(node):
                del self.links[node]
            case _:
                raise NotImplementedError(f"a rehearsal has no stage for {effect}")


class StartRoles(Protocol):
    """Starts ``roles`` on a dispatcher of the node ``n1``."""

    def __call__(self, roles: RoleSet, journal: Journal | None = None) -> Dispatcher: ...


class BlockThread(Local):
    """Makes the thread that handles it wait."""

    entered: threading.Event
    leave: threading.Event

    def wait(self) -> None:
        self.entered.set()
        self.leave.wait(PATIENCE_S)


def blocked(ref: pykka.ActorRef[Any]) -> threading.Event:
    """Make the thread of a role wait; return the event for which it waits."""
    block = BlockThread(entered=threading.Event(), leave=threading.Event())
    ref.tell(block)
    assert block.entered.wait(PATIENCE_S)
    return block.leave


def hub_without_peers(node: str = "n1") -> SocketHub:
    """Return sockets that reach no other node."""
    return SocketHub(
        node=node, boot=1, cluster="c", listen=None, peers={}, count=lambda name, times: None
    )


@contextmanager
def dispatchers() -> Generator[StartRoles]:
    """Yield a function that starts dispatchers, and stop them at the end."""
    running: list[Dispatcher] = []

    def start(roles: RoleSet, journal: Journal | None = None) -> Dispatcher:
        dispatcher = Dispatcher("n1", hub_without_peers(), journal=journal)
        running.append(dispatcher)
        dispatcher.start(roles)
        return dispatcher

    yield start
    for dispatcher in running:
        assert dispatcher.stop(PATIENCE_S)
