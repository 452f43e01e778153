"""Measures for how long the log has been silent, for texts. Pure."""

from __future__ import annotations

from fencelock.actors.message import Instant, ms_between


class QuorumContact:
    """The time of the log's last message, and the time since which one was expected.

    Args:
        members: the nodes that vote, sorted.

    """

    def __init__(self, members: tuple[str, ...]) -> None:
        self.majority = f"a majority of {', '.join(members)}"
        self.heard_at = Instant(0)
        self.asked_at = Instant(0)
        """The time of a request that was sent while none was in flight."""

    def heard(self, now: Instant) -> None:
        """Note a message from the log."""
        self.heard_at = now

    def broken(self, now: Instant) -> None:
        """Note that a reply is expected from now on."""
        self.asked_at = now

    def silent_ms(self, now: Instant) -> int:
        """Return how long a reply has been expected (ms)."""
        return ms_between(max(self.heard_at, self.asked_at), now)

    def in_words(self, now: Instant) -> str:
        """Describe which nodes do not answer, and for how long."""
        return f"{self.majority} has not answered for {self.silent_ms(now)} ms"
