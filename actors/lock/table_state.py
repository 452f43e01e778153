"""What the table of locks is made of, and the moves that keep it whole."""

from __future__ import annotations

from collections import OrderedDict

from holdfast.actors.lock.command import CloseReason
from holdfast.actors.lock.holding import Hold, Lock
from holdfast.actors.lock.outcome import Denial, Denied, Forced, Outcome, SessionClosed
from holdfast.actors.lock.session import Owner, Session, Sessions
from holdfast.actors.lock.waiting import Timeouts, Wait

FENCE_MAX = (1 << 63) - 1
"""A fence is a signed 64-bit number everywhere; at a million grants a second: 290,000 years."""


class TableState:
    """Locks, sessions, queues, and what is remembered to apply every command once.

    Invariants:
        L1  A lock has one holder at most.
        L2  Fences strictly increase, over all locks.
        L3  Waits are granted in the order of the log.
        L4  Nothing is granted to a closed session; closing ends its waits in one step.
        L5  A request has one outcome, however often it is asked (but for `operation.force`).
        L7  A free lock leaves no state: a lock in the table is held.

    Attributes:
        time_ms: log time; it never goes back.
        fence: the last fence given.
        tickets: the last place in a queue given.
        claims: holds and waits of all sessions.
        audit: the last forced releases, by operator and request, the oldest first.

    """

    def __init__(self) -> None:
        self.time_ms = 0
        self.fence = 0
        self.tickets = 0
        self.claims = 0
        self.sessions = Sessions()
        self.locks: dict[str, Lock] = {}
        self.timeouts = Timeouts()
        self.audit: OrderedDict[tuple[str, int], Forced] = OrderedDict()

    def grant(self, wait: Wait, out: list[Outcome]) -> Hold:
        """Let whoever asks with ``wait``, which no queue holds any more, have a new ownership."""
        session = self.sessions.by_id.get(wait.session)
        assert session is not None  # L4
        owner = session.owners[wait.owner]
        assert wait.lock not in owner.holds  # L1
        assert self.fence < FENCE_MAX
        self.fence += 1  # L2
        hold = Hold(
            session=wait.session,
            owner=wait.owner,
            lock=wait.lock,
            label=wait.label,
            fence=self.fence,
            since_ms=self.time_ms,
            request=wait.request,
        )
        owner.holds[wait.lock] = hold
        answer = hold.answer()
        owner.settle(answer)
        out.append(answer)
        return hold

    def enqueue(self, owner: Owner, wait: Wait) -> None:
        """Put ``wait`` at the tail of its lock's queue."""
        self.locks[wait.lock].waits[wait.ticket] = wait
        owner.waits[wait.lock] = wait
        self.timeouts.add(wait)

    def end_wait(self, wait: Wait, reason: Denial, out: list[Outcome], detail: str = "") -> None:
        """Take ``wait`` out of its queue, and tell its owner why."""
        session = self.sessions.by_id[wait.session]
        owner = session.owners[wait.owner]
        self._unlink(wait)
        del owner.waits[wait.lock]
        self._uncount(session)
        answer = _denial_of(wait, reason, detail)
        owner.settle(answer)
        session.sort(owner)
        out.append(answer)

    def end_hold(self, hold: Hold, out: list[Outcome]) -> None:
        """End ``hold`` of an owner whose session goes on, and let the next one hold."""
        session = self.sessions.by_id[hold.session]
        owner = session.owners[hold.owner]
        del owner.holds[hold.lock]
        self._uncount(session)
        session.sort(owner)
        self._pass_on(hold, out)

    def close(
        self, session: Session, reason: CloseReason, request: int, out: list[Outcome]
    ) -> None:
        """End a session in one step: its waits, itself, its holds, the next grants (rule 89)."""
        owners = session.owners.values()
        waits = [wait for owner in owners for wait in owner.waits.values()]
        for wait in sorted(waits, key=lambda wait: wait.ticket):
            self._unlink(wait)
            out.append(_denial_of(wait, Denial.SESSION_EXPIRED))
        self.sessions.drop(session)
        self.claims -= session.claims
        out.append(SessionClosed(session=session.id, reason=reason, request=request))
        holds = [hold for owner in owners for hold in owner.holds.values()]
        for hold in sorted(holds, key=lambda hold: hold.fence):
            self._pass_on(hold, out)

    def first_due(self) -> tuple[int, Wait | Session] | None:
        """Return what falls due next, and when; of two at the same time the wait."""
        wait, session = self.timeouts.first(), self.sessions.first()
        expires_ms = None if session is None else self.sessions.deadline(session)
        ends_ms = None if wait is None else wait.due_ms
        if wait is None or ends_ms is None:
            return None if session is None or expires_ms is None else (expires_ms, session)
        if session is None or expires_ms is None or ends_ms <= expires_ms:
            return ends_ms, wait
        return expires_ms, session

    def _pass_on(self, hold: Hold, out: list[Outcome]) -> None:
        """Grant the lock of an ended hold to the head of its queue (L3), or drop it (L7)."""
        lock = self.locks[hold.lock]
        assert lock.hold is hold  # L1
        if not lock.waits:
            del self.locks[hold.lock]
            return
        _, wait = lock.waits.popitem(last=False)
        self.timeouts.drop(wait)
        del self.sessions.by_id[wait.session].owners[wait.owner].waits[wait.lock]
        lock.hold = self.grant(wait, out)

    def _unlink(self, wait: Wait) -> None:
        del self.locks[wait.lock].waits[wait.ticket]
        self.timeouts.drop(wait)

    def _uncount(self, session: Session) -> None:
        session.claims -= 1
        self.claims -= 1


def _denial_of(wait: Wait, reason: Denial, detail: str = "") -> Denied:
    return Denied(
        session=wait.session,
        owner=wait.owner,
        request=wait.request,
        lock=wait.lock,
        reason=reason,
        detail=detail,
    )
