"""Changes of the members: join, leave, remove, replace, and transfer of the lead.

The client repeats its request until the change is done. Each time the leader compares the wanted
members with those in force, and takes the next step: one member more, or one less. So a change
continues under the next leader, and a repetition has no further effect.
"""

from __future__ import annotations

from typing import Unpack

from fencelock.actors.api.membership_message import (
    ChangeMembers,
    MemberAction,
    MembersChanged,
    MembersRead,
    NodeReport,
    NodeRole,
    ReadMembers,
)
from fencelock.actors.api.message import Reason, Refused
from fencelock.actors.api.self_report import NodeAddress
from fencelock.actors.effect import Connect, Disconnect, Effect, Effects, Observe, Send, Wake
from fencelock.actors.error import MembershipError
from fencelock.actors.message import NS_PER_MS, Address, Instant, address_of, ms_between, node_of
from fencelock.actors.paxos.config import WINDOW, MemberArguments, MemberRole, View, members_of
from fencelock.actors.paxos.event import Resign, Resigned
from fencelock.actors.paxos.member_event import (
    DescribeNodes,
    NodeFacts,
    NodesDescribed,
    ProposeChange,
    TargetDue,
    ViewChanged,
)
from fencelock.actors.paxos.membership import MEMBERS_MAX, Member
from fencelock.actors.paxos.node_facts import Facts
from fencelock.actors.paxos.target import CHECK_MS, NO_TARGET, QUIET_MS, MemberTarget, wish_of
from fencelock.actors.proxy.message import MembersKnown, Relay, Relayed
from fencelock.actors.role import Host, Summary
from fencelock.actors.role_message import Level, RoleNotice

VERSION_CHARS_MAX = 64
"""Maximum length of another node's version; the rest is cut off."""


REQUESTS_MAX = 64
"""Maximum requests that wait for an answer; they are asked again."""


MembersRequest = ChangeMembers | ReadMembers
MembersReply = MembersChanged | MembersRead | Refused
MembersEvent = (
    Relay | MembersRequest | MembersReply | NodesDescribed | ViewChanged | Resigned | TargetDue
)
"""Events that a `Reconfigurer` handles."""


