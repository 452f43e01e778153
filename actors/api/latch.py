"""Requests about count-down latches, and their replies. Tags 0x88 to 0x8b.

A latch begins with a count, which only falls. Clients that wait for the latch pass when its count
is 0. A latch that nobody has used leaves no state, so each request names the count with which the
latch begins, and the first request creates it. A latch at 0 is kept for some time, so that late
clients pass too. Then it is removed, and the next request creates a new latch.
"""

from fencelock.actors.api.name import WAIT_MS_MAX, check_number
from fencelock.actors.api.object_request import UpdateReply, UpdateRequest
from fencelock.actors.api.request import RepliedBy
from fencelock.actors.message import Int64

LATCH = "latch"

COUNT_MAX = (1 << 31) - 1
"""Maximum count of a latch, far above the number of clients of a group."""

LATCH_KEEP_MS = 3_600_000
"""Default time for which a latch is kept after its count has reached 0 (ms): a caller that comes
later than that creates a new latch, and waits for counts that never come."""


class LatchRequest(UpdateRequest):
    """A request about a latch that begins with ``count``."""

    KIND = LATCH

    latch: str
    count: Int64
    """The count with which the latch begins."""
    keep_ms: Int64 = LATCH_KEEP_MS
    """The time for which the latch is kept after its count has reached 0 (ms)."""

    def check(self) -> None:
        UpdateRequest.check(self)
        check_number("count", self.count, 1, COUNT_MAX)
        check_number("keep_ms", self.keep_ms, 0, WAIT_MS_MAX)


class CountDown(LatchRequest, RepliedBy["CountedDown"], tag=0x88):
    """Lower the count of ``latch`` by ``amount``, at most to 0. Answered by `CountedDown`.

    If this request creates the latch, the latch begins with ``count``, and is kept for ``keep_ms``
    (ms) after its count has reached 0.
    """

    amount: Int64 = 1

    def check(self) -> None:
        LatchRequest.check(self)
        check_number("amount", self.amount, 1, COUNT_MAX)


class AwaitLatch(LatchRequest, RepliedBy["LatchPassed"], tag=0x89):
    """Wait until the count of ``latch`` is 0. Answered by `LatchPassed`.

    ``wait_ms`` and ``label`` are those of `fencelock.actors.api.lock_message.Acquire`, and
    ``keep_ms`` that of `CountDown`.
    """

    wait_ms: Int64 | None = None
    label: str = ""

    WAITS = True
    IDEMPOTENT = True


class CountedDown(UpdateReply, tag=0x8A):
    """The request has been applied, and the count of the latch is now ``left``."""

    left: Int64

    REPLIES_TO = (CountDown,)


class LatchPassed(UpdateReply, tag=0x8B):
    """The count of the latch is 0."""

    REPLIES_TO = (AwaitLatch,)
