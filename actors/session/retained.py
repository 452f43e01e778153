"""A lock that a session keeps after its local owner released it, for the next local owner. Pure.

Most locks are taken again and again by the same process. So the *session* acquires the lock, under
an owner of its own, and hands it from one *local owner* to the next without a message. To the
cluster it is one ordinary hold: one holder, ended with its session, first come, first served. When
somebody else queues behind it, the cluster *recalls* the lock, and the session gives it back.

One `RetainedLock` is the state of one lock::

                      the last waiter gave up, or the request was refused
          ┌───────────────────────────────────────────────────────────────┐
          v                                                               │
    ┌─> FREE ── an owner wants it ──────────────────────────────────> ACQUIRING
    │                                                                │    │    │
    │                              granted, and nobody waits any more│    │    │
    │   ┌────────────────────────────────────────────────────────────┘    │    │
    │   v                                                         granted │    │ granted after
    │  IDLE <── the last local owner released, nobody waits ── HELD <─────┘    │ its recall
    │   │  ── the next local owner ─────────────────────────────>│             │
    │   │                                               recalled │             │
    │   │                                                        v             │
    │   │ idle for too long, recalled,               RECALLED <────────────────┘
    │   │ suspect, closed                                        │
    │   v                                                        │ the last local owner released
    │ RELEASING <────────────────────────────────────────────────┘
    │   │                              HELD ── its span is used up, or suspect ──> RELEASING
    └───┘ confirmed                    each of the others ── the hold is lost ──> FREE

Fences
------

The grant has a *span* of fences, ``fence`` to ``fence + span - 1``, and the cluster never gives one
of them to anybody else. Each local ownership gets the next, so fences rise strictly over all owners
of all clients. When the span is used up, the session releases the lock and acquires it again.

Trust
-----

A local owner is admitted only while the session is trusted: neither suspect nor lost, by the clock
and the times by which any hold is judged (`ClientHold.state_at`). Those times only grow while a
session lives, so a reader that finds one passed may be too careful, never too confident. What is
not admitted is *diverted*: it acquires the lock from the cluster like an
owner of a lock that is not retained. If the session is suspect, the lock is given back first,
since the diverted owner would otherwise queue behind its own client.

Races
-----

The threads and tasks of the client and its session role share the state. Each call here is made
under one mutex of the client, and each decides completely, so calls are ordered:

- *A recall against a local grant.* If the grant comes first, the recall finds HELD, and the lock is
  given back by that owner's release. If the recall comes first, it leaves RELEASING, and the owner
  waits or is diverted.
- *Expiry against a local grant.* Only IDLE expires. A grant that came first has left IDLE.
- *Loss against a local grant.* The role may not have handled the loss yet: the thread that
  reacquires looks at the clock itself.
- *A recall before its grant.* Messages may be reordered. A recall is kept by its fence while
  the lock is being acquired. A recall of any fence that is not held now is of an earlier hold.
- *A cancel against a grant.* `withdraw` removes a waiter, and releases what was admitted meanwhile.
  When the last waiter gives up, the request is withdrawn; a grant that crosses with that has an old
  number, and is given back.
- *A confirmation against a loss.* A thread may find the hold lost by its clock just when a message
  confirms the session, which then keeps the hold. So what is found lost is also given back:
  otherwise the cluster would keep it for nobody.
- *Close.* Nothing is admitted after `close`; what is in use goes with its last local owner, or with
  the session.

What must hold is in `RETAINED_INVARIANTS`. The other rules:

- After a recall a lock in use goes back with the release of its local owner. Up to ``cohort`` local
  owners may have it before, within `COHORT_MS` of the recall. With 0 nobody overtakes the queue of
  the cluster, and all owners that wait here are diverted to it at once. With a cohort, owners that
  are still waiting stay here: the session acquires the lock again as soon as the release is
  confirmed, and each of its turns serves several owners.
- After a recall the lock is not retained again for a while: `RECALL_PAUSE_MS`, doubling up to
  `PAUSE_MS_MAX` while recalls go on, forgotten after `PEACE_MS` without one. Meanwhile owners are
  diverted. With a ``cohort`` there is no such pause: the clients take turns, and each turn serves
  several owners.
- Idle locks are given back after ``retain_ms``, and the least recently used first if the session
  has more than `RETAINED_LOCKS_MAX` locks of this kind.

Source: Gray and Cheriton, "Leases", SOSP 1989; Dice, Marathe and Shavit, "Lock Cohorting", PPoPP
2012; for the pause after a recall, RFC 8881 (NFS version 4.1), section 10.4.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from fencelock.actors.message import NS_PER_MS, Instant, later
from fencelock.actors.session.requests import LockKey

if TYPE_CHECKING:
    from fencelock.actors.session.lease import SessionTrust

SPAN = 1_024
"""The number of fences in a retained grant."""

COHORT_MS = 10
"""Total time after a recall for which further local owners may have the lock (ms)."""

RECALL_PAUSE_MS = 1_000
"""First time after a recall for which the lock is not retained (ms)."""

PAUSE_MS_MAX = 30_000
"""Longest such time (ms)."""

PEACE_MS = 60_000
"""Time without a recall after which earlier ones are forgotten (ms)."""

RETAINED_LOCKS_MAX = 10_000
"""Number of locks, idle or not, above which idle ones go back."""

RETAINED_INVARIANTS = {
    "one-local-owner": "a retained lock that is not shared has one local owner at most",
    "span-fences-rise": "each local ownership has a fence of the span, above all earlier ones",
    "admitted-in-trust": "a local owner is admitted only while the session is neither suspect "
    "nor lost",
    "strict-recall": "with cohort 0 no local owner is admitted after a recall of the hold",
    "released-unused": "the lock is given back only while no local owner has it",
    "local-queue-in-order": "waiting local owners are admitted in the order of their requests",
}
"""The invariants after each call, by name."""


class RetainedState(StrEnum):
    """The state of a retained lock; the header draws its moves."""

    FREE = "free"
    """The session neither has the lock nor wants it."""
    ACQUIRING = "acquiring"
    """The session wants it for the local owners that wait."""
    HELD = "held"
    """A local owner has it."""
    IDLE = "idle"
    """The session has it, and no local owner does."""
    RECALLED = "recalled"
    """A local owner has it, and the cluster wants it back."""
    RELEASING = "releasing"
    """It was given back, and that is not confirmed."""


MOVES: dict[RetainedState, tuple[RetainedState, ...]] = {
    RetainedState.FREE: (RetainedState.ACQUIRING,),
    RetainedState.ACQUIRING: (
        RetainedState.FREE,
        RetainedState.HELD,
        RetainedState.IDLE,
        RetainedState.RECALLED,
        RetainedState.RELEASING,
    ),
    RetainedState.HELD: (
        RetainedState.FREE,
        RetainedState.IDLE,
        RetainedState.RECALLED,
        RetainedState.RELEASING,
    ),
    RetainedState.IDLE: (RetainedState.FREE, RetainedState.HELD, RetainedState.RELEASING),
    RetainedState.RECALLED: (RetainedState.FREE, RetainedState.RELEASING),
    RetainedState.RELEASING: (RetainedState.FREE,),
}

WITH_LOCK = (RetainedState.HELD, RetainedState.IDLE, RetainedState.RECALLED)
"""The states in which the session has the lock."""


class Admit(NamedTuple):
    """The local owner has the lock, under ``fence``."""

    token: int
    fence: int


class Divert(NamedTuple):
    """The local owner must acquire the lock from the cluster itself."""

    token: int


class Refuse(NamedTuple):
    """The local owner's acquire is refused: as the session's was, or since it does not wait."""

    token: int


class Lose(NamedTuple):
    """The local owner lost the lock, which it had under ``fence``."""

    token: int
    fence: int


class Request(NamedTuple):
    """The session acquires the lock, with a span of fences. ``number`` names the request.

    Without ``waits`` the cluster refuses it at once if somebody else has the lock.
    """

    number: int
    waits: bool = True


class Withdraw(NamedTuple):
    """The session withdraws its request: no local owner waits any more."""

    number: int


class GiveBack(NamedTuple):
    """The session releases its hold under ``fence``, the first of its span."""

    fence: int


Act = Admit | Divert | Refuse | Lose | Request | Withdraw | GiveBack
"""The actions that the caller must take, in this order, before it lets anybody else call."""


class Recalls(Struct):
    """The recalls of one lock, and what follows from them."""

    last_at: Instant
    pause_ms: int = RECALL_PAUSE_MS
    """Time after that for which the lock is not retained (ms)."""
    budget: int = 0
    """The number of local owners that may still have the lock after the last one."""


class RetainTerms(NamedTuple):
    """A lock object's options for retaining its lock."""

    retain_ms: int
    """Time for which the lock is kept idle (ms), above 0."""
    cohort: int = 0
    """Number of local owners that may have it after a recall."""
    label: str = ""
    """A text for people who look at it."""
    shared: bool = False
    """Whether several local owners may have it at once, as readers do."""


