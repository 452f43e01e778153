"""Holds with a deadline: the table takes the lock away unless its owner renews or releases it.

The table ends such a hold ``hold_ms + grace_ms + ROUNDING_MS`` of log time after it was granted, or
after its last renewal. The client counts from before it sent the request, on its own clock, and
subtracts the drift of clocks (`fencelock.actors.lease`). So the client knows that the hold ends
before the table ends it.

No client can renew a hold while no leader leads. So the log time between the last batch of one
leadership and the first batch of the next does not count for deadlines: after a change of the
leader, each hold keeps at least the rest of its time. This also bounds the effect of a new leader's
clock, which may be ahead of the former leader's by their drift since the last batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fencelock.actors.api.handover import Attach
from fencelock.actors.api.lock_message import Acquire, Granted, Renewed
from fencelock.actors.api.name import WAIT_MS_MAX, titled
from fencelock.actors.api.refusal import Cause, Why
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.table.resource import ClaimDetails, Durations, TableHold
from fencelock.actors.table.wire import LeaseRecord, Result

if TYPE_CHECKING:
    from fencelock.actors.table.session import OwnerState
    from fencelock.actors.table.state import TableState

DURATION_MS_MIN = 100
"""Shortest duration and shortest grace (ms): a grant takes much of this time to arrive."""

DURATION_MS_MAX = WAIT_MS_MAX
"""Longest duration and longest grace (ms): a week."""

GRACE_MS = 5_000
"""Grace of a hold whose acquire named a duration and no grace (ms)."""

ROUNDING_MS = 1
"""Log time is rounded down, so a difference of log times may be too long by this much (ms)."""

TICKETS_END = 1 << 63
"""A number above all tickets of waits. So a wait that ends at the same time as a hold ends first,
and is not granted the lock."""


NO_DURATIONS = Durations(0, 0)


def durations_of(acquire: Acquire | Attach) -> Durations | None:
    """Return the duration and grace that ``acquire`` requests, or None if it requests no deadline.

    Raises:
        InvalidRequestError: one of them is out of its limits, or a grace has no duration.

    """
    hold_ms, grace_ms = acquire.hold_ms, acquire.grace_ms
    if not hold_ms:
        if grace_ms:
            text = f"grace is {grace_ms} ms, and needs a duration: without one a hold has no end"
            raise InvalidRequestError(f"{titled(acquire.lock)}: {text}")
        return None
    check_duration(acquire.lock, "duration", hold_ms)
    if grace_ms:
        check_duration(acquire.lock, "grace", grace_ms)
    return Durations(hold_ms, grace_ms or GRACE_MS)


def check_duration(lock: str, name: str, duration_ms: int) -> None:
    """Raise InvalidRequestError for a duration or grace, as ``name`` says, beyond its limits."""
    if not DURATION_MS_MIN <= duration_ms <= DURATION_MS_MAX:
        allowed = f"{DURATION_MS_MIN} to {DURATION_MS_MAX} ms are allowed"
        raise InvalidRequestError(f"{titled(lock)}: {name} is {duration_ms} ms, {allowed}")


class Deadlines:
    """The state that all deadlines of a table share.

    Attributes:
        skipped_ms: log time so far during which no leader led (ms).
        ends: the sum over all holds of the deadline without ``skipped_ms``, multiplied by the mark
            of the owner.
        marks: the sum of these marks.

    """

    __slots__ = ("ends", "marks", "skipped_ms")

    def __init__(self) -> None:
        self.skipped_ms = self.ends = self.marks = 0

    def checksum(self) -> int:
        return self.ends + self.skipped_ms * self.marks


class DatedHold(TableHold, eq=False):
    """A hold that may have a deadline.

    Attributes:
        table: the table that watches the deadline, or None while there is none.
        ends_ms: the deadline, without `Deadlines.skipped_ms`.
        ticket: orders items that fall due at the same time.
        due_ms: the deadline when the hold was last added to the table's timeouts.

    """

    table: TableState | None = None
    ends_ms: int = 0
    ticket: int = 0
    due_ms: int | None = None

    @property
    def ends_at_ms(self) -> int | None:
        return None if self.table is None else self.deadline_ms

    @property
    def deadline_ms(self) -> int:
        assert self.table is not None
        return self.ends_ms + self.table.deadlines.skipped_ms

    def move(
        self, table: TableState, deadline_ms: int | None, watched_ms: int | None = None
    ) -> None:
        """Set the deadline, or none. ``watched_ms`` is the earlier one that a snapshot names."""
        self.end(table)
        if deadline_ms is None:
            return
        self.table, deadlines = table, table.deadlines
        self.ticket = TICKETS_END + self.fence
        self.due_ms = deadline_ms if watched_ms is None else watched_ms
        self.ends_ms = deadline_ms - deadlines.skipped_ms
        mark = self.owner_state.mark()
        deadlines.ends += mark * self.ends_ms
        deadlines.marks += mark
        table.timeouts.add(self)

    def end(self, table: Any) -> None:
        """Stop watching the deadline, if there is one: the hold ends."""
        if self.table is not None:
            mark = self.owner_state.mark()
            table.deadlines.ends -= mark * self.ends_ms
            table.deadlines.marks -= mark
            table.timeouts.drop(self)
            self.table = None

    def record(self) -> LeaseRecord | None:
        if self.table is None:
            return None
        return LeaseRecord(0, 0, 0, self.deadline_ms, 0, 0, self.due_ms or 0)

    def fall_due(self, table: TableState, out: list[Result]) -> None:
        """Take the lock away, or wait longer if a change of the leader has moved the deadline."""
        if self.due_ms == self.deadline_ms:
            table.take(self, Why(Cause.DEADLINE), out)
        else:
            table.timeouts.drop(self)
            self.due_ms = self.deadline_ms
            table.timeouts.add(self)


class LeasedHold(DatedHold, eq=False):
    """A hold with a duration, which its owner can renew.

    The deadline belongs to the hold, not to one of its acquires: acquiring again does not move it.

    Attributes:
        replied: the durations in the reply to the last acquire: of the grant, or the time left.
        grace_ms: the grace (ms).
        lasts_ms: the duration since the last renewal (ms).
        renewal: the number of the last renewal, 0 before the first.

    """

    replied: Durations = NO_DURATIONS
    grace_ms: int = 0
    lasts_ms: int = 0
    renewal: int = 0

    def answer(self) -> Granted:
        return replace(
            TableHold.answer(self), hold_ms=self.replied.hold_ms, grace_ms=self.replied.grace_ms
        )

    def acquire_again(self, request: int) -> None:
        """Count one more acquire, and keep the time left for its reply.

        The client may not know the hold, if the reply to the first acquire was lost.
        """
        TableHold.acquire_again(self, request)
        table = self.table
        assert table is not None
        left_ms = self.deadline_ms - table.time_ms - ROUNDING_MS
        if left_ms < 1:
            left_ms = 1
            self.extend(table, table.time_ms + left_ms + ROUNDING_MS)
        hold_ms = max(1, left_ms - self.grace_ms)
        self.replied = Durations(hold_ms, left_ms - hold_ms)

    def renewed(self) -> Renewed:
        owner_state = self.owner_state
        return Renewed(
            lock=owner_state.lock,
            fence=self.fence,
            hold_ms=self.lasts_ms,
            grace_ms=self.grace_ms,
            session=owner_state.session.id,
            owner=owner_state.owner,
            request=self.renewal,
        )

    def restart(self, table: TableState) -> None:
        """Set the deadline to the whole duration and grace from now on, if that is later."""
        lease_ms = self.lasts_ms + self.grace_ms
        self.extend(table, table.time_ms + lease_ms + ROUNDING_MS)

    def extend(self, table: TableState, deadline_ms: int) -> None:
        """Set the deadline, which never becomes earlier."""
        if self.table is None or deadline_ms > self.deadline_ms:
            self.move(table, deadline_ms)

    def record(self) -> LeaseRecord:
        return LeaseRecord(
            lasts_ms=self.lasts_ms,
            grace_ms=self.grace_ms,
            renewal=self.renewal,
            deadline_ms=self.deadline_ms,
            replied_hold_ms=self.replied.hold_ms,
            replied_grace_ms=self.replied.grace_ms,
            watched_ms=self.due_ms or 0,
        )


def begin_leased(table: Any, owner_state: OwnerState, details: ClaimDetails) -> LeasedHold:
    assert details.durations is not None
    hold = LeasedHold(
        owner_state,
        details,
        table.fence,
        table.time_ms,
        owner_state.request,
        replied=details.durations,
        lasts_ms=details.durations.hold_ms,
        grace_ms=details.durations.grace_ms,
    )
    hold.restart(table)
    return hold
