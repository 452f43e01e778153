"""Time limit of an acquire by a caller inside the process when the log is silent. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from fencelock.actors.api.message import Acquire, Reason
from fencelock.actors.effect import Send
from fencelock.actors.message import Address, Instant, ms_between
from fencelock.actors.paxos.proxy_wording import refuse

GRACE_MS = 5_000
"""Extra time of a wait here (ms), in which the log can report that the wait is over."""


@dataclass(slots=True, eq=False)
class Waiting:
    """One acquire, in any session."""

    asker: Address
    acquire: Acquire
    asked_at: Instant

    def left_ms(self, now: Instant) -> int | None:
        """Return how long it may still wait (ms), None for no limit."""
        wait_ms = self.acquire.wait_ms
        return None if wait_ms is None else max(0, wait_ms - ms_between(self.asked_at, now))

    def is_over(self, now: Instant) -> bool:
        """Return whether its timeout, with `GRACE_MS`, has passed."""
        wait_ms = self.acquire.wait_ms
        return wait_ms is not None and ms_between(self.asked_at, now) >= wait_ms + GRACE_MS

    def unavailable(self, now: Instant, silence: str) -> Send:
        """Return its refusal; ``silence`` names the nodes that do not answer.

        The text does not call it a timeout: whether another owner holds the lock is not known.
        """
        waited = f"lock {self.acquire.lock!r}: waited {ms_between(self.asked_at, now)} ms"
        text = f"{waited}, and {silence}; the request is withdrawn"
        return refuse(self.asker, self.acquire, Reason.UNAVAILABLE, text)
