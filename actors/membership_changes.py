"""Requests about the members: who answers them, and the steps of a change.

A change is asked for until it is done. Each time the node that decides compares the wanted members
with the present ones, and takes the next step: one member more, or one less. So a change goes on
under the next such node, and a repetition has no further effect.

A node becomes a member together with its journal. A description of it that is older than the
request may be of a journal that it has lost since: an operator empties a folder, starts the node
and asks at once. Such a journal never votes, and the group would count it. So the node that decides
waits until the node has described itself anew.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container
from typing import NamedTuple

from fencelock.actors.api.lock_message import Reason, Refused, refused
from fencelock.actors.api.membership_message import (
    ChangeMembers,
    MemberAction,
    MembersChanged,
    MembersRead,
    ReadMembers,
)
from fencelock.actors.api.session_message import NodeAddress
from fencelock.actors.effect import Connect, Disconnect, Effect, Send
from fencelock.actors.error import MembershipError
from fencelock.actors.membership import MEMBERS_MAX, Member
from fencelock.actors.message import Address, Instant, address_of, ms_between
from fencelock.actors.proxy.event import MembersKnown, Relay, Relayed

CHANGE_REQUESTS_MAX = 64
"""Maximum requests that wait for an answer; they are asked again."""

REPEATED_MS = 10_000
"""A request that comes again after a longer pause is a new one (ms)."""

MembersRequest = ChangeMembers | ReadMembers
MembersReply = MembersChanged | MembersRead | Refused


class ClientRequests:
    """The requests of this node's clients to the role at ``address``, and the named members."""

    def __init__(self, address: Address, node: str) -> None:
        self.address = address
        self.node = node
        self.proxy = address_of(node, "proxy")
        self.clients: dict[tuple[str, int], Address] = {}
        """The client of this node's proxy that sent each request, by session and number."""
        self.linked: dict[str, str] = {}
        """The endpoints of the members that this node has to connect to."""

    def take(self, relay: Relay) -> MembersRequest | None:
        """Return a request from the proxy of this node, if it is about the members."""
        request = relay.request
        if not isinstance(request, MembersRequest):
            return None
        self.clients[request.session, request.request] = relay.client
        if len(self.clients) > CHANGE_REQUESTS_MAX:
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
        """Keep links to the nodes of ``seats``, which take part in votes, and to no others.

        ``named`` are the members that clients can use, after ``number`` changes.
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


class RepeatedChanges:
    """The changes that clients ask for, with the times at which each came first and last."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, MemberAction, str, str], tuple[Instant, Instant]] = {}

    def asked_ms(self, request: ChangeMembers, now: Instant) -> int:
        """Note that ``request`` came; return for how long its client has repeated it (ms)."""
        key = _change_of(request)
        first, last = self._asked.pop(key, (now, now))
        if ms_between(last, now) > REPEATED_MS:
            first = now
        self._asked[key] = first, now
        if len(self._asked) > CHANGE_REQUESTS_MAX:
            del self._asked[next(iter(self._asked))]
        return ms_between(first, now)

    def end(self, request: ChangeMembers) -> None:
        """Forget a change that is done or refused: asked for again, it is a new one."""
        self._asked.pop(_change_of(request), None)


def _change_of(request: ChangeMembers) -> tuple[str, MemberAction, str, str]:
    return request.session, request.action, request.node, request.replacement


class Learner(NamedTuple):
    """A node that is no member, or has lost its journal, as it describes itself."""

    journal: int
    endpoint: str
    slots_left: int = 0
    bytes_left: int = 0
    waits_for: str = ""
    """The step that it must take before it can join; empty if there is none."""
    last_message_ms: int = 0
    """Time since it described itself so (ms)."""


class Step(NamedTuple):
    """One step of a change."""

    detail: str
    """The reason why the change is not done yet, empty if it is."""
    slots_left: int = 0
    bytes_left: int = 0
    """The slots, and their bytes, that a learner lacks."""
    effects: tuple[Effect, ...] = ()


class _UnheardError(MembershipError):
    """The leader has received nothing from a node that is to join."""


