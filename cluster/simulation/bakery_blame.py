"""The invariants of `bakery`, by number, and how one is said to be broken."""

from __future__ import annotations

from holdfast.cluster.simulation.violation import ViolationError

INVARIANTS = {
    "B1": "an epoch has one seating",
    "B2": "a majority knows a seating that serves",
    "B3": "who merged knows every lease that lives",
    "B4": "a leader heeds no epoch below its own",
    "B5": "a leader votes for one at a time",
    "B6": "an answer counts once, for who gave it",
    "B7": "a quorum voted for what is granted, and trust has not run out",
    "B8": "fences of a lock rise",
    "B9": "nothing is granted that a client believes to hold",
    "B10": "what was dropped stays dropped",
    "B11": "a door answers a request once",
}
"""In the words of ``actors/bakery/README.md``, as far as an onlooker sees them broken."""


class Blame:
    """Raises what is wrong, if that is judged in this run.

    Args:
        judged: the invariants, by number; None for all. Leaving some out shows what the
            others see by themselves.

    """

    def __init__(self, judged: frozenset[str] | None = None) -> None:
        assert judged is None or judged <= INVARIANTS.keys()
        self.judged = judged

    def __call__(self, number: str, told: str) -> None:
        """Say that the invariant ``number`` is broken.

        Raises:
            ViolationError: it is judged.

        """
        if self.judged is None or number in self.judged:
            raise ViolationError(f"{number}, {INVARIANTS[number]}: {told}")
