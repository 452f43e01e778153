"""Workloads of semaphores and of read/write locks in place of locks, and their judges."""

from __future__ import annotations

from typing import Any

from fencelock.actors.api.lock_message import AcquireRequest, Granted, Reason, Refused, Release
from fencelock.actors.api.name import kind_of, plain_name
from fencelock.actors.api.object_request import PartRequest, PermitRequest
from fencelock.actors.api.rwlock import RWLOCK, RWLOCK_PERMITS, AcquireReadWrite, Downgrade
from fencelock.actors.api.semaphore import (
    SEMAPHORE,
    AcquirePermits,
    ReleasePermits,
    Resized,
    ResizeSemaphore,
)
from fencelock.actors.effect import Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant, node_of
from fencelock.actors.paxos.event import SlotOutcomes
from fencelock.actors.role import Host
from fencelock.actors.session.event import HoldsLost
from fencelock.verification.simulation.judge import JudgedHold, LockJudge
from fencelock.verification.simulation.run import Workload
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError, sent
from fencelock.verification.simulation.workload import (
    HOLD_MS_MAX,
    ContenderEvent,
    ContenderPhase,
    LockUser,
    UseEnded,
)

PERMITS = 3
"""Most permits of each semaphore: few, so that claims of one to three permits meet in queues."""

SIZES = (PERMITS - 1, PERMITS)
"""The numbers of permits that a semaphore may have. A user that is refused for one tries the other,
as users do whose configurations differ for a while."""

RESIZE_SHARE = 0.1
"""Share of requests that give the semaphore the other number of permits."""

DRAIN_SHARE = 0.5
"""Share of claims without a wait that are for all permits that are free."""

PART_SHARE = 0.5
"""Share of releases that give back a part of a hold."""


class PermitUser(LockUser):
    """Wants some permits of one semaphore of a few, holds them, and gives them back in parts.

    Now and then it resizes a semaphore.
    """

    _named = (*LockUser._named, Resized)
    MAY_LEAVE_UNAWAITED = False
    MAY_ENTER_AGAIN = False
    KIND = SEMAPHORE

    def __init__(self, address: Address, host: Host, **options: Any) -> None:
        super().__init__(address, host, **options)
        self.size = PERMITS
        """The number of permits that it names."""

    @property
    def _other_size(self) -> int:
        return sum(SIZES) - self.size

    def handle(self, sender: Address, event: ContenderEvent | Resized, now: Instant) -> Effects:
        """Go on to the next action, with another number of permits if this one was refused."""
        match event:
            case Resized(size=size):
                self.size = size
                return [Observe("contender.resizes"), *self._on_end(left=0)]
            case Refused(reason=Reason.INVALID) if self.phase is ContenderPhase.WAITING:
                self.size = self._other_size
                return [Observe("contender.size_refused"), *super().handle(sender, event, now)]
            case _:
                return super().handle(sender, event, now)

    def _ask(self, wait_ms: int | None) -> Send:
        name = plain_name(self.lock)
        if not self.finishing and self.random.random() < RESIZE_SHARE:
            resize = ResizeSemaphore(
                semaphore=name, permits=self.size, size=self._other_size, owner=self.owner
            )
            return Send(self.session, resize)
        drains = wait_ms == 0 and self.random.random() < DRAIN_SHARE
        acquire = AcquirePermits(
            semaphore=name,
            permits=self.size,
            amount=0 if drains else self.random.randint(1, self.size),
            owner=self.owner,
            wait_ms=wait_ms,
        )
        return Send(self.session, acquire)

    def _release(self) -> Effects:
        if self.random.random() >= PART_SHARE:
            return super()._release()
        self.phase = self.phase.RELEASING
        part = ReleasePermits(
            semaphore=plain_name(self.lock),
            fence=self.fence,
            amount=self.random.randint(1, self.acquisitions),
            owner=self.owner,
        )
        return [Send(self.session, part), Observe("contender.gives_back_a_part")]


