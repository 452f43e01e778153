"""The judge of `bakery`, which sees everything: roles, disks, all messages, and true time."""

from __future__ import annotations

from fencelock.actors.bakery.config import election_of, leader_of, proxy_of, status_of
from fencelock.actors.effect import Effects
from fencelock.cluster.node.topology import ProtocolSettings
from fencelock.verification.simulation.bakery_judge_bounds import BoundsJudge
from fencelock.verification.simulation.bakery_judge_drops import DropsJudge
from fencelock.verification.simulation.bakery_judge_election import ElectionJudge
from fencelock.verification.simulation.bakery_judge_leases import LeasesJudge
from fencelock.verification.simulation.bakery_judge_votes import TicketJudge
from fencelock.verification.simulation.promise import promise_of
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation_report import ViolationReport
from fencelock.verification.simulation.world import World

INVARIANTS = {
    "B1": "an epoch has one seating",
    "B2": "a majority knows a seating that serves",
    "B3": "who merged knows every lease that lives",
    "B4": "a leader heeds no epoch below its own",
    "B5": "a leader has no votes for two tickets that conflict",
    "B6": "an answer counts once, for who gave it",
    "B7": "a quorum voted for what is granted, and trust has not run out",
    "B8": "fences of a lock rise",
    "B9": "nothing is granted that a client believes to hold",
    "B10": "what was dropped stays dropped",
    "B11": "a proxy answers a request once",
    "B12": "the members change one at a time, when majorities before and after know it",
    "B13": "a request keeps its mode, and a shared ticket does not overtake an exclusive one",
    "B14": "the members know the longest lease",
    "B15": "leaders that do not reach each other are replaced, once",
}
"""The invariants of ``actors/bakery/README.md``, as far as a violation is visible from outside."""


class BakeryJudge:
    """Judges B1 to B13 one by one; see ``actors/bakery/README.md``.

    It does not trust the counters of roles: it counts deliveries and messages itself. From tables
    and epoch states it reads only the present state.

    Args:
        world: where everything happens.
        judged: the invariants to judge, by number, or None for all.

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
        """Judge one event, and the effects of the role that handled it."""
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
        """Record that a node died."""
        self.election.crashed(node, boot)
        self.leases.crashed(node)

    def disk_replaced(self, node: str) -> None:
        """Record that the disk of ``node``, which is off, was lost or replaced by an old copy."""
        self.election.disk_replaced(node)
