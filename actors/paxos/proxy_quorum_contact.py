"""Since when the log has said nothing, for texts. Pure."""

from __future__ import annotations

from fencelock.actors.message import Instant, ms_between


class QuorumContact:
    """When the log was last heard, and since when it could have been.

    Args:
        members: the nodes that vote, sorted.

    """

    def __init__(self, members: tuple[str, ...]) -> None:
        self.majority = f"a majority of {', '.join(members)}"
        self.heard_at = Instant(0)
        self.asked_at = Instant(0)
        """When something was asked for while nothing was under way."""

    def heard(self, now: Instant) -> None:
        """Note that the log spoke."""
        self.heard_at = now

    def broken(self, now: Instant) -> None:
        """Note that there is something to be answered from now on."""
        self.asked_at = now

    def in_words(self, now: Instant) -> str:
        """Return who does not answer, and for how long."""
        silent_ms = ms_between(max(self.heard_at, self.asked_at), now)
        return f"{self.majority} has not answered for {silent_ms} ms"
