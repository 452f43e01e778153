"""Sessions in log time, and the state of their owners."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from fencelock.actors.api.lock_message import HoldLost, OwnerFields, Reason, Refused, Released
from fencelock.actors.api.name import account_of, without_secret
from fencelock.actors.api.object_request import UpdateReply
from fencelock.actors.api.refusal import Why
from fencelock.actors.table.account import Account, Accounts
from fencelock.actors.table.resource import SLACK, TableHold, Wait

if TYPE_CHECKING:
    from fencelock.actors.table.map import Entry

DEPARTED = -1
"""In place of the deadline of a session that has ended, while something of it is left."""

SESSION_CLAIMS_MAX = 100_000
"""Holds and waits of one session, so that one client cannot fill the table."""

WAITS_MAX = 20_000
"""Maximum waits of one session, and for one object. All of these may have to end in one step,
which takes 0.05 to 0.15 s."""

IDLE_MAX = 4_096
"""Owner states of a session without a hold or wait whose last outcome is kept.

More than a client has requests in flight. When another owner enters, the oldest beyond it are
forgotten, at most as many at a time.
"""

IDLE_LEAST = 16
"""The same for sessions of an account with `OWNERS_MAX` owner states."""

OWNERS_MAX = 400_000
"""Owner states of all sessions of an account (some 1 KiB each): all holds and waits that a key may
have, and 150,000 that are idle. No quota counts those, and each client may have many sessions."""

LOSSES_MAX = 100
"""Unreported losses of a session's owners; beyond it the oldest is dropped."""


_RELEASED = Released(session="", owner="", request=0, lock="")
"""Copied by each release, like `_GRANTED` in `resource.py`."""

Kept = Released | Refused | UpdateReply

OwnerKey = tuple[str, str]
"""An owner and a lock."""


class OwnerState(Struct, eq=False):
    """One owner's relation to one lock: an owner is sequential, so its last request is enough.

    The owner's requests about other locks are independent. An owner holds, or waits, or
    neither; never both.

    Attributes:
        key: owner and lock.
        request: its last request, 0 before the first.
        releasing: whether that was a release.
        outcome: its outcome; None while it waits, or while `TableHold.answer` returns it.

    """

    session: Session
    key: OwnerKey
    request: int = 0
    releasing: bool = False
    outcome: Kept | None = None
    hold: TableHold | None = None
    wait: Wait | None = None

    @property
    def owner(self) -> str:
        return self.key[0]

    @property
    def lock(self) -> str:
        return self.key[1]

    def mark(self) -> int:
        """Return a checksum of session, owner and lock, which is not 0.

        It is computed for each grant and each end: to keep it would cost 40 bytes an owner.
        """
        return 1 + crc32("\n".join(self.key).encode(), self.session.number)

    def fields(self) -> OwnerFields:
        """Return the fields that the reply to the last request shares with it."""
        owner, lock = self.key
        return OwnerFields(lock=lock, session=self.session.id, owner=owner, request=self.request)

    def settle(self, outcome: Kept) -> None:
        """Store the outcome of a request, if it is still the last."""
        if outcome.request == self.request:
            self.outcome = outcome

    def released(self, count: int) -> Released:
        owner, lock = self.key
        return replace(
            _RELEASED,
            session=self.session.id,
            owner=owner,
            request=self.request,
            lock=lock,
            count=count,
        )

    def denied(self, reason: Reason, why: Why) -> Refused:
        return Refused(**self.fields(), reason=reason, detail="", why=why)


