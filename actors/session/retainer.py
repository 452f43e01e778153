"""The role that acquires retained locks for the local owners of a client, and gives them back.

`RetainedLocks` decides who has a lock; see `retained.py` for the rules. The client's threads and
tasks call it directly, so that taking a retained lock again crosses no thread. This role does what
needs a message or a timer. It is the user of the session that the cluster sees as owner ``*``:

    local owners ── acquire, release, withdraw ──> RetainedLocks <── granted, refused, recalled,
          │   ^                                          ^            lost, expired ── Retainer
          │   └─────────────────── watcher <── Decided ──┼──────────────────────────────┤  ^
          │                                              │                              v  │
          └── Perform (Request, Withdraw, GiveBack) ─────┴──────────> Retainer <──> session

Both sides call `RetainedLocks` under one guard. A thread sends its `Perform` before it leaves the
guard, so that the session gets the requests of threads in the order of the decisions. Requests of
this role may overtake them. That does no harm: a request for a lock follows the reply to the
release before it, and a release names its fence.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from fencelock.actors.api.lock_message import Cancel, Cancelled, Granted, Refused, Release, Released
from fencelock.actors.api.retained import READERS, RETAINER, WRITERS, AcquireRetained, Recall
from fencelock.actors.api.rwlock import RWLOCK_PERMITS
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.message import NS_PER_MS, Address, Instant, Local, Timer
from fencelock.actors.role import Host, Role, Summary
from fencelock.actors.session.event import HoldsLost, Loss, ReleaseUnawaited
from fencelock.actors.session.holds import UNCONFIRMED, ClientHold
from fencelock.actors.session.lease import EPOCH, SessionTrust
from fencelock.actors.session.requests import LockKey
from fencelock.actors.session.retained import (
    SPAN,
    Act,
    Admit,
    Divert,
    GiveBack,
    LockAct,
    Lose,
    Refuse,
    Request,
    RetainedLock,
    RetainedLocks,
    Withdraw,
)

IDLE_TICK_MS = 100
"""Shortest time between two looks at the idle locks (ms)."""

_AMOUNTS = {
    RETAINER: (1, 1),
    READERS: (1, RWLOCK_PERMITS),
    WRITERS: (RWLOCK_PERMITS, RWLOCK_PERMITS),
}
"""The permits that are acquired, and those of the object, by the session's owner."""

_OVER = SessionTrust(EPOCH, EPOCH)
"""The trust in a session whose time is over."""


class Perform(Local):
    """From a thread of the client: do what `RetainedLocks` decided."""

    key: LockKey
    act: Request | Withdraw | GiveBack

    EASES = True  # All of them, since their order matters.


class WatchIdle(Local):
    """From a thread of the client: a lock is due sooner than the `Retainer` knows."""

    EASES = True


class Decided(Local):
    """To the watcher: what was decided about local owners; losses are carried out first."""

    acts: tuple[Admit | Divert | Refuse | Lose, ...]
    trust: SessionTrust | None
    """The trust in the session of those that are admitted."""
    no: Refused | None
    """The reply to those that are refused."""
    detail: str
    """The reason why locks were lost."""


class RetainerTick(Timer):
    """Look for locks that are due. Only the tick of the current ``round`` counts."""

    round: int


Event = (
    Perform
    | WatchIdle
    | Granted
    | Refused
    | Released
    | Cancelled
    | Recall
    | HoldsLost
    | RetainerTick
)


