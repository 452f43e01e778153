"""The judge of leaders that change the members by themselves."""

from __future__ import annotations

from dataclasses import dataclass, field

from fencelock.actors.effect import Effects, Observe, Send
from fencelock.actors.lease import PPM
from fencelock.actors.membership import Membership
from fencelock.actors.message import NS_PER_MS, Instant, node_of
from fencelock.actors.paxos.config import leader_of, monitor_of
from fencelock.actors.paxos.event import ProposeChange
from fencelock.actors.paxos.message import NO_BALLOT, HeartbeatAck, Locate
from fencelock.actors.paxos.reconfigurer import HEARD_MS
from fencelock.verification.simulation.paxos_image import Electorates
from fencelock.verification.simulation.paxos_plan import LogPlan
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationReport

UNREGISTERED = Observe("paxos.unregistered_vote")


@dataclass(eq=False)
class TargetJudge:
    """Judges only-silent-replaced by the messages to leaders, if the plan has no operator."""

    plan: LogPlan
    electorates: Electorates
    """The members, as they are decided."""
    violation_report: ViolationReport
    heard: dict[tuple[str, str], Instant] = field(default_factory=dict[tuple[str, str], Instant])
    """The true time at which a leader last received an answer, or a report, of a node."""
    led: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    """The highest ballot of each leader that another node answered."""

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        if not self.plan.target_members:
            return
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, ProposeChange):
                self._judge(delivered.node, effect.message.membership, delivered.time)
        if delivered.to != monitor_of(delivered.node) or UNREGISTERED in effects:
            return  # A member without its registered journal does not answer, as far as votes go.
        node, other, event = delivered.node, node_of(delivered.sender), delivered.event
        match event:
            case HeartbeatAck() if event.ballot.leader == leader_of(node):
                if event.ballot >= self.led.get(node, NO_BALLOT):
                    self.led[node] = event.ballot
                    self.heard[node, other] = Instant(delivered.time)
            case Locate() if other not in self.members:
                self.heard[node, other] = Instant(delivered.time)
            case _:
                pass

    @property
    def members(self) -> set[str]:
        """The members that are decided last."""
        past = self.electorates.past
        return {voter.member for voter in past[-1].voters} if past else set()

    def _judge(self, node: str, membership: Membership, time: int) -> None:
        new = set(membership.names)
        if new == self.members:
            return  # The leader asks again for what it does not know to be decided.
        slow, quick = PPM - self.plan.drift_ppm, PPM + self.plan.drift_ppm
        for gone in self.members - new:
            silent = time - self.heard.get((node, gone), -self.plan.chaos_ms * NS_PER_MS)
            if silent * quick < (self.plan.replace_after_ms - 1) * NS_PER_MS * PPM:
                told = f"{node} removes {gone}, which it heard {silent // NS_PER_MS} ms ago"
                self.violation_report("only-silent-replaced", told)
        recent = time - HEARD_MS * NS_PER_MS * PPM // slow - NS_PER_MS
        there = {one for one in new if one == node or self.heard.get((node, one), recent) > recent}
        if 2 * len(there) <= len(new):
            self.violation_report(
                "only-silent-replaced", f"{node} hears {sorted(there)} of {sorted(new)}"
            )
