"""The rules of locks and other objects as a simple model: lists and scans.

It shares the rules of the replicated table and none of its structure, and was written apart
from it: of the table it has only the commands, the outcomes and the limits. So the outcomes of the
same log must be identical. Tests compare the two for random logs, and the judge of the simulator
for the log of each run. A step may cost O(n^2) for n claims.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from fencelock.actors.api.account import Purge, SetQuota
from fencelock.actors.api.election import Lead
from fencelock.actors.api.handover import Attach, Detach
from fencelock.actors.api.lock_all import AcquireAll
from fencelock.actors.api.lock_message import (
    Acquire,
    AcquireRequest,
    Cancel,
    Reason,
    ReleaseRequest,
    Renew,
)
from fencelock.actors.api.map import MAP, EntryRequest
from fencelock.actors.api.name import object_name, without_secret
from fencelock.actors.api.object_request import UpdateRequest
from fencelock.actors.api.operator_message import CloseSession, Evict, Evicted
from fencelock.actors.api.retained import AcquireRetained
from fencelock.actors.api.rwlock import RWLOCK_PERMITS, AcquireReadWrite, Downgrade
from fencelock.actors.api.semaphore import AcquirePermits, ReleasePermits, ResizeSemaphore
from fencelock.actors.api.session_message import CloseReason, End, KeepAlive, Open
from fencelock.actors.message import Message
from fencelock.actors.table import retained
from fencelock.actors.table.state import ENDS_MAX
from fencelock.actors.table.wire import ExtendSessions, LogCommand
from fencelock.verification.model import maps
from fencelock.verification.model.keys import ModelKeys
from fencelock.verification.model.objects import (
    ModelChange,
    ModelHistory,
    ModelObjects,
    ModelQuotas,
)

Summary = tuple[Any, ...]
"""An outcome: its name, then its fields."""


HOLD_MS_MIN, WEEK_MS = 100, 7 * 24 * 3_600_000

UNTOLD = ("detail", "why", "label", "node", "leader", "view", "members", "generation", "excuse")
"""Fields that the model does not have: texts, and those for proxies and other protocols."""


OWNER = ("session", "owner", "request")

FIELDS = {
    "Alive": "session request",
    "Ended": "session request reason operator",
    "EntryChanged": "lock session owner request version changed",
    "Evicted": "lock fence holder session request operator time_ms",
    "Granted": "lock fence session owner request count hold_ms grace_ms",
    "HoldLost": "lock fence session owner decided",
    "Opened": "session assigned ttl_ms request",
    "Purged": "removed more after after_key session request",
    "Queued": "session owner request lock",
    "QuotaSet": "account limits session request",
    "Recall": "lock fence session owner waiting",
    "Released": "lock session owner request count",
    "SessionClosed": "handle claims session request",
}
"""The fields of outcomes in the order of the model. Others: the object, their own, the owner's."""


@cache
def fields_of(kind: type[Message]) -> tuple[str, ...]:
    """Return the names of the fields of outcomes of that type, in the order of the model."""
    known = [name for name in kind.__struct_fields__ if name not in UNTOLD]
    own = [name for name in known if name not in ("lock", *OWNER)]
    order = FIELDS.get(kind.__name__, " ".join(("lock", *own, *OWNER))).split()
    assert sorted(order) == sorted(known)
    return tuple(order)


def summary_of(outcome: Message) -> Summary:
    """Return an outcome as a tuple, without the fields that the model does not have."""
    values: list[Any] = [getattr(outcome, name) for name in fields_of(type(outcome))]
    if isinstance(outcome, Evicted):
        values[2] = outcome.holder.owner, outcome.holder.times
    return (type(outcome).__name__, *values)


def request_of(outcome: Summary) -> tuple[Any, ...]:
    """Return the session, the owner and the number of the request of an outcome, if it has one."""
    names = FIELDS.get(outcome[0], " ".join(OWNER)).split()
    first = len(outcome) - len(names)
    return tuple(outcome[first + names.index(name)] for name in OWNER if set(OWNER) <= set(names))


