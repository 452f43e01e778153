"""Who holds a lock, how often, under which fence, and who comes next."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from holdfast.actors.lock.outcome import Held
from holdfast.actors.lock.waiting import Wait


@dataclass(slots=True)
class Hold:
    """One ownership of a lock.

    Attributes:
        fence: the token of this ownership, the same however often it is re-entered.
        count: how often the owner holds the lock at once, at least 1.
        request: the last acquire that added to ``count``, 0 if that was taken back.
        level: what ``count`` was then, so that a repetition hears the same.
        since_ms: log time of the grant.

    """

    session: str
    owner: str
    lock: str
    label: str
    fence: int
    since_ms: int
    request: int
    count: int = 1
    level: int = 1

    def answer(self) -> Held:
        """Return the outcome of the last acquire."""
        return Held(
            session=self.session,
            owner=self.owner,
            request=self.request,
            lock=self.lock,
            fence=self.fence,
            count=self.level,
        )

    def wording(self) -> str:
        """Return who holds, in words."""
        label = f" ({self.label})" if self.label else ""
        return f"held by {self.owner!r} of {self.session!r}{label} under fence {self.fence}"


@dataclass(slots=True)
class Lock:
    """A lock that is held. A free lock is not in the table at all.

    ``waits`` is an `OrderedDict` and not a dict, since a dict that loses its first key
    again and again walks over all the lost ones each time.
    """

    hold: Hold
    waits: OrderedDict[int, Wait] = field(default_factory=OrderedDict[int, Wait])
    """By ticket, which is the order of the log."""
