"""A node without a leader asks other nodes: learners always, members while no leader is known.

The answers also bound the age of a learner's state. Let it have asked at ``t``, by its own clock.
The answering replica has applied, when it answers, everything that was known anywhere to be decided
``age_ms`` before. It answers after ``t``. So all that was known ``age_ms`` before ``t`` lies before
the slot that it names. Only ``age_ms`` was measured by another clock, and is stretched by the
drift of both. An answer that comes late or twice proves no more than at first, since it names
the request; and a replica that bounds its own age by such answers may answer others in turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from fencelock.actors.bootstrap_message import StartVoting, StopVoting
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.lease import DRIFT_PPM, surely_over
from fencelock.actors.message import NS_PER_MS, Address, Instant, is_node, ms_between, node_of
from fencelock.actors.paxos.config import (
    TEXT_MAX,
    LogBounds,
    LogConfig,
    acceptor_of,
    catchup_of,
    monitor_of,
    replica_of,
)
from fencelock.actors.paxos.event import (
    Behind,
    Fetched,
    Fresh,
    Lacking,
    LocateDue,
    NodeFacts,
    ReportState,
)
from fencelock.actors.paxos.wire import PAXOS_NUMBER_MAX, UNWILLING, Locate, Located
from fencelock.actors.timing import TIMING

LocatorEvent = Locate | Located | LocateDue | Behind | Fetched | StartVoting | StopVoting


LOCATE_MS = 100
"""Interval at which a learner asks, while it lacks nothing (ms): two heartbeats."""

SOON_MS = 5
"""The same after it has fetched missing slots (ms), so that it keeps up under load."""

LEADER_MS = TIMING.heartbeat_ms
"""Shortest interval at which it asks the leader (ms), which sends each member as many heartbeats.
A new member must have reported soon before it is added: see `config.JOIN_SLOTS`."""

LEARNERS_MAX = 64
"""Maximum learners of which a node keeps the last report."""

LOCATE_REQUESTS_MAX = 64
"""Requests whose answers still bound the age of the state; older ones would prove little."""


class Locator:
    """Finds the leader and decided slots for a node that receives no heartbeats.

    So a learner follows the log, and a member that was removed, or was away while the members
    changed, finds out. It asks one node after the other, and the leader if that is known.

    Args:
        node: the id of its node.
        config: the views.
        report: what this node reports about itself to others, as far as that rarely changes.
        voter: the id that its votes name.
        number: one below the number of the first request. It is random, so that no earlier life of
            this node used numbers near it.
        drift_ppm: largest deviation of a clock's rate (millionths).

    """

    def __init__(
        self,
        node: str,
        config: LogConfig,
        report: Locate,
        *,
        voter: int,
        number: int = 0,
        drift_ppm: int = DRIFT_PPM,
    ) -> None:
        self.node = node
        self.config = config
        self.bounds = LogBounds(node, config)
        self.report = report
        self.voter = voter
        self.silent_ns = config.timing.election_ms * NS_PER_MS
        """A leader silent for this long is not known any more (ns)."""
        self.learns = False
        """Whether this node is no member."""
        self.served = False
        """Whether it was a member under a leader in this life. If it was removed since then, it
        does not become a member again without an operator, until it is restarted."""
        self.leader = ""
        """The leader, as other nodes say; only while this node learns."""
        self.received_at = Instant(0)
        """The time at which that leader last answered."""
        self.others_at = Instant(0)
        """The time at which a node other than the leader last had the missing slots."""
        self.asked = 0
        """Number of nodes that were asked in turn."""
        self.number = number
        self.drift_ppm = drift_ppm
        self.requests: dict[int, Instant] = {}
        """The time of each request, by number, oldest first."""
        self.bytes_left = 0
        """Estimate of the bytes still to be fetched, or 0 if there are none."""
        self.leader_due = Instant(0)
        """The time from which the leader may be asked again."""
        self.timer = 0
        """The number of the `LocateDue` timer that runs."""
        self.learners: dict[str, tuple[Locate, Instant, int]] = {}
        """The last report of each learner, its time, and the slots that it lacked then."""

    def turn(self, now: Instant) -> list[Effect]:
        """Learn from now on, or stop to, as the views demand."""
        self.learns = not self.config.counts(acceptor_of(self.node), self.voter)
        self.leader, self.received_at = "", now
        return self._wake(0) if self.learns else []

    def ask_elsewhere(self, now: Instant) -> list[Effect]:
        """Ask the next node, since no leader sends: the members may have changed."""
        return self._ask_next(list(self.config.nodes), now)

    def handle(self, sender: Address, event: LocatorEvent, now: Instant) -> Effects:
        match event:
            case Locate():
                return self._on_locate(sender, event, now)
            case Located():
                return self._on_located(sender, event, now)
            case LocateDue():
                if event.number != self.timer or not self.learns:
                    return ()
                if now - self.received_at >= self.silent_ns:
                    self.leader = ""
                # Every other time ask any node: the members may be gone.
                known = self.config.nodes if self.asked % 2 else self.config.members
                return [*self._ask_next(list(known), now), *self._wake(LOCATE_MS)]
            case Behind():
                return [self._ask(event.node, now)] if self.config.meet(event.node) else []
            case Fetched():
                self.bytes_left = event.bytes_left
                return () if self.bytes_left or not self.learns else self._wake(SOON_MS)
            case StartVoting() | StopVoting():
                self.report = replace(self.report, ready=isinstance(event, StartVoting))
                return ()

    def facts(self, now: Instant) -> list[NodeFacts]:
        return [
            NodeFacts(
                node, report.applied, ms_between(at, now), report.view, report, lag, report.version
            )
            for node, (report, at, lag) in self.learners.items()
        ]

    def _wake(self, after_ms: int) -> list[Effect]:
        self.timer += 1
        return [Wake(after_ms, LocateDue(number=self.timer))]

    def _ask_next(self, known: Sequence[str], now: Instant) -> list[Effect]:
        """Ask the next of the ``known`` nodes, and the leader."""
        others = [one for one in known if one not in (self.node, self.leader)]
        self.asked += 1
        asked = [others[self.asked // 2 % len(others)]] if others else []
        if self.leader and now >= self.leader_due:
            self.leader_due = Instant(now + LEADER_MS * NS_PER_MS)
            asked.append(self.leader)
        return [self._ask(node, now) for node in asked]

    def _ask(self, node: str, now: Instant) -> Send:
        self.number += 1
        self.requests[self.number] = now
        if len(self.requests) > LOCATE_REQUESTS_MAX:
            del self.requests[next(iter(self.requests))]
        locate = replace(
            self.report,
            applied=self.config.applied,
            view=self.config.newest.number,
            number=self.number,
            bytes_left=self.bytes_left,
            priority=UNWILLING if self.served else self.report.priority,
        )
        return Send(monitor_of(node), locate)

    def _on_locate(self, sender: Address, locate: Locate, now: Instant) -> Effects:
        node = node_of(sender)
        if sender != monitor_of(node):
            return (Observe("paxos.locate_ignored"),)
        if refused := self.bounds.refuse_slot(
            sender, "that it has applied slots up to", locate.applied, now
        ):
            return refused
        possible = (
            min(locate.view, locate.journal, locate.life, locate.log_version - 1) >= 0
            and 0 <= locate.bytes_left < PAXOS_NUMBER_MAX
            and 1 <= locate.priority <= UNWILLING
            and len(locate.version) <= TEXT_MAX
            and len(locate.endpoint) <= TEXT_MAX
        )
        if not possible:
            return self.bounds.report(sender, "paxos.impossible_locate", f"{locate!r:.200}", now)
        if not self.config.meet(node):
            return (Observe("paxos.locate_ignored"),)
        if node in self.learners or len(self.learners) < LEARNERS_MAX:
            lag = max(0, self.config.applied - locate.applied)
            self.learners[node] = locate, now, lag
        return (Send(replica_of(self.node), ReportState(asker=sender, number=locate.number)),)

    def _on_located(self, sender: Address, located: Located, now: Instant) -> Effects:
        node = node_of(sender)
        if node not in self.config.nodes:
            return (Observe("paxos.locate_ignored"),)
        if located.view < 0 or (located.leader and not is_node(located.leader)):
            return self.bounds.report(sender, "paxos.impossible_locate", f"{located!r:.200}", now)
        what = "that slots are decided up to"
        if refused := self.bounds.refuse_slot(sender, what, located.applied, now):
            return refused
        if self.learns and located.leader and located.leader != self.node:
            leads = located.leader == node
            if leads or not self.leader or now - self.received_at >= self.silent_ns:
                self.leader = located.leader
            if leads:
                self.received_at = now
        proven = self._prove(located)
        if located.applied <= self.config.applied:
            return proven
        if node != self.leader:
            self.others_at = now
        elif now - self.others_at < self.silent_ns:
            return proven  # Another node has the missing slots too.
        lacking = Lacking(
            first=self.config.applied, target=located.applied, source=node, leader=self.leader
        )
        return [*proven, Send(catchup_of(self.node), lacking)]

    def _prove(self, located: Located) -> list[Effect]:
        """Bound the age of this node's state once it has applied as much as the other node."""
        asked = self.requests.get(located.number)
        if asked is None or not 0 <= located.age_ms < PAXOS_NUMBER_MAX:
            return []
        age_ns = surely_over(located.age_ms, self.drift_ppm) * NS_PER_MS
        fresh = Fresh(since=Instant(asked - age_ns), slot=located.applied)
        return [Send(replica_of(self.node), fresh)]
