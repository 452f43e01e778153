"""A harness for one role: a test sends events, reads the messages, and lets time pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from fencelock.actors.effect import Connect, Disconnect, Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import NS_PER_MS, Address, Event, Instant, Timer
from fencelock.actors.role import Host, Role
from support.effects import HOST

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

    def hear(self, sender: Address, event: Event) -> list[Send]:
        """Deliver one event to the role and return its immediate sends."""
        assert type(event) in self.role.accepts, f"{event} would not reach the role"
        return self._take(self.role.handle(sender, event, self._now()))

    def run(self, ms: int) -> list[Send]:
        """Let ``ms`` milliseconds pass and return the role's sends meanwhile."""
        end = self.now_ms + ms
        said: list[Send] = []
        while due := [alarm for alarm in self.alarms if alarm[0] <= end]:
            alarm = min(due, key=lambda alarm: alarm[0])
            self.alarms.remove(alarm)
            self.now_ms = max(self.now_ms, alarm[0])
            said += self._take(self.role.handle(self.role.address, alarm[1], self._now()))
        self.now_ms = end
        return said

    def _now(self) -> Instant:
        return Instant(self.now_ms * NS_PER_MS)

    def _take(self, effects: Effects) -> list[Send]:
        said: list[Send] = []
        for effect in effects:
            self._perform(effect, said)
        return said

    def _perform(self, effect: Effect, said: list[Send]) -> None:
        match effect:
            case Send():
                said.append(effect)
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
