"""How long an acquire of a caller inside the process may go on without a word of the log. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from fencelock.actors.effect import Send
from fencelock.actors.lock.message import Acquire, Reason
from fencelock.actors.message import Address, Instant, ms_between
from fencelock.actors.paxos.proxy_wording import refuse

GRACE_MS = 5_000
"""How much longer than it may a wait lasts here, for the log to say that it is over."""


@dataclass(slots=True, eq=False)
class Waiting:
    """One acquire, whichever session it is asked in."""

    asker: Address
    acquire: Acquire
    asked_at: Instant

    def left_ms(self, now: Instant) -> int | None:
        """Return how long it may still wait, None for without limit."""
        wait_ms = self.acquire.wait_ms
        return None if wait_ms is None else max(0, wait_ms - ms_between(self.asked_at, now))

    def is_over(self, now: Instant) -> bool:
        """Return whether its time has run out, grace and all."""
        wait_ms = self.acquire.wait_ms
        return wait_ms is not None and ms_between(self.asked_at, now) >= wait_ms + GRACE_MS

    def unavailable(self, now: Instant, silence: str) -> Send:
        """Return its refusal; ``silence`` says who does not answer.

        It is never said to have timed out: whether somebody else holds the lock is not known.
        """
        waited = f"lock {self.acquire.lock!r}: waited {ms_between(self.asked_at, now)} ms"
        text = f"{waited}, and {silence}; the request is withdrawn"
        return refuse(self.asker, self.acquire, Reason.UNAVAILABLE, text)
