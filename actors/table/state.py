"""The state of the table of locks, and the operations that keep its invariants."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from itertools import islice

from msgspec.structs import replace

from fencelock.actors.api.lock_message import Reason, Refused
from fencelock.actors.api.object_request import UpdateReply
from fencelock.actors.api.operator_message import Evicted
from fencelock.actors.api.redis import KeysChanged, KeyState
from fencelock.actors.api.refusal import Cause, Obstacle, Why
from fencelock.actors.api.request import RequestKey
from fencelock.actors.api.session_message import CloseReason, ended
from fencelock.actors.effect import Fault
from fencelock.actors.table.account import Accounts
from fencelock.actors.table.deadline import ROUNDING_MS, DatedHold, Deadlines, begin_leased
from fencelock.actors.table.history import Histories
from fencelock.actors.table.key import KeyHold, begin_key, end_key, key_session
from fencelock.actors.table.map import Maps
from fencelock.actors.table.object_names import ObjectNames
from fencelock.actors.table.poison import skipped_in
from fencelock.actors.table.resource import (
    Awaited,
    ClaimDetails,
    Due,
    Resource,
    TableHold,
    TableObject,
    Timeouts,
    Wait,
)
from fencelock.actors.table.retained import begin_span, end_span, recall_since
from fencelock.actors.table.session import DEPARTED, Departed, OwnerState, Session, Sessions
from fencelock.actors.table.wire import KeyRecord, Result

ENDS_MAX = 100
"""Maximum number of ends at one log time. The others follow at the next, so that ends which fall
due together delay other commands only for a moment: an end takes some 20 us, and a request has to
wait for those of several slots."""

SERVED_MAX = 1_000
"""Maximum number of waits that one command serves, for the same reason: one end may make room for
all that wait for permits, or break many barriers. The others are served at the next log times."""

AUDIT_MAX = 1_000
"""Maximum number of forced releases and closings kept for inspection, and to answer repetitions."""

PURGES_MAX = 100
"""Maximum number of them that are steps of purges."""

INVARIANTS = {
    "one-holder": "a lock has one holder at most",
    "fences-rise": "each grant has a fence above those of all earlier grants, of whatever object, "
    "and above their spans",
    "same-fence-again": "an owner enters again under the same fence, within its limit",
    "queue-in-log-order": "waits are granted in the order of the log; a large one is not overtaken",
    "all-at-once": "a claim for several locks is granted in one step, when it is the next of each",
    "release-by-fence": "a release needs the owner and the fence",
    "ended-gets-nothing": "an ended session is granted nothing; its end ends its waits in one step",
    "one-outcome": "a request takes effect once and has one outcome, however often it is sent",
    "free-leaves-nothing": "a free object leaves no state: a resource is held or awaited",
}
"""The invariants after each command, by name. Judges and tests cite the names.

