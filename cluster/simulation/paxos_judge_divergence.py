"""The judge of quarantine: whoever differs is found, nobody else is, and it is silent then."""

from __future__ import annotations

from collections.abc import Sequence

from fencelock.actors.bootstrap import bootstrap_of
from fencelock.actors.message import Address
from fencelock.cluster.simulation.paxos_judge_state import StateJudge
from fencelock.cluster.simulation.violation_report import ViolationReport


class DivergenceJudge:
    """Judges P20.

    Args:
        state: knows what the state of every member should be.
        violation_report: is told what is wrong.

    """

    def __init__(self, state: StateJudge, violation_report: ViolationReport) -> None:
        self.state = state
        self.violation_report = violation_report
        self.quarantined: set[str] = set()
        """Members that found out that they differ."""
        self.ending: dict[str, int] = {}
        """Members that have ended their roles of the log; how often something may leave them."""

    def observes(self, node: str, mark: str) -> None:
        """Judge what a replica says of the digests it compared."""
        unlike = self.state.unlike | self.state.wrong
        if mark == "paxos.diverged":
            if node not in unlike:
                self.violation_report(
                    "P20", f"{node} quarantines itself, its state is what it should be"
                )
            self.quarantined.add(node)
        elif mark in ("paxos.other_diverged", "paxos.divergence_undecided") and not unlike:
            self.violation_report("P20", f"{node} says that states differ, none does ({mark})")

    def isolates(self, node: str) -> None:
        """Take note that ``node`` ends its roles; what they sent in this turn still leaves.

        Some of it leaves now, and what has to wait for the disk a moment later.
        """
        self.ending[node] = 2

    def leaves(self, node: str, senders: Sequence[Address]) -> None:
        """Demand that nothing leaves a member that has left the group, over restarts too.

        Its `Bootstrap` goes on: what it knows of the journals of others is still true.
        """
        senders = [sender for sender in senders if sender != bootstrap_of(node)]
        if not senders or node not in self.ending:
            return
        self.ending[node] -= 1
        if self.ending[node] < 0:
            self.violation_report("P20", f"{node} is quarantined, and {senders[0]} still sends")
