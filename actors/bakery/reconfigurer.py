"""Changes of the members by the seating, and reports of them; see `MemberChanges`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from fencelock.actors.api.lock_message import Refused
from fencelock.actors.api.membership_message import (
    ChangeMembers,
    MembersChanged,
    MembersRead,
    NodeReport,
    NodeRole,
    ReadMembers,
    is_endpoint,
)
from fencelock.actors.api.name import INT_MAX
from fencelock.actors.bakery.bounds import shown
from fencelock.actors.bakery.config import BAKERY_TIMING, OFF, election_of, members_of, quorum
from fencelock.actors.bakery.electorate import Electorate
from fencelock.actors.bakery.event import ChangeElectorate, InfoDue, Readiness
from fencelock.actors.bakery.leader_selection import ClusterView
from fencelock.actors.bakery.wire import EPOCH_MAX, NodeInfo
from fencelock.actors.bootstrap import bootstrap_of
from fencelock.actors.bootstrap_message import StartVoting, StopVoting, Voter, VotersChanged
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.error import MembershipError
from fencelock.actors.membership import Member as Seat
from fencelock.actors.membership_changes import (
    ClientRequests,
    Learner,
    MemberChanges,
    MembersReply,
    MembersRequest,
    RepeatedChanges,
    Step,
    unchanged,
)
from fencelock.actors.membership_target import NO_TARGET, QUIET_MS, MemberTarget, TargetKeeper
from fencelock.actors.message import NS_PER_MS, Address, Instant, ms_between, node_of
from fencelock.actors.proxy.event import Relay
from fencelock.actors.repeated import ImpossibleMessages
from fencelock.actors.role import Host, Role, Summary

INFO_MS = 300
"""Interval at which a node describes itself to all others (ms)."""

BAKERY_REACHABLE_MS = 3 * BAKERY_TIMING.silent_ms
"""A node that did not describe itself for this long does not count as reachable (ms)."""

DESCRIBED_NODES_MAX = 128
"""Maximum nodes of which the last description is kept."""

BAKERY_VERSION_CHARS_MAX = 80

Received = (
    Relay
    | MembersRequest
    | MembersReply
    | Readiness
    | NodeInfo
    | InfoDue
    | StartVoting
    | StopVoting
)
"""Events that a `Reconfigurer` handles."""


class Reconfigurer(Role[Received]):
    """Answers requests about the members. That of the coordinator changes them, one at a time.

    Every node describes itself to the others. So the coordinator knows the journal of a node
    that is to join, and `fencelock members` what each runs. With a target, it also keeps the group
    at that size by itself (`TargetKeeper`).

    Args:
        electorate: the members, as far as this node recovered them.
        own: what this node says of itself, but for its epoch and its members.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        nodes: tuple[str, ...],
        electorate: Electorate,
        own: NodeInfo,
        target: MemberTarget = NO_TARGET,
    ) -> None:
        super().__init__(address, host)
        self.node = node_of(address)
        self.nodes = nodes
        self.electorate = electorate
        self.own = own
        self.keeper = TargetKeeper(self.node, target)
        self.voted_at: dict[str, Instant] = {}
        """The time at which each node last was connected and voted."""
        self.requests = ClientRequests(address, self.node)
        self.repeated = RepeatedChanges()
        self.impossible = ImpossibleMessages(self.node)
        self.readiness: Readiness | None = None
        self.infos: dict[str, tuple[NodeInfo, Instant]] = {}
        """The last description of each other node, and its time."""

    def begin(self, now: Instant) -> Effects:
        """Connect to the members, unless they are those of the configuration."""
        return [*self._follow(), Wake(INFO_MS, InfoDue())]

    def handle(self, sender: Address, event: Received, now: Instant) -> Effects:
        match event:
            case Relay():
                request = self.requests.take(event)
                if request is None:
                    return (Observe("bakery.relay_ignored"),)
                return self._on_request(self.address, request, now)
            case Readiness():
                return self._on_readiness(event)
            case InfoDue():
                known = {*self.nodes, *self.electorate.everyone, *self.infos}
                described = [*self._describe(known), Wake(INFO_MS, InfoDue())]
                self.keeper.check(now)
                return [*described, *self._note_down(now), *self._approach_target(now)]
            case StartVoting() | StopVoting():
                self.own = replace(self.own, ready=isinstance(event, StartVoting))
                return ()
            case _ if sender != members_of(node_of(sender)):
                return (Observe("bakery.members_request_ignored"),)
            case NodeInfo():
                return self._on_info(node_of(sender), event, now)
            case ChangeMembers() | ReadMembers():
                return self._on_request(sender, event, now)
            case MembersChanged() | MembersRead() | Refused():
                return self.requests.reply(self.address, event)

    def summary(self) -> Summary:
        return (
            ("view", self.electorate.number),
            ("members", ", ".join(self.electorate.names)),
        )

    @property
    def coordinator(self) -> str:
        """The node that coordinates, as far as this node sees; empty if none is connected."""
        known = self.readiness
        return "" if known is None else view_of(known).coordinator()

    @property
    def epoch(self) -> int:
        """The highest epoch whose seating this node knows."""
        return 0 if self.readiness is None else self.readiness.seating.epoch

    def _on_readiness(self, readiness: Readiness) -> Effects:
        """Follow the leaders and the members, and describe this node to those that connect."""
        before, self.electorate = self.electorate, readiness.electorate
        known = {one.node for one in self.readiness.members} if self.readiness else set[str]()
        self.readiness = readiness
        described = self._describe({one.node for one in readiness.members} - known)
        return described if self.electorate == before else [*described, *self._follow()]

    def _follow(self) -> list[Effect]:
        """Connect to the members, and tell this node's other roles who they are."""
        electorate, everyone = self.electorate, self.electorate.everyone
        if not electorate.number:
            return [self.requests.known(0, electorate.members)]
        voters = tuple(Voter(name, seat.journal) for name, seat in everyone.items())
        changed = Send(bootstrap_of(self.node), VotersChanged(voters=voters))
        return [*self.requests.link(electorate.number, everyone, electorate.members), changed]

    def _info(self) -> NodeInfo:
        return replace(self.own, epoch=self.epoch, number=self.electorate.number)

    def _describe(self, nodes: set[str]) -> list[Effect]:
        return [Send(members_of(node), self._info()) for node in sorted(nodes - {self.node})]

    def _on_info(self, node: str, info: NodeInfo, now: Instant) -> Effects:
        numbers = 0 <= info.epoch <= EPOCH_MAX and min(info.number, info.journal) >= 0
        texts = len(info.version) <= BAKERY_VERSION_CHARS_MAX and (
            not info.endpoint or is_endpoint(info.endpoint)
        )
        if not numbers or not texts or max(info.number, info.journal) > INT_MAX:
            text = shown(info)
            return self.impossible.report(members_of(node), "bakery.info_malformed", text, now)
        gone = [
            one
            for one, (_, at) in self.infos.items()
            if ms_between(at, now) > 10 * BAKERY_REACHABLE_MS
        ]
        for one in gone:
            if one not in self.electorate.everyone:
                del self.infos[one]
        if node not in self.infos and len(self.infos) >= DESCRIBED_NODES_MAX:
            return (Observe("bakery.info_ignored"),)
        self.infos[node] = info, now
        return ()

    def _on_request(self, sender: Address, request: MembersRequest, now: Instant) -> Effects:
        """Answer, or let the coordinator answer a request of this node's client."""
        coordinator = self.coordinator
        if sender == self.address and coordinator not in ("", self.node):
            return [Send(members_of(coordinator), request)]
        if isinstance(request, ReadMembers):
            return self.requests.reply(sender, self._read(request, now))
        if coordinator != self.node or self.readiness is None:
            text = "no coordinator is known at present"
            names = self.electorate.names
            reply = unchanged(request, text, self.electorate.number, names)
            return self.requests.reply(sender, reply)
        changes = SeatingChanges(self, self.readiness, now)
        self.keeper.quiet_until = Instant(now + QUIET_MS * NS_PER_MS)
        return changes.answer(request, partial(self.requests.reply, sender), self.repeated, now)

    def _note_down(self, now: Instant) -> list[Effect]:
        def silence_ms(member: str, watched_ms: int) -> int:
            info = self.infos.get(member)
            return watched_ms if info is None else min(watched_ms, ms_between(info[1], now))

        return self.keeper.note_down(self.electorate.names, silence_ms, now)

    def _approach_target(self, now: Instant) -> list[Effect]:
        """Take the next step towards the target, if this node coordinates."""
        if not self.keeper.target.members:
            return []
        readiness = self.readiness
        if readiness is None or not readiness.ready or self.coordinator != self.node:
            self.keeper.rest()
            return []
        self.voted_at |= {one.node: now for one in readiness.members if one.votes}
        changes = SeatingChanges(self, readiness, now)
        return self.keeper.approach(changes, changes, changes.silent_ms, now)

    def _read(self, request: ReadMembers, now: Instant) -> MembersRead:
        nodes = {*self.electorate.names, *self.infos, self.node}
        return MembersRead(
            node=self.node,
            view=self.electorate.number,
            nodes=tuple(self._report(node, now) for node in sorted(nodes)),
            session=request.session,
            request=request.request,
        )

    def _report(self, node: str, now: Instant) -> NodeReport:
        info, at = (self._info(), now) if node == self.node else self.infos.get(node, (None, now))
        seat = self.electorate.everyone.get(node)
        return NodeReport(
            node=node,
            endpoint=seat.endpoint if seat else info.endpoint if info else "",
            role=self._role(node, seat, info),
            view=info.number if info else 0,
            applied=info.epoch if info else 0,
            lag=None if info is None else max(0, self.epoch - info.epoch),
            last_message_ms=None if info is None else ms_between(at, now),
            version=info.version if info else "",
            journal=info.journal if info else seat.journal if seat else 0,
        )

    def _role(self, node: str, seat: Seat | None, info: NodeInfo | None) -> NodeRole:
        """Return what ``node`` is.

        A leader that has restarted leads no more: its table is lost. Without a majority of voters
        nobody leads.
        """
        if seat is not None and info is not None and info.journal != seat.journal:
            return NodeRole.NON_VOTING
        if node in self.keeper.down:
            return NodeRole.DOWN
        if self.readiness is not None:
            view = view_of(self.readiness)
            voters = [member.node for member in view.members if member.votes]
            leads = view.electorate.is_quorum(voters)
            if leads and node in [leader.node for leader in view.living()]:
                return NodeRole.LEADER
        return NodeRole.OBSERVER if seat is None else NodeRole.MEMBER