class MemberChanges(ABC):
    """The knowledge of the node that decides, as far as changes depend on it, and their steps.

    It only judges whether a change is wise: that a majority can still be reached, and that a
    new member is ready. The protocol judges whether it is safe.

    Args:
        node: the node that decides.
        members: the present members.
        number: the number of changes so far.
        only: the only nodes that may be members, or empty if any may. A group without disks keeps
            to those that founded it, since the next one is founded without an operator.

    """

    def __init__(
        self, node: str, members: tuple[Member, ...], number: int, only: Container[str] = ()
    ) -> None:
        self.node = node
        self.only = only
        self.seats = {member.name: member for member in members}
        self.members = tuple(self.seats)
        self.number = number
        self.asked_ms: int | None = None
        """Time since a client first asked for the change (ms); None if no client did."""

    @abstractmethod
    def pending(self) -> str:
        """Return what an earlier change waits for, empty if nothing."""

    @abstractmethod
    def votes(self, member: str) -> bool:
        """Return whether ``member`` voted recently, under its registered journal."""

    @abstractmethod
    def learner(self, node: str) -> Learner | None:
        """Return the last report of ``node``, which is no member, if it is recent."""

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
        repeated: RepeatedChanges,
        now: Instant,
    ) -> list[Effect]:
        self.asked_ms = repeated.asked_ms(request, now)
        try:
            self._check_silent(request)
            step = self.step(request)
        except MembershipError as error:
            repeated.end(request)
            return reply(refused(request, Reason.MEMBERSHIP, str(error)))
        if not step.detail:
            repeated.end(request)
        left = step.slots_left, step.bytes_left
        changed = unchanged(request, step.detail, self.number, self.members, *left)
        return [*step.effects, *reply(changed)]

    def _check_silent(self, request: ChangeMembers) -> None:
        """Refuse to remove a member that runs: the operator may have mistaken its name."""
        node = request.node
        if request.action is MemberAction.REMOVE and self.votes(node):
            raise MembershipError(
                f"{node} runs, as it answered {self.node} recently: run fencelock leave {node}, "
                "or stop it first"
            )

    def step(self, request: ChangeMembers) -> Step:
        """Return the next step.

        A replacement that has begun waits for a node that has sent nothing yet: a new leader
        receives its report soon.

        Raises:
            MembershipError: the change is refused.

        """
        try:
            return self._step(request)
        except _UnheardError as error:
            begun = request.replacement == request.node or request.node not in self.seats
            if request.action is MemberAction.REPLACE and begun:
                return Step(str(error))
            raise

    def _step(self, request: ChangeMembers) -> Step:
        node = request.node
        match request.action:
            case MemberAction.TRANSFER:
                return self.transfer(node)
            case MemberAction.FOUND:
                return Step("")  # The group that decides about its members is founded.
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
                    joiner = self._joiner(new)  # Refuse before anything has changed.
                    if self._is_outdated(joiner):
                        return _awaits_journal(new)
                step = self._drop(node)
                return step._replace(detail=step.detail or self.pending())

    def has_majority(self, members: tuple[str, ...], joins: int = 0) -> bool:
        """Return whether a majority of ``members``, and ``joins`` more that answer, is there."""
        return sum(map(self.votes, members)) + joins > (len(members) + joins) // 2

    def _fits(self, new: str) -> bool:
        return self.learner(new) is not None and self.has_majority(self.members, joins=1)

    def _joiner(self, node: str) -> Learner:
        """Return the report of a node that is to join; refuse one that has sent none."""
        report = self.learner(node)
        if report is None:
            raise _UnheardError(
                f"{node} has sent no message yet: start it with the address of a member in its "
                "configuration, and try again"
            )
        return report

    def _is_outdated(self, report: Learner | None) -> bool:
        """Return whether ``report`` is older than the request: its journal may be lost since."""
        asked_ms = self.asked_ms
        return report is not None and asked_ms is not None and report.last_message_ms > asked_ms

    def _add(self, request: ChangeMembers, node: str) -> Step:
        seat, report = self.seats.get(node), self.learner(node)
        if seat is not None:
            if self._is_outdated(report) and not self.votes(node):  # Voters name none any more.
                return _awaits_journal(node)
            journal = report.journal if report is not None else request.journal
            if journal not in (0, seat.journal):
                raise MembershipError(
                    f"{node} is a member, but lost its journal: run fencelock replace {node}"
                )
            return Step(self.pending())
        if self.only and node not in self.only:
            raise MembershipError(
                f"{node} did not found this group, which keeps nothing on disk: such a group "
                "forgets who joined it. Stop all nodes, list the new one in the configuration of "
                "all, and start them; that ends all holds"
            )
        joiner = self._joiner(node)
        if self.pending():
            return Step(self.pending())
        if len(self.members) >= MEMBERS_MAX:
            raise MembershipError(f"there are {MEMBERS_MAX} members, the limit: remove one first")
        if not self._fits(node):
            raise MembershipError(
                f"with {node} a majority of the members could not be reached: start members that "
                "do not answer, or remove them first"
            )
        if joiner.waits_for:
            return Step(f"{node} {joiner.waits_for}", joiner.slots_left, joiner.bytes_left)
        if self._is_outdated(joiner):
            return _awaits_journal(node)
        return self.propose_with(Member(node, joiner.endpoint or request.endpoint, joiner.journal))

    def _drop(self, node: str) -> Step:
        if node not in self.seats or self.pending():
            return Step(self.pending())
        left = tuple(member for member in self.members if member != node)
        if not left:
            raise MembershipError(f"{node} is the only member: let another node join first")
        if not self.has_majority(left):
            silent = [one for one in left if not self.votes(one)]
            verb, them = ("does", "it") if len(silent) == 1 else ("do", "them")
            raise MembershipError(
                f"without {node} a majority of the members could not be reached, since "
                f"{', '.join(silent)} {verb} not answer: start {them}, or remove {them} first"
            )
        return self.propose_without(node)

    def _renew(self, request: ChangeMembers) -> Step:
        """Replace the journal of a member that lost its own: remove it, then add it again."""
        node = request.node
        seat, report = self.seats.get(node), self.learner(node)
        known = request.journal, 0 if seat is None else seat.journal
        if request.journal and report is not None and report.journal not in known:
            if self._is_outdated(report):
                return _awaits_journal(node)
            # Else the two would take turns: each is removed when the other has been added.
            raise MembershipError(
                f"{node} reports journal {report.journal:x}, and reported {request.journal:x} when "
                f"this began: either two processes run as {node}, or it was started with another "
                f"empty folder meanwhile. Stop all but one, then run fencelock replace {node} again"
            )
        if seat is None or (report is not None and report.journal == seat.journal):
            return self._add(request, node)
        if self._is_outdated(report):
            return _awaits_journal(node)
        if report is None:
            if request.journal == seat.journal or self.votes(node):
                return Step(self.pending())
            self._joiner(node)
        return self._drop(node)


def _awaits_journal(node: str) -> Step:
    return Step(f"waiting for {node} to report whether it still has its journal")


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