@dataclass(eq=False)
class ModelClaim:
    """A hold if it has a fence, else a wait."""

    session: str
    owner: str
    lock: str
    request: int
    due: float
    fence: int = 0
    acquisitions: list[int] = field(default_factory=list[int])
    """The request of each hold, or of each permit that it holds."""
    place: int = 0
    amount: int = 1
    permits: int = 1
    locks: tuple[str, ...] = ()
    """The locks of a claim for several."""
    value: bytes | None = None
    """The value of a candidate of an election."""
    hold_ms: int = 0
    """The requested duration, 0 for none."""
    grace_ms: int = 0
    ends: float = float("inf")
    """The log time at which the hold ends."""
    moved: float = 0
    """How much later new leaders have made that; to look again at the old time counts as an end."""
    first: int = 0
    """The number of the acquire that was granted first."""
    renewals: dict[int, int] = field(default_factory=dict[int, int])
    """The duration of each renewal, by number."""
    span: int = 0
    """The number of its fences if its session retains it."""
    door: tuple[bytes, str, bool, int | None] | None = None
    """Of a claim of a Redis door: the value, the key that is charged, whether it is reserved, and
    the duration for which a wait will hold it."""
    command: UpdateRequest | None = None
    """The request of a door that waits."""
    detached_by: str | None = None
    """The owner who detached the lock; then the value is the digest of the secret."""

    @property
    def names(self) -> tuple[str, ...]:
        """The objects that it waits for or holds."""
        return self.locks or (self.lock,)

    @property
    def shown(self) -> str:
        """The owner, for people."""
        if self.detached_by is not None:
            return self.detached_by
        return self.owner if self.door is None else self.door[0].decode()

    @property
    def payer(self) -> str:
        if self.door is not None:
            return self.door[1]
        return maps.key_of(self.session)

    @property
    def counted(self) -> bool:
        """Whether its levels are permits, as those of a semaphore."""
        return 1 < self.permits < RWLOCK_PERMITS

    def set_end(self, ends: float) -> None:
        self.ends, self.moved = ends, 0


@dataclass(eq=False)
class ModelRequest:
    """One owner's request for one lock, and its outcome, None while it waits."""

    number: int
    kind: type
    answer: Summary | None = None
    at: int = 0


Who = tuple[str, str, str]
"""A session, an owner in it, and a lock."""