class PermitJudge(LockJudge):
    """Judges one run of objects that have permits.

    - Capacity: all permits that contenders may believe to hold are no more than there were at the
      last of their grants.
    - Fences: each hold has a different fence.
    - Wants: a contender is granted the permits that it asked for, and nothing else.
    - Upgrades: a hold never gets more permits than it was granted with.

    As for locks, capacity is judged only where clocks keep to their bounds.
    """

    capacity = PERMITS

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.amounts: dict[Address, int] = {}
        """The permits of each contender that holds some."""

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        self._note_holds(delivered, effects)
        event, contender = delivered.event, delivered.to
        match event:
            case HoldsLost():
                self._lose(delivered.node, event)
            case Granted() if contender in self.contenders:
                self._enter(delivered, event)
            case Refused() if contender in self.contenders:
                self.wants.pop(contender, None)
            case _:
                pass
        if contender not in self.contenders:
            return
        for acquire in sent(effects, PermitRequest):
            self.wants[contender] = acquire
        for part in sent(effects, PartRequest):
            self._give_back(contender, part.amount)
        for _ in sent(effects, Release):
            self._give_back(contender, self.capacity)

    def left(self, client: str) -> None:
        for user in [user for user in self.wants if node_of(user) == client]:
            del self.wants[user]
        for user in [user for user in self.amounts if node_of(user) == client]:
            self._give_back(user, self.capacity)

    def _enter(self, delivered: Delivery, granted: Granted) -> None:
        contender, lock = delivered.to, granted.lock
        asked = self.wants.pop(contender, None)
        if asked is None or asked.lock != lock or not self._fits(asked, granted):
            raise ViolationError(f"{contender} was granted {granted!r}, and wanted {asked!r}")
        self.grants += 1
        mine = self.inside.get(contender)
        if mine is not None and (mine.lock, mine.fence) == (lock, granted.fence):
            if (asked.amount or granted.count) > self.amounts[contender]:
                raise ViolationError(f"upgrade: {contender} held less than {granted!r} says")
            return  # It acquires again what it holds.
        before = self.fences.setdefault(lock, {}).setdefault(granted.fence, contender)
        if before != contender:
            raise ViolationError(f"fences: {contender} has {granted!r}, as {before} had before")
        believed = self._given.get(contender)
        hold = JudgedHold(contender, lock, granted.fence, delivered.time, "", 0, believed)
        if not self._believes(hold):
            raise ViolationError(f"belief: {contender} cannot rely on {granted!r}")
        self.inside[contender] = hold
        self.amounts[contender] = asked.amount or granted.count
        if self.clocks_true:
            self._check_capacity(granted)

    def _check_capacity(self, granted: Granted) -> None:
        """Compare the permits of each grant, and of all earlier ones, with those there were.

        Messages overtake each other, so a contender may learn of its grant before that of an
        earlier one. A grant that ended is not believed any more.
        """
        held = [
            (other.fence, self.amounts[Address(user)], user)
            for user, other in sorted(self.inside.items())
            if other.lock == granted.lock and self.may_be_inside(other)
        ]
        for fence, _, _ in held:
            capacity = self.capacity_at(fence)
            if sum(amount for earlier, amount, _ in held if earlier <= fence) > capacity:
                text = ", ".join(f"{user} {amount} under {at}" for at, amount, user in held)
                raise ViolationError(
                    f"capacity: {capacity} at fence {fence}, and after {granted!r} hold: {text}"
                )

    def capacity_at(self, fence: int) -> int:
        """Return the permits that there were when ``fence`` was granted."""
        return self.capacity

    def _fits(self, asked: AcquireRequest, granted: Granted) -> bool:
        """Return whether ``granted`` is the grant that was asked for: some permits for 0."""
        return granted.count == asked.amount or (not asked.amount and granted.count > 0)

    def _give_back(self, contender: Address, amount: int) -> None:
        left = self.amounts.pop(contender, 0) - amount
        if left > 0:
            self.amounts[contender] = left
        else:
            self.inside.pop(contender, None)

    def _lose(self, client: str, lost: HoldsLost) -> None:
        for loss in lost.losses:
            self.losses += 1
            for hold in list(self.inside.values()):
                if (node_of(hold.contender), hold.lock, hold.fence) == (
                    client,
                    loss.lock,
                    loss.fence,
                ):
                    self._give_back(hold.contender, self.capacity)


class SemaphoreJudge(PermitJudge):
    """Judges one run of semaphores as `PermitJudge` does, also while they are resized."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.sizes: dict[int, int] = {}
        """The permits when each fence was granted."""

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        if isinstance(delivered.event, SlotOutcomes):
            self._note_sizes(delivered.event)
        super().handled(delivered, effects)

    def _note_sizes(self, report: SlotOutcomes) -> None:
        for one in report.outcomes:
            if isinstance(one, Granted) and kind_of(one.lock) == SEMAPHORE:
                size = self.replay.model.sizes.get((one.lock, one.fence))
                if size is None:  # The model has granted it to nobody.
                    around = report.slot, report.slot + 1
                    size = max(self.replay.at(one.lock, slot) or 0 for slot in around)
                self.sizes.setdefault(one.fence, size or self.capacity)

    def capacity_at(self, fence: int) -> int:
        """Return the permits that there were when ``fence`` was granted, if the log shows it."""
        return self.sizes.get(fence, self.capacity)


SEMAPHORES = Workload(PermitUser, SemaphoreJudge)


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
            self.writes = self.asks_to_write or (event.count > 1 and self.writes)
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

    - Capacity, fences and wants: see `PermitJudge`. A writer has all permits.
    - Writers: the fence of a writer is above all fences granted before. The fence of a reader is
      above the fences of all earlier writers.
    """

    capacity = RWLOCK_PERMITS

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.written: dict[str, int] = {}
        """The highest fence of a writer, by lock."""

    def _enter(self, delivered: Delivery, granted: Granted) -> None:
        asked = self.wants.get(delivered.to)
        again = granted.fence in self.fences.get(granted.lock, {})
        super()._enter(delivered, granted)
        writes = isinstance(asked, AcquireReadWrite) and asked.write
        highest = (self.highest if writes else self.written).get(granted.lock, 0)
        if not again and self.clocks_true and granted.fence <= highest:
            does = "writes" if writes else "reads"
            raise ViolationError(f"fences: {delivered.to} {does} under {granted!r} after {highest}")
        for known in (self.highest, self.written)[: 1 + writes]:
            known[granted.lock] = max(known.get(granted.lock, 0), granted.fence)

    def _fits(self, asked: AcquireRequest, granted: Granted) -> bool:
        return granted.count >= 1


RWLOCKS = Workload(ReadWriteUser, ReadWriteJudge, retains=True)
