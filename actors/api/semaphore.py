"""Requests about semaphores. Tags 0x1e, 0x1f, 0x8e and 0x8f.

A semaphore has a number of permits. Its claims form one queue, in the order of the log, and no
claim overtakes another: a large one at the head keeps smaller ones waiting, so that it gets its
turn. Each acquire is a separate owner with its own fence.

The ``count`` of replies is a number of permits. A `Release` with the semaphore's name in the table
and the fence gives back all permits of a hold.
"""

from typing import TYPE_CHECKING

from fencelock.actors.api.lock_message import AcquireRequest
from fencelock.actors.api.name import check_number
from fencelock.actors.api.object_request import (
    PartRequest,
    PermitRequest,
    UpdateReply,
    UpdateRequest,
)
from fencelock.actors.api.request import RepliedBy
from fencelock.actors.message import Int64

SEMAPHORE = "semaphore"

PERMITS_MAX = (1 << 31) - 1
"""Maximum permits of a semaphore: more than a group has owners, and a sum of two fits 64 bits."""


class AcquirePermits(PermitRequest, tag=0x1E):
    """Let me hold ``amount`` of the ``permits`` of ``semaphore``. Replies are as for `Acquire`.

    ``wait_ms`` and ``label`` are those of `Acquire`. An ``amount`` of 0 is for all permits that are
    free, at least one; it needs a ``wait_ms`` of 0.
    """

    semaphore: str
    permits: Int64
    amount: Int64 = 1
    wait_ms: Int64 | None = None
    label: str = ""

    KIND = SEMAPHORE
    limit = 1

    if not TYPE_CHECKING:  # To type checkers this is an attribute that other requests have.

        @property
        def granted_count(self) -> int:
            """The number of permits."""
            return self.amount

    def check(self) -> None:
        AcquireRequest.check(self)
        if not 1 <= self.amount <= self.permits <= PERMITS_MAX:
            check_number("permits", self.permits, 1, PERMITS_MAX)
            check_number("amount", self.amount, 0 if self.wait_ms == 0 else 1, self.permits)


class ReleasePermits(PartRequest, tag=0x1F):
    """Give back ``amount`` permits (0 for all) of my hold of ``semaphore`` under ``fence``.

    Answered by `Released` with the number that is left, or `Refused`.
    """

    semaphore: str
    amount: Int64 = 0

    KIND = SEMAPHORE

    def check(self) -> None:
        PartRequest.check(self)
        check_number("amount", self.amount, 0, PERMITS_MAX)


class ResizeRequest(UpdateRequest, RepliedBy["Resized"]):
    """A request to let an object that has ``permits`` have ``size`` of them. Answered by `Resized`.

    What is held or taken stays so, even if that is more than ``size``. Claims that wait for more
    than ``size`` are refused. An object that is not in use has no size, so nothing changes then.
    """

    permits: Int64
    size: Int64

    def check(self) -> None:
        UpdateRequest.check(self)
        check_number("permits", self.permits, 1, PERMITS_MAX)
        check_number("size", self.size, 1, PERMITS_MAX)


class ResizeSemaphore(ResizeRequest, tag=0x8E):
    """Let ``semaphore``, which has ``permits``, have ``size`` of them."""

    semaphore: str

    KIND = SEMAPHORE


class Resized(UpdateReply, tag=0x8F):
    """The object has ``size`` permits as long as it is in use, and ``free`` of them.

    ``free`` is negative while more are held or taken than there are.
    """

    size: Int64
    free: Int64

    REPLIES_TO = (ResizeRequest,)
