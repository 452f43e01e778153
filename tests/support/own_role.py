"""A role that a service could add to a node: it answers at once, later, or never, and fails."""

from __future__ import annotations

from fencelock.actors.api.lock_message import Abandon, Reason, Refused
from fencelock.actors.api.role_request import RoleRequest
from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import Address, Instant, Int64, Message
from fencelock.actors.role import Role


class Counted(Message, tag=0xFD00):
    """The reply to all requests of the role."""

    total: Int64
    waiting: Int64 = 0
    padding: str = ""


class Count(RoleRequest[Counted], tag=0xFD01):
    """Add to the count."""

    amount: Int64
    padding: Int64 = 0
    """Characters to add to the reply."""


class AwaitCount(RoleRequest[Counted], tag=0xFD02):
    """Reply once the count is at least ``total``."""

    total: Int64


class Refuse(RoleRequest[Counted], tag=0xFD03):
    """Refuse."""

    reason: Reason


class Fail(RoleRequest[Counted], tag=0xFD04):
    """Raise an exception."""


class Internal(Message, tag=0xFD05):
    """A message between roles, and not a request."""


Event = Count | AwaitCount | Refuse | Fail | Internal | Abandon


class Counter(Role[Event]):
    """Counts messages, and lets others wait for the count."""

    def __init__(self, address: Address, host: object, start: int = 0) -> None:
        super().__init__(address, host)  # type: ignore[arg-type]
        self.total = start
        self.waiting: dict[Address, int] = {}

    def handle(self, sender: Address, event: Event, now: Instant) -> Effects:
        match event:
            case Count():
                self.total += event.amount
                reply = Counted(
                    total=self.total, waiting=len(self.waiting), padding="x" * event.padding
                )
                met = [one for one, total in self.waiting.items() if total <= self.total]
                for one in met:
                    del self.waiting[one]
                return [Send(one, reply) for one in (*met, sender)]
            case AwaitCount():
                self.waiting[sender] = event.total
                return ()
            case Refuse():
                no = Refused(lock="", reason=event.reason, detail="no", session="", owner="")
                return [Send(sender, no)]
            case Fail():
                raise RuntimeError("planted")
            case Abandon():
                self.waiting.pop(sender, None)
                return ()
            case Internal():
                return ()
