"""A process's knowledge of the others: who owes an answer, who has answered since its start."""

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
        self.received_at: dict[str, Instant] = dict.fromkeys(sorted(others), now)
        self.owing: dict[str, Instant] = dict(self.received_at)

    def received(self, node: str, now: Instant) -> None:
        """Note a message of ``node``."""
        self.received_at[node] = now
        self.owing.pop(node, None)

    def requested(self, nodes: Iterable[str], now: Instant) -> None:
        """Note that ``nodes`` were sent something that they must answer."""
        for node in nodes:
            self.owing.setdefault(node, now)

    def owes(self, node: str) -> bool:
        """Return whether ``node`` has sent nothing since it was asked."""
        return node in self.owing

    def absences(self, nodes: Iterable[str], now: Instant) -> tuple[Absence, ...]:
        """Return those of ``nodes`` that were silent for `SILENCE_MS` or longer."""
        since = ((node, self.owing.get(node, self.received_at[node])) for node in nodes)
        silent = (Absence(node, ms_between(at, now)) for node, at in since)
        return tuple(absence for absence in silent if absence.silent_ms >= SILENCE_MS)


class Rejoin:
    """Counts the lives met and the welcomes received, until all other processes have answered.

    A process that starts has lost its clock. Every request that was ever granted was
    answered by every process of its time, so a process that has not restarted since has
    a clock beyond it. But an early welcome may come from before such an answer, and the
    process that was granted may have restarted since and forgotten. So the requests begin
    again, as a new round, with every life met. The round that counts begins after the last of
    the others met is in its present life, and whatever an earlier life of it was granted,
    the others knew before they answered.

    So stamps, and with them fences, keep rising as long as at any time one process is
    ready. If all lose their clocks at once, no process is left to ask; see the README.

    Args:
        others: every process but this one, None if they are not known yet.

    """

    def __init__(self, others: Iterable[str] | None) -> None:
        self.others = tuple(sorted(others or ()))
        self.lives: dict[str, int] = {}
        self.round = 0
        self.welcomed: dict[str, int] = {}
        """The latest round in which each process answered in full."""
        self.ready = others is not None and not self.others

    def meet(self, node: str, boot: int) -> tuple[str, ...]:
        """Note that ``node`` is in its life ``boot``; return the nodes to greet, in a new round."""
        self.lives[node] = boot
        if self.ready:
            return ()
        self.round += 1
        return self.others if len(self.lives) == len(self.others) else (node,)

    def welcome(self, node: str, number: int) -> None:
        """Note that ``node`` answered round ``number`` in full."""
        self.welcomed[node] = number
        self.ready = self.ready or not self.missing()

    def missing(self) -> tuple[str, ...]:
        """Return the processes that must still be met or answer, sorted."""
        unmet = tuple(node for node in self.others if node not in self.lives)
        late = tuple(node for node in self.others if self.welcomed.get(node) != self.round)
        return () if self.ready else unmet or late