class Model:
    """Sessions, claims, and every request that is not forgotten."""

    def __init__(self) -> None:
        self.now = self.fences = self.opened = 0
        self.sessions: list[dict[str, Any]] = []
        self.claims: list[ModelClaim] = []
        self.done: dict[Who, list[ModelRequest]] = {}
        self.forced: list[Summary] = []
        self.shut: list[Summary] = []
        self.lost: list[Summary] = []
        self.out: list[Summary] = []
        self.places = self.extended = 0
        self.sizes: dict[tuple[str, int], int] = {}
        """The permits that there were at each grant, by object and fence."""
        self.entries: list[maps.ModelEntry] = []
        self.objects = ModelObjects(self)
        self.keys = ModelKeys(self)
        self.history = ModelHistory()
        self.quotas = ModelQuotas(self)

    def find(self, **wanted: Any) -> list[ModelClaim]:
        return [c for c in self.claims if all(getattr(c, k) == v for k, v in wanted.items())]

    def holder(self, lock: str) -> ModelClaim | None:
        return next((c for c in self.claims if lock in c.names and c.fence), None)

    def note(self, session: str, owner: str, request: int, lock: str, answer: Summary) -> None:
        """Send an answer, and remember it as the outcome of the request."""
        self.out.append(answer)
        for asked in self.done.get((session, owner, lock), []):
            if asked.number == request:
                asked.answer, asked.at = answer, self.now

    def deny(self, session: str, owner: str, request: int, lock: str, reason: Reason) -> None:
        answer = ("Refused", lock, reason, session, owner, request)
        self.note(session, owner, request, lock, answer)

    def held(self, lock: str) -> int:
        """Return the number of permits of ``lock`` that are held; a lock has one."""
        holds = [c for c in self.claims if lock in c.names and c.fence]
        return sum(len(c.acquisitions) if c.counted else c.amount for c in holds)

    def fits(self, claim: ModelClaim) -> bool:
        """Return whether a claim is next in all its queues, and its permits are free."""
        for name in claim.names:
            if name == self.keys.blocked:
                return False
            queue = [c.place for c in self.claims if name in c.names and not c.fence]
            if claim.place > min(queue, default=claim.place):
                return False
            if self.held(name) + claim.amount > claim.permits:
                return False
        return True

    def wait(self, c: UpdateRequest, amount: int = 1) -> None:
        """Let the owner of a request wait, unless it does not wait. It is granted no permits."""
        if c.wait_ms == 0:
            self.deny(c.session, c.owner, c.request, c.lock, Reason.TIMED_OUT)
            return
        if not self.quotas.allows(maps.key_of(c.session), "claims"):
            self.deny(c.session, c.owner, c.request, c.lock, Reason.OVERLOADED)
            return
        claim = self.waiting(c)
        claim.amount, claim.permits = amount, 0
        self.enqueue(claim)

    def end_wait(self, wait: ModelClaim) -> None:
        """Serve the waits behind a wait that ended without a grant."""
        self.serve(wait)
        self.objects.note_end(wait)

    def serve(self, ended: ModelClaim) -> None:
        """Grant what a claim left to the waiters: name by name, in order of their places."""
        for name in ended.names:
            granted: list[ModelClaim] = []
            for claim in sorted(self.claims, key=lambda c: c.place):
                if not claim.fence and name in claim.names and self.fits(claim):
                    self.grant(claim)
                    granted.append(claim)
            self.recall(granted)

    def recall(self, holds: list[ModelClaim]) -> None:
        """Ask the sessions that retain ``holds`` to give them back, where others wait."""
        spans = sorted((hold for hold in holds if hold.span), key=lambda c: c.fence)
        for hold in spans[: retained.RECALLS_MAX]:
            waiting = len([c for c in self.claims if hold.lock in c.names and not c.fence])
            if waiting:
                who = hold.session, hold.owner
                self.out.append(("Recall", hold.lock, hold.fence, *who, waiting))

    def recall_again(self, session: dict[str, Any]) -> None:
        """Ask for some holds of a session again: those after the last one, round and round."""
        waits = {name for c in self.claims for name in c.names if not c.fence}
        mine = [c for c in self.claims if c.fence and c.session == session["id"] and c.span]
        awaited = sorted((c for c in mine if c.lock in waits), key=lambda c: c.fence)
        later = [c for c in awaited if c.fence > session["recalled"]]
        for hold in [*later, *(c for c in awaited if c not in later)][: retained.RECALLS_MAX]:
            self.recall([hold])
            session["recalled"] = hold.fence

    def grant(self, claim: ModelClaim) -> None:
        if claim.door is not None:
            self.keys.grant(claim)
            return
        self.sizes[claim.lock, self.fences + 1] = claim.permits
        claim.fence, claim.due, claim.first = self.fences + 1, float("inf"), claim.request
        if claim.hold_ms:
            claim.set_end(self.now + claim.hold_ms + claim.grace_ms + 1)
        self.fences += max(len(claim.names), claim.span)
        claim.acquisitions = [claim.request] * (claim.amount if claim.counted else 1)
        if claim.value is not None:
            self.history.add(
                claim.lock, "", claim.value, claim.fence, self.now, self.fences - len(claim.names)
            )
        self._report_held(claim, claim.request)

    def _report_held(self, claim: ModelClaim, request: int) -> None:
        s, o, lock = claim.session, claim.owner, claim.lock
        count = 1 if claim.span and claim.counted else len(claim.locks) or len(claim.acquisitions)
        terms = (claim.hold_ms, claim.grace_ms)
        if claim.hold_ms and request != claim.first:
            if claim.ends < self.now + 2:
                claim.set_end(self.now + 2)
            left = int(claim.ends) - self.now - 1
            terms = (max(1, left - claim.grace_ms), left - max(1, left - claim.grace_ms))
        answer = ("Granted", lock, claim.fence, s, o, request, count, *terms)
        self.note(s, o, request, lock, answer)

    def advance(self, to: int) -> list[Summary]:
        """Do what falls due up to log time ``to``; see `LockTable.advance`."""
        self.out = []
        left = ENDS_MAX if to > self.now else 0
        self.now = max(self.now, to)
        while left > 0:
            before = len(self.out)
            due: list[tuple[float, int, int, Any]]
            due = [(c.due, 0, c.place, c) for c in self.claims if not c.fence]
            due += [(c.ends - c.moved, 1, c.fence, c) for c in self.claims if c.fence]
            due += [(e.due, 0, e.place, e) for e in self.entries]
            due += self.objects.due()
            due += [(s["due"], 2, s["number"], s) for s in self.sessions]
            if not due or (first := min(due, key=lambda d: d[:3]))[0] > to:
                break
            left -= self._fall_due(first[3])
            left -= 1 + len(self.out) - before
        return self.out

    def _fall_due(self, item: Any) -> int:
        """End what has fallen due; return how many items end with it."""
        if item in self.sessions:
            return self.close(item["id"], CloseReason.EXPIRED, 0)
        if isinstance(item, maps.ModelEntry):
            maps.end(self, [item])
        elif not isinstance(item, ModelClaim):
            self.objects.drop(item)
        elif item.fence and item.moved:
            item.moved = 0
        elif item.fence:
            self.take(item)
        else:
            self.claims.remove(item)
            self.deny(item.session, item.owner, item.request, item.lock, Reason.TIMED_OUT)
            self.end_wait(item)
        return 0

    def close(self, name: str, reason: CloseReason, request: int, by: str = "") -> int:
        """End a session: its waits, itself, its holds, in this order; return how many ended."""
        waits = [c for c in self.claims if c.session == name and not c.fence]
        for c in waits:
            self.deny(name, c.owner, c.request, c.lock, Reason.SESSION_EXPIRED)
        self.sessions = [s for s in self.sessions if s["id"] != name]
        self.out.append(("Ended", name, request, reason, by))
        self.claims = [c for c in self.claims if c.session != name or c.fence]
        for c in waits:  # What can be held is served first.
            self.serve(c)
        for c in waits:
            self.objects.note_end(c)
        held = sorted(self.find(session=name), key=lambda c: c.fence)
        for c in held:
            self.end(c)
            self.serve(c)
        entries = [e for e in self.entries if e.session == name]
        maps.end(self, entries)
        return len(waits) + len(held) + len(entries)

    def apply(self, at: int, command: LogCommand) -> list[Summary]:
        if isinstance(command, ExtendSessions):
            self.fences = max(self.fences, command.fence_floor)
            self.extended = max(self.extended, at, self.now)
            for claim in self.claims:
                claim.ends += max(at, self.now) - self.now
                claim.moved += max(at, self.now) - self.now
            for s in self.sessions:
                s["due"] = max(s["due"], max(at, self.now) + s["ttl"])
        self.advance(at)
        match command:
            case Open() | KeepAlive() | End():
                self._on_session(command)
            case Evict():
                self._on_force(command)
            case CloseSession():
                self._on_close(command)
            case Renew():
                self._on_renew(command)
            case SetQuota():
                self.quotas.set(command)
            case Purge():
                self.quotas.purge(command)
            case AcquireRequest() | ReleaseRequest() | Cancel() | UpdateRequest():
                self._on_lock(command)
            case _:
                assert isinstance(command, ExtendSessions)
        return self.out

    def _on_session(self, c: Open | KeepAlive | End) -> None:
        opening = isinstance(c, Open)
        key = "name" if opening else "id"
        known: dict[str, Any] | None
        known = next((s for s in self.sessions if s[key] == c.session), None)
        if isinstance(c, End):
            if known is None:
                self.out.append(("Ended", c.session, c.request, CloseReason.GRACEFUL, ""))
            else:
                self.close(c.session, CloseReason.GRACEFUL, c.request)
            return
        if known is None and isinstance(c, Open):
            if not self.quotas.allows(maps.key_of(c.session), "sessions"):
                self.out.append(("Refused", "", Reason.OVERLOADED, c.session, "", c.request))
                return
            self.opened += 1
            name = f"{c.session}.{self.opened}"
            known = {
                "id": name,
                "name": c.session,
                "ttl": c.ttl_ms,
                "number": self.opened,
                "due": 0,
                "floor": 0,
                "recalled": 0,
            }
            self.sessions.append(known)
        if known is None:
            no = ("Refused", "", Reason.SESSION_EXPIRED, c.session, "", c.request)
            self.out.append(no)
            return
        self.extend_session(known)
        opened = ("Opened", c.session, known["id"], known["ttl"], c.request)
        self.out.append(opened if opening else ("Alive", c.session, c.request))
        if not opening:
            self.recall_again(known)
            losses = sorted((x for x in self.lost if x[0] == known["id"]), key=lambda x: x[3])
            self.out += [("HoldLost", lock, fence, s, o, True) for s, o, lock, fence in losses]

    def _on_force(self, c: Evict) -> None:
        holds = [h for h in self.claims if h.fence and c.lock in h.names]
        hold = next((h for h in holds if h.fence + h.names.index(c.lock) == c.fence), None)
        deed = (c.lock, c.fence, c.by, c.request)
        before = [f for f in self.forced if (*f[1:3], f[6], f[5]) == deed]
        if before:
            self.out.append((*before[0][:4], c.session, *before[0][5:]))
        elif hold is None:
            no = ("Refused", c.lock, Reason.NOT_HELD, c.session, "", c.request)
            self.out.append(no)
        else:
            holder = (hold.shown, max(len(hold.acquisitions), 0 if hold.counted else hold.amount))
            evicted: Summary = ("Evicted", c.lock, c.fence, holder, c.session, c.request, c.by)
            self.forced.append((*evicted, self.now))
            self.out.append(self.forced[-1])
            self.take(hold)

    def take(self, hold: ModelClaim) -> None:
        """End a hold against its owner's will."""
        who = (hold.session, hold.owner)
        self.out.append(("HoldLost", hold.lock, hold.fence, *who, True))
        if hold.door is not None:
            self.claims.remove(hold)
            self.serve(hold)
            return
        last = self.done[*who, hold.lock][-1]
        if last.answer is not None and last.answer[0] == "Granted":
            last.answer = ("Refused", hold.lock, Reason.OWNERSHIP_LOST, *who, last.number)
        self.lost.append((*who, hold.lock, hold.fence))
        self.drop(hold)
        self.serve(hold)

    def _on_close(self, c: CloseSession) -> None:
        deed = (c.handle, c.by, c.request)
        claims = self.find(session=c.handle)
        before = next((f for f in self.shut if f[:3] == deed), None)
        known = [s for s in self.sessions if s["id"] == c.handle]
        if before is None and not known:
            self.out.append(("Refused", "", Reason.NOT_HELD, c.session, "", c.request))
            return
        count = before[3] if before else sum(len(one.names) for one in claims)
        self.out.append(("SessionClosed", c.handle, count, c.session, c.request))
        if before is None:
            self.shut.append((*deed, count))
            self.close(c.handle, CloseReason.FORCED, 0, c.by)

    def drop(self, hold: ModelClaim) -> None:
        """End a hold: from now on its owner is quiet."""
        self.end(hold)
        self.done[hold.session, hold.owner, hold.lock][-1].at = self.now

    def readable(self) -> dict[tuple[str, str], Any]:
        """Return what a judge of reads compares with, by object and key.

        These are the values of objects (`ModelObjects.readable`), entries and keys. Of a semaphore
        that is held or awaited it is the number of its permits.
        """
        found: dict[tuple[str, str], Any]
        found = {(lock, ""): value for lock, value in self.objects.readable().items()}
        for e in self.entries:
            found[object_name(MAP, e.map), e.key] = e.version, e.value, without_secret(e.session)
        found |= {(c.lock, ""): c.permits for c in self.claims if c.counted}
        for c in self.claims:
            if c.fence and c.door is not None and c.detached_by is None:
                found |= dict.fromkeys([(name, "") for name in c.names], c.door[0])
        return found

    def present(self, lock: str) -> list[ModelChange]:
        """Return the leader of an election, or the entries of a map, as changes."""
        leader = self.holder(lock)
        found = [
            ModelChange(lock, e.key, e.version, e.value, 0, 0)
            for e in sorted(self.entries, key=lambda e: e.key)
            if object_name(MAP, e.map) == lock
        ]
        if leader is not None:
            found.append(ModelChange(lock, "", self.history.version, leader.value, leader.fence, 0))
        return found

    def end(self, hold: ModelClaim) -> None:
        """Remove a hold, and note the end of a term."""
        self.claims.remove(hold)
        if hold.value is not None:
            self.history.add(hold.lock, "", None, hold.fence, self.now, self.fences - 1)

    def extend_session(self, session: dict[str, Any]) -> None:
        """Record a message of a session, and forget owners that were quiet for a TTL."""
        session["due"] = max(session["due"], self.now + session["ttl"])
        busy = {(c.session, c.owner, c.lock) for c in self.claims} | {x[:3] for x in self.lost}
        for who, past in list(self.done.items()):
            ended = max(past[-1].at, self.extended) + session["ttl"]
            if who[0] == session["id"] and ended <= self.now and who not in busy:
                session["floor"] = max(session["floor"], past[-1].number)
                del self.done[who]

    def _on_lock(self, c: AcquireRequest | ReleaseRequest | Cancel | UpdateRequest) -> None:
        s, o, r, lock = c.session, c.owner, c.request, c.lock
        if isinstance(c, Acquire | Attach) and not _are_allowed(c.hold_ms, c.grace_ms):
            self.out.append(("Refused", lock, Reason.INVALID, s, o, r))
            return
        known = next((one for one in self.sessions if one["id"] == s), None)
        if known is None:
            number = -r if isinstance(c, Cancel) else r
            self.out.append(("Refused", lock, Reason.SESSION_EXPIRED, s, o, number))
            return
        self.extend_session(known)
        mine = next(iter(self.find(session=s, owner=o, lock=lock)), None)
        forgotten = r <= known["floor"] and (s, o, lock) not in self.done
        if isinstance(c, Cancel):
            self.out.append(("Cancelled", lock, s, o, r))
        elif forgotten:
            self.out.append(("Refused", lock, Reason.FORGOTTEN, s, o, r))
        if forgotten:
            return
        past = self.done.setdefault((s, o, lock), [])
        if isinstance(c, Cancel):
            self._on_cancel(c, mine, past)
        elif past and r <= past[-1].number:
            self.out.append(self._again(c, mine, past))
        else:
            if mine is not None and not mine.fence:
                self.claims.remove(mine)
                self.deny(s, o, mine.request, lock, Reason.CANCELLED)
                self.end_wait(mine)
                mine = None
            past.append(ModelRequest(r, type(c)))
            self._do(c, mine)

    def _on_renew(self, c: Renew) -> None:
        s, o, r, lock = c.session, c.owner, c.request, c.lock
        if c.hold_ms and not HOLD_MS_MIN <= c.hold_ms <= WEEK_MS:
            self.out.append(("Refused", lock, Reason.INVALID, s, o, r))
            return
        known = next((one for one in self.sessions if one["id"] == s), None)
        if known is None:
            self.out.append(("Refused", lock, Reason.SESSION_EXPIRED, s, o, r))
            return
        self.extend_session(known)
        mine = next(iter(self.find(session=s, owner=o, lock=lock, fence=c.fence)), None)
        if mine is None or not mine.fence:
            self.out.append(("Refused", lock, Reason.NOT_HELD, s, o, r))
            return
        if not mine.hold_ms:
            self.out.append(("Refused", lock, Reason.UNSUPPORTED, s, o, r))
            return
        last = max(mine.renewals, default=0)
        if r < last or (r != last and r < self.done[s, o, lock][-1].number):
            self.out.append(("Refused", lock, Reason.SUPERSEDED, s, o, r))
            return
        if r not in mine.renewals:
            mine.renewals[r] = c.hold_ms or mine.renewals.get(last, mine.hold_ms)
            ends = self.now + mine.renewals[r] + mine.grace_ms + 1
            if ends > mine.ends:
                mine.set_end(ends)
        self.out.append(("Renewed", lock, c.fence, mine.renewals[r], mine.grace_ms, s, o, r))

    def _do(
        self, c: AcquireRequest | ReleaseRequest | UpdateRequest, mine: ModelClaim | None
    ) -> None:
        if isinstance(c, EntryRequest):
            maps.change(self, c)
            return
        if isinstance(c, ResizeSemaphore):
            self._on_resize(c)
            return
        if isinstance(c, UpdateRequest):
            self.objects.update(c)
            return
        s, o, r, lock = c.session, c.owner, c.request, c.lock
        loss = next((x for x in self.lost if x[:3] == (s, o, lock)), None)
        if isinstance(c, AcquireRequest):
            self.lost = [x for x in self.lost if x is not loss]
            self._on_acquire(c, mine)
        elif mine is not None and mine.fence == c.fence:
            if isinstance(c, Downgrade | Detach):
                self._on_turn(c, mine)
                return
            most = len(mine.acquisitions)
            amount = most if mine.counted else 1
            if isinstance(c, ReleasePermits):
                amount = c.amount or most
            if amount > most:
                self.deny(s, o, r, lock, Reason.INVALID)
                return
            del mine.acquisitions[most - amount :]
            self.note(s, o, r, lock, ("Released", lock, s, o, r, len(mine.acquisitions)))
            if not mine.acquisitions:
                self.drop(mine)
            self.serve(mine)
        elif loss is not None and loss[3] == c.fence:
            self.lost.remove(loss)
            self.deny(s, o, r, lock, Reason.OWNERSHIP_LOST)
        else:
            self.deny(s, o, r, lock, Reason.NOT_HELD)

    def _on_resize(self, c: ResizeSemaphore) -> None:
        s, o, r, lock = c.session, c.owner, c.request, c.lock
        claims = self.find(lock=lock)
        if any(claim.permits not in (c.permits, c.size) for claim in claims):
            self.deny(s, o, r, lock, Reason.INVALID)
            return
        for claim in claims:
            claim.permits = c.size
        first = len(self.out)
        for claim in sorted(claims, key=lambda claim: claim.place):
            if not claim.fence and claim.amount > c.size:
                self.claims.remove(claim)
                who = claim.session, claim.owner, claim.request
                self.deny(*who, lock, Reason.INVALID)
                self.serve(claim)
        if claims:
            self.serve(claims[0])
        free = c.size - self.held(lock)
        self.note(s, o, r, lock, ("Resized", lock, c.size, free, s, o, r))
        self.out.insert(first, self.out.pop())

    def _on_turn(self, c: Downgrade | Detach, mine: ModelClaim) -> None:
        s, o, r, lock = c.session, c.owner, c.request, c.lock
        if isinstance(c, Detach):
            self.keys.detach(c, mine)
            return
        if mine.amount == 1:
            self.deny(s, o, r, lock, Reason.INVALID)
            return
        mine.amount = 1
        self.note(s, o, r, lock, ("Released", lock, s, o, r, 1))
        self.serve(mine)

    def _on_acquire(self, c: AcquireRequest, mine: ModelClaim | None) -> None:
        s, o, r, lock = c.session, c.owner, c.request, c.lock
        if mine is not None:
            if isinstance(c, AcquireReadWrite) and c.write and mine.amount == 1:
                self.deny(s, o, r, lock, Reason.ALREADY_HELD)
                return
            if c.limit and len(mine.acquisitions) >= c.limit:
                once = Reason.ALREADY_HELD if c.limit == 1 else Reason.LIMIT_REACHED
                self.deny(s, o, r, lock, once)
                return
            mine.acquisitions.append(r)
            mine.request = r
            self._report_held(mine, r)
            return
        if isinstance(c, Attach):
            self.keys.attach(c)
            return
        amount, permits = 1, 1
        if isinstance(c, AcquireReadWrite):
            amount, permits = (RWLOCK_PERMITS if c.write else 1), RWLOCK_PERMITS
        if isinstance(c, AcquirePermits | AcquireRetained):
            amount, permits = c.amount, c.permits
            if any(other.permits != permits for other in self.find(lock=lock)):
                self.deny(s, o, r, lock, Reason.INVALID)
                return
        if not amount:
            waits = any(not other.fence for other in self.find(lock=lock))
            amount = 0 if waits else permits - self.held(lock)
            if amount < 1:  # Fewer than none are free after a smaller size, for a while.
                self.deny(s, o, r, lock, Reason.TIMED_OUT)
                return
        self._claim(c, amount, permits)

    def _claim(self, c: AcquireRequest, amount: int, permits: int) -> None:
        s, o, r, lock = c.session, c.owner, c.request, c.lock
        claim = self.waiting(c)
        claim.amount, claim.permits = amount, permits
        if isinstance(c, AcquireAll):
            claim.locks = c.locks
        if isinstance(c, Lead):
            claim.value = c.value.encode()
        if isinstance(c, AcquireRetained):
            claim.span = c.span
        if isinstance(c, Acquire):
            claim.hold_ms, claim.grace_ms = c.hold_ms, c.grace_ms or 5_000 * (c.hold_ms > 0)
        free = self.fits(claim)
        if not free and c.wait_ms == 0 and not self.comes_back(claim):
            self.deny(s, o, r, lock, Reason.TIMED_OUT)
        elif not self.quotas.allows(maps.key_of(s), "claims", len(claim.names)):
            self.deny(s, o, r, lock, Reason.OVERLOADED)
        elif free:
            self.claims.append(claim)
            self.grant(claim)
        else:
            self.enqueue(claim)

    def made(self, session: str, owner: str, lock: str, request: int) -> ModelClaim:
        """Return a claim that has no place yet."""
        return ModelClaim(session, owner, lock, request, float("inf"))

    def waiting(self, c: AcquireRequest | UpdateRequest, locks: tuple[str, ...] = ()) -> ModelClaim:
        """Return a claim that may wait, and has the next place."""
        self.places += 1
        claim = self.made(c.session, c.owner, c.lock, c.request)
        claim.place, claim.locks = self.places, locks
        if c.wait_ms is not None:
            claim.due = self.now + (c.wait_ms or retained.COME_BACK_MS)
        return claim

    def enqueue(self, claim: ModelClaim) -> None:
        self.claims.append(claim)
        self.out.append(("Queued", claim.session, claim.owner, claim.request, claim.lock))
        for name in claim.names:
            if len([c for c in self.claims if name in c.names and not c.fence]) == 1:
                self.recall([c for c in self.claims if name in c.names and c.fence])

    def comes_back(self, claim: ModelClaim) -> bool:
        """Return whether each lock that keeps ``claim`` waiting is retained and none waits."""
        for name in claim.names:
            others = [c for c in self.claims if name in c.names]
            taken = self.held(name) + claim.amount > claim.permits
            waits = any(not c.fence for c in others)
            spans = [c.span for c in others if c.fence]
            if (taken or waits) and (waits or not spans or not all(spans)):
                return False
        return True

    def _on_cancel(self, c: Cancel, mine: ModelClaim | None, past: list[ModelRequest]) -> None:
        s, o, r, lock = c.session, c.owner, c.request, c.lock
        waits = mine is not None and not mine.fence
        new = not past or r > past[-1].number
        undone: Summary = ("Refused", lock, Reason.CANCELLED, s, o, r)
        if mine is not None and waits and (new or mine.request == r):
            self.claims.remove(mine)
            self.deny(s, o, mine.request, lock, Reason.CANCELLED)
            self.end_wait(mine)
        elif mine is not None and not new and mine.request == r:
            for asked in past:
                if asked.number == r:
                    asked.answer = undone
            mine.request = 0
            del mine.acquisitions[0 if mine.counted else -1 :]
            if not mine.acquisitions:
                self.drop(mine)
                self.serve(mine)
        if new:
            past.append(ModelRequest(r, Acquire, undone, self.now))

    def _again(
        self,
        c: AcquireRequest | ReleaseRequest | UpdateRequest,
        mine: ModelClaim | None,
        past: list[ModelRequest],
    ) -> Summary:
        who = (c.session, c.owner, c.request, c.lock)
        releases = isinstance(c, ReleaseRequest)
        of_kind = [one for one in past if issubclass(one.kind, ReleaseRequest) == releases]
        found = [asked for asked in of_kind if asked.number == c.request]
        live = mine is not None and mine.request == c.request and isinstance(c, AcquireRequest)
        if found and (found[0] is past[-1] or live):
            return found[0].answer or ("Queued", *who)
        return ("Refused", c.lock, Reason.SUPERSEDED, c.session, c.owner, c.request)


def _are_allowed(hold_ms: int, grace_ms: int) -> bool:
    return all(HOLD_MS_MIN <= ms <= WEEK_MS for ms in (hold_ms, grace_ms) if ms) and (
        hold_ms > 0 or not grace_ms
    )
