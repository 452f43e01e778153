"""One request of a user on its way: an acquire, or a release."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from fencelock.cluster.host.reply import Reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencelock.cluster.local_hold import Listeners, LocalHold

_tokens = itertools.count(1)
"""Names each acquire of this process to the session, so that exactly that one is cancelled."""


class AcquireCall(Reply):
    """One acquire on its way, and its answer, which makes the grip, on the dispatcher's thread.

    There, because a loss is told there too: no loss can slip between a grant and its grip.
    """

    given_up = False
    grip: LocalHold | None = None
    lost_before: LocalHold | None = None
    """A hold of the same owner whose loss nobody was told of when the grant came."""

    def __init__(
        self,
        granted: Callable[[AcquireCall, Any, BaseException | None], None],
        lock: str,
        owner: str,
        listeners: Listeners,
    ) -> None:
        Reply.__init__(self, granted)  # To find it by `super` takes longer than what it does.
        self.token = next(_tokens)
        self.lock = lock
        self.owner = owner
        self.listeners = listeners


class ReleaseCall(Reply):
    """One release of a grip on its way, and its answer, which ends the grip."""

    sent = False
    """Whether its question surely reached the session."""

    def __init__(
        self, released: Callable[[ReleaseCall, Any, BaseException | None], None], grip: LocalHold
    ) -> None:
        Reply.__init__(self, released)
        self.grip = grip
