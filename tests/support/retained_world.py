"""Clients that retain locks, with rivals and recalls: in a random world, and at real nodes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from fencelock.actors.api.lock_message import Granted, Release
from fencelock.actors.api.retained import AcquireRetained, Recall
from fencelock.actors.api.session_message import End, KeepAlive, Open, Opened
from fencelock.actors.message import NS_PER_MS, Instant
from fencelock.actors.session.lease import SessionTrust
from fencelock.actors.session.retained import (
    Act,
    Admit,
    Divert,
    GiveBack,
    Lose,
    Refuse,
    Request,
    RetainedLock,
    RetainedState,
    Withdraw,
)
from support.expect import PATIENCE_S, checked
from support.hub_station import BareClient

SESSION = 0
"""The claim of the session; other claims are tokens of owners that the cluster serves itself."""

TTL_MS = 400
OWNERS = 4
RIVALS = 2
RETAIN_MS = 60
SPAN = 8
ANSWER_STEPS = 3
"""A recall is answered within so many steps in which no caller uses the lock."""


class WrongError(AssertionError):
    """A judge saw an invariant broken."""


@dataclass
class Hold:
    """What the cluster has granted."""

    claim: int
    fence: int


@dataclass
class RetainedWorld:
    """Runs random steps; each may raise `WrongError`.

    Args:
        lock: the lock, perhaps one with a bug.
        seed: fixes all chance.
        counted_span: by how much the cluster advances its fences with a grant to the session, whose
            client believes that it has `SPAN` of them.

    """

    lock: RetainedLock
    seed: int
    counted_span: int = SPAN
    now: int = 1
    holder: Hold | None = None
    queue: deque[int] = field(default_factory=deque[int])
    requested: int = 0
    fence: int = 0
    shown: int = 0
    """The highest fence that any owner has shown."""
    arriving: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])
    waiting: list[int] = field(default_factory=list[int])
    trying: set[int] = field(default_factory=set[int])
    """Local owners that do not wait for others to release the lock."""
    inside: dict[int, int] = field(default_factory=dict[int, int])
    outside: set[int] = field(default_factory=set[int])
    """Local owners that were diverted, and wait or hold as others do."""
    recalled: int = 0
    """The fence of the hold that was recalled from the client, 0 without one."""
    unanswered: int = 0
    cut_until: int = 0
    """Nothing confirms the session before."""
    token: int = 100
    local_grants: int = 0
    served: int = 0
    trust: SessionTrust = field(default_factory=lambda: SessionTrust(Instant(0), Instant(0)))

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.confirm()

    def run(self, steps: int) -> None:
        """Take random steps, then let all callers finish."""
        for _ in range(steps):
            self.step(calm=False)
        for _ in range(4_000):
            if not (self.waiting or self.inside or self.outside or self.queue):
                return
            self.step(calm=True)
        raise WrongError(f"progress: {self}")

    def step(self, *, calm: bool) -> None:
        """Let a moment pass, and one thing happen."""
        chance = self.random.random
        self.now += self.random.randint(1, 5) * NS_PER_MS
        if not calm and chance() < 0.01:
            self.cut_until = self.now + self.random.randrange(2 * TTL_MS) * NS_PER_MS
        if calm or (self.now >= self.cut_until and chance() < 0.15):
            self.confirm()
        self.pass_time()
        if self.arriving and chance() < 0.5:
            self.arrive(self.arriving.pop(self.random.randrange(len(self.arriving))))
        if not calm and len(self.waiting) + len(self.inside) < OWNERS and chance() < 0.4:
            self.token += 1
            self.waiting.append(self.token)
            waits = chance() < 0.8
            if not waits:
                self.trying.add(self.token)
            self.do(self.lock.acquire(self.token, Instant(self.now), waits=waits))
        if not calm and chance() < 0.03 and sum(c < 0 for c in self.queue) < RIVALS:
            self.queue.append(-1 - self.random.randrange(1_000))
        if self.waiting and not calm and chance() < 0.05:
            token = self.random.choice(self.waiting)
            self.waiting.remove(token)
            self.do(self.lock.withdraw(token, Instant(self.now)))
        for token in [one for one in self.inside if chance() < 0.3]:
            del self.inside[token]
            self.do(self.lock.release(token, Instant(self.now)))
        if self.holder is not None and self.holder.claim != SESSION and chance() < 0.3:
            self.outside.discard(self.holder.claim)
            self.free()
        self.do(self.lock.expire(Instant(self.now)))
        holder = self.holder
        recalls = self.queue and holder is not None and holder.claim == SESSION
        if recalls and holder is not None and chance() < 0.5:  # A keep-alive; others are lost.
            self.arriving.append(("recall", holder.fence, 0))
        self.serve()
        self.judge_recall()

    def confirm(self) -> None:
        """Let the cluster confirm the session."""
        if self.now < self.trust.until or self.trust.until == 0:
            self.trust.suspect_at = Instant(self.now + TTL_MS * NS_PER_MS // 2)
            self.trust.until = Instant(self.now + TTL_MS * NS_PER_MS)

    def pass_time(self) -> None:
        """End the session in the client, then in the cluster, once its time is over."""
        if self.now < self.trust.until:
            return
        self.trust = SessionTrust(Instant(0), Instant(0))
        self.confirm()
        self.do(self.lock.lose())
        self.arriving.clear()
        self.queue = deque(claim for claim in self.queue if claim != SESSION)
        if self.holder is not None and self.holder.claim == SESSION:
            self.free()

    def free(self) -> None:
        self.holder, self.recalled, self.unanswered = None, 0, 0

    def serve(self) -> None:
        """Grant the lock to the head of the cluster's queue."""
        if self.holder is not None or not self.queue:
            return
        claim = self.queue.popleft()
        self.holder = Hold(claim, self.fence + 1)
        self.fence += self.counted_span if claim == SESSION else 1
        if claim == SESSION:
            self.arriving.append(("granted", self.holder.fence, self.requested))
        else:
            self.show(self.holder.fence)

    def arrive(self, message: tuple[str, int, int]) -> None:
        kind, fence, number = message
        now = Instant(self.now)
        if kind == "granted":
            self.do(self.lock.granted(number, fence, SPAN, self.trust, now))
        elif kind == "released":
            self.do(self.lock.released(fence, now))
        elif kind == "refused":
            self.do(self.lock.refused(number))
        else:
            mine = self.holder is not None and self.holder.claim == SESSION
            if mine and self.holder is not None and self.holder.fence == fence:
                had = self.lock.state is not RetainedState.ACQUIRING
                self.recalled = fence if had else self.recalled
            self.do(self.lock.recall(fence, now))

    def do(self, acts: list[Act]) -> None:
        """Perform and judge what the lock decides."""
        for act in acts:
            match act:
                case Admit(token, fence):
                    self.admit(token, fence)
                case Divert(token):
                    self.waiting.remove(token)
                    if token not in self.trying:
                        self.outside.add(token)
                        self.queue.append(token)
                case Refuse(token):
                    if token not in self.trying:
                        raise WrongError(f"{token} was refused, although it waits")
                    self.waiting.remove(token)
                case Lose(token, _):
                    self.inside.pop(token, None)
                case Request(number, waits):
                    self.requested = number
                    if waits or (self.holder is None and not self.queue):
                        self.queue.append(SESSION)
                    else:
                        self.arriving.append(("refused", 0, number))
                case Withdraw():
                    self.withdraw()
                case GiveBack(fence):
                    self.give_back(fence)

    def withdraw(self) -> None:
        if SESSION in self.queue:
            self.queue.remove(SESSION)
        elif self.holder is not None and self.holder.claim == SESSION:
            self.free()

    def give_back(self, fence: int) -> None:
        if self.inside and fence == self.lock.fence:  # Not a grant that crossed with a cancel.
            raise WrongError(f"released-unused: {self.inside}")
        if self.holder is not None and (self.holder.claim, self.holder.fence) == (SESSION, fence):
            self.free()
        self.arriving.append(("released", fence, 0))

    def admit(self, token: int, fence: int) -> None:
        if token not in self.waiting:
            raise WrongError(f"admitted {token}, which does not wait")
        if self.waiting[0] != token:
            raise WrongError(f"local-queue-in-order: {token} before {self.waiting}")
        if self.inside and not self.lock.terms.shared:
            raise WrongError(f"one-local-owner: {token} while {self.inside}")
        if self.now >= self.trust.suspect_at:
            raise WrongError("admitted-in-trust")
        if self.holder is None or self.holder.claim != SESSION:
            raise WrongError(f"one-holder: {token} while {self.holder} holds")
        if self.recalled and not self.lock.terms.cohort:
            raise WrongError("strict-recall")
        self.waiting.remove(token)
        self.inside[token] = fence
        self.local_grants += 1
        self.show(fence)

    def show(self, fence: int) -> None:
        if fence <= self.shown:
            raise WrongError(f"fences-rise: {fence} after {self.shown}")
        self.shown = fence
        self.served += 1

    def judge_recall(self) -> None:
        """Check that a recall is answered while no caller uses the lock."""
        self.unanswered = self.unanswered + 1 if self.recalled and not self.inside else 0
        if self.unanswered > ANSWER_STEPS:
            raise WrongError(f"a recall was not answered: {self.recalled}")


