"""Looks that wait until it is proven that nobody holds a lock. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from fencelock.actors.lamport.order import Evidence, Turn
from fencelock.actors.proxy.backend import Look

PROOF_MS = 2_000
"""Time limit for a read to hear every other process (ms): several resendings of a lost message."""


@dataclass(slots=True)
class Proof:
    """One look that waits.

    Attributes:
        probed: whether a `Probe` was posted for it, to all processes and to this one.
        turn: of that probe, None until it comes back stamped.

    """

    look: Look
    probed: bool = False
    turn: Turn | None = None


class Proofs:
    """The looks that wait, in the order in which they came.

    A process may be granted a lock before its request is known here: any later-stamped message
    from here is evidence for it, also one that was sent before the request arrived. So an empty
    queue proves nothing by itself. But whoever held the lock when the look began had heard this
    process later than its request, so that the request is stamped before the look's probe. And
    messages of a process arrive in the order of their stamps. Once every process was heard
    later than the probe, that request is in the queue, unless it was released.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, Proof] = {}

    def add(self, look: Look) -> None:
        """Have ``look`` wait."""
        self.waiting[look.query] = Proof(look)

    def unprobed(self) -> list[Proof]:
        """Return those for which no probe was posted."""
        return [proof for proof in self.waiting.values() if not proof.probed]

    def stamped(self, turn: Turn) -> None:
        """Note the turn of the oldest probe that had none: they come back in order."""
        waiting = (p for p in self.waiting.values() if p.probed and p.turn is None)
        next(waiting).turn = turn

    def take_proven(self, evidence: Evidence) -> list[Look]:
        """Return the looks whose probes are covered; they wait no more."""
        proven: list[Look] = []
        for proof in list(self.waiting.values()):
            if proof.turn is None or not evidence.covers(proof.turn):
                break  # The others were probed later.
            del self.waiting[proof.look.query]
            proven.append(proof.look)
        return proven