There is one exception to ``one-outcome``: an acquire whose hold was taken by force is refused when
it is sent again, since its owner would otherwise believe that it still holds.
"""


class TableState:
    """Locks, sessions, queues, and the state by which every command is applied once.

    Invariants: see `INVARIANTS`.

    Attributes:
        time_ms: log time; it never goes back.
        fence: the last fence given.
        tickets: the last ticket given, to a wait or to an item that falls due.
        resources: what is held or awaited by claims, by name.
        held_names: the names of those ``resources`` that are held.
        objects: the objects that nobody can hold, by name.
        unheld_names: the names of all ``objects``.
        maps: all maps.
        key_session: the session of the holds that belong to no client.
        marked: the sum of the marks of all ``objects``, of all entries of ``maps``, and of the
            holds of ``key_session``.
        claims: number of holds and waits of all sessions; a claim for several locks counts as many.
        waits: the number of waits among them.
        retained: the number of holds with a span.
        accounts: the accounts that are charged for what is here, and their quotas.
        holds_checksum: the sum over all holds of the owner's mark, multiplied by the fence.
        waits_checksum: the sum over all waits of the owner's mark, multiplied by the ticket.
        grants_checksum: the sum of what every grant ever added to ``holds_checksum`` in this
            process.
        deadlines: the state that the deadlines of all holds share.
        departed: the sessions that have ended, and of which holds or entries of ``maps`` are left,
            by number.
        budget: how many waits this command may still serve.
        unserved: the waits at the head of their queues that could be served, and that a command
            left to later ones because it had served `SERVED_MAX`; by ticket.
        skipped: the commands in the audit that an operator skipped, by class and key.
        faults: exceptions that cost one command; the owner of the table takes them from here.
        begun: the owner of the command that is being applied, once its request is the last one.
        changing: whether a change is under way: what raises then damages the table (`poison`).
        audit: the last forced releases and closings, by operator and request, the oldest first.
        purges: the keys of the entries about purges: clients purge what is their own, and shall not
            push the entries of operators out.
        histories: the last changes of the objects that can be watched.

    """

    def __init__(self) -> None:
        self.time_ms = 0
        self.fence = 0
        self.tickets = 0
        self.claims = self.waits = self.retained = 0
        self.holds_checksum = self.waits_checksum = self.grants_checksum = 0
        self.accounts = Accounts()
        self.sessions = Sessions(self.accounts)
        self.key_session = key_session()
        self.resources: dict[str, Resource] = {}
        self.held_names = ObjectNames()
        self.objects: dict[str, TableObject] = {}
        self.unheld_names = ObjectNames()
        self.maps = Maps()
        self.marked = 0
        self.timeouts = Timeouts()
        self.deadlines = Deadlines()
        self.departed: dict[int, Departed] = {}
        self.budget = SERVED_MAX
        self.unserved: dict[int, Wait] = {}
        self.audit: OrderedDict[tuple[str, int], Evicted] = OrderedDict()
        self.purges: dict[tuple[str, int], None] = {}
        self.skipped: set[tuple[str, RequestKey]] = set()
        self.faults: list[Fault] = []
        self.begun: OwnerState | None = None
        self.changing = False
        self.histories = Histories()

    def grant(
        self,
        owner_state: OwnerState,
        details: ClaimDetails,
        amount: int,
        capacity: int,
        count: int,
        out: list[Result],
    ) -> None:
        """Grant a claim, which is in no queue any more, its ``amount`` of each of its objects.

        ``capacity`` is that of each object, and ``count`` is the count in the reply.
        """
        assert owner_state.hold is None  # one-holder
        self.fence = fence = self.fence + 1  # fences-rise
        weight = owner_state.mark() * fence
        self.holds_checksum += weight
        self.grants_checksum += weight
        if details.durations is not None:
            hold: TableHold = begin_leased(self, owner_state, details)
        elif details.key is not None:
            hold = begin_key(self, owner_state, details)
        else:
            hold = TableHold(
                owner_state=owner_state,
                details=details,
                fence=fence,
                since_ms=self.time_ms,
                request=owner_state.request,
                amount=amount,
                granted_count=count,
            )
        owner_state.hold = hold
        resources, recent = self.resources, self.held_names.recent
        for name in details.locks or (owner_state.key[1],):
            resource = resources.get(name)
            if resource is None:
                resources[name] = Resource(capacity=capacity, free=capacity - amount, held=hold)
                recent[name] = None
            else:
                if resource.held is None:
                    recent[name] = None
                resource.grant(hold, fence)
            fence += 1
        if details.locks:
            self.fence = fence - 1
        if details.value is not None:
            self._note_leader(hold, details.value.encode())
        if details.span:
            begin_span(self, hold)
        out.append(hold.answer())

    def grant_keys(
        self,
        names: Iterable[str],
        details: ClaimDetails,
        deadline_ms: int | None,
        out: list[Result],
    ) -> list[KeyHold]:
        self.changing = True
        details = replace(details, locks=())
        holds: list[KeyHold] = []
        for name in names:
            owner_state = self.key_session.enter(("", name))
            self.grant(owner_state, details, 1, 1, 1, out)
            hold = owner_state.hold
            assert isinstance(hold, KeyHold)
            hold.move(self, deadline_ms)
            self.claims += 1
            self.key_session.claims += 1
            hold.charged.claims += 1
            holds.append(hold)
        return holds

    def _grant_door(self, wait: Wait, out: list[Result]) -> None:
        key = wait.details.key
        assert key is not None
        details = replace(wait.details, key=key._replace(ttl_ms=None))
        deadline_ms = None if key.ttl_ms is None else self.time_ms + key.ttl_ms + ROUNDING_MS
        holds = self.grant_keys(wait.objects, details, deadline_ms, out)
        keys = tuple(hold.outcome(KeyState.FREE, changed=True) for hold in holds)
        self.reply_to_wait(wait, KeysChanged(**wait.owner_state.fields(), keys=keys), out)

    def _note_leader(self, hold: TableHold, value: bytes | None) -> None:
        """Add the beginning of a term to the history of its election, or its end for None."""
        # A term begins under a new fence, so the first version may be equal to it.
        lock, before = hold.owner_state.lock, self.fence - 1
        self.histories.add(lock, "", value, hold.fence, self.time_ms, before)

    def find_hold(self, lock: str, fence: int) -> TableHold | None:
        resource = self.resources.get(lock)
        return None if resource is None else resource.find(lock, fence)

    def is_held(self, lock: str, fence: int) -> bool:
        resource = self.resources.get(lock)
        return resource is not None and resource.covers(lock, fence)

    def state_of(self, lock: str) -> Obstacle:
        """Return what keeps a claim for an object waiting, if anything does."""
        resource, one = self.resources.get(lock), self.objects.get(lock)
        if resource is not None:
            return resource.obstacle(lock)
        return Obstacle(lock) if one is None else one.obstacle()

    def obstacle(self, lock: str, details: ClaimDetails) -> Obstacle:
        """Return what keeps a claim waiting: of several locks, the first one that is held."""
        if not details.locks:
            return self.state_of(lock)
        blocking = [name for name in details.locks if not self.admits(name, 1)]
        held = [name for name in blocking if self.resources[name].held is not None]
        return self.state_of((held or blocking)[0])

    def admits(self, name: str, amount: int) -> bool:
        resource = self.resources.get(name)
        return resource is None or resource.admits(amount)

    def enqueue(self, wait: Wait, capacity: int) -> None:
        owner_state = wait.owner_state
        objects = wait.details.locks or (owner_state.key[1],)
        for name in objects:
            awaited = self.resources.get(name) or self.objects.get(name)
            if awaited is None:  # It is free, but another of its locks is not.
                awaited = self.resources[name] = Resource(capacity=capacity, free=capacity)
            awaited.enqueue(wait)
        self.waits += len(objects)
        owner_state.session.waits += len(objects)
        owner_state.wait = wait
        self.waits_checksum += owner_state.mark() * wait.ticket
        if wait.due_ms is not None:
            self.timeouts.add(wait)

    def awaited(self, name: str) -> Awaited | None:
        return self.resources.get(name) or self.objects.get(name)

    def note_forced(self, entry: Evicted) -> None:
        self.changing = True
        key = entry.operator, entry.request
        self.forget_forced(key)
        self.audit[key] = entry
        if skipped := skipped_in(entry):
            self.skipped.add(skipped)
        if entry.why is not None and entry.why.cause is Cause.PURGED:
            self.purges[key] = None
        if len(self.purges) > PURGES_MAX:
            self.forget_forced(next(iter(self.purges)))
        if len(self.audit) > AUDIT_MAX:
            self.forget_forced(next(iter(self.audit)))

    def forget_forced(self, key: tuple[str, int]) -> None:
        entry = self.audit.pop(key, None)
        self.purges.pop(key, None)
        if entry is not None and (skipped := skipped_in(entry)):
            self.skipped.discard(skipped)

    def next_ticket(self) -> int:
        self.changing = True
        self.tickets += 1
        return self.tickets

    def put(self, one: TableObject) -> None:
        """Add an object, which must not be in the table."""
        self.changing = True
        assert one.name not in self.objects
        self.objects[one.name] = one
        self.unheld_names.add(one.name)
        self.marked += one.mark()
        one.account.objects += 1  # charges-add-up

    @contextmanager
    def altering(self, one: TableObject | KeyHold) -> Generator[None]:
        """Let the state of an object, or of a hold of no client, change, and its mark with it."""
        self.changing = True
        self.marked -= one.mark()
        yield
        self.marked += one.mark()

    def drop(self, one: TableObject) -> None:
        self.changing = True
        assert not one.queue
        del self.objects[one.name]
        self.unheld_names.remove(one.name)
        self.marked -= one.mark()
        one.account.objects -= 1  # charges-add-up
        self.accounts.leave(one.account)

    def end_wait(self, wait: Wait, reason: Reason, out: list[Result], why: Why) -> None:
        self.reply_to_wait(wait, wait.owner_state.denied(reason, why), out)
        self._note_end(wait, out)

    def reply_to_wait(self, wait: Wait, answer: Refused | UpdateReply, out: list[Result]) -> None:
        """Remove ``wait`` from its queue, and send its owner ``answer``."""
        self.changing = True
        owner_state = wait.owner_state
        self._withdraw(wait)
        owner_state.settle(answer)
        self._uncharge(wait)
        owner_state.session.retire(owner_state.key, self.time_ms)
        out.append(answer)
        self.serve(wait.objects, out)

    def note_payer(self, wait: Wait, key: KeyRecord) -> None:
        wait.charged = self.accounts.of(key.account)
        wait.charged.waits[wait.ticket] = wait

    def _uncharge(self, wait: Wait) -> None:
        session, count = wait.owner_state.session, len(wait.details.locks) or 1
        account = wait.charged or session.account
        session.claims -= count
        account.claims -= count
        self.claims -= count
        if wait.charged is not None:
            del account.waits[wait.ticket]
            self.accounts.leave(account)

    def give_back(self, hold: TableHold, amount: int, out: list[Result]) -> None:
        """Take back ``amount`` of what ``hold`` has, but not all, and grant it to the next."""
        self.changing = True
        assert 0 < amount < hold.amount
        hold.amount -= amount
        self.resources[hold.owner_state.lock].free += amount
        self.serve(hold.objects, out)

    def take(self, hold: TableHold, why: Why, out: list[Result]) -> None:
        """End ``hold`` against its owner's will, and notify the owner."""
        owner_state = hold.owner_state
        self.changing = True
        out.append(owner_state.session.loss(owner_state.key, hold.fence, why))
        if owner_state.outcome is None:  # The reply to a repetition must not be `Granted`.
            owner_state.settle(owner_state.denied(Reason.OWNERSHIP_LOST, why))
        owner_state.session.losses[owner_state.key] = hold.fence
        self.end_hold(hold, out)

    def end_hold(self, hold: TableHold, out: list[Result]) -> None:
        """End ``hold``, but not its owner's session, and grant what it had to the next owners."""
        self.changing = True
        owner_state = hold.owner_state
        owner_state.hold = None
        session, count = owner_state.session, len(hold.details.locks) or 1
        session.claims -= count
        hold.account.claims -= count
        self.claims -= count
        session.retire(owner_state.key, self.time_ms)
        self._pass_on(hold, out)

    def close(
        self,
        session: Session,
        reason: CloseReason,
        request: int,
        out: list[Result],
        operator: str = "",
    ) -> int:
        """End a session and its waits, then its holds and entries; return the number of ends.

        The waits end in this step. Of the holds and the entries of maps, at most `ENDS_MAX` do,
        and the others a little later; see `end_departed`. The client may rely on none of them.
        """
        waits = [one.wait for one in session.owner_states.values() if one.wait is not None]
        waits.sort(key=lambda wait: wait.ticket)
        self.changing = True
        for wait in waits:
            self._withdraw(wait)
            self._uncharge(wait)
            session.retire(wait.owner_state.key, self.time_ms)
            why = Why(Cause.SESSION_ENDED, texts=(session.id,))
            out.append(wait.owner_state.denied(Reason.SESSION_EXPIRED, why))
        self.sessions.drop(session)
        out.append(ended(session.id, reason, request, operator))
        # Smaller claims may have waited behind them.
        self.serve(dict.fromkeys(name for wait in waits for name in wait.objects), out)
        for wait in waits:
            self._note_end(wait, out)
        self.depart(session)
        return len(waits) + self._end_rest(self.departed[session.number], ENDS_MAX, out)

    def depart(self, session: Session) -> None:
        """Note that ``session`` has ended: its holds end next by fence, its entries by ticket."""
        session.deadline_ms = DEPARTED
        holds = (one.hold for one in session.owner_states.values() if one.hold is not None)
        in_order = deque(sorted(holds, key=lambda hold: hold.fence))
        self.departed[session.number] = Departed(session, in_order)

    def end_departed(self, most: int, out: list[Result]) -> int:
        """End up to ``most`` items of sessions that have ended, in their order; return how many."""
        left = most
        while self.departed and left > 0:
            left -= self._end_rest(self.departed[min(self.departed)], left, out)
        return most - left

    def _end_rest(self, departed: Departed, most: int, out: list[Result]) -> int:
        """End up to ``most`` items of a session, and forget it after the last; return how many."""
        (session, holds), left = departed, most
        while holds:
            hold = holds[0]
            if hold.owner_state.hold is hold:  # Otherwise it was taken, or expired, since.
                if left == 0:
                    break
                self.end_hold(hold, out)
                left -= 1
            holds.popleft()
        items = [*islice(session.attached.values(), left)]
        for attached in items:
            attached.end_with_session(self, out)
        if not holds and not session.attached:
            del self.departed[session.number]
            self.sessions.forget(session)
        return most - left + len(items)

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

    def serve(self, objects: Iterable[str], out: list[Result]) -> None:
        """Grant what is free to the heads of the queues, in order; drop free resources.

        Those beyond `SERVED_MAX` are granted a little later; see `serve_rest`.
        """
        resources, before = self.resources, self.fence
        blocked: set[int] = set()  # Grants only take, so these stay blocked in this step.
        for name in objects:
            resource = resources.get(name)
            if resource is None:
                continue  # It is no resource, or was free and is dropped already.
            while resource.queue and (wait := resource.next_wait()) is not None:
                if wait.ticket in blocked:
                    break
                locks = wait.details.locks
                if locks and any(resources[one].next_wait() is not wait for one in locks):
                    blocked.add(wait.ticket)  # It is not the next of all its objects (all-at-once).
                    break
                if not self.may_serve(wait):
                    break
                if wait.details.key is not None:
                    self._grant_door(wait, out)
                    continue
                for one in locks or (name,):
                    resources[one].withdraw(wait)
                owner_state, capacity = self._leave_queue(wait), resource.capacity
                session = owner_state.session
                assert self.sessions.by_id.get(session.id) is session  # ended-gets-nothing
                self.grant(
                    owner_state, wait.details, wait.amount, capacity, wait.granted_count, out
                )
            if resource.spans is not None and resource.queue:
                recall_since(resource, resource.spans, before, out)
            if resource.held is None and not resource.queue:
                del resources[name]  # free-leaves-nothing

    def may_serve(self, wait: Wait) -> bool:
        """Return whether this command may serve ``wait``, and count it; else note it for later."""
        if self.budget <= 0:
            self.unserved[wait.ticket] = wait
            return False
        self.budget -= 1
        return True

    def serve_rest(self, out: list[Result]) -> None:
        """Serve waits that earlier commands left, the oldest first, `SERVED_MAX` at most."""
        self.budget = SERVED_MAX
        for ticket in sorted(self.unserved):
            if self.budget <= 0:
                return
            wait = self.unserved.pop(ticket, None)
            if wait is not None:  # Otherwise it was served with an earlier one.
                self.serve(wait.objects, out)
                if one := self.objects.get(wait.owner_state.lock):
                    one.serve(self, out)

    def _pass_on(self, hold: TableHold, out: list[Result]) -> None:
        """Grant what an ended hold had to the heads of the queues, or drop its resources."""
        owner_state, details, fence = hold.owner_state, hold.details, hold.fence
        self.holds_checksum -= owner_state.mark() * fence
        if type(hold) is not TableHold:  # The quick check: most holds have no deadline.
            assert isinstance(hold, DatedHold)
            hold.end(self)
            if isinstance(hold, KeyHold):
                end_key(self, hold)
        if details.value is not None:
            self._note_leader(hold, None)
        if details.span:
            end_span(self, hold)
        resources, recent, shared = self.resources, self.held_names.recent, False
        objects = details.locks or (owner_state.key[1],)
        for name in objects:
            resource = resources[name]
            if resource.held is hold and not resource.queue:
                del resources[name]  # free-leaves-nothing
                ended = True
            else:
                resource.remove(hold, fence)
                ended, shared = resource.held is None, True
            if ended:
                if name in recent:  # Nearly always: a call would cost every end 1 %.
                    del recent[name]
                else:
                    self.held_names.remove(name)
            fence += 1
        if shared:
            self.serve(objects, out)

    def _leave_queue(self, wait: Wait) -> OwnerState:
        owner_state = wait.owner_state
        owner_state.wait = None
        count = len(wait.details.locks) or 1
        self.waits -= count
        owner_state.session.waits -= count
        if self.unserved:
            self.unserved.pop(wait.ticket, None)
        self.waits_checksum -= owner_state.mark() * wait.ticket
        if wait.due_ms is not None:
            self.timeouts.drop(wait)
        return owner_state

    def _withdraw(self, wait: Wait) -> None:
        for name in wait.objects:
            awaited = self.awaited(name)
            assert awaited is not None
            awaited.withdraw(wait)
        self._leave_queue(wait)