class RetainedLock(Struct, gc=False):
    """One lock that the session may retain; see the head of this module.

    Invariants: see `RETAINED_INVARIANTS`.
    """

    terms: RetainTerms
    """Those of the lock object that was used last."""
    state: RetainedState = RetainedState.FREE
    trust: SessionTrust | None = None
    """The trust in the session that has the lock, while it does."""
    fence: int = 0
    """The first fence of the span."""
    span: int = SPAN
    used: int = 0
    """The number of its fences that were given to local owners."""
    users: dict[int, int] | None = None
    """The fences of the local owners that have the lock, by their tokens."""
    queue: OrderedDict[int, bool] | None = None
    """The waiting local owners in order, by token: whether each waits for others to release the
    lock."""
    number: int = 0
    """The number of the last request."""
    waits: bool = True
    """Whether the last request waits for others to release the lock."""
    idle_until: Instant = Instant(0)
    """Time at which it is given back, if nobody uses it until then."""
    recalls: Recalls | None = None
    """The recalls so far, None if there were none or they are forgotten."""
    recalled_fence: int = 0
    """The fence of a recall that came before its grant."""
    closed: bool = False

    @property
    def due_at(self) -> Instant | None:
        """Time at which an idle lock goes back, or the recalls of an unused one are forgotten."""
        if self.state is RetainedState.IDLE:
            return self.idle_until
        if self.recalls is None or self.state is not RetainedState.FREE:
            return None
        return later(self.recalls.last_at, PEACE_MS)

    def acquire(self, token: int, now: Instant, *, waits: bool = True) -> list[Act]:
        """Let the local owner ``token`` have the lock, now or later, or divert it.

        An owner that does not wait is refused while others of this client have or want the lock.
        """
        assert token not in (self.users or ()), "a local owner has one ownership for each token"
        if self.state in WITH_LOCK and self._is_over(now):
            acts = self._disown()
            return [*acts, *self.acquire(token, now, waits=waits)]
        match self.state:
            case RetainedState.IDLE if self._may_admit(now):
                return [self._admit(token)]
            case RetainedState.IDLE:
                return [*self._give_back(), Divert(token)]
            case RetainedState.HELD if self._is_open():
                return [self._admit(token) if self._may_admit(now) else Divert(token)]
            case RetainedState.RECALLED if self._is_open() and self._may_follow(now):
                return [self._follow(token)]
            case RetainedState.FREE if not self._is_paused(now):
                self._enqueue(token, waits=waits)
                return [self._request(waits=waits)]
            case RetainedState.HELD | RetainedState.RECALLED | RetainedState.ACQUIRING if not waits:
                return [Refuse(token)]
            case _:
                return self._wait(token, now) if waits else [Divert(token)]

    def granted(
        self, number: int, fence: int, span: int, trust: SessionTrust, now: Instant
    ) -> list[Act]:
        """Take the grant of request ``number``: the lock under ``span`` fences from ``fence``."""
        if number != self.number or self.state is not RetainedState.ACQUIRING:
            return [GiveBack(fence)]
        self.trust, self.fence, self.span, self.used = trust, fence, span, 0
        recalled, self.recalled_fence = self.recalled_fence == fence, 0
        if self._is_over(now) or not self._is_trusted(now):
            return self._give_back_at_once()
        if not recalled:
            self._move(RetainedState.HELD if self.queue else RetainedState.IDLE)
            self.idle_until = later(now, self.terms.retain_ms)
            return self._admit_waiting(now)
        if not self.queue:
            return self._give_back_at_once()
        # It waited its turn in the queue of the cluster: the first local owner overtakes nobody.
        self._move(RetainedState.RECALLED)
        first, _ = self.queue.popitem(last=False)
        self._note_recall(now)
        acts: list[Act] = [self._admit(first)]
        if not self.terms.cohort:
            return acts + self._divert_all()
        return acts + (self._admit_waiting(now) if self.terms.shared else [])

    def refused(self, number: int) -> list[Act]:
        """Refuse everybody who waits: request ``number`` was refused.

        If it did not wait, those who came meanwhile and do wait are diverted.
        """
        if number != self.number or self.state is not RetainedState.ACQUIRING:
            return []
        self._move(RetainedState.FREE)
        queue, self.queue = self.queue, None
        return [
            Divert(token) if waits and not self.waits else Refuse(token)
            for token, waits in (queue.items() if queue else ())
        ]

    def release(self, token: int, now: Instant) -> list[Act]:
        """Take the lock from a local owner that releases it, for the next or for the cluster."""
        users = self.users
        if users is None or token not in users:
            return []  # It was lost.
        if self._is_over(now):
            return self._disown()
        del users[token]
        if not users:
            self.users = None
        if self.state is RetainedState.RECALLED:
            acts = self._admit_waiting(now)
            if self.users:
                return acts
            diverted = [] if self._has_turns(now) else self._divert_all()
            return [*acts, *self._give_back(), *diverted]
        if not self._is_trusted(now) or self.closed:
            return [] if self.users else [*self._give_back(), *self._divert_all()]
        acts = self._admit_waiting(now)
        if self.users:
            return acts
        if self.used >= self.span:
            return [*acts, *self._give_back()]
        self._move(RetainedState.IDLE)
        self.idle_until = later(now, self.terms.retain_ms)
        return acts

    def withdraw(self, token: int, now: Instant) -> list[Act]:
        """Undo the acquire of ``token``, whether it waits or was admitted meanwhile."""
        if self.queue is None or token not in self.queue:
            return self.release(token, now)
        del self.queue[token]
        if self.queue:
            return []
        self.queue = None
        if self.state is not RetainedState.ACQUIRING:
            return []
        self._move(RetainedState.FREE)
        self.recalled_fence = 0
        return [Withdraw(self.number)]

    def recall(self, fence: int, now: Instant) -> list[Act]:
        """Give the hold under ``fence`` back, now or with the release of its local owner."""
        if self.state is RetainedState.ACQUIRING:
            self.recalled_fence = max(fence, self.recalled_fence)
        if (
            self.state not in WITH_LOCK
            or fence != self.fence
            or self.state is RetainedState.RECALLED
        ):
            return []  # It is of an earlier hold, or it is repeated.
        self._note_recall(now)
        if self.state is RetainedState.IDLE:
            return self._give_back()
        self._move(RetainedState.RECALLED)
        return [] if self.terms.cohort else self._divert_all()

    def surrender(self) -> list[Act]:
        """Give the lock back to the cluster once the local owner that has it releases it."""
        if self.state is RetainedState.HELD:
            self._move(RetainedState.RECALLED)
        if self.recalls is not None:
            self.recalls.budget = 0
        return self._divert_all()

    def reset(self, users: dict[int, int]) -> list[Act]:
        """Make the state whole after a call that was cut short, and give the lock back.

        ``users`` are the fences of the local owners that have it, by their tokens. They keep it
        until they release it. The caller has diverted all that waited. What was decided may have
        been carried out or not: the session ignores what it has done already.
        """
        self.users, self.queue = users or None, None
        if self.state is RetainedState.FREE:
            self.users = None
            lost: list[Act] = [Lose(token, fence) for token, fence in users.items()]
            return [*lost, GiveBack(self.fence)] if lost else []
        match self.state:
            case RetainedState.ACQUIRING:
                self._move(RetainedState.FREE)
                return [Withdraw(self.number)]
            case RetainedState.HELD | RetainedState.RECALLED if users:
                return self.surrender()
            case RetainedState.RELEASING:
                return [GiveBack(self.fence)]
            case _:
                return self._give_back()

    def released(self, fence: int, now: Instant) -> list[Act]:
        """Note that the cluster has the hold under ``fence`` back.

        Acquire the lock for those who came meanwhile.
        """
        if self.state is not RetainedState.RELEASING or fence != self.fence:
            return []  # It is of an earlier hold.
        self._move(RetainedState.FREE)
        if not self.queue:
            return []
        return self._divert_all() if self._is_paused(now) else [self._request()]

    def lose(self) -> list[Act]:
        """Note that the session lost the lock, or its request for it."""
        lost = [Lose(token, fence) for token, fence in (self.users or {}).items()]
        self.users, self.trust = None, None
        if self.state is not RetainedState.FREE:
            self._move(RetainedState.FREE)
        return [*lost, *self._divert_all()]

    def expire(self, now: Instant) -> list[Act]:
        """Give the lock back if it has been idle for too long, or if the session is suspect."""
        if self.state is not RetainedState.IDLE:
            return []
        if self._is_over(now):
            return self._disown()
        if now < self.idle_until and self._is_trusted(now):
            return []
        return self._give_back()

    def evict(self) -> list[Act]:
        """Give the lock back if it is idle: the session retains too many."""
        return self._give_back() if self.state is RetainedState.IDLE else []

    def close(self) -> list[Act]:
        """Admit nobody from now on, and give the lock back if it is idle."""
        self.closed = True
        acts = self.evict()
        if self.state is RetainedState.ACQUIRING:
            self._move(RetainedState.FREE)
            acts = [Withdraw(self.number)]
        return [*acts, *self._divert_all()]

    def _move(self, to: RetainedState) -> None:
        if to not in MOVES[self.state]:
            raise AssertionError(f"a {self.state.value} retained lock cannot be {to.value}")
        self.state = to

    def _is_trusted(self, now: Instant) -> bool:
        trust = self.trust
        return trust is not None and now < trust.suspect_at and now < trust.until

    def _is_over(self, now: Instant) -> bool:
        return self.trust is None or now >= self.trust.until

    def _is_paused(self, now: Instant) -> bool:
        recalls = self.recalls
        if self.terms.cohort > 0 or recalls is None:
            return self.closed
        return self.closed or now < later(recalls.last_at, recalls.pause_ms)

    def _has_turns(self, now: Instant) -> bool:
        """Return whether the session will acquire the lock again for owners that still wait."""
        return self.terms.cohort > 0 and not self._is_paused(now) and self._is_trusted(now)

    def _may_admit(self, now: Instant) -> bool:
        return self.used < self.span and not self.closed and self._is_trusted(now)

    def _is_open(self) -> bool:
        """Return whether another local owner may have it beside those that have it."""
        return self.terms.shared and not self.queue

    def _may_follow(self, now: Instant) -> bool:
        """Return whether a local owner may have the lock although it was recalled."""
        recalls = self.recalls
        if recalls is None or not recalls.budget:
            return False
        return now < later(recalls.last_at, COHORT_MS) and self._may_admit(now)

    def _follow(self, token: int) -> Admit:
        """Admit a local owner although the lock was recalled."""
        assert self.recalls is not None  # `_may_follow`
        self.recalls.budget -= 1
        return self._admit(token)

    def _admit(self, token: int) -> Admit:
        users = self.users
        assert self.terms.shared or not users  # one-local-owner
        assert self.used < self.span  # span-fences-rise
        fence = self.fence + self.used
        self.used += 1
        if users is None:
            self.users = {token: fence}
        else:
            users[token] = fence
        if self.state is RetainedState.IDLE:
            self._move(RetainedState.HELD)
        return Admit(token, fence)

    def _admit_waiting(self, now: Instant) -> list[Act]:
        """Admit the next of the queue, or all of them if the lock is shared.

        After a recall, only as far as the terms allow that.
        """
        recalled = self.state is RetainedState.RECALLED
        may, admit = (
            (self._may_follow, self._follow) if recalled else (self._may_admit, self._admit)
        )
        acts: list[Act] = []
        while self.queue and (self.terms.shared or not self.users) and may(now):
            token, _ = self.queue.popitem(last=False)
            acts.append(admit(token))
        self.queue = self.queue or None
        return acts

    def _enqueue(self, token: int, *, waits: bool = True) -> None:
        if self.queue is None:
            self.queue = OrderedDict()
        self.queue[token] = waits

    def _wait(self, token: int, now: Instant) -> list[Act]:
        """Let ``token`` wait for the lock, or divert it if it could not be retained then."""
        leaves = self.state is RetainedState.RECALLED and not self._has_turns(now)
        if leaves or (not self.queue and self.state not in WITH_LOCK and self._is_paused(now)):
            return [Divert(token)]
        self._enqueue(token)
        return []

    def _divert_all(self) -> list[Act]:
        queue, self.queue = self.queue, None
        return [Divert(token) for token in queue or ()]

    def _request(self, *, waits: bool = True) -> Request:
        self._move(RetainedState.ACQUIRING)
        self.number += 1
        self.waits = waits
        self.recalled_fence = 0
        return Request(self.number, waits)

    def _give_back(self) -> list[Act]:
        assert not self.users  # released-unused
        self._move(RetainedState.RELEASING)
        self.trust = None
        return [GiveBack(self.fence)]

    def _disown(self) -> list[Act]:
        """Lose the hold, whose time is over, and give it back in case the session keeps it."""
        return [*self.lose(), GiveBack(self.fence)]

    def _give_back_at_once(self) -> list[Act]:
        """Give back what was granted too late to be of use."""
        return [*self._give_back(), *self._divert_all()]

    def _note_recall(self, now: Instant) -> None:
        recalls = self.recalls
        if recalls is None or now - recalls.last_at >= PEACE_MS * NS_PER_MS:
            self.recalls = recalls = Recalls(now)
        else:
            recalls.last_at, recalls.pause_ms = now, min(2 * recalls.pause_ms, PAUSE_MS_MAX)
        recalls.budget = self.terms.cohort


