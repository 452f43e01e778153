"""Requests about semaphores. Tags 0x1e and 0x1f.

A semaphore has a number of permits. Its claims form one queue, in the order of the log, and no
claim overtakes another: a large one at the head keeps smaller ones waiting, so that it gets its
turn. Each acquire is a separate owner with its own fence.

The replies are those of locks. Their ``lock`` is the semaphore's name for the table, see
`fencelock.actors.api.name.object_name`, and their ``count`` is a number of permits. A `Release`
with that name and the fence gives back all permits of a hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencelock.actors.api.message import AcquireRequest, LockRequest, ReleaseRequest
from fencelock.actors.api.name import (
    LABEL_BYTES_MAX,
    check_new_lock_name,
    check_number,
    check_request,
    check_text,
    check_wait,
    object_name,
)
from fencelock.actors.message import message

SEMAPHORE = "semaphore"
"""The kind of a semaphore, in the names of the table."""

PERMITS_MAX = (1 << 31) - 1
"""Maximum permits of a semaphore: more than a group has owners, and a sum of two fits 64 bits."""


class SemaphoreRequest(LockRequest):
    """A request of an owner about a semaphore."""

    __slots__ = ()

    if TYPE_CHECKING:  # Every subclass declares it as a field.
        semaphore: str
        """The name of the semaphore."""
    else:  # To type checkers this is the field that other requests have.

        @property
        def lock(self) -> str:
            """The semaphore's name for the table."""
            return object_name(SEMAPHORE, self.semaphore)


@message(0x1E)
class AcquirePermits(SemaphoreRequest, AcquireRequest):
    """Let me hold ``amount`` of the ``permits`` of ``semaphore``. Replies are as for `Acquire`.

    The number of permits travels with each claim, since a semaphore that nobody holds leaves no
    state. While it is held, a claim that names another number is refused. ``wait_ms`` and
    ``label`` are those of `Acquire`.
    """

    semaphore: str
    permits: int
    amount: int = 1
    session: str = ""
    owner: str = ""
    request: int = 0
    wait_ms: int | None = None
    label: str = ""

    limit = 1

    def check(self) -> None:
        """Refuse fields that exceed their limits."""
        LockRequest.check(self)
        check_text("label", self.label, LABEL_BYTES_MAX)
        check_wait(self.wait_ms)
        check_number("permits", self.permits, 1, PERMITS_MAX)
        check_number("amount", self.amount, 1, self.permits)

    def check_new(self) -> None:
        """Refuse what `check` does, names without a visible character, and too high a number."""
        check_new_lock_name(self.semaphore)
        check_request(self.request)
        self.check()


@message(0x1F)
class ReleasePermits(SemaphoreRequest, ReleaseRequest):
    """Give back ``amount`` permits (0 for all) of my hold of ``semaphore`` under ``fence``.

    Answered by `Released` with the number that is left, or `Refused`. The hold ends with its last
    permit.
    """

    semaphore: str
    fence: int
    amount: int = 0
    session: str = ""
    owner: str = ""
    request: int = 0

    PARTIAL = True

    def check(self) -> None:
        """Refuse fields that exceed their limits."""
        LockRequest.check(self)
        check_number("amount", self.amount, 0, PERMITS_MAX)
