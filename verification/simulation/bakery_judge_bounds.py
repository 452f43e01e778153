"""The judges of time in `bakery`: leases have known bounds, and leaders that fail are replaced."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from fencelock.actors.bakery.config import leader_of, quorum
from fencelock.actors.bakery.max_lease import longest_lease_ms
from fencelock.actors.bakery.message import (
    BoundStatement,
    HoldRenewed,
    Install,
    Lead,
    Locked,
    Vouched,
)
from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import NS_PER_MS, Instant, ms_between
from fencelock.verification.simulation.bakery_judge_election import ElectionJudge
from fencelock.verification.simulation.bakery_judge_leases import LeasesJudge
from fencelock.verification.simulation.bakery_nemesis import LeaderNemesis
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import Judge, ViolationReport
from fencelock.verification.simulation.world import World


class BoundsJudge:
    """Judges longest-lease-known.

    Whichever members promise the next epoch, they report a bound for each lease.
    """

    def __init__(
        self,
        world: World,
        violation_report: ViolationReport,
        election: ElectionJudge,
        leases: LeasesJudge,
    ) -> None:
        self.world = world
        self.violation_report = violation_report
        self.election = election
        self.leases = leases

    def at_leader(self, delivered: Delivery, effects: Effects) -> None:
        if any(type(one) is Send and type(one.message) in (Locked, HoldRenewed) for one in effects):
            self._judge(f"{delivered.node} grants or renews")

    def at_member(self, effects: Effects) -> None:
        """Judge the effect of a statement that a member confirms."""
        if any(type(one) is Send and type(one.message) is Vouched for one in effects):
            self._judge("a member confirms a bound")

    def _judge(self, what: str) -> None:
        if not self.leases.clocks_true:
            return
        bounds: dict[int, int | None] = {}
        for lock, leases in self.leases.leases.items():
            for fence, lease in leases.items():
                if not self.leases.lives(lease):
                    continue
                epoch = lease.epoch
                if epoch not in bounds:
                    bounds[epoch] = self._least_bound_ms(epoch)
                bound_ms, left_ms = bounds[epoch], (lease.until - self.world.time) // NS_PER_MS
                if bound_ms is not None and left_ms > bound_ms:
                    self.violation_report(
                        "longest-lease-known",
                        f"{what}: {lock!r} is held for {left_ms} ms more under fence {fence}, and "
                        f"some majority knows of {bound_ms} ms at most",
                    )

    def _least_bound_ms(self, epoch: int) -> int | None:
        """Return the lowest bound that any quorum of promises would report for ``epoch``.

        None if a later epoch is known, whose tables have the leases of this one.
        """
        known = self._records()
        if not known or max(record.seating.epoch for record in known.values()) > epoch:
            return None
        electorate = self.election.electorate_of(epoch)
        names = [name for name in electorate.everyone if name in known]
        least: int | None = None
        for size in range(1, len(names) + 1):
            quorums = [one for one in combinations(names, size) if electorate.is_quorum(one)]
            for names_of in quorums:
                records = [known[name] for name in names_of if known[name].seating.epoch == epoch]
                statements: dict[str, BoundStatement] = {}
                for record in records:
                    for one in record.statements:
                        last = statements.get(one.leader, one)
                        statements[one.leader] = max(last, one, key=lambda each: each.number)
                if records:
                    seating = records[0].seating
                    bound_ms = longest_lease_ms(seating, tuple(statements.values()))
                    least = bound_ms if least is None else min(least, bound_ms)
            if quorums:
                break
        return least

    def _records(self) -> dict[str, Install]:
        """Return the last seating on the disk of each member, with what it knows of bounds."""
        found: dict[str, Install] = {}
        for name in self.world.members:
            for record in self.world.nodes[name].disk.records().get("election", ()):
                if isinstance(record, Install) and (
                    name not in found or record.seating.epoch >= found[name].seating.epoch
                ):
                    found[name] = record
        return found


REPLACED_MS = 5_000
"""Time within which leaders that do not reach each other must be replaced (ms)."""

EPOCHS_MAX = 3
"""Maximum epochs that this may take."""

POLL_MS = 100


class SeatsJudge(Judge):
    """Judges deaf-leaders-replaced, in runs without other faults.

    Locks are granted though the leaders do not receive each other's messages.
    """

    def __init__(
        self, world: World, violation_report: ViolationReport, nemesis: LeaderNemesis
    ) -> None:
        self.world = world
        self.violation_report = violation_report
        self.nemesis = nemesis
        self.granted_at = 0
        self.epochs: dict[int, int] = {}
        """The first grant in each epoch (ns)."""
        world.after(POLL_MS * NS_PER_MS, self._poll)

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        if delivered.to == leader_of(delivered.node) and any(
            type(one) is Send and type(one.message) is Locked for one in effects
        ):
            self.granted_at = self.world.time
            role = self.world.role_at(delivered.to)
            self.epochs.setdefault(role.epoch_state.epoch, self.world.time)

    def _poll(self) -> None:
        if self.world.calm:
            return
        now, (since, until) = self.world.time, self.nemesis.deaf
        if since < now < until:
            waited_ms = ms_between(Instant(max(since, self.granted_at)), Instant(now))
            if waited_ms > REPLACED_MS:
                self.violation_report(
                    "deaf-leaders-replaced", f"nothing was granted for {waited_ms} ms"
                )
            begun = [epoch for epoch, at in self.epochs.items() if since < at]
            if len(begun) > EPOCHS_MAX:
                self.violation_report(
                    "deaf-leaders-replaced", f"the leaders were replaced again and again: {begun}"
                )
        self.world.after(POLL_MS * NS_PER_MS, self._poll)


WHOLE_MS = 2_000
"""Time for which all members run before some are lost (ms): each has all copies by then."""

DOWN_MS = 1_500
"""Mean time for which lost members are down (ms)."""


class MinorityLosses:
    """Loses as many members at once as leaves a majority: all leaders, if these are no more.

    It judges survivors-suffice: no new leaders begin with empty tables, and locks are granted again
    within `REPLACED_MS`. Users must ask for locks all the time.
    """

    def __init__(self, world: World, violation_report: ViolationReport) -> None:
        self.world = world
        self.violation_report = violation_report
        self.granted_at = 0
        self.whole_since = 0
        self._random = world.streams.fork("survivors")
        world.after(POLL_MS * NS_PER_MS, self._poll)

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        for effect in effects:
            if type(effect) is not Send:
                continue
            message = effect.message
            if type(message) is Locked:
                self.granted_at = self.world.time
            elif type(message) is Lead and message.empty and message.former.epoch:
                self.violation_report(
                    "survivors-suffice", f"epoch {message.epoch} is to begin with empty tables"
                )

    def crashed(self, node: str, boot: int) -> None:
        self.whole_since = self.world.time

    def _poll(self) -> None:
        world = self.world
        if world.calm:
            return
        waited_ms = ms_between(Instant(self.granted_at), Instant(world.time))
        if self.granted_at and waited_ms > REPLACED_MS:
            self.violation_report("survivors-suffice", f"nothing was granted for {waited_ms} ms")
        if not all(world.nodes[name].up for name in world.members):
            self.whole_since = world.time
        elif ms_between(Instant(self.whole_since), Instant(world.time)) > WHOLE_MS:
            self._lose_minority()
        world.after(POLL_MS * NS_PER_MS, self._poll)

    def _lose_minority(self) -> None:
        """Crash leaders first, at one moment, and let them run again later, one after the other."""
        leading: list[str] = []
        for name in self.world.members:
            role: Any = self.world.role_at(leader_of(name))
            if role.epoch_state.serving:
                leading.append(name)
        others = [name for name in self.world.members if name not in leading]
        self._random.shuffle(leading)
        self._random.shuffle(others)
        most = len(self.world.members) - quorum(len(self.world.members))
        lost = [*leading, *others][:most]
        self.world.fault_counts[f"{len(lost)} members are lost at once"] += 1
        for name in lost:
            down = 1 + int(self._random.expovariate(1.0) * DOWN_MS * NS_PER_MS)
            self.world.lose(name, down)
