"""Changes of the members by the log, and reports of them; see `MemberChanges`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Unpack

from fencelock.actors.api.lock_message import Refused
from fencelock.actors.api.membership_message import (
    ChangeMembers,
    MembersChanged,
    MembersRead,
    NodeReport,
    NodeRole,
    ReadMembers,
)
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.error import MembershipError
from fencelock.actors.membership import Member
from fencelock.actors.membership_changes import (
    CHANGE_REQUESTS_MAX,
    ClientRequests,
    Learner,
    MemberChanges,
    MembersReply,
    MembersRequest,
    RepeatedChanges,
    Step,
    unchanged,
)
from fencelock.actors.membership_target import (
    MEMBERS_CHECK_MS,
    NO_TARGET,
    QUIET_MS,
    MemberTarget,
    TargetKeeper,
)
from fencelock.actors.message import NS_PER_MS, Address, Instant, node_of
from fencelock.actors.paxos.config import (
    LEARNED_SLOTS,
    MemberArguments,
    MemberRole,
    View,
    members_of,
)
from fencelock.actors.paxos.event import (
    DescribeNodes,
    NodeFacts,
    NodesDescribed,
    ProposeChange,
    Resign,
    Resigned,
    TargetDue,
    ViewChanged,
)
from fencelock.actors.paxos.wire import NO_BALLOT, UNWILLING, Locate
from fencelock.actors.proxy.event import Relay
from fencelock.actors.role import Host, Summary
from fencelock.actors.table.wire import LOG_VERSION
from fencelock.actors.timing import TIMING

NEVER_RECEIVED = -1
"""In place of the time since the last message of a node that has sent none."""

PAXOS_VERSION_CHARS_MAX = 64
"""Maximum length of another node's version; the rest is cut off."""


MembersEvent = (
    Relay | MembersRequest | MembersReply | NodesDescribed | ViewChanged | Resigned | TargetDue
)