def view_of(readiness: Readiness) -> ClusterView:
    return ClusterView(readiness.seating, readiness.members, readiness.electorate)


class SeatingChanges(MemberChanges):
    """The coordinator's knowledge of other nodes, and the changes that it has decided by epochs."""

    def __init__(self, role: Reconfigurer, readiness: Readiness, now: Instant) -> None:
        electorate = readiness.electorate
        super().__init__(role.node, electorate.members, electorate.number)
        self.role = role
        self.readiness = readiness
        self.now = now
        self.connected = {member.node: member for member in readiness.members}

    def pending(self) -> str:
        electorate = self.readiness.electorate
        if electorate.former:
            return f"change {self.number} is not in force yet"
        stored = [one.name for one in electorate.members if self._has_stored(one.name, electorate)]
        if self.number and len(stored) < quorum(len(electorate.members)):
            return f"change {self.number} is in force, but a majority has not stored that yet"
        return ""

    def _has_stored(self, name: str, electorate: Electorate) -> bool:
        """Return whether the last beat of a voter showed ``electorate``, which is in its journal.

        If only the coordinator had it, and lost its disk, former members would still be needed.
        """
        member = self.connected.get(name)
        return member is not None and member.votes and member.electorate == electorate

    def votes(self, member: str) -> bool:
        return member in self.connected and self.connected[member].votes

    def learner(self, node: str) -> Learner | None:
        """Return how a connected node that does not vote described itself recently."""
        info, at = self.role.infos.get(node, (None, self.now))
        last_message_ms = ms_between(at, self.now)
        recent = last_message_ms <= BAKERY_REACHABLE_MS and node in self.connected
        if info is None or not recent or self.votes(node):
            return None
        waits = "" if info.ready else "asks the members whether its journal is an old copy"
        return Learner(
            info.journal, info.endpoint, waits_for=waits, last_message_ms=last_message_ms
        )

    def silent_ms(self, member: str, decides_ms: int) -> int:
        """Return for how long ``member`` has not voted, of the last ``decides_ms`` (ms)."""
        voted_at = self.role.voted_at.get(member)
        return decides_ms if voted_at is None else min(decides_ms, ms_between(voted_at, self.now))

    def willing(self, gone: str, members: Sequence[str]) -> tuple[str, int] | None:
        """Return the node that should become a member, with its journal; see `GroupFacts`."""
        willing = [
            (node == gone, seen.priority, seen.life, node, report.journal)
            for node, seen in self.connected.items()
            if (report := self.learner(node)) is not None
            and not report.waits_for
            and report.endpoint
            and seen.priority != OFF
            and (node == gone or node not in members)
        ]
        return min(willing)[-2:] if willing else None

    def transfer(self, node: str) -> Step:
        """Refuse: there is no single leader."""
        raise MembershipError(
            f"bakery has up to three leaders, which share the work, so {node} cannot be given the "
            "lead: a node with priority = off never leads, and another takes the seat of one that "
            "stops"
        )

    def propose_with(self, member: Seat) -> Step:
        electorate = self._described().with_member(member)
        return self._propose(f"{member.name} becomes a member", electorate)

    def propose_without(self, node: str) -> Step:
        return self._propose(f"{node} is removed", self._described().without(node))

    def _described(self) -> Electorate:
        """Return the electorate with the endpoints of the founders, as they described themselves.

        Nodes that join later may not have them in their configuration.
        """
        infos = {node: info for node, (info, _) in self.role.infos.items()}
        infos[self.node] = self.role.own
        seats = (
            seat._replace(endpoint=infos[seat.name].endpoint)
            if not seat.endpoint and seat.name in infos
            else seat
            for seat in self.readiness.electorate.members
        )
        return self.readiness.electorate._replace(members=tuple(seats))

    def _propose(self, detail: str, electorate: Electorate) -> Step:
        """Have the electorate proposed, unless no leaders could follow the present ones."""
        readiness = self.readiness
        if not readiness.ready:
            return Step(f"locks cannot be granted at present: {readiness.detail}")
        if why_not := view_of(readiness).with_electorate(electorate).choose().why_not:
            raise MembershipError(
                f"then no leaders could be chosen ({why_not}): start members that do not answer, "
                "or let a member lead (priority below off)"
            )
        change = ChangeElectorate(electorate=electorate)
        return Step(detail, effects=(Send(election_of(self.node), change),))
