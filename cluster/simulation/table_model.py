"""The rules of fenced locks as a dumb model: lists, scans, nothing forgotten.

It knows the rules of the replicated table and none of its structure, and was written
apart from it, so that a test can hold one against the other: what both make of the same
log must be the same, word by word. It costs O(n) for everything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.actors.lock.command import (
    AcquireLock,
    CancelWait,
    CloseReason,
    CloseSession,
    Command,
    ExtendSessions,
    ForceRelease,
    KeepSession,
    OpenSession,
    ReleaseLock,
)
from holdfast.actors.lock.outcome import Denial, Outcome

Word = tuple[Any, ...]
"""An outcome: its name, then its fields."""


def word_of(outcome: Outcome) -> Word:
    """Return an outcome as a tuple, without what only words it or numbers versions."""
    untold = ("detail", "version", "label")
    names: tuple[str, ...] = type(outcome).__slots__
    told = [getattr(outcome, name) for name in names if name not in untold]
    return (type(outcome).__name__, *told)


@dataclass(eq=False)
class Claim:
    """A hold if it has a fence, else a wait."""

    session: str
    owner: str
    lock: str
    request: int
    due: float
    fence: int = 0
    levels: list[int] = field(default_factory=list[int])
    place: int = 0


class Model:
    """Sessions, claims, and every request there ever was."""

    def __init__(self) -> None:
        self.now = self.fences = self.opened = 0
        self.sessions: list[dict[str, Any]] = []
        self.claims: list[Claim] = []
        self.done: dict[tuple[str, str], list[list[Any]]] = {}
        self.forced: list[Word] = []
        self.lost: list[Word] = []
        self.out: list[Word] = []
        self.places = 0

    def find(self, **wanted: Any) -> list[Claim]:
        """Return the claims whose fields are as wanted."""
        return [c for c in self.claims if all(getattr(c, k) == v for k, v in wanted.items())]

    def holder(self, lock: str) -> Claim | None:
        """Return the claim that holds ``lock``."""
        return next((c for c in self.claims if c.lock == lock and c.fence), None)

    def note(self, session: str, owner: str, request: int, lock: str, answer: Word) -> None:
        """Tell somebody, and remember it as the outcome of the request."""
        self.out.append(answer)
        for entry in self.done.get((session, owner), []):
            if entry[:2] == [request, lock]:
                entry[3] = answer

    def deny(self, session: str, owner: str, request: int, lock: str, reason: Denial) -> None:
        """Tell somebody no."""
        answer = ("Denied", session, owner, request, lock, reason)
        self.note(session, owner, request, lock, answer)

    def serve(self) -> None:
        """Grant every free lock that is waited for, those freed first going first."""
        for claim in sorted(self.claims, key=lambda c: c.place):
            if not claim.fence and self.holder(claim.lock) is None:
                self.grant(claim)

    def grant(self, claim: Claim) -> None:
        """Make a hold of a wait."""
        self.fences += 1
        claim.fence, claim.levels, claim.due = self.fences, [claim.request], float("inf")
        self._tell_held(claim, claim.request)

    def _tell_held(self, claim: Claim, request: int) -> None:
        s, o, lock = claim.session, claim.owner, claim.lock
        answer = ("Held", s, o, request, lock, claim.fence, len(claim.levels))
        self.note(s, o, request, lock, answer)

    def advance(self, to: int) -> list[Word]:
        """Do all that falls due up to log time ``to``."""
        self.out = []
        while True:
            due: list[tuple[float, int, int, str, Claim | None]]
            due = [(c.due, 0, c.place, c.session, c) for c in self.claims if not c.fence]
            due += [(s["due"], 1, s["number"], s["id"], None) for s in self.sessions]
            if not due or (first := min(due, key=lambda d: d[:3]))[0] > to:
                self.now = max(self.now, to)
                return self.out
            if first[4] is None:
                self.close(first[3], CloseReason.EXPIRED, 0)
            else:
                c = first[4]
                self.claims.remove(c)
                self.deny(c.session, c.owner, c.request, c.lock, Denial.TIMED_OUT)

    def close(self, name: str, reason: CloseReason, request: int) -> None:
        """End a session: its waits, itself, its holds, in this order."""
        for c in [c for c in self.claims if c.session == name and not c.fence]:
            self.deny(name, c.owner, c.request, c.lock, Denial.SESSION_EXPIRED)
        self.sessions = [s for s in self.sessions if s["id"] != name]
        self.out.append(("SessionClosed", name, reason, request))
        self.claims = [c for c in self.claims if c.session != name or c.fence]
        held = sorted(self.find(session=name), key=lambda c: c.fence)
        for c in held:
            self.claims.remove(c)
            self.serve()

    def apply(self, at: int, command: Command) -> list[Word]:
        """Apply one command at log time ``at``."""
        if isinstance(command, ExtendSessions):
            for s in self.sessions:
                s["due"] = max(s["due"], max(at, self.now) + s["ttl"])
        self.advance(at)
        match command:
            case OpenSession() | KeepSession() | CloseSession():
                self._on_session(command)
            case ForceRelease():
                self._on_force(command)
            case AcquireLock() | ReleaseLock() | CancelWait():
                self._on_lock(command)
            case ExtendSessions():
                pass
        return self.out

    def _on_session(self, c: OpenSession | KeepSession | CloseSession) -> None:
        opening = isinstance(c, OpenSession)
        key = "name" if opening else "id"
        known: dict[str, Any] | None
        known = next((s for s in self.sessions if s[key] == c.session), None)
        if isinstance(c, CloseSession):
            if known is None:
                self.out.append(("SessionClosed", c.session, c.reason, 0))
            else:
                self.close(c.session, c.reason, 0)
            return
        if known is None and isinstance(c, OpenSession):
            self.opened += 1
            name = f"{c.session}.{self.opened}"
            known = {
                "id": name,
                "name": c.session,
                "ttl": c.ttl_ms,
                "number": self.opened,
                "due": 0,
            }
            self.sessions.append(known)
        if known is None:
            self.out.append(("Denied", c.session, "", 0, "", Denial.SESSION_EXPIRED))
            return
        known["due"] = max(known["due"], self.now + known["ttl"])
        opened = ("SessionOpened", c.session, known["id"], known["ttl"], 0)
        self.out.append(opened if opening else ("SessionKept", c.session, 0))

    def _on_force(self, c: ForceRelease) -> None:
        hold = self.holder(c.lock)
        before = [f for f in self.forced if f[1:5] == (c.operator, c.request, c.lock, c.fence)]
        if before:
            self.out.append(before[0])
        elif hold is None or hold.fence != c.fence:
            self.out.append(("Denied", "", c.operator, c.request, c.lock, Denial.NOT_HELD))
        else:
            who = (hold.session, hold.owner)
            deed = ("Forced", c.operator, c.request, c.lock, c.fence, *who, self.now)
            self.forced.append(deed)
            self.out += [deed, ("Lost", *who, c.lock, c.fence, c.operator)]
            last = self.done[who][-1]
            if last[3] is not None and last[3][0] == "Held" and last[3][5] == c.fence:
                last[3] = ("Denied", *who, last[0], c.lock, Denial.OWNERSHIP_LOST)
            self.lost = [x for x in self.lost if x[:3] != (*who, c.lock)]
            self.lost.append((*who, c.lock, c.fence))
            self.claims.remove(hold)
            self.serve()

    def _on_lock(self, c: AcquireLock | ReleaseLock | CancelWait) -> None:
        s, o, r, lock = c.session, c.owner, c.request, c.lock
        known = next((one for one in self.sessions if one["id"] == s), None)
        if known is None:
            self.out.append(("Denied", s, o, r, lock, Denial.SESSION_EXPIRED))
            return
        known["due"] = max(known["due"], self.now + known["ttl"])
        mine = next(iter(self.find(session=s, owner=o, lock=lock)), None)
        past = self.done.setdefault((s, o), [])
        if isinstance(c, CancelWait):
            self.out.append(("WaitCancelled", s, o, r, lock))
            self._on_cancel(c, mine, past)
        elif past and r <= past[-1][0]:
            self.out.append(self._again(c, mine, past))
        else:
            if mine is not None and not mine.fence:
                self.claims.remove(mine)
                self.deny(s, o, mine.request, lock, Denial.CANCELLED)
                mine = None
            past.append([r, lock, type(c), None])
            self._do(c, mine)

    def _do(self, c: AcquireLock | ReleaseLock, mine: Claim | None) -> None:
        s, o, r, lock = c.session, c.owner, c.request, c.lock
        loss = next((x for x in self.lost if x[:3] == (s, o, lock)), None)
        if isinstance(c, AcquireLock):
            self.lost = [x for x in self.lost if x is not loss]
            self._on_acquire(c, mine)
        elif mine is not None and mine.fence == c.fence:
            mine.levels.pop()
            self.note(s, o, r, lock, ("Freed", s, o, r, lock, len(mine.levels)))
            if not mine.levels:
                self.claims.remove(mine)
                self.serve()
        elif loss is not None and loss[3] == c.fence:
            self.lost.remove(loss)
            self.deny(s, o, r, lock, Denial.OWNERSHIP_LOST)
        else:
            self.deny(s, o, r, lock, Denial.NOT_HELD)

    def _on_acquire(self, c: AcquireLock, mine: Claim | None) -> None:
        s, o, r, lock = c.session, c.owner, c.request, c.lock
        if mine is not None:
            if c.limit and len(mine.levels) >= c.limit:
                self.deny(s, o, r, lock, Denial.LIMIT_REACHED)
                return
            mine.levels.append(r)
            mine.request = r
            self._tell_held(mine, r)
            return
        self.places += 1
        due = float("inf") if c.wait_ms is None else self.now + c.wait_ms
        claim = Claim(s, o, lock, r, due, place=self.places)
        if self.holder(lock) is None:
            self.claims.append(claim)
            self.serve()
        elif c.wait_ms == 0:
            self.deny(s, o, r, lock, Denial.TIMED_OUT)
        else:
            self.claims.append(claim)
            self.out.append(("Queued", s, o, r, lock))

    def _on_cancel(self, c: CancelWait, mine: Claim | None, past: list[list[Any]]) -> None:
        s, o, r, lock = c.session, c.owner, c.request, c.lock
        waits = mine is not None and not mine.fence
        new = not past or r > past[-1][0]
        if mine is not None and waits and (new or mine.request == r):
            self.claims.remove(mine)
            self.deny(s, o, mine.request, lock, Denial.CANCELLED)
        elif mine is not None and not new and mine.request == r:
            for entry in past:
                if entry[:2] == [r, lock]:
                    entry[3] = ("Denied", s, o, r, lock, Denial.CANCELLED)
            mine.request = 0
            mine.levels.pop()
            if not mine.levels:
                self.claims.remove(mine)
                self.serve()
        if new:
            past.append([r, lock, AcquireLock, ("Denied", s, o, r, lock, Denial.CANCELLED)])

    def _again(
        self, c: AcquireLock | ReleaseLock, mine: Claim | None, past: list[list[Any]]
    ) -> Word:
        who = (c.session, c.owner, c.request, c.lock)
        found = [e for e in past if e[:3] == [c.request, c.lock, type(c)]]
        live = mine is not None and mine.request == c.request and isinstance(c, AcquireLock)
        if found and (c.request == past[-1][0] or live):
            answer: Word = found[0][3] or ("Queued", *who)
            return answer
        return ("Denied", *who, Denial.SUPERSEDED)