LockAct = tuple[LockKey, Act]
"""The actions that the caller must take for a lock."""


class RetainedLocks:
    """All retained locks of a session, by name and by the owner that the session is for them.

    A lock stays here while it is in use, wanted or idle, and while its recalls are remembered. The
    client's threads call `acquire`, `release` and `withdraw`; the `Retainer` calls the rest.
    """

    def __init__(self, locks_max: int = RETAINED_LOCKS_MAX) -> None:
        self.by_key: OrderedDict[LockKey, RetainedLock] = OrderedDict()
        """The locks, of which the idle ones are in order: the least recently used first."""
        self.due_at: Instant | None = None
        """Time before which no lock is due: idle for too long, or remembered for too long."""
        self.watched_from: Instant | None = None
        """The time at which the `Retainer` was told to call `expire`; None if it was not."""
        self._locks_max = locks_max
        self._last_number = 0
        """The highest number of a request for a lock that was forgotten. A late reply to it must
        not count as the reply to a request for the same lock made anew."""

    def acquire(
        self, key: LockKey, token: int, terms: RetainTerms, now: Instant, *, waits: bool
    ) -> list[LockAct]:
        lock = self.by_key.get(key)
        if lock is None:
            lock = self.by_key[key] = RetainedLock(terms, number=self._last_number)
        lock.terms = terms
        return self.note(key, lock, lock.acquire(token, now, waits=waits), now)

    def release(self, key: LockKey, token: int, now: Instant) -> list[LockAct]:
        lock = self.by_key.get(key)
        return [] if lock is None else self.note(key, lock, lock.release(token, now), now)

    def withdraw(self, key: LockKey, token: int, now: Instant) -> list[LockAct]:
        lock = self.by_key.get(key)
        return [] if lock is None else self.note(key, lock, lock.withdraw(token, now), now)

    def note(
        self, key: LockKey, lock: RetainedLock, acts: list[Act], now: Instant
    ) -> list[LockAct]:
        """Note the state of ``lock`` after a call that decided ``acts``; return these."""
        state = lock.state
        if state is RetainedState.IDLE:
            self.by_key.move_to_end(key)  # One call in C, which no signal interrupts.
            due_at: Instant | None = lock.idle_until
        elif state is RetainedState.HELD or (
            state is RetainedState.FREE and self._forget(key, lock, now)
        ):
            due_at = None
        else:
            due_at = lock.due_at
        if due_at is not None and (self.due_at is None or due_at < self.due_at):
            self.due_at = due_at
        return [(key, act) for act in acts] if acts else []

    def is_watch_due(self) -> bool:
        """Return whether the `Retainer` must be told that a lock is due sooner than it knows."""
        due_at, watched = self.due_at, self.watched_from
        if due_at is None or (watched is not None and watched <= due_at):
            return False
        self.watched_from = due_at
        return True

    def expire(self, now: Instant) -> list[LockAct]:
        """Give back what has been idle for too long, and forget what nobody needs any more."""
        acts: list[LockAct] = []
        for key, lock in [*self.by_key.items()]:
            acts += [(key, act) for act in lock.expire(now)]
            if lock.state is RetainedState.FREE:
                self._forget(key, lock, now)
        dues = (lock.due_at for lock in self.by_key.values())
        self.due_at = self.watched_from = min((at for at in dues if at is not None), default=None)
        return acts

    def excess(self) -> LockKey | None:
        """Return the idle lock that was not used for longest, if there are too many locks."""
        if len(self.by_key) <= self._locks_max:
            return None
        idle = (key for key, lock in self.by_key.items() if lock.state is RetainedState.IDLE)
        return next(idle, None)

    def evict(self, key: LockKey) -> list[LockAct]:
        return [(key, act) for act in self.by_key[key].evict()]

    def reset(self, key: LockKey, users: dict[int, int], now: Instant) -> list[LockAct]:
        """Make the state whole after a call about a lock that was cut short; see there."""
        lock = self.by_key.get(key)
        return [] if lock is None else self.note(key, lock, lock.reset(users), now)

    def close(self) -> list[LockAct]:
        """Give back whatever is idle, and admit nobody any more."""
        return [(key, act) for key, lock in self.by_key.items() for act in lock.close()]

    def _forget(self, key: LockKey, lock: RetainedLock, now: Instant) -> bool:
        """Forget a lock that the session does not have, unless its recalls are remembered."""
        due_at = lock.due_at
        if lock.queue or (due_at is not None and now < due_at):
            return False
        self._last_number = max(self._last_number, lock.number)
        self.by_key.pop(key, None)
        return True
