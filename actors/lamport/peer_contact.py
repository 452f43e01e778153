"""Tracks which processes owe an answer, and since when."""

from __future__ import annotations

from collections.abc import Iterable

from fencelock.actors.api.message import Absence
from fencelock.actors.message import Instant, ms_between

SILENCE_MS = 150
"""Silence after which a process that owes an answer is named (ms): longer than a round trip, and
shorter than the first resending of lost messages."""


class PeerContact:
    """Distinguishes a silent process from one that merely has nothing to send.

    A process owes an answer from the first message that requires one until its next
    message of any kind.

    Args:
        others: every process but this one; each owes a first message.
        now: the time at which this process learned of them.

    """

    def __init__(self, others: Iterable[str], now: Instant) -> None:
        self.heard_at: dict[str, Instant] = dict.fromkeys(sorted(others), now)
        self.owing: dict[str, Instant] = dict(self.heard_at)

    def heard(self, node: str, now: Instant) -> None:
        """Note a message of ``node``."""
        self.heard_at[node] = now
        self.owing.pop(node, None)

    def asked(self, nodes: Iterable[str], now: Instant) -> None:
        """Note that ``nodes`` were sent something that they must answer."""
        for node in nodes:
            self.owing.setdefault(node, now)

    def owes(self, node: str) -> bool:
        """Return whether ``node`` has sent nothing since it was asked."""
        return node in self.owing

    def absences(self, nodes: Iterable[str], now: Instant) -> tuple[Absence, ...]:
        """Return those of ``nodes`` that were silent for `SILENCE_MS` or longer."""
        since = ((node, self.owing.get(node, self.heard_at[node])) for node in nodes)
        silent = (Absence(node, ms_between(at, now)) for node, at in since)
        return tuple(absence for absence in silent if absence.silent_ms >= SILENCE_MS)
