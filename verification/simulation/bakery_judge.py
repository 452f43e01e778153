"""The judge of `bakery`, which sees everything: roles, disks, all messages, and true time."""

from __future__ import annotations

from fencelock.actors.bakery.config import election_of, leader_of, proxy_of, status_of
from fencelock.actors.bakery.invariants import INVARIANTS
from fencelock.actors.effect import Effects
from fencelock.cluster.node.topology import ProtocolSettings
from fencelock.verification.simulation.bakery_judge_bounds import BoundsJudge
from fencelock.verification.simulation.bakery_judge_election import ElectionJudge
from fencelock.verification.simulation.bakery_judge_leases import LeasesJudge
from fencelock.verification.simulation.bakery_judge_votes import DropsJudge, TicketJudge
from fencelock.verification.simulation.promise import promise_of
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationReport
from fencelock.verification.simulation.world import World


class BakeryJudge:
    """Judges the invariants of `bakery` one by one.

    It does not trust the counters of roles: it counts deliveries and messages itself. From tables
    and epoch states it reads only the present state.
    """

    def __init__(self, world: World, judged: frozenset[str] | None = None) -> None:
        self.world = world
        violation_report = ViolationReport(INVARIANTS, judged)
        true = promise_of("bakery", ProtocolSettings()).clocks_true(world.faults)
        self.election = ElectionJudge(world, violation_report)
        self.votes = TicketJudge(world, violation_report, self.election, clocks_true=true)
        self.drops = DropsJudge(world, violation_report)
        self.leases = LeasesJudge(world, violation_report, clocks_true=true)
        self.bounds = BoundsJudge(world, violation_report, self.election, self.leases)
        self.violation_report = violation_report
        world.disk_watchers.append(self.disk_replaced)

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        node, to = delivered.node, delivered.to
        if node not in self.world.members:
            self.leases.at_client(delivered, effects)
        elif to == leader_of(node):
            self.election.handled(delivered, effects)
            self.votes.handled(delivered, effects)
            self.leases.at_leader(delivered, effects)
            self.bounds.at_leader(delivered, effects)
            self.drops.handled(delivered, effects)
        elif to == proxy_of(node):
            self.leases.at_proxy(delivered, effects)
        elif to in (election_of(node), status_of(node)):
            self.election.handled(delivered, effects)
            self.bounds.at_member(effects)

    def crashed(self, node: str, boot: int) -> None:
        self.election.crashed(node, boot)
        self.leases.crashed(node)

    def disk_replaced(self, node: str) -> None:
        self.election.disk_replaced(node)
