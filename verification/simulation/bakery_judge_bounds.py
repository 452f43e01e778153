"""The judges of the longest lease in `bakery`, and of leaders that do not reach each other."""

from __future__ import annotations

from itertools import combinations

from fencelock.actors.bakery.config import leader_of
from fencelock.actors.bakery.max_lease import longest_lease_ms
from fencelock.actors.bakery.message import BoundStatement, Install, Vouched
from fencelock.actors.bakery.proxy_message import HoldRenewed, Locked
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
            for quorum in quorums:
                records = [known[name] for name in quorum if known[name].seating.epoch == epoch]
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
