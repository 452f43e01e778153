"""Locks over a session that is played by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fencelock.actors.api.message import Acquire, Granted, Release, Released
from fencelock.actors.message import Event, Instant
from fencelock.actors.session.message import HoldsLost, Loss, Trusted
from fencelock.cluster.callback_executor import ThreadExecutor
from fencelock.cluster.hold_registry import HoldRegistry
from fencelock.cluster.host.pending_asks import Reply
from fencelock.cluster.lock import Lock
from fencelock.cluster.lock_options import LockOptions
from fencelock.cluster.session_channel import SessionChannel

PATIENCE_S = 30


class ScriptedSession:
    """A session that grants what it is asked, counts what is held, and is told the rest."""

    def __init__(self) -> None:
        self.now = Instant(0)
        self.fence = 0
        self.count = 0
        self.told: list[Event] = []
        self.refusal: Exception | None = None
        self.mute = False
        self.asked: list[tuple[Event, Reply]] = []
        self.before: Callable[[], None] = lambda: None

    def submit(self, message: Event, reply: Reply) -> None:
        self.asked.append((message, reply))
        self.before()
        if self.refusal is not None:
            reply.fail(self.refusal)
        elif not self.mute:
            reply.set(self.answer(message))

    def answer(self, message: Event) -> Granted | Released:
        match message:
            case Acquire(lock=lock):
                self.fence += self.count == 0
                self.count += 1
                return Granted(lock=lock, fence=self.fence, count=self.count)
            case Release(lock=lock):
                self.count -= 1
                return Released(lock=lock, count=self.count)
            case _:
                raise AssertionError(message)

    def abandon(self, reply: Reply) -> None:
        del reply

    def tell(self, message: Event) -> None:
        self.told.append(message)


class Scene:
    """A lock, whose session and clock are moved by hand."""

    def __init__(self, session: ScriptedSession, executor: ThreadExecutor) -> None:
        self.session = session
        self.hold_registry = HoldRegistry(lambda: session.now, executor)
        self.line = SessionChannel(session)

    def lock(self, **terms: Any) -> Lock:
        return Lock(self.line, self.hold_registry, LockOptions("x", owner="ann", **terms))

    def trust(self, suspect_at: int, until: int) -> None:
        self.hold_registry.hear(Trusted(suspect_at=Instant(suspect_at), until=Instant(until)))

    def lose(self, fence: int, owner: str = "ann") -> None:
        self.session.count = 0
        losses = (Loss(lock="x", owner=owner, fence=fence),)
        self.hold_registry.hear(HoldsLost(losses=losses, detail="the session ended"))
