"""The state of the table of locks, and the operations that keep its invariants."""

from __future__ import annotations

from collections import OrderedDict

from fencelock.actors.api.message import Reason
from fencelock.actors.api.name import kind_of
from fencelock.actors.api.semaphore import SEMAPHORE
from fencelock.actors.api.session_message import CloseReason, Evicted, ended, why_expired
from fencelock.actors.message import maker
from fencelock.actors.table.holding import Hold, Pool, Timeouts, Wait
from fencelock.actors.table.message import Result
from fencelock.actors.table.session import OwnerState, Session, Sessions

FENCE_MAX = (1 << 63) - 1
"""A fence is a signed 64-bit number everywhere; at a million grants a second: 290,000 years."""


_hold = maker(Hold)


class TableState:
    """Locks, sessions, queues, and the state by which every command is applied once.

    Invariants:
        L1  A lock has one holder at most.
        L2  Fences strictly increase, over all locks.
        L3  Waits are granted in the order of the log.
        L4  A closed session is granted nothing; closing ends its waits in one step.
        L5  A request has one outcome, however often it is sent (except `operation.evict`).
        L7  A free lock leaves no state: a lock in the table is held.

    Attributes:
        time_ms: log time; it never goes back.
        fence: the last fence given.
        tickets: the last place in a queue given.
        locks: the hold of each lock that is held, by name.
        pools: the permits of each other object that is held, by name.
        claims: number of holds and waits of all sessions.
        held: a checksum of all holds with their fences, see `fingerprint`.
        queued: a checksum of all waits with their tickets.
        granted: the sum of what every grant ever added to ``held`` in this process.
        audit: the last forced releases and closings, by operator and request, the oldest first.

    """

    def __init__(self) -> None:
        self.time_ms = 0
        self.fence = 0
        self.tickets = 0
        self.claims = 0
        self.held = self.queued = self.granted = 0
        self.sessions = Sessions()
        self.locks: dict[str, Hold] = {}
        self.pools: dict[str, Pool] = {}
        self.timeouts = Timeouts()
        self.audit: OrderedDict[tuple[str, int], Evicted] = OrderedDict()

    def grant(self, owner_state: OwnerState, label: str, out: list[Result]) -> Hold:
        """Grant the lock, which is free, to ``owner_state``, which is in no queue any more."""
        hold = self.locks[owner_state.lock] = self._begin_hold(owner_state, label)
        out.append(hold.answer())
        return hold

    def grant_permits(
        self, pool: Pool, owner_state: OwnerState, label: str, amount: int, out: list[Result]
    ) -> None:
        """Grant ``amount`` permits, which are free, as `grant` does for a lock."""
        hold = self._begin_hold(owner_state, label)
        hold.amount = amount
        if kind_of(owner_state.lock) == SEMAPHORE:
            hold.level = amount  # Its replies count permits.
        pool.add(hold)
        out.append(hold.answer())

    def _begin_hold(self, owner_state: OwnerState, label: str) -> Hold:
        assert owner_state.hold is None  # L1
        assert self.fence < FENCE_MAX
        self.fence += 1  # L2
        hold = owner_state.hold = _hold(
            owner_state=owner_state,
            label=label,
            fence=self.fence,
            since_ms=self.time_ms,
            request=owner_state.request,
        )
        worth = (owner_state.mark or owner_state.marked()) * self.fence
        self.held += worth
        self.granted += worth
        return hold

    def find_hold(self, lock: str, fence: int) -> Hold | None:
        """Return the hold of an object under ``fence``."""
        pool = self.pools.get(lock)
        if pool is not None:
            return pool.holds.get(fence)
        hold = self.locks.get(lock)
        return hold if hold is not None and hold.fence == fence else None

    def wording(self, lock: str) -> str:
        """Return a text that names the holders of an object."""
        holder = self.pools.get(lock) or self.locks.get(lock)
        return "nobody holds it" if holder is None else holder.wording()

    def enqueue(self, wait: Wait) -> None:
        """Append ``wait`` to its object's queue."""
        owner_state = wait.owner_state
        pool = self.pools.get(owner_state.lock)
        if pool is None:
            self.locks[owner_state.lock].enqueue(wait)
        else:
            pool.queue[wait.ticket] = wait
        owner_state.wait = wait
        self.queued += (owner_state.mark or owner_state.marked()) * wait.ticket
        self.timeouts.add(wait)

    def end_wait(self, wait: Wait, reason: Reason, out: list[Result], text: str) -> None:
        """Remove ``wait`` from its queue, and send its owner the reason."""
        owner_state = wait.owner_state
        self._withdraw(wait)
        answer = owner_state.denied(reason, text)
        owner_state.settle(answer)
        session = owner_state.session
        session.claims -= 1
        self.claims -= 1
        session.rest(owner_state, self.time_ms)  # It may be retired now.
        out.append(answer)
        self.serve(owner_state.lock, out)

    def give_back(self, hold: Hold, amount: int, out: list[Result]) -> None:
        """Take back ``amount`` permits of ``hold``, but not all, and grant them to the next."""
        assert 0 < amount < hold.amount
        lock = hold.owner_state.lock
        hold.amount -= amount
        self.pools[lock].free += amount
        self.serve(lock, out)

    def end_hold(self, hold: Hold, out: list[Result]) -> None:
        """End ``hold``, but not its owner's session, and grant the lock to the next owner."""
        owner_state = hold.owner_state
        owner_state.hold = None
        session = owner_state.session
        session.claims -= 1
        self.claims -= 1
        session.rest(owner_state, self.time_ms)
        self._pass_on(hold, out)

    def close(
        self,
        session: Session,
        reason: CloseReason,
        request: int,
        out: list[Result],
        operator: str = "",
    ) -> None:
        """End a session in one step: its waits, itself, its holds, the next grants (rule 89)."""
        owner_states = session.owner_states.values()
        waits = [one.wait for one in owner_states if one.wait is not None]
        holds = [one.hold for one in owner_states if one.hold is not None]
        waits.sort(key=lambda wait: wait.ticket)
        for wait in waits:
            self._withdraw(wait)
            text = why_expired(session.id)
            out.append(wait.owner_state.refused(Reason.SESSION_EXPIRED, text))
        self.sessions.drop(session)
        self.claims -= session.claims
        out.append(ended(session.id, reason, request, operator))
        for wait in waits:  # Smaller claims may have waited behind them.
            self.serve(wait.owner_state.lock, out)
        for hold in sorted(holds, key=lambda hold: hold.fence):
            hold.owner_state.hold = None
            self._pass_on(hold, out)

    def first_due(self) -> tuple[int, Wait | Session] | None:
        """Return the next item that falls due, and its time; of two at the same time the wait."""
        wait, session = self.timeouts.first(), self.sessions.first()
        expires_ms = None if session is None else self.sessions.deadline(session)
        ends_ms = None if wait is None else wait.due_ms
        if wait is None or ends_ms is None:
            return None if session is None or expires_ms is None else (expires_ms, session)
        if session is None or expires_ms is None or ends_ms <= expires_ms:
            return ends_ms, wait
        return expires_ms, session

    def serve(self, lock: str, out: list[Result]) -> None:
        """Grant free permits to the head of the queue, and so on (L3, L9); drop a free pool (L7).

        A lock needs none of this: its waits end only with its hold.
        """
        pool = self.pools.get(lock)
        if pool is None:
            return
        while (wait := pool.next_wait()) is not None:
            owner_state = self._leave_queue(wait)
            self.grant_permits(pool, owner_state, wait.label, wait.amount, out)
        if not pool.holds:
            del self.pools[lock]

    def _pass_on(self, hold: Hold, out: list[Result]) -> None:
        """Grant the lock of an ended hold to the head of its queue (L3), or drop it (L7)."""
        name, queue = hold.owner_state.lock, hold.queue
        self.held -= hold.owner_state.mark * hold.fence
        if name in self.pools:
            self.pools[name].remove(hold)
            self.serve(name, out)
            return
        assert self.locks[name] is hold  # L1
        if not queue:
            del self.locks[name]
            return
        wait = queue.popitem(last=False)[1]
        self.grant(self._leave_queue(wait), wait.label, out).queue = queue

    def _leave_queue(self, wait: Wait) -> OwnerState:
        """Note that ``wait``, which was removed from its queue, is granted; return its owner."""
        owner_state = wait.owner_state
        self.timeouts.drop(wait)
        self.queued -= owner_state.mark * wait.ticket
        assert self.sessions.by_id.get(owner_state.session.id) is owner_state.session  # L4
        owner_state.wait = None
        return owner_state

    def _withdraw(self, wait: Wait) -> None:
        lock = wait.owner_state.lock
        pool = self.pools.get(lock)
        if pool is None:
            self.locks[lock].withdraw(wait)
        else:
            del pool.queue[wait.ticket]
        wait.owner_state.wait = None
        self.queued -= wait.owner_state.mark * wait.ticket
        self.timeouts.drop(wait)
