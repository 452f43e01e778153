"""A bound on the reads that a session has sent and that have no reply."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

READS_SENT_MAX = 128
"""Maximum linearizable reads in flight. A node refuses reads beyond its quota `queries`, by default
256, which clients with one key share. It may still count some that the client has given up."""

BOUNDED_READS_SENT_MAX = 64
"""The same for reads with a maximum age. They do not wait for linearizable reads, which have no
reply while the cluster has no majority."""

_UNLIMITED = 1 << 31


@dataclass(slots=True)
class ReadWindow:
    """The numbers of the reads of a session: those that were sent, and those that wait to be sent.

    Invariants:
        C5  Each number is sent or held back, never both, until `drop`. At most ``most`` are sent.

    """

    most: int
    sent: set[int] = field(default_factory=set[int])
    held_back: OrderedDict[int, None] = field(default_factory=OrderedDict[int, None])

    def admit(self, number: int) -> bool:
        """Return whether the read may be sent, also for a repetition. If not, hold it back."""
        if number in self.sent:
            return True
        if len(self.sent) >= self.most:
            self.held_back[number] = None
            return False
        self.held_back.pop(number, None)
        self.sent.add(number)
        return True

    def next(self) -> int | None:
        """Return the read that was held back longest, if there is room for it."""
        return next(iter(self.held_back), None) if len(self.sent) < self.most else None

    def drop(self, number: int) -> None:
        """Forget a read: it has a reply, or is not wanted any more."""
        self.sent.discard(number)
        self.held_back.pop(number, None)


def windows(*, local: bool) -> tuple[ReadWindow, ReadWindow]:
    """Return the windows for linearizable reads and for reads with a maximum age.

    Args:
        local: whether the session belongs to callers inside the node, which have no such quota.

    """
    if local:
        return ReadWindow(_UNLIMITED), ReadWindow(_UNLIMITED)
    return ReadWindow(READS_SENT_MAX), ReadWindow(BOUNDED_READS_SENT_MAX)
