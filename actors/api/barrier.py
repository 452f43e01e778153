"""The request to await a cyclic barrier, and its reply. Tags 0x8c and 0x8d.

Some number of parties meet at a barrier: each of them waits until the last one has arrived, and
then all pass in one step. That is one *generation*; the next one begins with the next arrival. If a
party stops waiting before the last one arrives, all others of its generation are refused.
"""

from __future__ import annotations

from fencelock.actors.api.name import check_number
from fencelock.actors.api.object_request import UpdateReply, UpdateRequest
from fencelock.actors.message import message

BARRIER = "barrier"
"""The kind of a barrier, in the names of the table."""

PARTIES_MAX = 10_000
"""Maximum parties of a barrier: one command lets all of them pass."""


@message(0x8C)
class AwaitBarrier(UpdateRequest):
    """Arrive at ``barrier``, and wait until ``parties`` have arrived. Answered by `BarrierPassed`.

    All parties of a generation must name the same number. ``wait_ms`` and ``label`` are those of
    `fencelock.actors.api.message.Acquire`. A party that waits in vain breaks its generation:
    the others get `fencelock.actors.api.message.Reason.BROKEN`.
    """

    barrier: str
    parties: int
    session: str = ""
    owner: str = ""
    request: int = 0
    wait_ms: int | None = None
    label: str = ""

    KIND = BARRIER
    WAITS = True

    def check(self) -> None:
        """Refuse fields that exceed their limits."""
        UpdateRequest.check(self)
        check_number("parties", self.parties, 1, PARTIES_MAX)


@message(0x8D)
class BarrierPassed(UpdateReply):
    """All parties have arrived; this one was the one with ``index``, counted from 0.

    The number of the ``generation`` is above those of all earlier generations of the barrier.
    """

    lock: str
    index: int
    generation: int
    session: str = ""
    owner: str = ""
    request: int = 0

    ANSWERS = (AwaitBarrier,)