class Reconfigurer(MemberRole[MembersEvent]):
    """Replies to requests about the members. The leader's reconfigurer changes them, one at a time.

    It also notes members that are down and, with a target, keeps the group at that size by itself
    (`TargetKeeper`).

    Args:
        version: the version of this software, for reports.
        target: see `MemberTarget`.
        only: see `MemberChanges`.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        version: str = "",
        target: MemberTarget = NO_TARGET,
        only: tuple[str, ...] = (),
        **member: Unpack[MemberArguments],
    ) -> None:
        super().__init__(address, host, **member)
        self.version = version
        self.keeper = TargetKeeper(self.node, target)
        self.only = only
        self.checking = False
        """Whether the next description of the nodes is to show who is silent."""
        self.ballot = NO_BALLOT
        """The ballot under which this node led at the last check."""
        self.requests = ClientRequests(address, self.node)
        self.repeated = RepeatedChanges()
        self.waiting: list[tuple[Address, MembersRequest]] = []
        """Requests that are answered once the failure detector has described the nodes."""

    def begin(self, now: Instant) -> Effects:
        """Connect to the members, unless they are the nodes of the configuration."""
        view = self.config.newest
        links = self._link() if view.number else [self.requests.known(0, view.seats)]
        return [*links, Wake(MEMBERS_CHECK_MS, TargetDue())]

    def handle(self, sender: Address, event: MembersEvent, now: Instant) -> Effects:
        match event:
            case Relay():
                return self._on_relay(event)
            case ChangeMembers() | ReadMembers():
                return self._on_request(sender, event)
            case MembersChanged() | MembersRead() | Refused():
                return self._on_reply(sender, event)
            case NodesDescribed():
                return [*self._on_described(event, now), *self._check(event, now)]
            case ViewChanged():
                return self._link()
            case TargetDue():
                return self._on_target_due(now)
            case Resigned():
                return ()

    def summary(self) -> Summary:
        view = self.config.newest
        return (("view", view.number), ("members", ", ".join(view.members)))

    def _link(self) -> list[Effect]:
        """Keep links to all members, and to no node that is none any more."""
        seats = {seat.name: seat for view in self.config.current for seat in view.seats}
        newest = self.config.newest
        return self.requests.link(newest.number, seats, newest.seats)

    def _on_relay(self, relay: Relay) -> Effects:
        request = self.requests.take(relay)
        if request is None:
            return (Observe("paxos.relay_ignored"),)
        return self._on_request(self.address, request)

    def _on_request(self, sender: Address, request: MembersRequest) -> Effects:
        known = sender == members_of(node_of(sender)) and node_of(sender) in self.config.nodes
        if not known or len(self.waiting) >= CHANGE_REQUESTS_MAX:
            return (Observe("paxos.members_request_ignored"),)
        self.waiting.append((sender, request))
        return [Send(self.monitor, DescribeNodes())] if len(self.waiting) == 1 else ()

    def _on_reply(self, sender: Address, reply: MembersReply) -> Effects:
        """Send the client of this node's proxy the leader's reply."""
        if sender != members_of(node_of(sender)) or node_of(sender) not in self.config.nodes:
            return (Observe("paxos.members_reply_ignored"),)
        return self.requests.reply(self.address, reply)

    def _on_described(self, described: NodesDescribed, now: Instant) -> list[Effect]:
        """Reply to the waiting requests, or forward them to the leader."""
        waiting, self.waiting = self.waiting, []
        leads = described.leader == self.node
        effects: list[Effect] = []
        for sender, request in waiting:
            if not leads and described.leader and sender == self.address:
                effects.append(Send(members_of(described.leader), request))
            elif isinstance(request, ReadMembers):
                effects += self.requests.reply(sender, self._read(request, described))
            elif not leads:
                view = self.config.newest
                text = "no leader is known at present"
                refusal = unchanged(request, text, view.number, view.members)
                effects += self.requests.reply(sender, refusal)
            else:
                self.keeper.quiet_until = Instant(now + QUIET_MS * NS_PER_MS)
                changes = LogChanges(self, Facts(self.node, described.nodes), described.stored)
                reply = partial(self.requests.reply, sender)
                effects += changes.answer(request, reply, self.repeated, now)
        return effects

    def _on_target_due(self, now: Instant) -> Effects:
        self.keeper.check(now)
        self.checking = True
        return [Send(self.monitor, DescribeNodes()), Wake(MEMBERS_CHECK_MS, TargetDue())]

    def _check(self, described: NodesDescribed, now: Instant) -> list[Effect]:
        """Note who is down, and take the next step towards the target, if this node leads."""
        if not self.checking:
            return []
        self.checking = False
        facts = Facts(self.node, described.nodes)
        leads = described.leader == self.node
        if not leads or described.ballot != self.ballot:
            self.ballot = described.ballot  # All silence counts anew under another ballot.
            self.keeper.rest()
            self.keeper.note_down((), facts.silence_ms, now)
        if not leads:
            return []
        noted = self.keeper.note_down(self.config.newest.members, facts.silence_ms, now)
        if not self.keeper.target.members:
            return noted
        changes = LogChanges(self, facts, described.stored)
        return [*noted, *self.keeper.approach(changes, facts, facts.silent_ms, now)]

    def _read(self, request: ReadMembers, described: NodesDescribed) -> MembersRead:
        newest = self.config.newest
        own = NodeFacts(self.node, self.config.applied, 0, newest.number, None, 0, self.version)
        latest = {self.node: own}
        for facts in described.nodes:
            known = latest.get(facts.node)  # It may have become a learner, or be one no longer.
            if known is None or facts.last_message_ms < known.last_message_ms:
                latest[facts.node] = facts
        for member in newest.members:
            latest.setdefault(member, NodeFacts(member, 1, NEVER_RECEIVED, 0, None))
        return MembersRead(
            node=self.node,
            view=self.config.newest.number,
            nodes=tuple(self._report(latest[node], described.leader) for node in sorted(latest)),
            session=request.session,
            request=request.request,
        )

    def _report(self, facts: NodeFacts, leader: str) -> NodeReport:
        node, learner = facts.node, facts.learner
        seat = _seat_of(self.config.newest, node)
        role = NodeRole.OBSERVER if seat is None else NodeRole.MEMBER
        if node == leader:
            role = NodeRole.LEADER
        elif seat is not None and learner is not None and learner.journal != seat.journal:
            role = NodeRole.NON_VOTING
        elif seat is not None and node in self.keeper.down:
            role = NodeRole.DOWN
        known = facts.last_message_ms != NEVER_RECEIVED
        return NodeReport(
            node=node,
            endpoint=seat.endpoint if seat is not None else learner.endpoint if learner else "",
            role=role,
            view=facts.view,
            applied=facts.applied - 1,
            lag=max(0, self.config.applied - facts.applied) if known else None,
            last_message_ms=facts.last_message_ms if known else None,
            version=facts.version[:PAXOS_VERSION_CHARS_MAX],
            journal=learner.journal if learner else seat.journal if seat else 0,
        )


PAXOS_REACHABLE_MS = 3 * TIMING.lease_ms
"""A node that was silent for this long does not count as reachable (ms)."""

CLOSE_SLOTS = 1_000
"""Slots that a node may lack when it is chosen (about a second of load). It becomes a member once
it lacks no more than for a join."""


class Facts:
    """The leader's knowledge of other nodes, as far as changes depend on it."""

    def __init__(self, node: str, nodes: tuple[NodeFacts, ...]) -> None:
        self.node = node
        self.members = {one.node: one for one in nodes if one.learner is None}
        self.learners = {one.node: one for one in nodes if one.learner is not None}

    def votes(self, member: str) -> bool:
        """Return whether ``member`` voted recently, under its registered journal."""
        facts = self.members.get(member)
        return member == self.node or (
            facts is not None and facts.last_message_ms <= PAXOS_REACHABLE_MS
        )

    def silent_ms(self, member: str, led_ms: int) -> int:
        """Return the time for which ``member`` has not answered a leader of ``led_ms`` (ms)."""
        facts = self.members.get(member)
        return led_ms if facts is None else min(led_ms, facts.last_message_ms)

    def silence_ms(self, node: str, led_ms: int) -> int:
        """Return the time for which ``node`` has sent a leader of ``led_ms`` nothing (ms).

        A member without its journal sends what a learner does.
        """
        learner = self.learners.get(node)
        silent_ms = self.silent_ms(node, led_ms)
        return silent_ms if learner is None else min(silent_ms, learner.last_message_ms)

    def willing(self, gone: str, members: Sequence[str]) -> tuple[str, int] | None:
        """Return the node that should become a member, with its journal; see `GroupFacts`.

        The smallest of priority, random number, address and name comes first.
        """
        willing = [
            (node == gone, report.priority, report.life, report.endpoint, node, report.journal)
            for node, known in self.learners.items()
            if (report := self.learner(node)) is not None
            and report.ready
            and report.endpoint
            and report.priority < UNWILLING
            and known.lag <= CLOSE_SLOTS
            and (node == gone or node not in members)
        ]
        return min(willing)[-2:] if willing else None

    def learner(self, node: str) -> Locate | None:
        """Return the last report of ``node`` as a learner, if it is recent."""
        facts = self.learners.get(node)
        return (
            None if facts is None or facts.last_message_ms > PAXOS_REACHABLE_MS else facts.learner
        )


