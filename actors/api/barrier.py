"""The request to wait at a cyclic barrier, and its reply. Tags 0x8c and 0x8d.

A fixed number of parties meet at a barrier. Each party waits until the last one has arrived, then
all pass in one step. These parties are one *generation*; the next arrival begins the next one. If a
party stops waiting before the last one arrives, all other parties of its generation are refused.
"""

from fencelock.actors.api.name import check_number
from fencelock.actors.api.object_request import UpdateReply, UpdateRequest
from fencelock.actors.api.request import RepliedBy
from fencelock.actors.message import Int64

BARRIER = "barrier"

PARTIES_MAX = 10_000
"""Maximum number of parties of a barrier, since one command lets all of them pass."""


class AwaitBarrier(UpdateRequest, RepliedBy["BarrierPassed"], tag=0x8C):
    """Arrive at ``barrier``, and wait until ``parties`` have arrived. Answered by `BarrierPassed`.

    All parties of a generation must name the same number. ``wait_ms`` and ``label`` are those of
    `fencelock.actors.api.lock_message.Acquire`. A party that stops waiting before it passes breaks
    its generation: the others receive `fencelock.actors.api.lock_message.Reason.BROKEN`.
    """

    barrier: str
    parties: Int64
    wait_ms: Int64 | None = None
    label: str = ""

    KIND = BARRIER
    WAITS = True

    def check(self) -> None:
        UpdateRequest.check(self)
        check_number("parties", self.parties, 1, PARTIES_MAX)


class BarrierPassed(UpdateReply, tag=0x8D):
    """All parties have arrived. ``index`` is the place of this one in that order, from 0.

    ``generation`` is a number above those of all earlier generations of the barrier.
    """

    index: Int64
    generation: Int64

    REPLIES_TO = (AwaitBarrier,)