@dataclass(slots=True, eq=False)
class Session:
    """One client's liveness, and its owners' holds, waits and last requests.

    An owner state without a hold or wait is kept for one TTL: a request whose reply was lost is
    repeated far more often, or the session ends. After that it is unknown which of its requests
    were done. It is certain that it neither holds nor waits. So a request up to ``floor`` of an
    unknown owner is answered so (`Reason.FORGOTTEN`), although the log may never have seen it.

    Attributes:
        number: its place among all sessions that ever existed.
        id: its name with the number: unique forever, at no cost in memory.
        name: the client's name for it.
        deadline_ms: log time at which it expires, unless a new leader extends it.
        account: the account that is charged for it, and for its holds and waits.
        floor: the highest request of a forgotten owner state.
        claims: number of its holds and waits.
        waits: number of its waits.
        kept_ms: log time of the last keep-alive. Another one within the same millisecond
            changes nothing.
        idle: the owners without a hold, a wait or an unreported loss, the oldest first, with the
            log time since which they are idle.
        losses: the unreported losses of owners: the fences of holds that were taken from them, the
            oldest first. The owner states of these are not forgotten.
        attached: the entries of maps that end with the session, by ticket.
        retained: the number of its holds that have a span of fences.
        awaited: its holds with a span for which others wait, by fence. Some may be here for which
            nobody waits any more.
        recalled: the fence of the last of them that was recalled with a keep-alive.

    """

    number: int
    id: str
    name: str
    label: str
    ttl_ms: int
    deadline_ms: int
    account: Account
    floor: int = 0
    claims: int = 0
    waits: int = 0
    owner_states: dict[OwnerKey, OwnerState] = field(default_factory=dict[OwnerKey, OwnerState])
    kept_ms: int = -1
    idle: OrderedDict[OwnerKey, int] = field(default_factory=OrderedDict[OwnerKey, int])
    losses: dict[OwnerKey, int] = field(default_factory=dict[OwnerKey, int])
    attached: dict[int, Entry] = field(default_factory=dict[int, "Entry"])
    retained: int = 0
    awaited: list[TableHold] | None = None
    recalled: int = 0

    def mark(self) -> int:
        return crc32(f"{self.id}\n{self.label}\n{self.ttl_ms}".encode()) * self.number

    def enter(self, key: OwnerKey) -> OwnerState:
        assert key not in self.owner_states
        self.account.owners += 1
        owner_state = self.owner_states[key] = OwnerState(session=self, key=key)
        return owner_state

    def make_room(self) -> None:
        """Forget the oldest idle owner states if there are too many, before another one enters.

        At no other time: a command may end thousands of waits, its own owner's first of all, and
        goes on with that owner state.
        """
        most = IDLE_MAX if self.account.owners < OWNERS_MAX else IDLE_LEAST
        for _ in range(min(len(self.idle) - most + 1, IDLE_MAX)):
            self._forget_first()

    def loss(self, key: OwnerKey, fence: int, why: Why) -> HoldLost:
        """Return the notice that a hold was taken from its owner."""
        owner, lock = key
        return HoldLost(
            lock=lock,
            fence=fence,
            session=self.id,
            owner=owner,
            detail="",
            decided=True,
            why=why,
        )

    def retire(self, key: OwnerKey, now_ms: int) -> None:
        """Note that the owner of ``key`` neither holds nor waits any more."""
        losses = self.losses
        if key not in losses:
            self.idle[key] = now_ms
            return
        losses[key] = losses.pop(key)  # It becomes the newest.
        if len(losses) > LOSSES_MAX:
            oldest = next(iter(losses))
            del losses[oldest]
            self.retire(oldest, now_ms)

    def forget(self, now_ms: int) -> None:
        """Forget the owner states that have been idle for a TTL, at most `IDLE_MAX`."""
        until_ms = now_ms - self.ttl_ms
        due = takewhile(lambda at_ms: at_ms <= until_ms, islice(self.idle.values(), IDLE_MAX))
        for _ in [*due]:
            self._forget_first()

    def _forget_first(self) -> None:
        key = self.idle.popitem(last=False)[0]
        self.account.owners -= 1
        self.floor = max(self.floor, self.owner_states.pop(key).request)


class Departed(NamedTuple):
    """A session that has ended, and its holds that still end with it, in the order of fences."""

    session: Session
    holds: deque[TableHold]


class Sessions:
    """All live sessions, ordered by their expiry; ties by number.

    A keep-alive does not touch the heap: the entry is moved when it reaches the top. Nor does a
    new leader's extension touch any session: it is one number for all.

    Attributes:
        by_number: the sessions by the number that ends their handles, as a text.
        opened: number of sessions there ever were; the last number given.
        marks: the sum of the marks of all live sessions.
        extended_ms: log time of the last extension.

    """

    def __init__(self, accounts: Accounts) -> None:
        self.accounts = accounts
        self.by_id: dict[str, Session] = {}
        self.by_name: dict[str, Session] = {}
        self.by_number: dict[str, Session] = {}
        self.heap: list[tuple[int, int, str]] = []
        self.opened = 0
        self.marks = 0
        self.extended_ms = 0

    def open(self, name: str, label: str, ttl_ms: int, now_ms: int) -> Session:
        """Open a session for ``name``, which must have none."""
        assert name not in self.by_name
        self.opened += 1
        session = Session(
            number=self.opened,
            id=f"{name}.{self.opened}",
            name=name,
            label=label,
            ttl_ms=ttl_ms,
            deadline_ms=now_ms + ttl_ms,
            account=self.accounts.of(account_of(name)),
        )
        self.add(session)
        return session

    def add(self, session: Session) -> None:
        self.by_id[session.id] = session
        self.by_name[session.name] = session
        self.by_number[str(session.number)] = session
        self.marks += session.mark()
        session.account.sessions += 1  # charges-add-up
        heapq.heappush(self.heap, (session.deadline_ms, session.number, session.id))

    def find(self, handle: str) -> Session | None:
        """Return the session with that ``handle``, the form of its id that is shown to others."""
        session = self.by_number.get(handle.rpartition(".")[2])
        return session if session is not None and without_secret(session.id) == handle else None

    def extend(self, now_ms: int) -> None:
        self.extended_ms = max(self.extended_ms, now_ms)

    def drop(self, session: Session) -> None:
        """Remove ``session``, so that no request finds it; its id is never given again."""
        del self.by_id[session.id]
        del self.by_name[session.name]
        del self.by_number[str(session.number)]
        self.marks -= session.mark()
        if len(self.heap) > 2 * len(self.by_id) + SLACK:  # Amortized over as many drops.
            self.heap = [(self.deadline(s), s.number, s.id) for s in self.by_id.values()]
            heapq.heapify(self.heap)

    def forget(self, session: Session) -> None:
        """Forget ``session``, which was dropped and has nothing any more."""
        assert session.claims == 0  # charges-add-up
        session.account.sessions -= 1
        session.account.owners -= len(session.owner_states)
        self.accounts.leave(session.account)
        session.owner_states.clear()  # They point back, and must not wait for the collector.
        session.idle.clear()
        session.losses.clear()

    def deadline(self, session: Session) -> int:
        return max(session.deadline_ms, self.extended_ms + session.ttl_ms)

    def first(self) -> Session | None:
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
