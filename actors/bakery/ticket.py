"""Tickets, their order, and how fences are made. Pure."""

from __future__ import annotations

from typing import NamedTuple

from fencelock.actors.api.name import OWNER_BYTES_MAX
from fencelock.actors.message import Address, Int64

COUNTER_BITS = 32
FENCE_COUNTER_MAX = (1 << COUNTER_BITS) - 1
"""Limit of fence counters: beyond it a request is refused until the next epoch."""

TICKET_NUMBER_MAX = FENCE_COUNTER_MAX // 2
"""The highest number of a ticket. Beyond it all draw this one, and the names of their leaders order
them. So a rogue leader that claims it stops nobody, and each epoch has as many fences left."""

TICKET_ROUND_MAX = 1 << 62
"""The highest round of a ticket: thousands of millions of years of attempts."""

TERM_MS_MAX = 7 * 24 * 3_600_000
"""The longest duration and the longest grace (ms): a week each."""

LEASE_MS_MAX = 2 * TERM_MS_MAX
"""The longest lease, duration and grace together (ms)."""

ADDRESS_BYTES_MAX = 2 * OWNER_BYTES_MAX


class Who(NamedTuple):
    """The owner of a ticket. It is sequential: it has one ticket for a lock at a time."""

    session: str
    owner: str


class RequestKey(NamedTuple):
    """One request for a lock."""

    lock: str
    who: Who
    request: int


class Turn(NamedTuple):
    """The place of a ticket: tickets are served in the order of their turns.

    Turns are compared field by field: of two equal numbers the leader whose name is smaller comes
    first.
    """

    number: Int64
    leader: str
    """The leader that drew it."""
    serial: Int64
    """Number of the ticket among those of that leader in one life, from 1; negative for a shared
    ticket. Releases without shared tickets refuse a negative number as malformed, so they neither
    vote for a shared ticket nor take it for an exclusive one."""


class Ticket(NamedTuple):
    """One request for one lock, as it is sent between leaders.

    ``number`` of ``turn`` is 0 as long as it is entering.
    """

    lock: str
    who: Who
    request: Int64
    """The owner's number of its `Acquire`; a later request has a higher one."""
    turn: Turn
    proxy: Address
    """Address of its client's proxy."""
    hold_ms: Int64
    """Duration of a hold (ms)."""
    grace_ms: Int64
    """Further time until the lock is taken away (ms)."""
    label: str

    @property
    def key(self) -> RequestKey:
        return RequestKey(self.lock, self.who, self.request)

    @property
    def shared(self) -> bool:
        """Whether it may hold the lock together with other shared tickets."""
        return self.turn.serial < 0

    @property
    def lease_ms(self) -> int:
        """Time for which no conflicting ticket is granted, if it is not released (ms)."""
        return self.hold_ms + self.grace_ms


class Record(NamedTuple):
    """A ticket in a table that is handed over. Entering ones are not: their proxies ask again."""

    ticket: Ticket
    owner: str
    """The leader that takes its steps."""
    fence: Int64
    """The fence under which it is or may be held; 0 if there is none."""
    left_ms: Int64
    """Time left of its lease (ms)."""


class EndedRequests(NamedTuple):
    """Ended requests of one owner at one lock, in a table that is handed over, or 0 for none."""

    lock: str
    who: Who
    request: Int64
    """The last request that its client dropped."""
    fence: Int64
    """The fence of the last hold that its client dropped."""
    highest: Int64
    """The highest fence under which a hold of this owner ended, dropped or not."""
    exclusive: Int64
    """The fence up to which exclusive tickets of this lock have ended, at most ``highest``."""


def pack_fence(epoch: int, counter: int) -> int:
    """Return the fence of the ``counter``-th grant, 1 to `FENCE_COUNTER_MAX`, in ``epoch``."""
    return epoch << COUNTER_BITS | counter


def epoch_of(fence: int) -> int:
    return fence >> COUNTER_BITS


def counter_of(fence: int) -> int:
    return fence & FENCE_COUNTER_MAX
