"""The judge of elections in `bakery`: promises, seatings, and what majorities know durably."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fencelock.actors.bakery.config import leader_of, quorum
from fencelock.actors.bakery.electorate import FOUNDERS, Electorate
from fencelock.actors.bakery.event import Serve
from fencelock.actors.bakery.message import (
    Beat,
    Chosen,
    Export,
    Install,
    Promised,
    Propose,
    Seating,
    Table,
)
from fencelock.actors.bootstrap_message import GroupConfig
from fencelock.actors.effect import Effects, Send
from fencelock.actors.membership import Member
from fencelock.actors.message import NS_PER_MS, node_of
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationReport
from fencelock.verification.simulation.world import World


class ElectionJudge:
    """Judges elections by messages and by the content of disks.

    The invariants are one-seating-an-epoch, seating-known-by-majority, no-lower-epoch and, for
    leaders that restart, merged-tables-complete.
    """

    def __init__(self, world: World, violation_report: ViolationReport) -> None:
        self.world = world
        self.violation_report = violation_report
        self.seatings: dict[int, tuple[Chosen, ...]] = {}
        """The keepers of each epoch, as soon as a message says that it is installed."""
        self.given: dict[tuple[str, int, int], tuple[Chosen, ...]] = {}
        """By member, life and epoch: the keepers it promised, the leaders first."""
        self.kept: dict[str, tuple[int, tuple[Chosen, ...]]] = {}
        """For each member, its highest promise that was received."""
        self.left_at: dict[tuple[str, int], int] = {}
        """By member and epoch: the true time at which it had promised a higher one."""
        self.exported: dict[tuple[str, int], int] = {}
        """By leader and life: the highest epoch for which it gave its table away."""
        self.voted: dict[str, int] = {}
        """The journal under which each member first promised. It never votes under another one."""
        self.lives: dict[str, list[int]] = {}
        """For each member, the lives that ended."""
        self.said: dict[tuple[str, int], tuple[int, int]] = {}
        """By member and life: the highest seating in its beats."""
        self.gone: dict[str, list[int]] = {}
        """For each member with a replaced disk, the lives before that."""
        self.replaced_at: dict[str, int] = {}
        """The true time at which the disk of a member was last replaced."""
        self.changes = MembersJudge(violation_report, self._knows)
        self.founders = FOUNDERS

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        event = delivered.event
        match event:
            case Beat(member=sender):
                seating = sender.seating
                self.changes.hear(seating.epoch, self._resolved(sender.electorate))
                self._seated(seating.epoch, seating.keepers)
                self._said(node_of(delivered.sender), delivered.boot, seating)
            case Promised():
                self._heard(node_of(delivered.sender), delivered.boot, event)
            case Serve() if delivered.to == leader_of(delivered.node):
                self._serves(delivered.node, event)
                self._is_the_chosen_one(delivered.node, event)
            case _:
                pass
        boot = self.world.nodes[delivered.node].boot
        for effect in effects:
            if type(effect) is not Send:
                continue
            if type(effect.message) is Propose:
                self._registers(effect.message)
            elif type(effect.message) is Promised:
                self._promises(delivered, boot, effect.message)
            elif type(effect.message) is Table:
                assert type(event) is Export
                key = (delivered.node, boot)
                self.exported[key] = max(self.exported.get(key, 0), event.epoch)

    def crashed(self, node: str, boot: int) -> None:
        self.lives.setdefault(node, []).append(boot)

    def disk_replaced(self, node: str) -> None:
        """Record that the disk of ``node``, which is off, was lost or replaced by an old copy.

        The seatings in its earlier messages still count as known: that member votes for nothing
        else any more.
        """
        self.gone[node] = list(self.lives.get(node, ()))
        self.replaced_at[node] = self.world.time

    def _said(self, node: str, boot: int, seating: Seating) -> None:
        self.said[node, boot] = max(_height(seating), self.said.get((node, boot), (0, 0)))

    def _resolved(self, electorate: Electorate) -> Electorate:
        """Return ``electorate``, or that of the founders, according to any disk."""
        if electorate.number:
            return electorate
        for name in () if self.founders.members else self.world.members:
            for record in self.world.nodes[name].disk.records().get("bootstrap", ()):
                if isinstance(record, GroupConfig):
                    seats = tuple(Member(one, "", journal) for one, journal in record.voters)
                    self.founders = Electorate(0, seats)
        return self.founders

    def _registers(self, proposal: Propose) -> None:
        """Let a member that lost its journal vote under the one that replaces it."""
        for seat in proposal.electorate.members:
            if self.voted.get(seat.name, seat.journal) != seat.journal:
                self.voted[seat.name] = seat.journal
                self.kept.pop(seat.name, None)

    def _is_another(self, node: str) -> bool:
        """Return whether the journal of ``node`` is not the one under which it voted."""
        journal = self.world.nodes[node].disk.journal_id
        return self.voted.get(node, journal) != journal

    def _promises(self, delivered: Delivery, boot: int, promised: Promised) -> None:
        node, epoch = delivered.node, promised.epoch
        self.voted.setdefault(node, self.world.nodes[node].disk.journal_id)
        if self._is_another(node):
            self.violation_report(
                "one-seating-an-epoch", f"{node} promises epoch {epoch}, and has lost its journal"
            )
        role: Any = self.world.role_at(delivered.to)
        proposal = role.promises.proposal
        keepers = (*proposal.leaders, *proposal.copies) if proposal.epoch == epoch else ()
        before, chosen = self.kept.get(node, (0, ()))
        if epoch < before:
            self.violation_report(
                "one-seating-an-epoch", f"{node} promises epoch {epoch}, and had promised {before}"
            )
        # An installed seating was promised by a majority: another promise decides nothing.
        installed = role.promises.seating
        decided = (installed.epoch, installed.keepers) == (epoch, keepers)
        if epoch == before and keepers != chosen and not decided:
            self.violation_report(
                "one-seating-an-epoch",
                f"{node} promises {keepers} in {epoch}, and had promised {chosen}",
            )
        self.given[node, boot, epoch] = keepers
        for lower in range(epoch - 1, -1, -1):
            if (node, lower) in self.left_at:
                break
            self.left_at[node, lower] = self.world.time

    def _heard(self, node: str, boot: int, promised: Promised) -> None:
        keepers = self.given.get((node, boot, promised.epoch), ())
        before = self.kept.get(node, (0, ()))
        if promised.epoch > before[0]:
            self.kept[node] = (promised.epoch, keepers)

    def _seated(self, epoch: int, keepers: tuple[Chosen, ...]) -> None:
        known = self.seatings.setdefault(epoch, keepers)
        if known != keepers:
            self.violation_report(
                "one-seating-an-epoch", f"epoch {epoch} is kept by {keepers}, and by {known}"
            )

    def _serves(self, node: str, serve: Serve) -> None:
        seating = serve.seating
        self._seated(seating.epoch, seating.keepers)
        electorate = self._resolved(self._installed(node, seating.epoch))
        self.changes.hear(seating.epoch, electorate)
        for group in electorate.groups:
            know = [seat.name for seat in group if self._knows(seat, _height(seating))]
            if len(know) < quorum(len(group)):
                told = f"leases of {seating.bound_ms} ms in epoch {seating.epoch}"
                self.violation_report(
                    "seating-known-by-majority",
                    f"{node} is let serve, with {told}, and only {know} know, durably",
                )

    def electorate_of(self, epoch: int) -> Electorate:
        """Return the electorate of ``epoch``, as far as messages named it."""
        return self._resolved(self.changes.of_epoch.get(epoch, FOUNDERS))

    def _installed(self, node: str, epoch: int) -> Electorate:
        """Return the electorate of ``epoch``, as ``node`` knows it."""
        records = self.world.nodes[node].disk.records().get("election", ())
        known = [
            record.electorate
            for record in records
            if isinstance(record, Install) and record.seating.epoch == epoch
        ]
        return known[-1] if known else FOUNDERS

    def _is_the_chosen_one(self, node: str, serve: Serve) -> None:
        """Check that a serving leader has not restarted since it was chosen: it lost its table."""
        role: Any = self.world.role_at(leader_of(node))
        lives = [chosen.life for chosen in serve.seating.leaders if chosen.node == node]
        if role.epoch_state.serving and lives != [self.world.nodes[node].boot]:
            self.violation_report(
                "merged-tables-complete",
                f"{node} serves in epoch {serve.seating.epoch}, and lives anew",
            )

    def _knows(self, seat: Member, wanted: tuple[int, int]) -> bool:
        """Return whether a voter knows an epoch with its bound, or a higher one, durably."""
        member = seat.name
        past = [self.said.get((member, life), (0, 0)) for life in self.gone.get(member, ())]
        if max(past, default=(0, 0)) >= wanted:
            return True
        if self.world.nodes[member].disk.journal_id != seat.journal:
            return False
        records = self.world.nodes[member].disk.records().get("election", ())
        known = [record.seating for record in records if isinstance(record, Install)]
        best = max(known, key=_height, default=None)
        return best is not None and _height(best) >= wanted

    def obeys(self, node: str, epoch: int, what: str) -> None:
        """Judge that a leader sends a message in an epoch."""
        boot = self.world.nodes[node].boot
        barred = self.exported.get((node, boot), 0)
        if epoch < barred:
            self.violation_report(
                "no-lower-epoch", f"{node} says {what} in epoch {epoch}, its table went to {barred}"
            )

    def may_be_trusted(self, epoch: int, trust_ms: int) -> bool:
        """Return whether a majority had promised nothing above ``epoch`` so long ago."""
        then = self.world.time - trust_ms * NS_PER_MS
        members = self.world.members
        late = {name for name in members if self.left_at.get((name, epoch), then) < then}
        lost = {
            name
            for name in members
            if self._is_another(name) and self.replaced_at.get(name, then) < then
        }
        electorate = self.electorate_of(epoch)
        return electorate.is_quorum(set(electorate.everyone) - late - lost)


def _height(seating: Seating) -> tuple[int, int]:
    return (seating.epoch, seating.bound_ms)


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
