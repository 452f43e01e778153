"""A scripted client: wants locks of one node, in the proxy's place, for the explorer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import Address, Event, Instant, Timer
from fencelock.actors.proxy.message import (
    AcquireLock,
    LockDescription,
    LockGranted,
    QueueFull,
    Ready,
    ReleaseLock,
)
from fencelock.actors.role import Host, Role


class Ask(Timer):
    """Request the lock, for the next owner."""


class Leave(Timer):
    """Stop waiting with ``ticket``, or give back its hold."""

    ticket: int


Met = Ask | Leave | LockGranted | QueueFull | LockDescription | Ready


class ScriptedClient(Role[Met]):
    """Wants one lock a few times, for owners of one session, and gives it back some time.

    Args:
        backend: receives `AcquireLock` and `ReleaseLock`.
        lock: the name of the lock.
        wants: the number of requests in all.
        at_once: the number of owners that may want it at one time.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        backend: Address,
        lock: str,
        wants: int,
        at_once: int = 1,
    ) -> None:
        super().__init__(address, host)
        self.backend, self.lock = backend, lock
        self.wants, self.at_once = wants, at_once
        self.wanted = 0
        self.fences: dict[int, int | None] = {}
        """By ticket: its fence, None while it waits."""
        self.last = 0
        """The latest fence."""

    def handle(self, sender: Address, event: Met, now: Instant) -> Effects:
        """Do the chosen action, or record a grant."""
        del sender, now
        match event:
            case Ask():
                self.wanted += 1
                self.fences[self.wanted] = None
                want = AcquireLock(lock=self.lock, ticket=self.wanted, session="s", owner="o")
                return (Send(self.backend, want),)
            case Leave(ticket=ticket):
                del self.fences[ticket]
                return (Send(self.backend, ReleaseLock(lock=self.lock, ticket=ticket)),)
            case LockGranted(ticket=ticket, fence=fence):
                return self._on_granted(ticket, fence)
            case QueueFull(ticket=ticket):
                self.fences.pop(ticket, None)
                return ()
            case LockDescription() | Ready():
                return ()

    def _on_granted(self, ticket: int, fence: int) -> Effects:
        if ticket in self.fences:  # If not, it left meanwhile.
            assert fence > self.last, f"fence {fence} after {self.last}"
            self.last = fence
            self.fences[ticket] = fence
        return ()


def may(state: Mapping[str, Any]) -> Sequence[Event]:
    """Return all actions of a client: request, give up waiting, give back."""
    asks = state["wanted"] < state["wants"] and len(state["fences"]) < state["at_once"]
    return [*([Ask()] if asks else []), *(Leave(ticket=ticket) for ticket in state["fences"])]


def patient(state: Mapping[str, Any]) -> Sequence[Event]:
    """Return the actions of a client that never gives up waiting: request, give back."""
    waiting = [ticket for ticket, fence in state["fences"].items() if fence is None]
    return [event for event in may(state) if getattr(event, "ticket", 0) not in waiting]


def should(state: Mapping[str, Any]) -> Sequence[Event]:
    """Return the actions of a fair client: give back all holds."""
    return [Leave(ticket=t) for t, fence in state["fences"].items() if fence is not None]


def is_served(state: Mapping[str, Any]) -> bool:
    """Return whether none of a client's owners waits."""
    return None not in state["fences"].values()
