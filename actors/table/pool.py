"""Pools in the table: permits that belong to nobody, and the effect of requests about them."""

from __future__ import annotations

from zlib import crc32

from fencelock.actors.api.lock_message import Reason
from fencelock.actors.api.name import titled
from fencelock.actors.api.pool import (
    POOL,
    GivePermits,
    PermitsGiven,
    PermitsTaken,
    ResizePool,
    TakePermits,
)
from fencelock.actors.api.refusal import Cause, Obstacle, Why
from fencelock.actors.api.semaphore import PERMITS_MAX, Resized
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
from fencelock.actors.table.state import TableState
from fencelock.actors.table.wire import PoolRecord, Result


class Pool(TableObject, eq=False):
    """A pool of which some permits are taken or awaited.

    Invariants:
        taken-adds-up   ``taken`` is what was taken less what was given back, whatever sessions have
            ended. No take makes it larger than ``size``; a smaller size may. A wait is served only
            as the head of the queue, when its amount is free.

    Attributes:
        size: the number of its permits.
        taken: the number of permits that are taken.

    """

    size: int
    taken: int = 0

    KIND = POOL
    RECORD = PoolRecord
    SIZE = "{} permits"
    STATE = "{free} of {capacity} permits are free, {waiting} in its queue"

    @property
    def free(self) -> int:
        return max(0, self.size - self.taken)

    def mark(self) -> int:
        return crc32(f"{self.name}\n{self.account.name}\n{self.size}\n{self.taken}".encode())

    def progress(self) -> tuple[int, int]:
        return self.free, self.size

    def obstacle(self) -> Obstacle:
        return Obstacle(self.name, free=self.free, capacity=self.size, waiting=self.waiting)

    def check_restored(self, table: TableState) -> None:
        head = next(iter(self.waits), None)
        if head is not None and head.amount <= self.free:
            table.unserved[head.ticket] = head
        if not (1 <= self.size <= PERMITS_MAX and 0 <= self.taken <= PERMITS_MAX) or (
            head is None and not self.taken
        ):
            raise ValueError(
                f"the snapshot has a wrong {titled(self.name)}: {self.taken} of {self.size} are "
                "taken"
            )

    def note_end(self, table: TableState, wait: Wait, out: list[Result]) -> None:
        self.serve(table, out)

    def change(self, table: TableState, size: int, taken: int) -> None:
        with table.altering(self):
            self.size, self.taken = size, taken

    def serve(self, table: TableState, out: list[Result]) -> None:
        """Let the first waits take what is free; drop the pool if it is in no use any more."""
        while (head := next(iter(self.waits), None)) is not None and head.amount <= self.free:
            if not table.may_serve(head):
                return
            self.change(table, self.size, self.taken + head.amount)
            owner_state = head.owner_state
            taken = PermitsTaken(**owner_state.fields(), amount=head.amount)
            table.reply_to_wait(head, taken, out)
        if head is None and not self.taken:
            table.drop(self)


def take_permits(
    table: TableState, owner_state: OwnerState, command: TakePermits, out: list[Result]
) -> None:
    pool = Pool.find(table, command.lock)
    if pool is not None and pool.size != command.size:
        deny_size(table, owner_state, pool.size, command.size, out)
        return
    free, queued = (command.size, False) if pool is None else (pool.free, pool.waiting > 0)
    amount = command.amount or free
    if not queued and 0 < amount <= free:
        if pool is None:
            if not has_object_room(table, owner_state, out):
                return
            pool = Pool(command.lock, owner_state.session.account, command.size)
            table.put(pool)
        pool.change(table, pool.size, pool.taken + amount)
        taken = PermitsTaken(**command.fields(), amount=amount)
        conclude(table, owner_state, taken, out)
        return
    assert pool is not None
    if command.wait_ms == 0:
        deny_obstructed(table, owner_state, pool.obstacle(), out)
    elif has_room(table, owner_state, out, (command.lock,)):
        begin_wait(table, owner_state, command, out, amount=amount)


def give_permits(
    table: TableState, owner_state: OwnerState, command: GivePermits, out: list[Result]
) -> None:
    pool = Pool.find(table, command.lock)
    taken = 0 if pool is None else pool.taken
    changed = command.amount <= taken
    left = taken - command.amount if changed else taken
    if pool is not None:
        pool.change(table, pool.size, left)
    given = PermitsGiven(**command.fields(), taken=left, changed=changed)
    conclude(table, owner_state, given, out)
    if pool is not None:
        pool.serve(table, out)


def resize_pool(
    table: TableState, owner_state: OwnerState, command: ResizePool, out: list[Result]
) -> None:
    pool, size = Pool.find(table, command.lock), command.size
    if pool is not None and pool.size not in {command.permits, size}:
        deny_size(table, owner_state, pool.size, command.permits, out)
        return
    served, free = list[Result](), size
    if pool is not None:
        why = Why(Cause.OTHER_SIZE, (size, pool.size))
        pool.change(table, size, pool.taken)
        for wait in [*pool.waits]:
            if wait.amount > size:
                table.reply_to_wait(wait, wait.owner_state.denied(Reason.INVALID, why), served)
        pool.serve(table, served)
        free = size - pool.taken
    conclude(table, owner_state, Resized(**command.fields(), size=size, free=free), out)
    out += served
