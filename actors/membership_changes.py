"""Requests about the members: who answers them, and the steps of a change.

A change is asked for until it is done. Each time the node that decides compares the wanted members
with the present ones, and takes the next step: one member more, or one less. So a change goes on
under the next such node, and a repetition has no further effect.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from fencelock.actors.api.membership_message import (
    ChangeMembers,
    MemberAction,
    MembersChanged,
    MembersRead,
    ReadMembers,
)
from fencelock.actors.api.message import Reason, Refused
from fencelock.actors.api.self_report import NodeAddress
from fencelock.actors.effect import Connect, Disconnect, Effect, Send
from fencelock.actors.error import MembershipError
from fencelock.actors.membership import MEMBERS_MAX, Member
from fencelock.actors.message import Address, address_of
from fencelock.actors.proxy.message import MembersKnown, Relay, Relayed

REQUESTS_MAX = 64
"""Maximum requests that wait for an answer; they are asked again."""

MembersRequest = ChangeMembers | ReadMembers
MembersReply = MembersChanged | MembersRead | Refused


class ClientRequests:
    """The requests of this node's clients, and the members that are named to them.

    Args:
        address: the role that answers.
        node: its node.

    """

    def __init__(self, address: Address, node: str) -> None:
        self.address = address
        self.node = node
        self.proxy = address_of(node, "proxy")
        self.clients: dict[tuple[str, int], Address] = {}
        """The client of this node's proxy that sent each request, by session and number."""
        self.linked: dict[str, str] = {}
        """The endpoints of the members that this node was told to connect to."""

    def take(self, relay: Relay) -> MembersRequest | None:
        """Return a request from the proxy of this node, if it is about the members."""
        request = relay.request
        if not isinstance(request, MembersRequest):
            return None
        self.clients[request.session, request.request] = relay.client
        if len(self.clients) > REQUESTS_MAX:
            del self.clients[next(iter(self.clients))]
        return request

    def reply(self, to: Address, reply: MembersReply) -> list[Effect]:
        """Send another node's role the reply to its request, or this node's client."""
        if to != self.address:
            return [Send(to, reply)]
        client = self.clients.pop((reply.session, reply.request), None)
        return [] if client is None else [Send(self.proxy, Relayed(client=client, reply=reply))]

    def link(
        self, number: int, seats: dict[str, Member], named: tuple[Member, ...]
    ) -> list[Effect]:
        """Keep links to the nodes of ``seats``, and to no node that is in there no more.

        Args:
            number: the number of changes so far.
            seats: all that take part in votes, by name.
            named: the members that clients can use.

        """
        effects: list[Effect] = []
        for name, seat in seats.items():
            if name != self.node and seat.endpoint and self.linked.get(name) != seat.endpoint:
                effects.append(Connect(name, seat.endpoint))
        gone = [name for name in self.linked if name not in seats]
        effects += [Disconnect(name) for name in gone if name != self.node]
        self.linked = {name: seat.endpoint for name, seat in seats.items()}
        return [*effects, self.known(number, named)]

    def known(self, number: int, named: tuple[Member, ...]) -> Send:
        """Name the members to the proxy, which names them to clients."""
        members = tuple(NodeAddress(seat.name, seat.endpoint) for seat in named)
        return Send(self.proxy, MembersKnown(view=number, members=members))


class Learner(NamedTuple):
    """A node that is no member, or has lost its journal, as it describes itself."""

    journal: int
    endpoint: str
    slots_left: int = 0
    bytes_left: int = 0
    waits_for: str = ""
    """The step that it must take before it can join; empty if there is none."""


class Step(NamedTuple):
    """One step of a change."""

    detail: str
    """The reason why the change is not done yet, empty if it is."""
    slots_left: int = 0
    bytes_left: int = 0
    """The slots, and their bytes, that a learner lacks."""
    effects: tuple[Effect, ...] = ()


