"""Requests about pools, and their replies. Tags 0x118 to 0x11c; 0x11d is retired.

A pool has a number of permits, like a semaphore. But a taken permit belongs to nobody: it stays
taken when the session that took it ends, until anybody gives it back. So a pool has no holders, no
fences and no losses. A pool of which nothing is taken leaves no state, so each request that takes
something names its size, and all must agree.
"""

from fencelock.actors.api.name import check_number
from fencelock.actors.api.object_request import UpdateReply, UpdateRequest
from fencelock.actors.api.request import RepliedBy
from fencelock.actors.api.semaphore import PERMITS_MAX, ResizeRequest
from fencelock.actors.message import Int64

POOL = "pool"


class TakePermits(UpdateRequest, RepliedBy["PermitsTaken"], tag=0x118):
    """Take ``amount`` of the ``size`` permits of ``pool``. Answered by `PermitsTaken`.

    ``wait_ms`` and ``label`` are those of `fencelock.actors.api.lock_message.Acquire`. An
    ``amount`` of 0 is for all permits that are free, at least one; it needs a ``wait_ms`` of 0.
    """

    pool: str
    size: Int64
    amount: Int64 = 1
    wait_ms: Int64 | None = None
    label: str = ""

    KIND = POOL
    WAITS = True

    def check(self) -> None:
        UpdateRequest.check(self)
        check_number("size", self.size, 1, PERMITS_MAX)
        check_number("amount", self.amount, 0 if self.wait_ms == 0 else 1, self.size)


class GivePermits(UpdateRequest, RepliedBy["PermitsGiven"], tag=0x119):
    """Give ``amount`` permits of ``pool`` back, whoever took them. Answered by `PermitsGiven`."""

    pool: str
    amount: Int64 = 1

    KIND = POOL
    EASES = True

    def check(self) -> None:
        UpdateRequest.check(self)
        check_number("amount", self.amount, 1, PERMITS_MAX)


class ResizePool(ResizeRequest, tag=0x11A):
    """Let ``pool``, which has ``permits``, have ``size`` of them."""

    pool: str

    KIND = POOL


class PermitsTaken(UpdateReply, tag=0x11B):
    """The request has taken ``amount`` permits."""

    amount: Int64

    REPLIES_TO = (TakePermits,)


class PermitsGiven(UpdateReply, tag=0x11C):
    """The permits were given back, and ``taken`` others are still taken.

    If ``changed`` is false, nothing was changed, because only ``taken`` permits are taken.
    """

    taken: Int64
    changed: bool = True

    REPLIES_TO = (GivePermits,)
