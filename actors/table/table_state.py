"""The state of the table of locks, and the operations that keep its invariants."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

from fencelock.actors.api.message import Reason, Refused
from fencelock.actors.api.name import kind_of, titled
from fencelock.actors.api.object_request import UpdateReply
from fencelock.actors.api.request import Key
from fencelock.actors.api.rwlock import RWLOCK_PERMITS
from fencelock.actors.api.session_message import CloseReason, Evicted, HoldLost, ended, why_expired
from fencelock.actors.effect import Fault
from fencelock.actors.message import maker
from fencelock.actors.table.account import Accounts
from fencelock.actors.table.deadline import Deadlines, LeasedHold, LeasedWait, Terms, begin_leased
from fencelock.actors.table.history import Histories
from fencelock.actors.table.holding import Awaited, Due, Hold, Pool, TableObject, Timeouts, Wait
from fencelock.actors.table.map import Maps, SortedKeys
from fencelock.actors.table.message import Result
from fencelock.actors.table.poison import skipped_in
from fencelock.actors.table.session import DEPARTED, OwnerState, Session, Sessions

ENDS_MAX = 100
"""Maximum number of ends at one log time. The others follow at the next, so that ends which fall
due together delay other commands only for a moment: an end takes some 20 us, and a request has to
wait for those of several slots."""

FENCE_MAX = (1 << 63) - 1
"""A fence is a signed 64-bit number everywhere; at a million grants a second: 290,000 years."""


AUDIT_MAX = 1_000
"""Maximum number of forced releases and closings kept for inspection, and to answer repetitions."""

_hold = maker(Hold)
_pool = maker(Pool)


class TableState:
    """Locks, sessions, queues, and the state by which every command is applied once.

    Invariants:
        L1  A lock has one holder at most.
        L2  Fences strictly increase, over all locks.
        L3  Waits are granted in the order of the log.
        L4  A closed session is granted nothing; closing ends its waits in one step.
        L5  A request has one outcome, however often it is sent (except after `evict`).
        L7  A free lock leaves no state: a lock in the table is held, or claimed with other locks.
        L10 A claim for several locks is granted in one step, when it is at the head of the queue of
            each, and all are free. It holds nothing while it waits.

    Attributes:
        time_ms: log time; it never goes back.
        fence: the last fence given.
        tickets: the last ticket given, to a wait or to an item that falls due.
        locks: the hold of each lock that is held, by name.
        pools: the permits of each semaphore and read/write lock, and of a lock that is claimed with
            others, by name.
        objects: the objects without permits, by name.
        names: the names of all ``objects``.
        maps: all maps.
        marked: the sum of the marks of all ``objects`` and of all entries of ``maps``.
        claims: number of holds and waits of all sessions.
        accounts: the accounts that are charged for what is here, and their quotas.
        held: a checksum of all holds with their fences, see `fingerprint`.
        queued: a checksum of all waits with their tickets.
        granted: the sum of what every grant ever added to ``held`` in this process.
        deadlines: the state that the deadlines of all holds share.
        departed: the sessions that have ended and still have entries in ``maps``, by number.
        skipped: the commands in the audit that an operator skipped, by class and key.
        faults: exceptions that cost one command, until the replica takes them for the log.
        begun: the owner of the command that is being applied, once its request is the last one.
        changing: whether a change is under way: what raises then damages the table (`poison`).
        audit: the last forced releases and closings, by operator and request, the oldest first.
        histories: the last changes of the objects that can be watched.

    """

    def __init__(self) -> None:
        self.time_ms = 0
        self.fence = 0
        self.tickets = 0
        self.claims = 0
        self.held = self.queued = self.granted = 0
        self.accounts = Accounts()
        self.sessions = Sessions(self.accounts)
        self.locks: dict[str, Hold] = {}
        self.pools: dict[str, Pool] = {}
        self.objects: dict[str, TableObject] = {}
        self.names = SortedKeys()
        self.maps = Maps()
        self.marked = 0
        self.timeouts = Timeouts()
        self.deadlines = Deadlines()
        self.departed: dict[int, Session] = {}
        self.audit: OrderedDict[tuple[str, int], Evicted] = OrderedDict()
        self.skipped: set[tuple[str, Key]] = set()
        self.faults: list[Fault] = []
        self.begun: OwnerState | None = None
        self.changing = False
        self.histories = Histories()

    def grant(
        self, owner_state: OwnerState, label: str, out: list[Result], terms: Terms | None = None
    ) -> Hold:
        """Grant the lock, which is free, to ``owner_state``, which is in no queue any more."""
        hold = self.locks[owner_state.lock] = self._begin_hold(owner_state, label, terms)
        out.append(hold.answer())
        return hold

    def grant_permits(
        self,
        owner_state: OwnerState,
        label: str,
        amount: int,
        out: list[Result],
        terms: Terms | None = None,
        permits: int = 1,
    ) -> None:
        """Grant ``amount`` of the ``permits`` of each object of the claim; see `grant`."""
        hold = self._begin_hold(owner_state, label, terms)
        hold.amount = amount
        locks, fence = owner_state.locks, hold.fence
        if locks:
            hold.level = len(locks)  # Its replies count locks, which have a fence each.
            self.fence += hold.level - 1
        elif permits != RWLOCK_PERMITS:
            hold.level = amount  # They count permits.
        for name in locks or (owner_state.lock,):
            pool = self.pools.get(name)
            if pool is None:
                self.pools[name] = _pool(
                    capacity=permits, free=permits - amount, holds={fence: hold}
                )
            else:
                pool.add(hold, fence)
            fence += 1
        if owner_state.value is not None:
            self._note_leader(hold, owner_state.value.encode())
        out.append(hold.answer())

    def _note_leader(self, hold: Hold, value: bytes | None) -> None:
        """Add the beginning of a term to the history of its election, or its end for None."""
        # A term begins under a new fence, so the first version may be equal to it.
        lock, before = hold.owner_state.lock, self.fence - 1
        self.histories.add(lock, "", value, hold.fence, self.time_ms, before)

    def _begin_hold(self, owner_state: OwnerState, label: str, terms: Terms | None) -> Hold:
        assert owner_state.hold is None  # L1
        assert self.fence < FENCE_MAX
        self.fence += 1  # L2
        worth = (owner_state.mark or owner_state.marked()) * self.fence
        self.held += worth
        self.granted += worth
        if terms is not None:
            owner_state.hold = begin_leased(self, owner_state, label, terms)
            return owner_state.hold
        hold = owner_state.hold = _hold(
            owner_state=owner_state,
            label=label,
            fence=self.fence,
            since_ms=self.time_ms,
            request=owner_state.request,
        )
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
        pool = self.pools.get(lock)
        if pool is not None:
            return pool.wording(kind_of(lock))
        if lock in self.objects:
            return self.objects[lock].wording()
        holder = self.locks.get(lock)
        return "nobody holds it" if holder is None else holder.wording()

    def obstacle(self, owner_state: OwnerState) -> str:
        """Return a text that says what keeps a claim waiting."""
        if not owner_state.locks:
            return self.wording(owner_state.lock)
        names = [name for name in owner_state.locks if not self.admits(name, 1)]
        held = [one for one in names if one in self.locks or self.pools[one].holds]
        name = (held or names)[0]
        return f"{titled(name)}: {self.wording(name)}"

    def admits(self, name: str, amount: int) -> bool:
        """Return whether a new claim of ``amount`` permits of an object is granted at once."""
        pool = self.pools.get(name)
        return name not in self.locks if pool is None else pool.admits(amount)

    def pool_of(self, lock: str) -> Pool:
        """Return the pool of an object; what the table has of a lock without one moves into it."""
        pool = self.pools.get(lock)
        if pool is not None:
            return pool
        pool = self.pools[lock] = Pool(1, 1, {})
        hold = self.locks.pop(lock, None)
        if hold is not None:
            hold.amount = 1
            pool.add(hold, hold.fence)
            pool.queue, hold.queue = hold.queue, None
        return pool

    def enqueue(self, wait: Wait) -> None:
        """Append ``wait`` to the queue of its object, or of each of its locks."""
        owner_state = wait.owner_state
        hold = self.locks.get(owner_state.lock)
        if hold is None:
            for name in owner_state.objects:
                self._awaited(name).enqueue(wait)
        else:
            hold.enqueue(wait)
        owner_state.wait = wait
        self.queued += (owner_state.mark or owner_state.marked()) * wait.ticket
        self.timeouts.add(wait)

    def _awaited(self, name: str) -> Awaited:
        """Return an object that is no lock without a pool."""
        return self.objects.get(name) or self.pool_of(name)

    def note_forced(self, entry: Evicted) -> None:
        """Add what an operator did to the audit."""
        self.changing = True
        key = entry.operator, entry.request
        self.audit.pop(key, None)
        self.audit[key] = entry
        if skipped := skipped_in(entry):
            self.skipped.add(skipped)
        if len(self.audit) > AUDIT_MAX:
            oldest = self.audit.popitem(last=False)[1]
            if skipped := skipped_in(oldest):
                self.skipped.discard(skipped)

    def next_ticket(self) -> int:
        """Return a number above all tickets so far."""
        self.changing = True
        self.tickets += 1
        return self.tickets

    def put(self, one: TableObject) -> None:
        """Add an object, which must not be in the table."""
        self.changing = True
        assert one.name not in self.objects
        self.objects[one.name] = one
        self.names.add(one.name)
        self.marked += one.mark()
        one.account.objects += 1  # charges-add-up

    def drop(self, one: TableObject) -> None:
        """Remove an object, which must have no waits."""
        self.changing = True
        assert not one.queue
        del self.objects[one.name]
        self.names.remove(one.name)
        self.marked -= one.mark()
        one.account.objects -= 1  # charges-add-up
        self.accounts.leave(one.account)

    def end_wait(self, wait: Wait, reason: Reason, out: list[Result], text: str) -> None:
        """Remove ``wait`` from its queue, and send its owner the reason."""
        self.answer_wait(wait, wait.owner_state.denied(reason, text), out)
        self._note_end(wait, out)

    def answer_wait(self, wait: Wait, answer: Refused | UpdateReply, out: list[Result]) -> None:
        """Remove ``wait`` from its queue, and send its owner ``answer``."""
        self.changing = True
        owner_state = wait.owner_state
        self._withdraw(wait)
        owner_state.settle(answer)
        session = owner_state.session
        ended = len(owner_state.locks) or 1
        session.claims -= ended
        session.account.claims -= ended
        self.claims -= ended
        owner_state.value = None
        session.rest(owner_state, self.time_ms)  # It may be retired now.
        out.append(answer)
        self.serve(owner_state, out)

    def give_back(self, hold: Hold, amount: int, out: list[Result]) -> None:
        """Take back ``amount`` permits of ``hold``, but not all, and grant them to the next."""
        self.changing = True
        assert 0 < amount < hold.amount
        hold.amount -= amount
        self.pools[hold.owner_state.lock].free += amount
        self.serve(hold.owner_state, out)

    def take(self, hold: Hold, why: str, out: list[Result]) -> None:
        """End ``hold`` against its owner's will, and notify the owner.

        ``why`` is the end of a sentence that begins with "the hold was".
        """
        owner_state = hold.owner_state
        lost = HoldLost(
            lock=owner_state.lock,
            fence=hold.fence,
            session=owner_state.session.id,
            owner=owner_state.owner,
            detail=f"{titled(owner_state.lock)}: the hold under fence {hold.fence} was {why}",
            decided=True,
        )
        self.changing = True
        out.append(lost)
        if owner_state.outcome is None:  # The reply to a repetition must not be `Granted`.
            answer = owner_state.denied(Reason.OWNERSHIP_LOST, f"this owner has lost it; {why}")
            owner_state.settle(answer)
        owner_state.lost = hold.fence
        self.end_hold(hold, out)

    def end_hold(self, hold: Hold, out: list[Result]) -> None:
        """End ``hold``, but not its owner's session, and grant the lock to the next owner."""
        self.changing = True
        owner_state = hold.owner_state
        owner_state.hold = None
        session = owner_state.session
        ended = len(owner_state.locks) or 1
        session.claims -= ended
        session.account.claims -= ended
        self.claims -= ended
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
        """End a session in one step: its waits, itself, its holds, the next grants (rule 89).

        More entries of maps than `ENDS_MAX` end with it a little later; see `end_departed`.
        """
        owner_states = session.owner_states.values()
        waits = [one.wait for one in owner_states if one.wait is not None]
        holds = [one.hold for one in owner_states if one.hold is not None]
        waits.sort(key=lambda wait: wait.ticket)
        self.changing = True
        for wait in waits:
            self._withdraw(wait)
            text = why_expired(session.id)
            out.append(wait.owner_state.refused(Reason.SESSION_EXPIRED, text))
        self.sessions.drop(session)
        self.claims -= session.claims
        out.append(ended(session.id, reason, request, operator))
        for wait in waits:  # Smaller claims may have waited behind them.
            self.serve(wait.owner_state, out)
            self._note_end(wait, out)
        for hold in sorted(holds, key=lambda hold: hold.fence):
            hold.owner_state.hold = None
            self._pass_on(hold, out)
        if len(session.attached) > ENDS_MAX:
            self.depart(session)
            return
        for _, attached in sorted(session.attached.items()):
            attached.end_with_session(self, out)
        session.attached.clear()

    def depart(self, session: Session) -> None:
        """Let the entries of ``session``, which has ended, end in the order of their tickets."""
        session.deadline_ms = DEPARTED
        self.departed[session.number] = session

    def end_departed(self, most: int, out: list[Result]) -> int:
        """End up to ``most`` items of sessions that have ended, in their order; return how many."""
        left = most
        while self.departed and left > 0:
            session = self.departed[min(self.departed)]
            items = [*islice(session.attached.values(), left)]
            for attached in items:
                attached.end_with_session(self, out)  # The last one removes the session.
            left -= len(items)
        return most - left

    def first_due(self) -> tuple[int, Due | Session] | None:
        """Return the next item that falls due, and its time; sessions come last at equal times."""
        item, session = self.timeouts.first(), self.sessions.first()
        expires_ms = None if session is None else self.sessions.deadline(session)
        due_ms = None if item is None else item.due_ms
        if item is None or due_ms is None:
            return None if session is None or expires_ms is None else (expires_ms, session)
        if session is None or expires_ms is None or due_ms <= expires_ms:
            return due_ms, item
        return expires_ms, session

    def _note_end(self, wait: Wait, out: list[Result]) -> None:
        one = self.objects.get(wait.owner_state.lock) if self.objects else None
        if one is not None:
            one.note_end(self, wait, out)

    def serve(self, owner_state: OwnerState, out: list[Result]) -> None:
        """Grant what a claim leaves to the heads of its queues, and so on; drop free pools (L7).

        A lock without a pool needs none of this: its waits end only with its hold.
        """
        blocked: Wait | None = None  # Grants only take permits, so it stays blocked in this step.
        for name in owner_state.locks or (owner_state.lock,):
            pool = self.pools.get(name)
            while pool is not None and pool.queue and (wait := pool.next_wait()) is not None:
                if wait is blocked:
                    break
                pools = [self.pools[one] for one in wait.owner_state.objects]
                if any(one.next_wait() is not wait for one in pools):
                    blocked = wait  # It is not the next wait of all its objects (L10).
                    break
                for one in pools:
                    one.withdraw(wait)
                granted, permits = self._leave_queue(wait), pool.capacity
                terms = wait.terms if isinstance(wait, LeasedWait) else None
                self.grant_permits(granted, wait.label, wait.amount, out, terms, permits)
            if pool is not None and not pool.holds and not pool.queue:
                del self.pools[name]

    def _pass_on(self, hold: Hold, out: list[Result]) -> None:
        """Grant the lock of an ended hold to the head of its queue (L3), or drop it (L7)."""
        owner_state, fence, queue = hold.owner_state, hold.fence, hold.queue
        name = owner_state.lock
        self.held -= owner_state.mark * fence
        if isinstance(hold, LeasedHold):
            hold.end(self)
        if name not in self.locks:
            shared = False
            for one in owner_state.locks or (name,):
                pool = self.pools[one]
                if pool.queue or len(pool.holds) > 1:
                    pool.remove(hold, fence)
                    shared = True
                else:
                    del self.pools[one]  # L7
                fence += 1
            if owner_state.value is not None:
                self._note_leader(hold, None)
                owner_state.value = None
            if shared:
                self.serve(owner_state, out)
            return
        assert self.locks[name] is hold  # L1
        if not queue:
            del self.locks[name]
            return
        wait = queue.popitem(last=False)[1]
        terms = wait.terms if isinstance(wait, LeasedWait) else None
        self.grant(self._leave_queue(wait), wait.label, out, terms).queue = queue

    def _leave_queue(self, wait: Wait) -> OwnerState:
        """Note that ``wait``, which was removed from its queue, is granted; return its owner."""
        owner_state = wait.owner_state
        self.timeouts.drop(wait)
        self.queued -= owner_state.mark * wait.ticket
        assert self.sessions.by_id.get(owner_state.session.id) is owner_state.session  # L4
        owner_state.wait = None
        return owner_state

    def _withdraw(self, wait: Wait) -> None:
        hold = self.locks.get(wait.owner_state.lock)
        if hold is None:
            for name in wait.owner_state.objects:
                self._awaited(name).withdraw(wait)
        else:
            hold.withdraw(wait)
        wait.owner_state.wait = None
        self.queued -= wait.owner_state.mark * wait.ticket
        self.timeouts.drop(wait)
