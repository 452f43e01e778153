"""Counters in the table: their state, and the effect of requests about them."""

from __future__ import annotations

from zlib import crc32

from fencelock.actors.api.counter import (
    COUNTER,
    VALUE_MAX,
    AddToCounter,
    CounterChanged,
    CounterRequest,
    SetCounter,
)
from fencelock.actors.api.name import titled
from fencelock.actors.api.refusal import Obstacle
from fencelock.actors.table.lock_rules import conclude, has_object_room, holds_guard
from fencelock.actors.table.resource import TableObject
from fencelock.actors.table.session import OwnerState
from fencelock.actors.table.state import TableState
from fencelock.actors.table.wire import CounterRecord, Result


class Counter(TableObject, eq=False):
    """A counter whose value is not 0. Nobody waits for it.

    Attributes:
        value: its value, -`VALUE_MAX` to `VALUE_MAX`.

    """

    value: int

    KIND = COUNTER
    RECORD = CounterRecord

    def mark(self) -> int:
        return crc32(f"{self.name}\n{self.account.name}\n{self.value}".encode())

    def progress(self) -> tuple[int, int]:
        return self.value, 0

    def obstacle(self) -> Obstacle:
        return Obstacle(self.name)

    def check_restored(self, table: TableState) -> None:
        if not self.value or abs(self.value) > VALUE_MAX:
            raise ValueError(f"the snapshot has a wrong {titled(self.name)} of value {self.value}")
        if self.queue:
            raise ValueError(f"the snapshot has {self.waiting} waits for {titled(self.name)}")


def add_to_counter(
    table: TableState, owner_state: OwnerState, command: AddToCounter, out: list[Result]
) -> None:
    after = _value_of(table, command.lock) + command.amount
    allowed = abs(after) <= VALUE_MAX
    _change(table, owner_state, command, after if allowed else None, out)


def set_counter(
    table: TableState, owner_state: OwnerState, command: SetCounter, out: list[Result]
) -> None:
    allowed = command.expected in (None, _value_of(table, command.lock))
    _change(table, owner_state, command, command.value if allowed else None, out)


def _value_of(table: TableState, name: str) -> int:
    counter = Counter.find(table, name)
    return 0 if counter is None else counter.value


def _change(
    table: TableState,
    owner_state: OwnerState,
    command: CounterRequest,
    after: int | None,
    out: list[Result],
) -> None:
    """Let ``after`` be the value of a counter, or None for no change, if the guard is held."""
    if not holds_guard(table, owner_state, command, out):
        return
    counter = Counter.find(table, command.lock)
    before = 0 if counter is None else counter.value
    changed = after is not None
    after = before if after is None else after
    if counter is not None and after:
        with table.altering(counter):
            counter.value = after
    elif counter is not None:
        table.drop(counter)
    elif after:
        if not has_object_room(table, owner_state, out):
            return
        table.put(Counter(command.lock, owner_state.session.account, after))
    reply = CounterChanged(**command.fields(), before=before, after=after, changed=changed)
    conclude(table, owner_state, reply, out)
