"""Count-down latches in the table: their state, and the effect of requests about them."""

from __future__ import annotations

from itertools import islice
from zlib import crc32

from fencelock.actors.api.latch import (
    LATCH,
    AwaitLatch,
    CountDown,
    CountedDown,
    LatchPassed,
    LatchRequest,
)
from fencelock.actors.api.name import WAIT_MS_MAX, titled
from fencelock.actors.api.refusal import Obstacle, Why
from fencelock.actors.table.lock_rules import (
    begin_wait,
    conclude,
    deny_obstructed,
    deny_size,
    has_object_room,
    has_room,
)
from fencelock.actors.table.resource import TableObject, Wait
from fencelock.actors.table.session import OwnerState
from fencelock.actors.table.state import ENDS_MAX, TableState
from fencelock.actors.table.wire import DUE_MS_MAX, LatchRecord, Result


class Latch(TableObject, eq=False):
    """A count-down latch.

    Invariants:
        count-falls     The count only falls. A latch at 0 lets its waiters pass, the first ones
            first, at most `ENDS_MAX` at one log time, and nobody else waits for it. A latch that
            was never counted down is in the table only while it has waits.

    Attributes:
        count: the count with which it began.
        left: the present count.
        keep_ms: the time for which it is kept after its count has reached 0 (ms).
        ticket: its ticket among the items that fall due, 0 before the count is 0.
        due_ms: the log time at which it is removed, or None before the count is 0. While it has
            waits, that at which the count became 0, so that it comes before their timeouts.

    """

    count: int
    left: int
    keep_ms: int
    ticket: int = 0
    due_ms: int | None = None

    KIND = LATCH
    RECORD = LatchRecord
    SIZE = "count {}"
    STATE = "its count is {free} of {capacity}"

    def mark(self) -> int:
        about = f"{self.name}\n{self.account.name}\n{self.count}\n{self.left}\n{self.ticket}"
        return crc32(about.encode())

    def progress(self) -> tuple[int, int]:
        return self.left, self.count

    def obstacle(self) -> Obstacle:
        return Obstacle(self.name, free=self.left, capacity=self.count)

    @property
    def due_ticket(self) -> int:
        return 0 if self.due_ms is None else self.ticket

    def check_restored(self, table: TableState) -> None:
        """Watch its deadline, if its fields and its waits fit its count (count-falls)."""
        table.timeouts.add(self)
        passing = self.due_ms is not None and self.due_ms <= table.time_ms
        if (
            not 0 <= self.left <= self.count
            or (self.due_ms is None) != (self.left > 0)
            or (not self.left and self.queue and not passing)
            or (self.left == self.count and not self.queue)
            or not (0 <= self.keep_ms <= WAIT_MS_MAX and 0 <= (self.due_ms or 0) <= DUE_MS_MAX)
        ):
            raise ValueError(
                f"the snapshot has a wrong {titled(self.name)}: its count is {self.left} of "
                f"{self.count}, it has {self.waiting} waits, ends at {self.due_ms} and is kept for "
                f"{self.keep_ms} ms"
            )

    def note_end(self, table: TableState, wait: Wait, out: list[Result]) -> None:
        """Drop the latch if a new one would be in the same state."""
        if self.left == self.count and not self.queue:
            table.drop(self)

    def remove(self, table: TableState, why: Why, out: list[Result]) -> None:
        table.timeouts.drop(self)
        TableObject.remove(self, table, why, out)

    def fall_due(self, table: TableState, out: list[Result]) -> None:
        """Remove the latch, whose count reached 0 ``keep_ms`` ago; first let its waiters pass."""
        table.timeouts.drop(self)
        if not self.queue:
            table.drop(self)
            return
        assert self.due_ms is not None
        opened_ms = self.due_ms
        self.let_pass(table, out)
        self.due_ms = opened_ms if self.queue else max(table.time_ms, opened_ms + self.keep_ms)
        table.timeouts.add(self)

    def let_pass(self, table: TableState, out: list[Result]) -> None:
        for wait in [*islice(self.waits, ENDS_MAX)]:
            table.reply_to_wait(wait, _passed(wait.owner_state), out)


def count_down(
    table: TableState, owner_state: OwnerState, command: CountDown, out: list[Result]
) -> None:
    latch = _latch_of(table, owner_state, command, out)
    if latch is None:
        return
    with table.altering(latch):
        before, latch.left = latch.left, max(0, latch.left - command.amount)
        opens = before and not latch.left
        more = opens and latch.waiting > ENDS_MAX
        if opens and (latch.keep_ms or more):
            latch.ticket = table.next_ticket()
            latch.due_ms = table.time_ms + (0 if more else latch.keep_ms)
            table.timeouts.add(latch)
    conclude(table, owner_state, CountedDown(**command.fields(), left=latch.left), out)
    if opens:
        latch.let_pass(table, out)
        if latch.due_ms is None:
            table.drop(latch)


def await_latch(
    table: TableState, owner_state: OwnerState, command: AwaitLatch, out: list[Result]
) -> None:
    latch = _latch_of(table, owner_state, command, out)
    if latch is None:
        return
    if not latch.left:
        conclude(table, owner_state, _passed(owner_state), out)
    elif command.wait_ms == 0:
        deny_obstructed(table, owner_state, latch.obstacle(), out)
    elif has_room(table, owner_state, out, (command.lock,)):
        begin_wait(table, owner_state, command, out)
    if latch.left == latch.count and not latch.queue:
        table.drop(latch)


def _latch_of(
    table: TableState, owner_state: OwnerState, command: LatchRequest, out: list[Result]
) -> Latch | None:
    """Return the latch of ``command``, which may be a new one; None if the request is denied."""
    latch = Latch.find(table, command.lock)
    if latch is None:
        if not has_object_room(table, owner_state, out):
            return None
        latch = Latch(
            command.lock,
            owner_state.session.account,
            command.count,
            command.count,
            command.keep_ms,
        )
        table.put(latch)
    if latch.count == command.count:
        return latch
    deny_size(table, owner_state, latch.count, command.count, out)
    return None


def _passed(owner_state: OwnerState) -> LatchPassed:
    return LatchPassed(**owner_state.fields())
