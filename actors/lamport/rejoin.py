"""Rules for a started process: the answers it needs before it may stamp a request."""

from __future__ import annotations

from collections.abc import Iterable


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