class MemberChanges(ABC):
    """The knowledge of the node that decides, as far as changes depend on it, and their steps.

    It only judges whether a change is wise: that a majority can still be reached, and that a
    new member is ready. The protocol judges whether it is safe.

    Args:
        node: the node that decides.
        members: the present members.
        number: the number of changes so far.

    """

    def __init__(self, node: str, members: tuple[Member, ...], number: int) -> None:
        self.node = node
        self.seats = {member.name: member for member in members}
        self.members = tuple(self.seats)
        self.number = number

    @abstractmethod
    def pending(self) -> str:
        """Return what an earlier change waits for, empty if nothing."""

    @abstractmethod
    def votes(self, member: str) -> bool:
        """Return whether ``member`` voted lately, under its registered journal."""

    @abstractmethod
    def is_old(self, member: str) -> bool:
        """Return whether ``member`` runs a version that cannot change the members."""

    @abstractmethod
    def learner(self, node: str) -> Learner | None:
        """Return what ``node`` said of itself as no member, if that was lately."""

    @abstractmethod
    def transfer(self, node: str) -> Step:
        """Let the member ``node`` lead."""

    @abstractmethod
    def propose_with(self, member: Member) -> Step:
        """Begin to add ``member``."""

    @abstractmethod
    def propose_without(self, node: str) -> Step:
        """Begin to remove the member ``node``."""

    def answer(
        self,
        request: ChangeMembers,
        reply: Callable[[MembersReply], list[Effect]],
    ) -> list[Effect]:
        """Take the next step of a change, and answer."""
        try:
            step = self.step(request)
        except MembershipError as error:
            refused = Refused(
                lock="",
                reason=Reason.MEMBERSHIP,
                detail=str(error),
                session=request.session,
                owner="",
                request=request.request,
            )
            return reply(refused)
        left = step.slots_left, step.bytes_left
        changed = unchanged(request, step.detail, self.number, self.members, *left)
        return [*step.effects, *reply(changed)]

    def step(self, request: ChangeMembers) -> Step:
        """Return the next step.

        Raises:
            MembershipError: the change is refused.

        """
        node = request.node
        match request.action:
            case MemberAction.TRANSFER:
                return self.transfer(node)
            case MemberAction.JOIN:
                return self._add(request, node)
            case MemberAction.LEAVE | MemberAction.REMOVE:
                return self._drop(node)
            case MemberAction.REPLACE if request.replacement == node:
                return self._renew(request)
            case MemberAction.REPLACE:
                new = request.replacement
                if node not in self.seats or (new not in self.seats and self._fits(new)):
                    return self._add(request, new)
                if new not in self.seats:
                    self._joiner(new)  # Refuse before anything has changed.
                step = self._drop(node)
                return step._replace(detail=step.detail or self.pending())

    def has_majority(self, members: tuple[str, ...], joins: int = 0) -> bool:
        """Return whether a majority of ``members``, and ``joins`` more that answer, is there."""
        return sum(map(self.votes, members)) + joins > (len(members) + joins) // 2

    def _fits(self, new: str) -> bool:
        """Return whether the members with ``new`` would have a reachable majority."""
        return self.learner(new) is not None and self.has_majority(self.members, joins=1)

    def _joiner(self, node: str) -> Learner:
        """Return the report of a node that is to join; refuse one that has not been heard."""
        report = self.learner(node)
        if report is None:
            raise MembershipError(
                f"{node} has not been heard from: start it with the address of a member in its "
                "configuration, and try again"
            )
        return report

    def _add(self, request: ChangeMembers, node: str) -> Step:
        seat, report = self.seats.get(node), self.learner(node)
        if seat is not None:
            journal = report.journal if report is not None else request.journal
            if journal not in (0, seat.journal):
                raise MembershipError(
                    f"{node} is a member, but lost its journal: run fencelock replace {node}"
                )
            return Step(self.pending())
        joiner = self._joiner(node)
        if self.pending():
            return Step(self.pending())
        self._check_versions()
        if len(self.members) >= MEMBERS_MAX:
            raise MembershipError(f"there are {MEMBERS_MAX} members, the limit: remove one first")
        if not self._fits(node):
            raise MembershipError(
                f"with {node} a majority of the members could not be reached: start members that "
                "do not answer, or remove them first"
            )
        if joiner.waits_for:
            return Step(f"{node} {joiner.waits_for}", joiner.slots_left, joiner.bytes_left)
        return self.propose_with(Member(node, joiner.endpoint or request.endpoint, joiner.journal))

    def _drop(self, node: str) -> Step:
        if node not in self.seats or self.pending():
            return Step(self.pending())
        left = tuple(member for member in self.members if member != node)
        if not left:
            raise MembershipError(f"{node} is the only member: let another node join first")
        self._check_versions(but=node)
        if not self.has_majority(left):
            silent = ", ".join(one for one in left if not self.votes(one))
            raise MembershipError(
                f"without {node} a majority of the members could not be reached, since {silent} "
                "does not answer: start it, or remove it first"
            )
        return self.propose_without(node)

    def _renew(self, request: ChangeMembers) -> Step:
        """Replace the journal of a member that lost its own: remove it, then add it again."""
        node = request.node
        seat, report = self.seats.get(node), self.learner(node)
        if seat is None or (report is not None and report.journal == seat.journal):
            return self._add(request, node)
        if report is None:
            if request.journal == seat.journal or self.votes(node):
                return Step(self.pending())
            self._joiner(node)
        return self._drop(node)

    def _check_versions(self, but: str = "") -> None:
        """Refuse a change while members cannot read it."""
        for member in self.members:
            if member != but and self.is_old(member):
                raise MembershipError(
                    f"{member} runs a version that cannot change the members: upgrade it first"
                )


def unchanged(
    request: ChangeMembers,
    detail: str,
    number: int,
    members: tuple[str, ...],
    slots_left: int = 0,
    bytes_left: int = 0,
) -> MembersChanged:
    """Return the answer to ``request``: it is done, or waits for what ``detail`` says."""
    return MembersChanged(
        done=not detail,
        detail=detail,
        view=number,
        members=members,
        slots_left=slots_left,
        bytes_left=bytes_left,
        session=request.session,
        request=request.request,
    )