class Reconfigurer(MemberRole[MembersEvent]):
    """Replies to requests about the members. The leader's reconfigurer changes them, one at a time.

    It only judges whether a change is wise: that a majority can still be reached, and that a
    new member has the log. The replica judges whether it is safe.

    With a target, it also keeps the group at that size by itself (`wish_of`).

    Args:
        version: the version of this software, for reports.
        target: the wanted number of members.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        version: str = "",
        target: MemberTarget = NO_TARGET,
        **member: Unpack[MemberArguments],
    ) -> None:
        super().__init__(address, host, **member)
        self.version = version
        self.target = target
        self.checking = False
        """Whether the next description of the nodes is to be compared with the target."""
        self.led_since: dict[tuple[str, int], Instant] = {}
        """While this node leads, the time since which it has led each member and its journal."""
        self.quiet_until = Instant(0)
        """Until then the members are left to the operator who asked for a change."""
        self.wished = ""
        """The last wish that was logged, empty if there is none."""
        self.clients: dict[tuple[str, int], Address] = {}
        """The client of this node's proxy that sent each request, by session and number."""
        self.waiting: list[tuple[Address, MembersRequest]] = []
        """Requests that are answered once the failure detector has described the nodes."""
        self.linked: dict[str, str] = {}
        """The endpoints of the members to which this node connects."""

    def begin(self, now: Instant) -> Effects:
        """Connect to the members, unless they are the nodes of the configuration."""
        del now
        links = self._link() if self.config.newest.number else [self._known()]
        return [*links, Wake(CHECK_MS, TargetDue())] if self.target.members else links

    def handle(self, sender: Address, event: MembersEvent, now: Instant) -> Effects:
        """Answer a request, or pass it on to the leader; follow changes."""
        match event:
            case Relay():
                return self._on_relay(event)
            case ChangeMembers() | ReadMembers():
                return self._on_request(sender, event)
            case MembersChanged() | MembersRead() | Refused():
                return self._on_reply(sender, event)
            case NodesDescribed():
                return [*self._on_described(event, now), *self._approach_target(event, now)]
            case ViewChanged():
                return self._link()
            case TargetDue():
                self.checking = True
                return [Send(self.monitor, DescribeNodes()), Wake(CHECK_MS, TargetDue())]
            case Resigned():
                return ()

    def summary(self) -> Summary:
        """Return the number of changes, and the members."""
        view = self.config.newest
        return (("view", view.number), ("members", ", ".join(view.members)))

    def _link(self) -> list[Effect]:
        """Keep links to all members, and to no node that is none any more."""
        seats = {seat.name: seat for view in self.config.current for seat in view.seats}
        effects: list[Effect] = []
        for name, seat in seats.items():
            if name != self.node and seat.endpoint and self.linked.get(name) != seat.endpoint:
                effects.append(Connect(name, seat.endpoint))
        gone = [name for name in self.linked if name not in seats]
        effects += [Disconnect(name) for name in gone if name != self.node]
        self.linked = {name: seat.endpoint for name, seat in seats.items()}
        return [*effects, self._known()]

    def _known(self) -> Send:
        """Name the members to the proxy, which names them to clients."""
        view = self.config.newest
        members = tuple(NodeAddress(seat.name, seat.endpoint) for seat in view.seats)
        known = MembersKnown(view=view.number, members=members)
        return Send(address_of(self.node, "proxy"), known)

    def _on_relay(self, relay: Relay) -> Effects:
        """Take a request from the proxy of this node."""
        request = relay.request
        if not isinstance(request, MembersRequest):
            return (Observe("paxos.relay_ignored"),)
        self.clients[request.session, request.request] = relay.client
        if len(self.clients) > REQUESTS_MAX:
            del self.clients[next(iter(self.clients))]
        return self._on_request(self.address, request)

    def _on_request(self, sender: Address, request: MembersRequest) -> Effects:
        known = sender == members_of(node_of(sender)) and node_of(sender) in self.config.nodes
        if not known or len(self.waiting) >= REQUESTS_MAX:
            return (Observe("paxos.members_request_ignored"),)
        self.waiting.append((sender, request))
        return [Send(self.monitor, DescribeNodes())] if len(self.waiting) == 1 else ()

    def _on_reply(self, sender: Address, reply: MembersReply) -> Effects:
        """Send the client of this node's proxy the leader's reply."""
        if sender != members_of(node_of(sender)) or node_of(sender) not in self.config.nodes:
            return (Observe("paxos.members_reply_ignored"),)
        return self._reply(self.address, reply)

    def _reply(self, to: Address, reply: MembersReply) -> list[Effect]:
        if to != self.address:
            return [Send(to, reply)]
        client = self.clients.pop((reply.session, reply.request), None)
        if client is None:
            return []
        relayed = Relayed(client=client, reply=reply)
        return [Send(address_of(self.node, "proxy"), relayed)]

    def _on_described(self, described: NodesDescribed, now: Instant) -> list[Effect]:
        """Reply to the waiting requests, or forward them to the leader."""
        waiting, self.waiting = self.waiting, []
        leads = described.master == self.node
        effects: list[Effect] = []
        for sender, request in waiting:
            if not leads and described.master and sender == self.address:
                effects.append(Send(members_of(described.master), request))
            elif isinstance(request, ReadMembers):
                effects += self._reply(sender, self._read(request, described))
            elif not leads:
                told = self._unchanged(request, "no leader is known at present")
                effects += self._reply(sender, told)
            else:
                self.quiet_until = Instant(now + QUIET_MS * NS_PER_MS)
                effects += self._change(sender, request, Facts(self.node, described.nodes))
        return effects

    def _approach_target(self, described: NodesDescribed, now: Instant) -> list[Effect]:
        """Take the next step towards the target, if this node leads; log why, once."""
        if not self.checking:
            return []
        self.checking = False
        if described.master != self.node:
            self.led_since, self.wished = {}, ""
            return []
        view = self.config.newest
        led = self.led_since = {
            (seat.name, seat.journal): self.led_since.get((seat.name, seat.journal), now)
            for seat in view.seats
        }
        if now < self.quiet_until or self._pending():
            return []
        facts = Facts(self.node, described.nodes)
        silent_ms = {
            name: facts.silent_ms(name, ms_between(led[name, journal], now))
            for name, journal in led
        }
        wish = wish_of(view, self.target, facts, silent_ms.__getitem__)
        level, text, effects = Level.WARNING, "" if wish is None else wish.why, list[Effect]()
        if wish is not None and wish.request is not None:
            try:
                _, _, effects = self._step(wish.request, facts)
                level = Level.INFO
            except MembershipError as error:
                text = f"{wish.why}, but {error}"
        if text and text != self.wished:
            effects.append(Send(address_of(self.node, "node"), RoleNotice(level=level, text=text)))
        self.wished = text
        return effects

    def _unchanged(
        self, request: ChangeMembers, detail: str, slots_left: int = 0, bytes_left: int = 0
    ) -> MembersChanged:
        view = self.config.newest
        return MembersChanged(
            done=not detail,
            detail=detail,
            view=view.number,
            members=view.members,
            slots_left=slots_left,
            bytes_left=bytes_left,
            session=request.session,
            request=request.request,
        )

    def _change(self, sender: Address, request: ChangeMembers, facts: Facts) -> list[Effect]:
        """Take the next step of a change, and answer."""
        try:
            step = self._step(request, facts)
        except MembershipError as error:
            refused = Refused(
                lock="",
                reason=Reason.MEMBERSHIP,
                detail=str(error),
                session=request.session,
                owner="",
                request=request.request,
            )
            return self._reply(sender, refused)
        detail, slots_left, effects = step
        joiner = facts.learner(request.replacement or request.node) if slots_left else None
        bytes_left = 0 if joiner is None else joiner.bytes_left
        reached = self._unchanged(request, detail, slots_left, bytes_left)
        return [*effects, *self._reply(sender, reached)]

    def _step(self, request: ChangeMembers, facts: Facts) -> Step:
        view, node = self.config.newest, request.node
        match request.action:
            case MemberAction.TRANSFER:
                return self._transfer(node, facts)
            case MemberAction.JOIN:
                return self._add(request, node, facts)
            case MemberAction.LEAVE | MemberAction.REMOVE:
                return self._drop(node, facts)
            case MemberAction.REPLACE if request.replacement == node:
                return self._renew(request, facts)
            case MemberAction.REPLACE:
                new = request.replacement
                if node not in view.members or (new not in view.members and self._fits(new, facts)):
                    return self._add(request, new, facts)
                if new not in view.members:
                    facts.joiner(new)  # Refuse before anything has changed.
                detail, left, effects = self._drop(node, facts)
                return (detail or self._pending(), left, effects)

    def _pending(self) -> str:
        """Return the condition that a decided change waits for; empty if there is none."""
        number = self.config.newest.number
        return f"change {number} is not in force yet" if self.config.pending else ""

    def _fits(self, new: str, facts: Facts) -> bool:
        """Return whether the members with ``new`` would have a reachable majority."""
        there = facts.learner(new) is not None
        return there and facts.has_majority(self.config.newest.members, joins=1)

    def _transfer(self, node: str, facts: Facts) -> Step:
        if node not in self.config.newest.members:
            raise MembershipError(f"{node} is not a member: run fencelock join {node} first")
        if node == self.node:
            return "", 0, []
        if not facts.votes(node):
            raise MembershipError(f"{node} does not answer {self.node}: start it, and try again")
        return f"{self.node} hands the lead over", 0, [Send(self.leader, Resign(successor=node))]

    def _add(self, request: ChangeMembers, node: str, facts: Facts) -> Step:
        seat = _seat_of(self.config.newest, node)
        report = facts.learner(node)
        if seat is not None:
            journal = report.journal if report is not None else request.journal
            if journal not in (0, seat.journal):
                raise MembershipError(
                    f"{node} is a member, but lost its journal: run fencelock replace {node}"
                )
            return self._pending(), 0, []
        facts.joiner(node)
        if self._pending():
            return self._pending(), 0, []
        self._check_versions(facts)
        if len(self.config.newest.members) >= MEMBERS_MAX:
            raise MembershipError(f"there are {MEMBERS_MAX} members, the limit: remove one first")
        if not self._fits(node, facts):
            raise MembershipError(
                f"with {node} a majority of the members could not be reached: start members that "
                "do not answer, or remove them first"
            )
        assert report is not None
        left = facts.learners[node].lag  # By now it has learned more, and we have applied more.
        if not report.ready or left > WINDOW:
            return f"{node} learns what was decided", left, []
        endpoint = report.endpoint or request.endpoint
        member = Member(node, endpoint, report.journal)
        change = ProposeChange(
            membership=self.config.membership.with_member(member), joiner_applied=report.applied
        )
        return f"{node} becomes a member", 0, [Send(self.replica, change)]

    def _drop(self, node: str, facts: Facts) -> Step:
        members = self.config.newest.members
        if node not in members or self._pending():
            return self._pending(), 0, []
        left = tuple(member for member in members if member != node)
        if not left:
            raise MembershipError(f"{node} is the only member: let another node join first")
        self._check_versions(facts, but=node)
        if not facts.has_majority(left):
            silent = ", ".join(one for one in left if not facts.votes(one))
            raise MembershipError(
                f"without {node} a majority of the members could not be reached, since {silent} "
                "does not answer: start it, or remove it first"
            )
        if node == self.node:
            return f"{node} hands the lead over first", 0, [Send(self.leader, Resign())]
        change = ProposeChange(membership=self.config.membership.without(node))
        return f"{node} is removed", 0, [Send(self.replica, change)]

    def _renew(self, request: ChangeMembers, facts: Facts) -> Step:
        """Replace the journal of a member that lost its own: remove it, then add it again."""
        node = request.node
        seat, report = _seat_of(self.config.newest, node), facts.learner(node)
        if seat is None or (report is not None and report.journal == seat.journal):
            return self._add(request, node, facts)
        if report is None:
            if request.journal == seat.journal or facts.votes(node):
                return self._pending(), 0, []
            facts.joiner(node)
        return self._drop(node, facts)

    def _check_versions(self, facts: Facts, but: str = "") -> None:
        """Refuse a change while members cannot read it."""
        for member in self.config.newest.members:
            if member != but and facts.is_old(member):
                raise MembershipError(
                    f"{member} runs a version that cannot change the members: upgrade it first"
                )

    def _read(self, request: ReadMembers, described: NodesDescribed) -> MembersRead:
        """Return a report of each node."""
        applied = self.config.applied
        reports = {
            self.node: self._report(self.node, applied, 0, self.config.newest.number, described)
        }
        for facts in described.nodes:
            node, at, heard_ms = facts.node, facts.applied, facts.heard_ms
            known = reports.get(node)  # It may have become a learner, or be one no longer.
            if known is None or known.heard_ms is None or heard_ms < known.heard_ms:
                reports[node] = self._report(node, at, heard_ms, facts.view, described, facts)
        for member in self.config.newest.members:
            if member not in reports:
                reports[member] = self._report(member, 1, None, 0, described)
        return MembersRead(
            node=self.node,
            view=self.config.newest.number,
            nodes=tuple(reports[node] for node in sorted(reports)),
            session=request.session,
            request=request.request,
        )

    def _report(
        self,
        node: str,
        applied: int,
        heard_ms: int | None,
        view: int,
        described: NodesDescribed,
        facts: NodeFacts | None = None,
    ) -> NodeReport:
        seat = _seat_of(self.config.newest, node)
        learner = None if facts is None else facts.learner
        role = NodeRole.OBSERVER if seat is None else NodeRole.MEMBER
        if node == described.master:
            role = NodeRole.MASTER
        elif seat is not None and learner is not None and learner.journal != seat.journal:
            role = NodeRole.NON_VOTING
        known = heard_ms is not None
        told = "" if facts is None else facts.version[:VERSION_CHARS_MAX]
        return NodeReport(
            node=node,
            endpoint=seat.endpoint if seat is not None else learner.endpoint if learner else "",
            role=role,
            view=max(0, view),
            applied=applied - 1,
            lag=max(0, self.config.applied - applied) if known else None,
            heard_ms=heard_ms,
            version=self.version if facts is None and node == self.node else told,
            journal=learner.journal if learner else seat.journal if seat else 0,
        )


Step = tuple[str, int, list[Effect]]
"""The condition that a change waits for (empty if it is done), the slots that a learner lacks, and
the effects."""


def _seat_of(view: View, node: str) -> Member | None:
    return next((seat for seat in view.seats if seat.name == node), None)
