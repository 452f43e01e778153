"""Sessions by log time, and what is remembered of the owners within one."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field

from holdfast.actors.lock.holding import Hold
from holdfast.actors.lock.outcome import Settled
from holdfast.actors.lock.waiting import SLACK, Wait

SESSIONS_MAX = 100_000
"""Live sessions of a group; the next is refused."""

SESSION_CLAIMS_MAX = 100_000
"""Holds and waits of one session, so that one client cannot fill the table."""

IDLE_OWNERS_MAX = 4_096
"""Owners of a session that hold nothing and wait for nothing but whose last outcome is kept.

More than a client has requests under way; beyond it the one quiet for longest goes.
"""

LOSSES_MAX = 100
"""Forced releases that an owner has not heard of; beyond it the oldest is forgotten."""


@dataclass(slots=True)
class Owner:
    """One owner within a session: a sequential program, so one last request says it all.

    Attributes:
        request: its last request, 0 before the first.
        lock: what that was about.
        releasing: whether it was a release.
        outcome: what came of it, None while it waits.
        lost: fences of holds that an operator took and the owner has not heard of.

    """

    name: str
    request: int = 0
    lock: str = ""
    releasing: bool = False
    outcome: Settled | None = None
    holds: dict[str, Hold] = field(default_factory=dict[str, Hold])
    waits: dict[str, Wait] = field(default_factory=dict[str, Wait])
    lost: dict[str, int] = field(default_factory=dict[str, int])

    def begin(self, request: int, lock: str, *, releasing: bool) -> None:
        """Let a new request take the place of the last."""
        assert request > self.request
        self.request, self.lock, self.releasing = request, lock, releasing
        self.outcome = None

    def settle(self, outcome: Settled) -> None:
        """Remember what came of a request, if it is still the last."""
        if outcome.request == self.request and outcome.lock == self.lock:
            self.outcome = outcome

    def lose(self, hold: Hold) -> None:
        """Remember that ``hold`` was taken by force."""
        self.lost[hold.lock] = hold.fence
        if len(self.lost) > LOSSES_MAX:
            del self.lost[next(iter(self.lost))]


@dataclass(slots=True)
class Session:
    """One client's liveness, and its owners.

    Attributes:
        number: its place among all sessions there ever were (rule 92).
        id: its name with the number: unique for ever, at no memory.
        name: what the client calls itself.
        version: rises with every sign of life.
        deadline_ms: log time at which it expires, unless a new master extends it.
        floor: the highest request of an owner that was forgotten.
        claims: its holds and waits.
        idle: names of owners without claims, the one quiet for longest first.

    """

    number: int
    id: str
    name: str
    label: str
    ttl_ms: int
    version: int
    deadline_ms: int
    floor: int = 0
    claims: int = 0
    owners: dict[str, Owner] = field(default_factory=dict[str, Owner])
    idle: OrderedDict[str, None] = field(default_factory=OrderedDict[str, None])

    def enter(self, name: str) -> Owner:
        """Begin to remember an owner."""
        assert name not in self.owners
        owner = self.owners[name] = Owner(name)
        return owner

    def sort(self, owner: Owner) -> None:
        """Keep ``owner`` among the idle or the busy, and forget the idlest of too many."""
        self.idle.pop(owner.name, None)
        if owner.holds or owner.waits:
            return
        self.idle[owner.name] = None
        if len(self.idle) > IDLE_OWNERS_MAX:
            name, _ = self.idle.popitem(last=False)
            self.floor = max(self.floor, self.owners.pop(name).request)


class Sessions:
    """All live sessions, and which of them expires first; ties by number.

    A sign of life does not touch the heap: the entry is moved on when it surfaces.
    Nor does a new master's extension touch any session: it is one number for all.

    Attributes:
        opened: sessions there ever were; the last number given.
        signs: signs of life there ever were; versions are drawn from it.
        extended_ms: log time of the last extension.
        extended_version: the lowest version a session has since.

    """

    def __init__(self) -> None:
        self.by_id: dict[str, Session] = {}
        self.by_name: dict[str, Session] = {}
        self.heap: list[tuple[int, int, str]] = []
        self.opened = 0
        self.signs = 0
        self.extended_ms = 0
        self.extended_version = 0

    def open(self, name: str, label: str, ttl_ms: int, now_ms: int) -> Session:
        """Open a session for ``name``, which must have none."""
        assert name not in self.by_name
        self.opened += 1
        self.signs += 1
        session = Session(
            number=self.opened,
            id=f"{name}.{self.opened}",
            name=name,
            label=label,
            ttl_ms=ttl_ms,
            version=self.signs,
            deadline_ms=now_ms + ttl_ms,
        )
        self.add(session)
        return session

    def add(self, session: Session) -> None:
        """Enter ``session`` as it is."""
        self.by_id[session.id] = session
        self.by_name[session.name] = session
        heapq.heappush(self.heap, (session.deadline_ms, session.number, session.id))

    def keep(self, session: Session, now_ms: int) -> None:
        """Note a sign of life."""
        self.signs += 1
        session.version = self.signs
        session.deadline_ms = max(session.deadline_ms, now_ms + session.ttl_ms)

    def extend(self, now_ms: int) -> None:
        """Let every session live at least one TTL from ``now_ms`` (rule 83)."""
        self.signs += 1
        self.extended_version = self.signs
        self.extended_ms = max(self.extended_ms, now_ms)

    def drop(self, session: Session) -> None:
        """Forget ``session``; its id is never given again."""
        del self.by_id[session.id]
        del self.by_name[session.name]
        if len(self.heap) > 2 * len(self.by_id) + SLACK:  # Paid for by as many drops.
            self.heap = [(self.deadline(s), s.number, s.id) for s in self.by_id.values()]
            heapq.heapify(self.heap)

    def deadline(self, session: Session) -> int:
        """Return the log time at which ``session`` expires."""
        if session.version > self.extended_version:
            return session.deadline_ms
        return max(session.deadline_ms, self.extended_ms + session.ttl_ms)

    def version(self, session: Session) -> int:
        """Return the version of ``session``, which rises with each sign of life."""
        return max(session.version, self.extended_version)

    def first(self) -> Session | None:
        """Return the session that expires first."""
        while self.heap:
            due_ms, number, name = self.heap[0]
            session = self.by_id.get(name)
            if session is None:
                heapq.heappop(self.heap)
            elif (deadline_ms := self.deadline(session)) > due_ms:
                heapq.heapreplace(self.heap, (deadline_ms, number, name))
            else:
                return session
        return None
