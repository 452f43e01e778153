"""The replicated table of locks and other objects: a pure function of the log.

Every member applies the same commands with the same log times, and so has the same table and the
same outcomes. The table reads no clock and no random numbers, and iterates in order. The cost of a
command does not depend on the number of names, sessions, holds or waiters (heaps and searches
aside: O(log n)). The end of a session walks over what it has, and ends its waits; a first wait
costs in proportion to the retained holds that it notes (`retained.py`). What a command ends or
grants beyond a bounded number is left to later log times (`ENDS_MAX`, `SERVED_MAX`). The rules are
those of Hazelcast's FencedLock; ``rules.md`` in this folder lists the differences.

**What is in it.** A *session* is one client's liveness: it expires when its TTL of log time has
passed since its last message. A session has *owners*: a thread, a task or a name, each of which is
sequential about one object. A *resource* is an object that owners can hold: a lock (capacity 1), a
semaphore (its permits), a read/write lock (a writer takes the whole capacity, a reader one part),
an election (capacity 1, and a public value). Latches and barriers are objects that nobody can hold;
maps have entries. All of them have queues, timeouts, quotas and records in snapshots from the same
code (`state.py`, `resource.py`, `session.py`); a kind adds its own rules.

**What moves.** The request of an owner about a resource is a *claim*. It asks for an amount of the
resource, or of several locks at once. This is the state of an owner and an object:

    state     the table has        command or time                              next state
    -------   ------------------   ------------------------------------------   ----------
    unknown   nothing              acquire; its amount is free, nobody waits    holds
                                   acquire that may wait                        waits
                                   acquire that may not wait; release; cancel   idle
    idle      the last request     as for unknown, with a higher number
              and its outcome      a TTL passes; 4,096 others are idle          unknown
    waits     a `Wait` in the      head of each queue, and the amount is free   holds
              queue of each of     its timeout; cancel; a later request         idle
              its objects
    holds     a `TableHold` in     acquire again, within its limit              holds
              each of its          release of a part; downgrade; renew          holds
              objects              last release; cancel of its only acquire     idle
                                   evict; the deadline of the hold passes       lost
    lost      the fence that       acquire; release that shows this fence       as idle
              was taken            100 later losses of the session              idle
    any                            the session ends                             (all forgotten)

**Why it is safe.** `INVARIANTS` in `state.py` names what holds after each command. In short:

- *One outcome.* An owner is sequential, so its last request and that request's outcome are enough
  to answer every repetition: the same number gets the same outcome, a lower one has no effect. What
  is forgotten after a TTL is covered by the session's ``floor``: a request up to it, of an owner
  that is unknown, is refused although it may be new.
- *Fences.* One counter for all objects rises with each grant. Whoever sees a higher fence of a lock
  knows that the lower one no longer holds, whatever was restored, evicted or taken in between. A
  claim for several locks takes as many fences, one for each. A hold that its session retains for
  its own owners has a span of them (`retained.py`).
- *Order.* A claim is granted at once only if nobody waits and its amount is free, and a wait only
  as the head of its queue. A large claim at the head keeps smaller ones behind it waiting, so that
  none starves. A claim for several locks stands in the queue of each, holds nothing while it
  waits, and is granted in one step as the head of all: two such claims cannot block each other,
  because tickets order them alike everywhere.
- *Ends.* A hold, a wait or a session ends by a command, or because log time has reached its
  deadline. What falls due is done before the command whose batch has that time. Who is granted
  next is decided in the same step. After `SERVED_MAX` grants the rest waits for the next log times:
  an object may be free and have a queue then, and only that queue gets it.
- *No leader, no time.* Time without a leader does not count for sessions and for the deadlines of
  holds: a new leader first extends them. It counts for the timeouts of waits.
- *A rule checks first and changes after*, so a command that raises before its first change is
  refused alike by all members (`poison.py`).
- *A free object leaves no state*, and no object needs to be created first: the capacity comes with
  each claim, and while a resource exists, a claim with another capacity is refused.

Source: Hazelcast's FencedLock, BlockingResource and session rules; Burrows, *The Chubby lock
service* (sequencers); Gray and Cheriton, *Leases* (time that only one side may overestimate).
"""

from __future__ import annotations

from collections.abc import Iterator

