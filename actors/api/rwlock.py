"""Requests about read/write locks. Tags 0x9b and 0x9c.

A read/write lock has so many permits that readers never run out of them. A reader has one of them,
a writer has all. Its claims form one queue, in the order of the log, and no claim overtakes
another: readers behind a waiting writer wait, so that it gets its turn.

An owner may acquire it again while it holds it: a reader to read, a writer to do either. It holds
it until it has released as often. A `Release` with the name of the object in the table and the
fence releases it once.
"""

from typing import TYPE_CHECKING

from fencelock.actors.api.object_request import PartRequest, PermitRequest
from fencelock.actors.message import Int64

RWLOCK = "rwlock"

RWLOCK_PERMITS = 1 << 31
"""All permits of a read/write lock, which a writer has."""


NO_DEADLINES = "a read/write lock of paxos has no duration and no grace; bakery has them"


class AcquireReadWrite(PermitRequest, tag=0x9B):
    """Acquire ``rwlock`` to read, or with ``write`` to write. Replies are those to an `Acquire`.

    An owner that reads and requests to write is refused: two readers that both wait for the other
    to release would wait forever. ``wait_ms``, ``label``, ``hold_ms`` and ``grace_ms`` are those
    of `Acquire`.
    """

    rwlock: str
    write: bool = False
    wait_ms: Int64 | None = None
    label: str = ""
    hold_ms: Int64 = 0
    grace_ms: Int64 = 0

    KIND = RWLOCK
    limit = 0
    permits = RWLOCK_PERMITS

    if not TYPE_CHECKING:  # To type checkers this is a field that other requests have.

        @property
        def amount(self) -> int:
            """One permit to read, all to write."""
            return RWLOCK_PERMITS if self.write else 1


class Downgrade(PartRequest, tag=0x9C):
    """Let me only read under ``rwlock``, which I hold for writing under ``fence``.

    Answered by `Released` with count 1, or `Refused`. The hold keeps its fence, and readers at the
    head of the queue are granted in the same step.
    """

    rwlock: str

    KIND = RWLOCK
    amount = RWLOCK_PERMITS - 1  # All but the one of a reader.
