"""A workload of read/write locks in place of locks, and its judge."""

from __future__ import annotations

from typing import Any

from fencelock.actors.api.message import Granted, Reason, Refused
from fencelock.actors.api.name import plain_name
from fencelock.actors.api.object_request import PermitRequest
from fencelock.actors.api.rwlock import RWLOCK, RWLOCK_PERMITS, AcquireReadWrite, Downgrade
from fencelock.actors.effect import Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant
from fencelock.actors.role import Host
from fencelock.verification.simulation.run import Workload
from fencelock.verification.simulation.semaphores import PermitJudge
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError
from fencelock.verification.simulation.workload import (
    HOLD_MS_MAX,
    ContenderEvent,
    ContenderPhase,
    LockUser,
    UseEnded,
)

WRITE_SHARE = 0.4
"""Share of acquires that are to write."""

DOWNGRADE_SHARE = 0.5
"""Share of holds to write that are downgraded before they are released."""


class ReadWriteUser(LockUser):
    """Wants to read or to write, acquires it again while it holds it, and downgrades."""

    MAY_LEAVE_UNAWAITED = False
    KIND = RWLOCK

    def __init__(self, address: Address, host: Host, **options: Any) -> None:
        super().__init__(address, host, **options)
        self.writes = False
        """Whether it holds the lock to write."""
        self.asks_to_write = False

    def handle(self, sender: Address, event: ContenderEvent, now: Instant) -> Effects:
        """Go on to the next action; a refused upgrade leaves the hold as it was."""
        if isinstance(event, Granted):
            self.writes = self.asks_to_write or (self.acquisitions > 0 and self.writes)
        elif (
            isinstance(event, Refused) and event.reason is Reason.ALREADY_HELD and self.acquisitions
        ):
            self.phase = ContenderPhase.HOLDING
            used = Wake(self.random.randint(0, HOLD_MS_MAX), UseEnded(turn=self.turn))
            return [Observe("contender.upgrade_refused"), used]
        return super().handle(sender, event, now)

    def _ask(self, wait_ms: int | None) -> Send:
        self.asks_to_write = self.random.random() < WRITE_SHARE
        acquire = AcquireReadWrite(
            rwlock=plain_name(self.lock),
            write=self.asks_to_write,
            owner=self.owner,
            wait_ms=wait_ms,
        )
        return Send(self.session, acquire)

    def _release(self) -> Effects:
        may_downgrade = self.writes and self.most > 1  # Only reentrant locks have it.
        if not may_downgrade or self.random.random() >= DOWNGRADE_SHARE:
            return super()._release()
        self.phase, self.writes = ContenderPhase.RELEASING, False
        name = plain_name(self.lock)
        downgrade = Downgrade(rwlock=name, fence=self.fence, owner=self.owner)
        return [Send(self.session, downgrade), Observe("contender.downgrades")]


class ReadWriteJudge(PermitJudge):
    """Judges one run of read/write locks.

    - Capacity, fences, wants and order: see `PermitJudge`. A writer has all permits.
    - Writers: the fence of a writer is above all fences granted before. The fence of a reader is
      above the fences of all earlier writers.
    """

    capacity = RWLOCK_PERMITS

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.written: dict[str, int] = {}
        """The highest fence of a writer, by lock."""

    def _enter(self, delivered: Delivery, granted: Granted) -> None:
        asked = self.asked.get(delivered.to)
        again = granted.fence in self.fences.get(granted.lock, {})
        super()._enter(delivered, granted)
        writes = isinstance(asked, AcquireReadWrite) and asked.write
        highest = (self.highest if writes else self.written).get(granted.lock, 0)
        if not again and self.clocks_true and granted.fence <= highest:
            does = "writes" if writes else "reads"
            raise ViolationError(f"fences: {delivered.to} {does} under {granted!r} after {highest}")
        for known in (self.highest, self.written)[: 1 + writes]:
            known[granted.lock] = max(known.get(granted.lock, 0), granted.fence)

    def _fits(self, asked: PermitRequest, granted: Granted) -> bool:
        return granted.count >= 1


RWLOCKS = Workload(ReadWriteUser, ReadWriteJudge, retains=True)