class Retainer(Role[Event]):
    """Acquires retained locks through the session of its client; see the head of this module.

    Args:
        session: the session role.
        watcher: the role or the listener that carries `Decided` out for local owners.
        holds: the holds of the session, which this role only reads.
        locks: the retained locks, which the client's threads share.
        guard: returns what the threads and this role hold while they use ``locks``.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        session: Address,
        watcher: Address,
        holds: dict[LockKey, ClientHold],
        locks: RetainedLocks,
        guard: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        super().__init__(address, host)
        self.session = session
        self.watcher = watcher
        self.holds = holds
        self.locks = locks
        self.guard = guard
        self.round = 0
        self.wake_at: Instant | None = None
        """Time of the next tick, if one will come."""

    def summary(self) -> Summary:
        return (("locks", len(self.locks.by_key)),)

    def handle(self, sender: Address, event: Event, now: Instant) -> Effects:
        match event:
            case Perform(key=key, act=act):
                return [self._sent(key, act)]
            case WatchIdle():
                with self.guard():
                    return self._watch(now)
            case RetainerTick(round=number):
                if number != self.round:
                    return ()
                self.wake_at = None
                with self.guard():
                    acts = self.locks.expire(now)
                    return [*self._carried_out(acts), *self._watch(now)]
            case Cancelled():
                return ()
            case HoldsLost(losses=losses, detail=detail):
                with self.guard():
                    return self._carried_out(self._lose(losses, now), detail=detail)
            case Granted() | Refused() | Released() | Recall():
                key = LockKey(event.lock, event.owner)
                with self.guard():
                    lock = self.locks.by_key.get(key)
                    if lock is None:
                        return self._unknown(key, event)
                    acts = self.locks.note(key, lock, self._decide(key, lock, event, now), now)
                    no = event if isinstance(event, Refused) else None
                    return [*self._carried_out(acts, no=no), *self._watch(now)]

    def _lose(self, losses: tuple[Loss, ...], now: Instant) -> list[LockAct]:
        acts: list[LockAct] = []
        for loss in losses:
            key = LockKey(loss.lock, loss.owner)
            lock = self.locks.by_key.get(key)
            if lock is not None and lock.fence == loss.fence and lock.trust is not None:
                acts += self.locks.note(key, lock, lock.lose(), now)
        return acts

    def _decide(
        self,
        key: LockKey,
        lock: RetainedLock,
        event: Granted | Refused | Released | Recall,
        now: Instant,
    ) -> list[Act]:
        if isinstance(event, Recall):
            return lock.recall(event.fence, now)
        number, releasing = divmod(event.request, 2)
        if releasing:
            return lock.released(number, now)
        if isinstance(event, Refused):
            return lock.refused(number)
        assert isinstance(event, Granted)
        hold = self.holds.get(key)
        trust = _OVER if hold is None or hold.fence != event.fence else hold.trust or _OVER
        return lock.granted(number, event.fence, SPAN, trust, now)

    def _unknown(self, key: LockKey, event: Granted | Refused | Released | Recall) -> Effects:
        """Give back what the session has for nobody: the lock was forgotten meanwhile."""
        if isinstance(event, Granted | Recall):
            return [self._sent(key, GiveBack(event.fence))]
        return [Observe("client.retained_unknown")]

    def _watch(self, now: Instant) -> list[Effect]:
        """Set the timer for the next lock that is due, unless it comes before that."""
        due_at = self.locks.due_at
        if due_at is None:
            return []
        after_ms = max(IDLE_TICK_MS, -((now - due_at) // NS_PER_MS))
        at = Instant(now + after_ms * NS_PER_MS)
        if self.wake_at is not None and self.wake_at <= at:
            return []
        self.round += 1
        self.wake_at = at
        return [Wake(after_ms, RetainerTick(round=self.round))]

    def _carried_out(
        self, acts: list[LockAct], *, no: Refused | None = None, detail: str = UNCONFIRMED
    ) -> list[Effect]:
        """Return the effects of ``acts``. Those that admit anybody are about one lock."""
        effects: list[Effect] = []
        decided: list[Admit | Divert | Refuse | Lose] = []
        trust: SessionTrust | None = None
        for key, act in acts:
            if isinstance(act, Request | Withdraw | GiveBack):
                effects.append(self._sent(key, act))
                continue
            decided.append(act)
            if isinstance(act, Admit):
                trust = self.locks.by_key[key].trust
        if decided:  # Last: a diverted owner must not queue behind a lock given back.
            news = Decided(acts=tuple(decided), trust=trust, no=no, detail=detail)
            effects.append(Send(self.watcher, news))
        return effects

    def _sent(self, key: LockKey, act: Request | Withdraw | GiveBack) -> Send:
        """Return the request to the session. Numbers of releases are odd, the others even."""
        lock, owner = key
        match act:
            case Request(number, waits):
                amount, permits = _AMOUNTS[owner]
                wanted = self.locks.by_key.get(key)  # None if it was withdrawn meanwhile.
                request: AcquireRetained | Cancel | ReleaseUnawaited = AcquireRetained(
                    lock=lock,
                    span=SPAN,
                    amount=amount,
                    permits=permits,
                    owner=owner,
                    request=2 * number,
                    wait_ms=None if waits else 0,
                    label="" if wanted is None else wanted.terms.label,
                )
            case Withdraw(number):
                request = Cancel(lock=lock, session="", owner=owner, request=2 * number)
            case GiveBack(fence):
                release = Release(lock=lock, fence=fence, owner=owner, request=2 * fence + 1)
                request = ReleaseUnawaited(release=release)
        return Send(self.session, request)
