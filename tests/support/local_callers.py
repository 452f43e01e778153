"""A proxy of the log with the table behind it, and callers inside its process."""

from __future__ import annotations

from typing import Any, TypeVar

from fencelock.actors.api.message import Acquire, Granted, Reason, Refused
from fencelock.actors.effect import Send
from fencelock.actors.message import NS_PER_MS, Address, Instant, Message
from fencelock.actors.paxos.event import SlotOutcomes
from fencelock.actors.paxos.message import Propose
from fencelock.actors.paxos.proxy import ROUND_MS
from fencelock.actors.paxos.proxy_event import Round
from fencelock.actors.session.message import Closed
from fencelock.actors.table.command import Command
from fencelock.actors.table.outcome import Outcome
from fencelock.actors.table.table import LockTable
from fencelock.transport.codec import decode
from support.log_proxy_scene import DOOR, REPLICA, lone_door

ONE, TWO, THREE = (Address(f"n1/ask-{number}") for number in (1, 2, 3))
A = Acquire(lock="a")
K = TypeVar("K")


class LocalCallers:
    """A door, the table, and what callers inside the process were told."""

    def __init__(self) -> None:
        self.table = LockTable()
        self.silent = False
        self.ms = 0
        self.told: list[tuple[Address, Message | Closed]] = []
        self.commands: list[Command] = []
        self.door = lone_door()

    @property
    def now(self) -> Instant:
        return Instant(self.ms * NS_PER_MS)

    def do(self, sender: Address, event: Any) -> None:
        """Let the door handle ``event``, and the log do what it proposes."""
        for effect in self.door.handle(sender, event, self.now):
            if not isinstance(effect, Send):
                continue
            if isinstance(effect.message, Propose):
                command: Any = decode(effect.message.command)
                self.commands.append(command)
                if not self.silent:
                    self.happens(self.table.apply(self.ms, command))
            elif isinstance(effect.message, Message | Closed):
                self.told.append((effect.to, effect.message))

    def happens(self, outcomes: list[Outcome]) -> None:
        self.do(REPLICA, SlotOutcomes(slot=1, time_ms=self.ms, outcomes=tuple(outcomes)))

    def pass_time(self, ms: int, step_ms: int = ROUND_MS) -> None:
        """Let time pass, in the log too unless it is silent, and the door's timer ring."""
        end = self.ms + ms
        while self.ms < end:
            self.ms = min(end, self.ms + step_ms)
            if not self.silent:
                self.happens(self.table.advance(self.ms))
            if self.door.ticking:
                self.do(DOOR, Round())

    def heard(self, asker: Address, kind: type[K]) -> list[K]:
        return [message for to, message in self.told if to == asker and isinstance(message, kind)]

    def fence(self, asker: Address) -> int:
        (granted,) = self.heard(asker, Granted)
        return granted.fence

    def reason(self, asker: Address) -> Reason:
        (refused,) = self.heard(asker, Refused)
        return refused.reason
