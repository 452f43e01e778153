"""The judge of members in `bakery`: a change is in force once both majorities know it."""

from __future__ import annotations

from collections.abc import Callable

from fencelock.actors.bakery.config import quorum
from fencelock.actors.bakery.electorate import Electorate
from fencelock.actors.membership import Member
from fencelock.verification.simulation.violation import ViolationReport

Knows = Callable[[Member, tuple[int, int]], bool]
"""Returns whether a voter knows an epoch with its bound, or a higher one, durably."""


class MembersJudge:
    """Judges one-change-at-a-time by the electorates that beats and served epochs have."""

    def __init__(self, violation_report: ViolationReport, knows: Knows) -> None:
        self.violation_report = violation_report
        self.knows = knows
        self.of_epoch: dict[int, Electorate] = {}
        """The electorate of each epoch, as it was heard last."""
        self.began: dict[Electorate, int] = {}
        """The lowest epoch of each change that was heard of, without its ``former``."""
        self.in_force: dict[int, Electorate] = {}
        """By number: the members that are in force, or were."""
        self.numbers: dict[int, int] = {}
        """By epoch: the number of changes in force then."""

    @property
    def voters(self) -> tuple[tuple[str, int], ...]:
        newest = self.in_force[max(self.in_force)].members if self.in_force else ()
        return tuple((member.name, member.journal) for member in newest)

    @property
    def may_lose_disk(self) -> bool:
        return not self.of_epoch[max(self.of_epoch)].former

    def hear(self, epoch: int, electorate: Electorate) -> None:
        """Judge the electorate of ``epoch``; without ``former`` it is said to be in force."""
        if epoch and not electorate.former:
            self._judge_order(epoch, electorate.number)
        if not electorate.members or not epoch or self.of_epoch.get(epoch) == electorate:
            return
        self.of_epoch[epoch] = electorate
        settled = electorate.settled()
        began = self.began.setdefault(settled, epoch)
        number = electorate.number
        if electorate.former or self.in_force.get(number) == settled:
            return
        if number and self.in_force.setdefault(number, settled) != settled:
            self.violation_report(
                "one-change-at-a-time", f"change {number} is {settled}, and another one"
            )
        before = self.in_force.get(number - 1)
        groups = [electorate.members, *([before.members] if before is not None else [])]
        for group in groups if number else ():
            know = [seat.name for seat in group if self.knows(seat, (began, 0))]
            if len(know) < quorum(len(group)):
                self.violation_report(
                    "one-change-at-a-time",
                    f"change {number} is in force in epoch {epoch}, and of {list(group)} only "
                    f"{know} know it, durably",
                )
        self.in_force[number] = settled

    def _judge_order(self, epoch: int, number: int) -> None:
        """Judge that no epoch brings back the members of before a change."""
        if self.numbers.get(epoch) == number:
            return
        self.numbers[epoch] = number
        in_order = [self.numbers[one] for one in sorted(self.numbers)]
        if in_order != sorted(in_order):
            self.violation_report(
                "one-change-at-a-time",
                f"epoch {epoch} has the members of change {number}: {self.numbers}",
            )