from fencelock.actors.api.lock_message import Contender, Reason, Refused, refused
from fencelock.actors.api.name import client_of
from fencelock.actors.api.operator_message import Evicted
from fencelock.actors.api.refusal import Cause, Why
from fencelock.actors.api.request import Command
from fencelock.actors.api.session_message import CloseReason
from fencelock.actors.effect import Fault
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.table import snapshot
from fencelock.actors.table.lock_rules import deny, record
from fencelock.actors.table.object_names import RECENT_MAX
from fencelock.actors.table.poison import LOCAL_ERRORS, SKIPPER, PoisonError, named
from fencelock.actors.table.rules import RULES
from fencelock.actors.table.session import Session
from fencelock.actors.table.snapshot import FrozenPart
from fencelock.actors.table.state import ENDS_MAX, SERVED_MAX, TableState
from fencelock.actors.table.wire import (
    LOG_TIME_MS_MAX,
    ExtendSessions,
    LogCommand,
    Result,
    TableSnapshot,
)


class LockTable(TableState):
    """The table as the log and its readers use it; see `TableState` for its invariants."""

    def apply(self, batch_time_ms: int, command: LogCommand) -> list[Result]:
        """Apply one command, after everything that falls due by the time of its batch.

        A command that raises is refused if the table is whole.

        Args:
            batch_time_ms: log time (ms); one below the last counts as the last.
            command: the command.

        Returns:
            The outcomes, in order.

        Raises:
            PoisonError: the command, or what fell due before it, raised amid a change.

        """
        if type(command) is ExtendSessions:
            return self._extend(batch_time_ms, command)
        out = self.advance(batch_time_ms) if batch_time_ms > self.time_ms else []
        if self.skipped and (type(command).__name__, command.key) in self.skipped:
            out.append(refused(command, Reason.INTERNAL, why=Why(Cause.SKIPPED)))
            return out
        self.begun, self.changing, self.budget = None, False, SERVED_MAX
        try:
            RULES[type(command)](self, command, out)
        except LOCAL_ERRORS:
            raise
        except Exception as error:
            if self.changing or isinstance(error, AssertionError):
                raise PoisonError(command, error) from error
            if isinstance(error, InvalidRequestError):
                out.append(refused(command, Reason.INVALID, why=Why(Cause.INVALID)))
            else:
                self._refuse(command, error, out)
        return out

    def _refuse(self, command: Command, error: Exception, out: list[Result]) -> None:
        self.faults.append(Fault(f"the command {named(command)}", error))
        why = Why(Cause.BUG, texts=(type(command).__name__,))
        if self.begun is None:
            out.append(refused(command, Reason.INTERNAL, why=why))
            return
        deny(self, self.begun, Reason.INTERNAL, why, out)

    def refuse_skipped(self, command: Command, slot: int, place: int) -> list[Result]:
        """Refuse a command that an operator skips, and note that in the audit."""
        session, owner, lock, _ = command.key
        skipped = Contender(
            node=client_of(session),
            session=session,
            owner=owner,
            fence=None,
            since_ms=0,
            label=type(command).__name__,
        )
        record(self, command, f"{SKIPPER} {slot} (command {place + 1})", lock, 0, skipped)
        return [refused(command, Reason.INTERNAL, why=Why(Cause.SKIPPED))]

    def advance(self, time_ms: int) -> list[Result]:
        """Perform everything that falls due up to log time ``time_ms``, in that order.

        Of items that fall due at the same time, sessions come last, in the order of their numbers.
        The others come in the order of their tickets. So a wait is not granted at the very time at
        which it ends, except if more than `ENDS_MAX` items end then.

        About `ENDS_MAX` items end at one log time. The rest stay due, so `due_ms` makes the leader
        propose further ticks. Until then they are as they were, and every member agrees, since only
        the log decides when something ends. A deadline is
        a time before which nothing ends: no holder relies on a hold, and no client on a session,
        that has reached it by its own clock. So an end that comes late only delays others. If
        the owner renews before it comes, the hold goes on.
        """
        out: list[Result] = []
        if time_ms <= self.time_ms:
            return out  # All that was due by then is done, and no command adds to it.
        self.time_ms = now = min(time_ms, LOG_TIME_MS_MAX)
        if len(self.held_names.recent) > RECENT_MAX:
            self.held_names.settle()  # So that no read has to sort so many.
        items, sessions = self.timeouts.heap, self.sessions.heap
        # An entry of a heap may be earlier than its item's deadline, and never later.
        due = (items and items[0][0] <= now) or (sessions and sessions[0][0] <= now)
        if not due and not self.departed and not self.unserved:
            return out
        try:
            self._end_due(out)
        except LOCAL_ERRORS:
            raise
        except Exception as error:
            raise PoisonError(None, error) from error
        return out

    def _end_due(self, out: list[Result]) -> None:
        self.serve_rest(out)
        first = self.first_due()
        is_due = first is not None and first[0] <= self.time_ms
        # What is due must not wait until thousands of holds of ended sessions have ended.
        left = ENDS_MAX - self.end_departed(ENDS_MAX // 2 if is_due else ENDS_MAX, out)
        while left > 0 and (due := self.first_due()) is not None and due[0] <= self.time_ms:
            ending, before = due[1], len(out)
            if isinstance(ending, Session):
                left -= self.close(ending, CloseReason.EXPIRED, 0, out)
            else:
                ending.fall_due(self, out)
            left -= 1 + len(out) - before

    def due_ms(self, before: int | None = None) -> int | None:
        """Return the next log time at which `advance` has something to do, or None for never.

        With ``before``, also return None for a time that is not earlier. That is quick.
        """
        if self.departed or self.unserved:
            return self.time_ms if before is None or self.time_ms < before else None
        if before is not None:
            items, sessions = self.timeouts.heap, self.sessions.heap
            # An entry of a heap may be earlier than its item's deadline, and never later.
            if not (items and items[0][0] < before) and not (sessions and sessions[0][0] < before):
                return None
        due = self.first_due()
        return None if due is None or (before is not None and due[0] >= before) else due[0]

    def shift(self, time_ms: int) -> None:
        """Let every session live at least one TTL from ``time_ms``.

        The log time until then does not count for the deadlines of holds.
        """
        now_ms = max(self.time_ms, min(time_ms, LOG_TIME_MS_MAX))
        self.sessions.extend(now_ms)
        self.deadlines.skipped_ms += now_ms - self.time_ms

    def forced(self) -> tuple[Evicted, ...]:
        return tuple(self.audit.values())

    def snapshot(self) -> TableSnapshot:
        """Return the whole table as immutable messages below 256 KiB, for `restore`."""
        return snapshot.take(self)

    def freeze(self) -> Iterator[FrozenPart | None]:
        """Return the parts that `snapshot` would return now, one by one; see `FrozenPart`."""
        return snapshot.freeze(self)

    @classmethod
    def restore(cls, parts: TableSnapshot) -> LockTable:
        """Return the table of which `snapshot` returned ``parts``.

        Raises:
            ValueError: a part is missing, comes twice or is of another snapshot, or the
                parts contradict each other.

        """
        table = cls()
        snapshot.fill(table, parts)
        return table

    def digest(self) -> bytes:
        """Return 32 bytes that are equal for equal tables, and only then; it reads everything."""
        return snapshot.digest_of(self)

    def numbers(self) -> tuple[int, ...]:
        """Return numbers that are equal for equal tables, and hardly ever for others.

        They are kept up to date with every change, so this costs the same for every table. They
        contain counters, and checksums of holds, waits and sessions. Differences in the rest of the
        table show in the outcomes of later commands.
        """
        sessions, histories = self.sessions, self.histories
        return (
            self.time_ms,
            self.fence,
            self.tickets,
            self.claims,
            self.holds_checksum + self.deadlines.checksum(),
            self.waits_checksum + self.marked + self.accounts.marks,
            len(self.resources),
            len(self.timeouts.items),
            len(self.audit),
            sessions.opened,
            sessions.marks,
            sessions.extended_ms,
            len(sessions.by_id),
            *((histories.version, histories.held) if histories.version else ()),
        )

    def _extend(self, time_ms: int, command: ExtendSessions) -> list[Result]:
        """Extend the sessions and raise fences, both before `advance`.

        It would end those sessions; and it may end a wait, and so grant permits to those behind it.
        """
        self.shift(time_ms)
        try:
            command.check()
        except InvalidRequestError:
            why = Why(Cause.INVALID)
            refusal = Refused(lock="", reason=Reason.INVALID, detail="", why=why)
            return [*self.advance(time_ms), refusal]
        self.fence = max(self.fence, command.fence_floor)
        return self.advance(time_ms)
