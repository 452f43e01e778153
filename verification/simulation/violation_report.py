"""The report of a violation by a judge that knows all invariants of a protocol."""

from __future__ import annotations

from collections.abc import Mapping

from fencelock.verification.simulation.violation import ViolationError


class ViolationReport:
    """Raises a violation, if its invariant is judged in this run.

    Args:
        invariants: the meaning of each invariant, by its name.
        judged: the invariants to judge, by name, or None for all. Leaving some out shows what the
            others detect by themselves.

    """

    def __init__(self, invariants: Mapping[str, str], judged: frozenset[str] | None = None) -> None:
        assert judged is None or judged <= invariants.keys()
        self.invariants = invariants
        self.judged = judged

    def __call__(self, name: str, told: str) -> None:
        """Report that the invariant ``name`` is broken.

        Raises:
            ViolationError: the invariant is judged.

        """
        assert name in self.invariants, name
        if self.judged is None or name in self.judged:
            raise ViolationError(f"{name}, {self.invariants[name]}: {told}")
