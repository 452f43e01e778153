"""Cyclic barriers in the table: their state, and the effect of arrivals."""

from __future__ import annotations

from zlib import crc32

from fencelock.actors.api.barrier import BARRIER, AwaitBarrier, BarrierPassed
from fencelock.actors.api.lock_message import Reason
from fencelock.actors.api.name import titled
from fencelock.actors.api.refusal import Cause, Obstacle, Why
from fencelock.actors.table.lock_rules import (
    begin_wait,
    conclude,
    deny,
    deny_obstructed,
    deny_size,
    has_object_room,
    has_room,
)
from fencelock.actors.table.resource import TableObject, Wait
from fencelock.actors.table.session import OwnerState
from fencelock.actors.table.state import TableState
from fencelock.actors.table.wire import BarrierRecord, Result


class Barrier(TableObject, eq=False):
    """One generation of a barrier, from its first arrival until all parties pass or it is broken.

    Invariants:
        pass-together   All parties of a generation pass in one step, or none of them does. A
            generation in the table has at least one wait, and fewer waits than parties.

    Attributes:
        parties: the number of parties. Each arrival names it, and all arrivals must agree.
        generation: its number. It is taken from the tickets of the table, so that generations rise
            although a barrier without waits leaves no state.
        broken: whether a party has left it. Its waits then end at once, or, if one command breaks
            many barriers, at the next log times; nobody passes in between.

    """

    parties: int
    generation: int
    broken: bool = False

    KIND = BARRIER
    RECORD = BarrierRecord
    SIZE = "{} parties"
    STATE = "{waiting} of {capacity} parties have arrived"
    REMOVED = Reason.BROKEN

    def mark(self) -> int:
        about = f"{self.name}\n{self.account.name}\n{self.parties}\n{self.generation}"
        return crc32(f"{about}\n{self.broken}".encode())

    def progress(self) -> tuple[int, int]:
        return self.parties - self.waiting, self.parties

    def obstacle(self) -> Obstacle:
        return Obstacle(self.name, capacity=self.parties, waiting=self.waiting)

    def check_restored(self, table: TableState) -> None:
        if not (0 < self.waiting < self.parties and 1 <= self.generation <= table.tickets):
            raise ValueError(
                f"the snapshot has a wrong {titled(self.name)}: {self.waiting} of {self.parties} "
                f"parties are in generation {self.generation}"
            )
        if self.broken:
            first = next(iter(self.waits))
            table.unserved[first.ticket] = first

    def note_end(self, table: TableState, wait: Wait, out: list[Result]) -> None:
        with table.altering(self):
            self.broken = True
        self.serve(table, out)

    def serve(self, table: TableState, out: list[Result]) -> None:
        """Refuse all waits of a broken generation; each counts as one that is served."""
        first = next(iter(self.waits), None)
        if self.broken and (first is None or table.may_serve(first)):
            table.budget -= self.waiting
            self.remove(table, Why(Cause.PARTY_LEFT), out)

    def remove(self, table: TableState, why: Why, out: list[Result]) -> None:
        broken = why._replace(numbers=(self.generation, self.parties))
        TableObject.remove(self, table, broken, out)


def await_barrier(
    table: TableState, owner_state: OwnerState, command: AwaitBarrier, out: list[Result]
) -> None:
    barrier = Barrier.find(table, command.lock)
    arrived = 0 if barrier is None else barrier.waiting
    if barrier is not None and barrier.parties != command.parties:
        deny_size(table, owner_state, barrier.parties, command.parties, out)
    elif barrier is not None and barrier.broken:
        why = Why(Cause.PARTY_LEFT, (barrier.generation, barrier.parties))
        deny(table, owner_state, Reason.BROKEN, why, out)
    elif arrived + 1 == command.parties:
        _pass(table, barrier, owner_state, out)
    elif command.wait_ms == 0:
        seen = Obstacle(command.lock, capacity=command.parties, waiting=arrived + 1)
        deny_obstructed(table, owner_state, seen, out)
        if barrier is not None:
            barrier.remove(table, Why(Cause.PARTY_DID_NOT_WAIT), out)
    elif (barrier is not None or has_object_room(table, owner_state, out)) and has_room(
        table, owner_state, out, (command.lock,)
    ):
        if barrier is None:
            account = owner_state.session.account
            table.put(Barrier(command.lock, account, command.parties, table.next_ticket()))
        begin_wait(table, owner_state, command, out)


def _pass(table: TableState, barrier: Barrier | None, last: OwnerState, out: list[Result]) -> None:
    waits = [] if barrier is None else [*barrier.waits]
    generation = table.next_ticket() if barrier is None else barrier.generation
    for index, wait in enumerate(waits):
        table.reply_to_wait(wait, _passed(wait.owner_state, index, generation), out)
    if barrier is not None:
        table.drop(barrier)
    conclude(table, last, _passed(last, len(waits), generation), out)


def _passed(owner_state: OwnerState, index: int, generation: int) -> BarrierPassed:
    return BarrierPassed(**owner_state.fields(), index=index, generation=generation)
