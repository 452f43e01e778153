"""A user's acquire or release in progress."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from fencelock.cluster.host.pending_asks import Reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencelock.cluster.local_hold import Listeners, LocalHold

_tokens = itertools.count(1)
"""Numbers each acquire of this process for the session, so that exactly that one is cancelled."""


class AcquireCall(Reply):
    """One acquire in progress. Its reply creates the hold on the dispatcher's thread.

    Losses are reported on that thread too, so no loss can slip between a grant and its hold.
    """

    given_up = False
    grip: LocalHold | None = None
    lost_before: LocalHold | None = None
    """An earlier hold of the same owner whose loss was not reported when the grant arrived."""

    def __init__(
        self,
        granted: Callable[[AcquireCall, Any, BaseException | None], None],
        lock: str,
        owner: str,
        listeners: Listeners,
    ) -> None:
        Reply.__init__(self, granted)  # Finding it by `super` takes longer than the call.
        self.token = next(_tokens)
        self.lock = lock
        self.owner = owner
        self.listeners = listeners


class ReleaseCall(Reply):
    """One release in progress. Its reply ends the hold."""

    sent = False
    """Whether its request surely reached the session."""

    def __init__(
        self, released: Callable[[ReleaseCall, Any, BaseException | None], None], grip: LocalHold
    ) -> None:
        Reply.__init__(self, released)
        self.grip = grip
