"""Locks over a session that the test plays, and a client that follows a script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fencelock import aio
from fencelock.actors.api.handover import Detach
from fencelock.actors.api.lock_message import (
    Acquire,
    Cancel,
    Cancelled,
    Granted,
    Release,
    Released,
    ReleaseRequest,
)
from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import Address, Event, Instant, Timer
from fencelock.actors.proxy.event import (
    AcquireLock,
    LockDescription,
    LockGranted,
    QueueFull,
    Ready,
    ReleaseLock,
)
from fencelock.actors.role import Host, Role
from fencelock.actors.session.event import HoldsLost, Loss, ReleaseUnawaited
from fencelock.actors.session.holds import ClientHold, HoldState
from fencelock.actors.session.lease import SessionTrust
from fencelock.actors.session.requests import LockKey
from fencelock.cluster.client.callback_executor import CallbackExecutor
from fencelock.cluster.client.hold_registry import HoldRegistry
from fencelock.cluster.client.lock import Lock, RLock
from fencelock.cluster.client.session_channel import SessionChannel
from fencelock.cluster.client.settings import LockOptions
from fencelock.cluster.client.waiting import LocalWaits
from fencelock.cluster.host.pending_asks import AskReply

NEVER = Instant(1 << 62)


class ScriptedSession:
    """A session that grants every request and counts holds; the test sets the rest."""

    def __init__(self) -> None:
        self.now = Instant(0)
        self.fence = 0
        self.count = 0
        self.received: list[Event] = []
        self.refusal: BaseException | None = None
        self.mute = False
        self.asked: list[tuple[Event, AskReply]] = []
        self.abandoned: list[AskReply] = []
        self.before: Callable[[], None] = lambda: None
        self.holds: dict[LockKey, ClientHold] = {}
        self.trust = SessionTrust(NEVER, NEVER)

    def submit(self, message: Event, reply: AskReply) -> None:
        if isinstance(message, Cancel):
            self.received.append(message)
            if not self.mute:
                reply.set(Cancelled(**message.fields()))
            return
        if isinstance(message, ReleaseUnawaited):
            message = message.release
        self.asked.append((message, reply))
        self.before()
        if isinstance(message, ReleaseRequest):
            hold = self.holds.get(LockKey(message.lock, message.owner))
            if hold is not None and hold.state is not HoldState.RELEASING:
                hold.move(HoldState.RELEASING)
        if self.refusal is not None:
            reply.fail(self.refusal)
        elif not self.mute:
            reply.set(self.answer(message))

    def answer(self, message: Event) -> Granted | Released:
        match message:
            case Acquire(lock=lock, owner=owner):
                self.fence += self.count == 0
                self.count += 1
                return self.grant(lock, owner, self.fence, self.count)
            case Release(lock=lock, owner=owner) | Detach(lock=lock, owner=owner):
                self.count -= 1
                hold = self.holds.get(LockKey(lock, owner))
                if hold is not None:
                    hold.move(HoldState.HELD if self.count else HoldState.RELEASED)
                if not self.count:
                    self.holds.pop(LockKey(lock, owner), None)
                return Released(lock=lock, count=self.count)
            case _:
                raise AssertionError(message)

    def grant(self, lock: str, owner: str, fence: int, count: int = 1) -> Granted:
        """Return the grant of a lock that the session holds from now on."""
        known = self.holds.get(LockKey(lock, owner))
        if known is None or known.fence != fence:
            hold = ClientHold(Address("a/proxy"), fence, (), self.trust)
            self.holds[LockKey(lock, owner)] = hold
        return Granted(lock=lock, owner=owner, fence=fence, count=count)

    def asks(self) -> list[Acquire]:
        return [asked for asked, _ in self.asked if isinstance(asked, Acquire)]

    def abandon(self, reply: AskReply) -> None:
        self.abandoned.append(reply)

    def tell(self, message: Event) -> None:
        self.received.append(message)


class AtOnce:
    """Calls callbacks at once, on the thread that has the news."""

    failed = 0

    def call(self, callback: Any, argument: Any) -> None:
        callback(argument)

    def stop(self, timeout: float) -> None:
        del timeout


class Scene:
    """Locks called x of ann; the test moves her session and clock."""

    def __init__(self, session: ScriptedSession, executor: CallbackExecutor) -> None:
        self.session = session
        self.hold_registry = HoldRegistry(
            lambda: session.now, session.holds, {}, executor, session.tell
        )
        self.hold_registry.waits = LocalWaits(session.received.append)
        self.line = SessionChannel(session, self.hold_registry)

    def lock(self, name: str = "x", owner: str | None = "ann", **options: Any) -> Lock:
        return Lock(self.line, LockOptions(name, owner=owner, **options))

    def rlock(self, owner: str | None = "ann", limit: int = 0, **options: Any) -> RLock:
        terms = LockOptions("x", owner=owner, limit=limit, reentrant=True, **options)
        return RLock(self.line, terms)

    def aio_lock(self, name: str = "x", owner: str | None = "ann", **options: Any) -> aio.Lock:
        return aio.Lock(self.line, LockOptions(name, owner=owner, **options))

    def trust(self, suspect_at: int, until: int) -> None:
        trust = self.session.trust
        trust.suspect_at, trust.until = Instant(suspect_at), Instant(until)

    def lose(self, fence: int, owner: str = "ann", detail: str = "the session ended") -> None:
        self.session.count = 0
        hold = self.session.holds.get(LockKey("x", owner))
        if hold is not None and hold.fence == fence:
            hold.lose(detail)
            del self.session.holds[LockKey("x", owner)]
        losses = (Loss(lock="x", owner=owner, fence=fence),)
        self.hold_registry.on_event(HoldsLost(losses=losses, detail=detail))


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