NAME = "retainer"
KEEP_S = 0.05
"""Interval of keep-alives (s): short, so that repeated recalls come soon."""


class RawRetainer(BareClient):
    """One session that retains one lock, on a thread of its own.

    Attributes:
        recalls: the recalls that it received, in order.
        in_use: whether an owner inside the session has the lock, so that a recall waits.

    """

    def __init__(self, address: str, cluster: str) -> None:
        super().__init__(address, cluster, NAME)
        self._number = 0
        self._over = threading.Event()
        self.in_use = False
        self.recalls: list[Recall] = []
        self.recalled = threading.Event()
        opening = Open(session=NAME, ttl_ms=15_000, label="ann", request=self._next())
        self.session = checked(Opened, self.ask(opening)).assigned
        self._thread = threading.Thread(target=self._run)

    def retain(self, lock: str, span: int = 100, **fields: Any) -> int:
        """Acquire a lock, and begin to listen for its recall; return its fence."""
        of: dict[str, Any] = {"session": self.session, "owner": "*", "request": self._next()}
        granted = checked(Granted, self.ask(AcquireRetained(lock=lock, span=span, **of, **fields)))
        self._thread.start()
        return granted.fence

    def close(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE_S)
        self.send(End(session=self.session, request=self._next()))
        super().close()

    def _run(self) -> None:
        while not self._over.is_set():
            self.send(KeepAlive(session=self.session, request=self._next()))
            for message in self.receive(KEEP_S):
                if isinstance(message, Recall):
                    self._on_recall(message)

    def _on_recall(self, recall: Recall) -> None:
        self.recalls.append(recall)
        self.recalled.set()
        if not self.in_use:
            of: dict[str, Any] = {"session": self.session, "owner": "*", "request": self._next()}
            self.send(Release(lock=recall.lock, fence=recall.fence, **of))

    def _next(self) -> int:
        self._number += 1
        return self._number


@contextmanager
def retaining(address: str, cluster: str) -> Generator[RawRetainer]:
    """Yield a client that has a session at ``address``."""
    client = RawRetainer(address, cluster)
    try:
        yield client
    finally:
        client.close()