class LogChanges(MemberChanges):
    """The leader's knowledge of other nodes, and the changes that it has decided by the log."""

    def __init__(self, role: Reconfigurer, facts: Facts, stored: int) -> None:
        view = role.config.newest
        super().__init__(role.node, view.seats, view.number, role.only)
        self.role = role
        self.facts = facts
        self.stored = stored

    def pending(self) -> str:
        """Return the condition that a decided change waits for; empty if there is none."""
        config = self.role.config
        if config.pending:
            return f"change {self.number} is not in force yet"
        if self.number and self.stored < config.views[-1][0]:
            return f"change {self.number} is in force, but a majority has not stored that yet"
        return ""

    def votes(self, member: str) -> bool:
        return self.facts.votes(member)

    def learner(self, node: str) -> Learner | None:
        """Return the last report of ``node`` as a learner, if it is recent."""
        report = self.facts.learner(node)
        if report is None:
            return None
        facts = self.facts.learners[node]
        lag = facts.lag  # By now it has learned more, as has this node.
        waits = "" if report.ready and lag <= LEARNED_SLOTS else "learns what was decided"
        return Learner(
            report.journal, report.endpoint, lag, report.bytes_left, waits, facts.last_message_ms
        )

    def transfer(self, node: str) -> Step:
        if node not in self.seats:
            raise MembershipError(f"{node} is not a member: run fencelock join {node} first")
        if node == self.node:
            return Step("")
        if not self.votes(node):
            raise MembershipError(f"{node} does not answer {self.node}: start it, and try again")
        return self._hand_over(f"{self.node} hands the lead over", Resign(successor=node))

    def propose_with(self, member: Member) -> Step:
        learner = self.facts.learner(member.name)
        assert learner is not None
        if learner.log_version < LOG_VERSION:
            raise MembershipError(
                f"{member.name} can apply requests up to log version {learner.log_version}, this "
                f"group has {LOG_VERSION}: upgrade it first"
            )
        change = ProposeChange(
            membership=self.role.config.membership.with_member(member),
            joiner_applied=learner.applied,
        )
        return self._propose(f"{member.name} becomes a member", change)

    def propose_without(self, node: str) -> Step:
        if node == self.node:
            return self._hand_over(f"{node} hands the lead over first", Resign())
        change = ProposeChange(membership=self.role.config.membership.without(node))
        return self._propose(f"{node} is removed", change)

    def _propose(self, detail: str, change: ProposeChange) -> Step:
        return Step(detail, effects=(Send(self.role.replica, change),))

    def _hand_over(self, detail: str, resign: Resign) -> Step:
        return Step(detail, effects=(Send(self.role.monitor, resign),))


def _seat_of(view: View, node: str) -> Member | None:
    return next((seat for seat in view.seats if seat.name == node), None)
