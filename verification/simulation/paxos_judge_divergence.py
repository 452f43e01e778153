"""The judge of quarantine: a member that differs is found, no other is, and it falls silent."""

from __future__ import annotations

from collections.abc import Sequence

from fencelock.actors.bootstrap import bootstrap_of
from fencelock.actors.message import Address
from fencelock.verification.simulation.paxos_judge_state import StateJudge
from fencelock.verification.simulation.violation import ViolationReport


class DivergenceJudge:
    """Judges only-diverged-quarantined."""

    def __init__(self, state: StateJudge, violation_report: ViolationReport) -> None:
        self.state = state
        self.violation_report = violation_report
        self.quarantined: set[str] = set()
        """Members that detected that they differ."""
        self.ending: dict[str, int] = {}
        """Members that have ended their roles of the log; in how many turns they may still send."""

    def observes(self, node: str, mark: str) -> None:
        """Judge a replica's report on the digests it compared."""
        unlike = self.state.unlike | self.state.wrong
        if mark == "paxos.diverged":
            if node not in unlike:
                self.violation_report(
                    "only-diverged-quarantined",
                    f"{node} quarantines itself, its state is what it should be",
                )
            self.quarantined.add(node)
        elif mark in ("paxos.other_diverged", "paxos.divergence_undecided") and not unlike:
            self.violation_report(
                "only-diverged-quarantined", f"{node} says that states differ, none does ({mark})"
            )

    def isolates(self, node: str) -> None:
        """Record that ``node`` ends its roles; their messages of this turn still leave.

        Some of them leave now, those that must wait for the disk a moment later.
        """
        self.ending[node] = 2

    def leaves(self, node: str, senders: Sequence[Address]) -> None:
        """Check that a member that has left the group sends nothing, even after restarts.

        Its `Bootstrap` keeps running: its knowledge of other members' journals is still true.
        """
        senders = [sender for sender in senders if sender != bootstrap_of(node)]
        if not senders or node not in self.ending:
            return
        self.ending[node] -= 1
        if self.ending[node] < 0:
            self.violation_report(
                "only-diverged-quarantined", f"{node} is quarantined, and {senders[0]} still sends"
            )
