"""A lock that a session keeps after its local owner released it, for the next local owner. Pure.

Most locks are taken again and again by the same process. So the *session* acquires the lock, under
an owner of its own, and hands it from one *local owner* to the next without a message. To the
cluster it is one ordinary hold: one holder, ended with its session, first come, first served. When
somebody else queues behind it, the cluster *recalls* the lock, and the session gives it back.

One `RetainedLock` is the state of one lock::

                      the last waiter gave up, or the request was refused
          ┌───────────────────────────────────────────────────────────────┐
          v                                                               │
    ┌─> FREE ── an owner wants it ──────────────────────────────────> ACQUIRING <── an owner ── LOST
    │                                                                │    │    │    wants it     ^
    │                              granted, and nobody waits any more│    │    │                 │
    │   ┌────────────────────────────────────────────────────────────┘    │    │                 │
    │   v                                                         granted │    │ granted after   │
    │  IDLE <── the last local owner released, nobody waits ── HELD <─────┘    │ its recall      │
    │   │  ── the next local owner ─────────────────────────────>│             │                 │
    │   │                                               recalled │             │                 │
    │   │                                                        v             │                 │
    │   │ idle for too long, recalled,               RECALLED <────────────────┘                 │
    │   │ suspect, closed                                        │                               │
    │   v                                                        │ the last local owner released │
    │ RELEASING <────────────────────────────────────────────────┘                               │
    │   │                              HELD ── its span is used up, or suspect ──> RELEASING     │
    └───┘ confirmed                    ACQUIRING, IDLE, HELD, RECALLED ── the hold is lost ──────┘

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
not admitted takes the normal way: it is *diverted*, and acquires the lock from the cluster like an
owner of a lock that is not retained. If the session is suspect the lock is given back before that,
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
- *A recall before its grant.* Messages may change places. A recall is remembered by its fence while
  the lock is being acquired. A recall of any fence that is not held now is of an earlier hold.
- *A cancel against a grant.* `withdraw` removes a waiter, and releases what was admitted meanwhile.
  When the last waiter gives up, the request is withdrawn; a grant that crosses with that has an old
  number, and is given back.
- *Close.* Nothing is admitted after `close`; what is in use goes with its last local owner, or with
  the session.

What must hold is in `RETAINED_INVARIANTS`. The other rules:

- After a recall a lock in use goes back with the release of its local owner. Up to ``cohort`` local
  owners may have it before, within `COHORT_MS` of the recall. With 0 nobody overtakes the queue of
  the cluster.
- After a recall the lock is not retained again for a while: `PAUSE_MS`, doubling up to
  `PAUSE_MS_MAX` while recalls go on, forgotten after `PEACE_MS` without one. Meanwhile owners are
  diverted.
- Idle locks are given back after ``retain_ms``, and the least recently used first if there are more
  than `IDLE_MAX`.

Source: Gray and Cheriton, "Leases", SOSP 1989; Dice, Marathe and Shavit, "Lock Cohorting", PPoPP
2012; for the pause after a recall, RFC 8881 (NFS version 4.1), section 10.4.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from fencelock.actors.message import NS_PER_MS, Instant
from fencelock.actors.session.requests import later

if TYPE_CHECKING:
    from fencelock.actors.session.lease import SessionTrust

SPAN = 1_024
"""The number of fences in a retained grant."""

COHORT_MS = 10
"""Time after a recall for which further local owners may have the lock in all (ms)."""

PAUSE_MS = 1_000
"""First time after a recall for which the lock is not retained (ms)."""

PAUSE_MS_MAX = 30_000
"""Longest such time (ms)."""

PEACE_MS = 60_000
"""Time without a recall after which earlier ones are forgotten (ms)."""

IDLE_MAX = 10_000
"""Maximum number of idle locks that one session retains."""

RETAINED_INVARIANTS = {
    "one-local-owner": "a retained lock that is not shared has one local owner at most",
    "span-fences-rise": "each local ownership has a fence of the span, above all earlier ones",
    "admitted-in-trust": "a local owner is admitted only while the session is neither suspect "
    "nor lost",
    "strict-recall": "with cohort 0 no local owner is admitted after a recall of the hold",
    "released-unused": "the lock is given back only while no local owner has it",
    "local-queue-in-order": "waiting local owners are admitted in the order of their requests",
}
"""What holds after each call, by name."""


class RetainedState(Enum):
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
    LOST = "lost"
    """Like FREE: the session lost the hold that it had."""


MOVES: dict[RetainedState, tuple[RetainedState, ...]] = {
    RetainedState.FREE: (RetainedState.ACQUIRING,),
    RetainedState.ACQUIRING: (
        RetainedState.FREE,
        RetainedState.HELD,
        RetainedState.IDLE,
        RetainedState.RECALLED,
        RetainedState.RELEASING,
        RetainedState.LOST,
    ),
    RetainedState.HELD: (
        RetainedState.IDLE,
        RetainedState.RECALLED,
        RetainedState.RELEASING,
        RetainedState.LOST,
    ),
    RetainedState.IDLE: (RetainedState.HELD, RetainedState.RELEASING, RetainedState.LOST),
    RetainedState.RECALLED: (RetainedState.RELEASING, RetainedState.LOST),
    RetainedState.RELEASING: (RetainedState.FREE,),
    RetainedState.LOST: (RetainedState.ACQUIRING,),
}
"""The moves of a retained lock."""

KEPT = (RetainedState.HELD, RetainedState.IDLE, RetainedState.RECALLED)
"""The states in which the session has the lock."""


class Admit(NamedTuple):
    """The local owner has the lock, under ``fence``."""

    token: int
    fence: int


class Divert(NamedTuple):
    """The local owner takes the normal way: it acquires the lock from the cluster itself."""

    token: int


class Lose(NamedTuple):
    """The local owner lost the lock, which it had under ``fence``."""

    token: int
    fence: int


class Request(NamedTuple):
    """The session acquires the lock, with a span of fences. ``number`` names the request."""

    number: int


class Withdraw(NamedTuple):
    """The session withdraws its request: no local owner waits any more."""

    number: int


class GiveBack(NamedTuple):
    """The session releases its hold under ``fence``, the first of its span."""

    fence: int


Act = Admit | Divert | Lose | Request | Withdraw | GiveBack
"""What the caller must do, in this order, before it lets anybody else call."""


@dataclass(slots=True)
class Recalls:
    """The recalls of one lock, and how long it is not retained after them."""

    last_at: Instant
    pause_ms: int = PAUSE_MS

    @property
    def calm_at(self) -> Instant:
        """Time from which the lock may be retained again."""
        return later(self.last_at, self.pause_ms)


@dataclass(slots=True)
class RetainedLock:
    """One lock that the session may retain; see the head of this module.

    Invariants: see `RETAINED_INVARIANTS`.

    Args:
        retain_ms: the time for which it is kept idle (ms), above 0.
        cohort: the number of local owners that may have it after a recall.
        shared: whether several local owners may have it at once, as readers do.

    """

    retain_ms: int
    cohort: int = 0
    shared: bool = False
    state: RetainedState = RetainedState.FREE
    trust: SessionTrust | None = None
    """The trust in the session that has the lock, while it does."""
    fence: int = 0
    """The first fence of the span."""
    next_fence: int = 0
    """The fence of the next local owner."""
    end_fence: int = 0
    """The end of the span: the first fence after it."""
    users: dict[int, int] | None = None
    """The fences of the local owners that have the lock, by their tokens."""
    queue: OrderedDict[int, None] | None = None
    """The tokens of the local owners that wait, in order."""
    number: int = 0
    """The number of the last request."""
    idle_until: Instant = field(default=Instant(0))
    """Time at which it is given back, if nobody uses it until then."""
    recalls: Recalls | None = None
    """The recalls so far, None if there were none or they are forgotten."""
    recalled_fence: int = 0
    """The fence of a recall that came before its grant."""
    budget: int = 0
    """The number of local owners that may still have the lock after its recall."""
    closed: bool = False

    def acquire(self, token: int, now: Instant) -> list[Act]:
        """Let the local owner ``token`` have the lock, now or later, or divert it."""
        assert token not in (self.users or ()), "a local owner has one ownership for each token"
        if self.state in KEPT and self._is_over(now):
            acts = self.lose()
            return [*acts, *self.acquire(token, now)]
        match self.state:
            case RetainedState.IDLE if self._may_admit(now):
                return [self._admit(token)]
            case RetainedState.IDLE:
                return [*self._give_back(), Divert(token)]
            case RetainedState.HELD if self.shared and not self.queue and self._may_admit(now):
                return [self._admit(token)]
            case RetainedState.RECALLED if self.shared and not self.queue and self._may_follow(now):
                self.budget -= 1
                return [self._admit(token)]
            case RetainedState.FREE | RetainedState.LOST if not self._is_paused(now):
                self._enqueue(token)
                return [self._request()]
            case _:
                return self._wait(token, now)

    def granted(
        self, number: int, fence: int, span: int, trust: SessionTrust, now: Instant
    ) -> list[Act]:
        """Take the grant of request ``number``: the lock under ``span`` fences from ``fence``."""
        if number != self.number or self.state is not RetainedState.ACQUIRING:
            return [GiveBack(fence)]
        self.trust, self.fence, self.next_fence, self.end_fence = trust, fence, fence, fence + span
        recalled, self.recalled_fence = self.recalled_fence == fence, 0
        if self._is_over(now) or not self._is_trusted(now):
            return self._give_back_at_once()
        if not recalled:
            self._move(RetainedState.HELD if self.queue else RetainedState.IDLE)
            self.idle_until = later(now, self.retain_ms)
            return self._admit_waiting(now)
        if not self.queue:
            return self._give_back_at_once()
        # It waited its turn in the queue of the cluster: the first local owner overtakes nobody.
        self._move(RetainedState.RECALLED)
        first, _ = self.queue.popitem(last=False)
        self._note_recall(now)
        acts: list[Act] = [self._admit(first)]
        return acts + (self._admit_cohort(now) if self.shared else [])

    def refused(self, number: int) -> list[Act]:
        """Divert everybody who waits: request ``number`` was refused."""
        if number != self.number or self.state is not RetainedState.ACQUIRING:
            return []
        self._move(RetainedState.FREE)
        return self._divert_all()

    def release(self, token: int, now: Instant) -> list[Act]:
        """Take the lock from a local owner that releases it, for the next or for the cluster."""
        users = self.users
        if users is None or token not in users:
            return []  # It was lost.
        if self._is_over(now):
            return self.lose()
        del users[token]
        if not users:
            self.users = None
        if self.state is RetainedState.RECALLED:
            acts = self._admit_cohort(now)
            return acts if self.users else [*acts, *self._give_back(), *self._divert_all()]
        if not self._is_trusted(now) or self.closed:
            return [] if self.users else [*self._give_back(), *self._divert_all()]
        acts = self._admit_waiting(now)
        if self.users:
            return acts
        if self.next_fence >= self.end_fence:
            return [*acts, *self._give_back()]
        self._move(RetainedState.IDLE)
        self.idle_until = later(now, self.retain_ms)
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
        if self.state not in KEPT or fence != self.fence or self.state is RetainedState.RECALLED:
            return []  # It is of an earlier hold, or it is repeated.
        self._note_recall(now)
        if self.state is RetainedState.IDLE:
            return self._give_back()
        self._move(RetainedState.RECALLED)
        return []

    def released(self, now: Instant) -> list[Act]:
        """Note that the cluster has the lock back; acquire it for those who came meanwhile."""
        if self.state is not RetainedState.RELEASING:
            return []
        self._move(RetainedState.FREE)
        if not self.queue:
            return []
        return self._divert_all() if self._is_paused(now) else [self._request()]

    def lose(self) -> list[Act]:
        """Note that the session lost the lock, or its request for it."""
        lost = [Lose(token, fence) for token, fence in (self.users or {}).items()]
        self.users, self.trust = None, None
        if self.state is RetainedState.RELEASING:
            self._move(RetainedState.FREE)
        elif self.state not in (RetainedState.FREE, RetainedState.LOST):
            self._move(RetainedState.LOST)
        return [*lost, *self._divert_all()]

    def expire(self, now: Instant) -> list[Act]:
        """Give the lock back if it has been idle for too long, or if the session is suspect."""
        if self.state is not RetainedState.IDLE:
            return []
        if self._is_over(now):
            return self.lose()
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
        """Return whether the lock may not be retained now."""
        recalls = self.recalls
        return self.closed or (recalls is not None and now < recalls.calm_at)

    def _may_admit(self, now: Instant) -> bool:
        return self.next_fence < self.end_fence and not self.closed and self._is_trusted(now)

    def _may_follow(self, now: Instant) -> bool:
        """Return whether a local owner may have the lock although it was recalled."""
        recalls = self.recalls
        in_time = recalls is not None and now < later(recalls.last_at, COHORT_MS)
        return self.budget > 0 and in_time and self._may_admit(now)

    def _admit(self, token: int) -> Admit:
        users = self.users
        assert self.shared or not users  # one-local-owner
        fence = self.next_fence
        assert self.fence <= fence < self.end_fence  # span-fences-rise
        self.next_fence = fence + 1
        if users is None:
            self.users = {token: fence}
        else:
            users[token] = fence
        if self.state is RetainedState.IDLE:
            self._move(RetainedState.HELD)
        return Admit(token, fence)

    def _admit_waiting(self, now: Instant) -> list[Act]:
        """Admit the next of the queue, or all of them if the lock is shared."""
        acts: list[Act] = []
        while self.queue and (self.shared or not self.users) and self._may_admit(now):
            token, _ = self.queue.popitem(last=False)
            acts.append(self._admit(token))
        self.queue = self.queue or None
        return acts

    def _admit_cohort(self, now: Instant) -> list[Act]:
        """Admit the next of the queue after a recall, as far as that is allowed."""
        acts: list[Act] = []
        while self.queue and (self.shared or not self.users) and self._may_follow(now):
            token, _ = self.queue.popitem(last=False)
            self.budget -= 1
            acts.append(self._admit(token))
        self.queue = self.queue or None
        return acts

    def _enqueue(self, token: int) -> None:
        if self.queue is None:
            self.queue = OrderedDict()
        self.queue[token] = None

    def _wait(self, token: int, now: Instant) -> list[Act]:
        """Let ``token`` wait for the lock, or divert it if it could not be retained then."""
        if not self.queue and self.state not in KEPT and self._is_paused(now):
            return [Divert(token)]
        self._enqueue(token)
        return []

    def _divert_all(self) -> list[Act]:
        queue, self.queue = self.queue, None
        return [Divert(token) for token in queue or ()]

    def _request(self) -> Request:
        self._move(RetainedState.ACQUIRING)
        self.number += 1
        self.recalled_fence = 0
        return Request(self.number)

    def _give_back(self) -> list[Act]:
        assert not self.users  # released-unused
        self._move(RetainedState.RELEASING)
        self.trust = None
        return [GiveBack(self.fence)]

    def _give_back_at_once(self) -> list[Act]:
        """Give back what was granted too late to be of use."""
        return [*self._give_back(), *self._divert_all()]

    def _note_recall(self, now: Instant) -> None:
        recalls = self.recalls
        self.budget = self.cohort
        if recalls is None or now - recalls.last_at >= PEACE_MS * NS_PER_MS:
            self.recalls = Recalls(now)
        else:
            recalls.last_at, recalls.pause_ms = now, min(2 * recalls.pause_ms, PAUSE_MS_MAX)


class RetainedLocks:
    """All retained locks of a session, by name.

    A lock stays here while it is in use, wanted or idle, and while its recalls are remembered.
    """

    def __init__(self, idle_max: int = IDLE_MAX) -> None:
        self.by_name: dict[str, RetainedLock] = {}
        self._idle_max = idle_max
        self._idle: OrderedDict[str, None] = OrderedDict()
        """The names of idle locks, the least recently used first."""
        self._due_at: Instant | None = None
        """Time before which no idle lock has been idle for too long; None if none is idle."""

    def note(self, name: str, now: Instant) -> list[tuple[str, Act]]:
        """Note a call of the lock ``name``; return what others must do, with their names."""
        lock = self.by_name[name]
        if lock.state is RetainedState.IDLE:
            self._idle[name] = None
            self._idle.move_to_end(name)
            if self._due_at is None or lock.idle_until < self._due_at:
                self._due_at = lock.idle_until
        else:
            self._idle.pop(name, None)
            if self._is_forgettable(lock, now):
                del self.by_name[name]
        acts: list[tuple[str, Act]] = []
        while len(self._idle) > self._idle_max:
            oldest, _ = self._idle.popitem(last=False)
            acts += [(oldest, act) for act in self.by_name[oldest].evict()]
        return acts

    def expire(self, now: Instant, *, suspect: bool = False) -> list[tuple[str, Act]]:
        """Give back what has been idle for too long; all that is idle if the session is suspect."""
        if self._due_at is None or (now < self._due_at and not suspect):
            return []
        acts: list[tuple[str, Act]] = []
        self._due_at = None
        for name in [*self._idle]:
            acts += [(name, act) for act in self.by_name[name].expire(now)]
            if self.by_name[name].state is not RetainedState.IDLE:
                del self._idle[name]
        idle_until = [self.by_name[name].idle_until for name in self._idle]
        self._due_at = min(idle_until, default=None)
        for name, lock in [*self.by_name.items()]:
            if self._is_forgettable(lock, now):
                del self.by_name[name]
        return acts

    def close(self) -> list[tuple[str, Act]]:
        """Give back whatever is idle, and admit nobody any more."""
        self._idle.clear()
        closed: Iterable[tuple[str, list[Act]]] = [
            (name, lock.close()) for name, lock in self.by_name.items()
        ]
        return [(name, act) for name, acts in closed for act in acts]

    @staticmethod
    def _is_forgettable(lock: RetainedLock, now: Instant) -> bool:
        recalls = lock.recalls
        remembered = recalls is not None and now - recalls.last_at < PEACE_MS * NS_PER_MS
        unused = lock.state in (RetainedState.FREE, RetainedState.LOST) and not lock.queue
        return unused and not remembered
