"""The part of a backend whose protocol changes its members while it serves."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from msgspec.structs import replace

from fencelock.actors.api.membership_message import ChangeMembers, MemberAction, ReadMembers
from fencelock.actors.api.message import Alive, KeepAlive, NodeAddress
from fencelock.actors.api.request import Request
from fencelock.actors.bootstrap_message import VotingStatus
from fencelock.actors.effect import Effect, Effects, Send
from fencelock.actors.message import Address, Event, Instant, address_of
from fencelock.actors.proxy.backend import Backend, Handler
from fencelock.actors.proxy.message import MembersKnown, Relay, Relayed, TimesUnfit

ANNOUNCED_MAX = 500
"""Maximum clients that are sent new members per tick: it takes a few milliseconds."""


class MembersBackend(Backend):
    """Names the members to clients, and leaves requests about them to the role that decides.

    Args:
        node: this node.
        members: the members, at first, by name.
        endpoints: where they are reached, at first, as far as that is known.

    """

    def __init__(
        self, node: str, members: tuple[str, ...], endpoints: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(node, members)
        known = tuple(NodeAddress(*one) for one in sorted((endpoints or {}).items()))
        self.known = MembersKnown(view=0, members=known)
        """The members with their endpoints."""
        self.why_no_vote = ""
        """The reason why this node does not vote, empty if it does."""
        self.why_times = ""
        """The reason why this node's times do not fit; empty if none is known."""
        self.unannounced: deque[str] = deque()
        """The clients that must still be sent these."""
        self.member_requests: dict[type[Request], Handler] = {
            ChangeMembers: self._relay,
            ReadMembers: self._relay,
        }
        self.member_events: dict[type[Event], Handler] = {
            MembersKnown: self.on_members_known,
            Relayed: self._on_relayed,
            TimesUnfit: self._on_times_unfit,
        }

    def alive(self, request: KeepAlive) -> Alive:
        alive = super().alive(request)
        excuse = "" if self.is_ready() else self.why_no_vote
        return replace(alive, view=self.known.view, members=self.known.members, excuse=excuse)

    def on_members_known(self, sender: Address, event: MembersKnown, now: Instant) -> Effects:
        self.known = event
        self.members = tuple(member.node for member in event.members)
        self.unannounced = deque(self.clients.by_id)
        return self.announce_members()

    def let_serve(self, status: VotingStatus) -> None:
        """Serve nobody while this node is none of the group's, and has none of what it knew."""
        if not status.serves:
            self.closed = status.why
        elif self.removed:
            self.closed = ""
        self.removed = not status.serves
        self.why_no_vote = status.why

    def announce_members(self) -> list[Effect]:
        """Name the members to clients that do not know them yet, some at a time.

        All members that a client knows may leave before its next keep-alive.
        """
        announced: list[Effect] = []
        while self.unannounced and len(announced) < ANNOUNCED_MAX:
            client = self.clients.by_id.get(self.unannounced.popleft())
            if client is not None:
                announced.append(
                    Send(client.address, self.alive(KeepAlive(session=client.session)))
                )
        return announced

    def _on_times_unfit(self, sender: Address, event: TimesUnfit, now: Instant) -> Effects:
        self.why_times = event.why
        return ()

    def _relay(self, sender: Address, request: Request, now: Instant) -> Effects:
        """Leave a request about the members to the role that changes them."""
        founds = isinstance(request, ChangeMembers) and request.action is MemberAction.FOUND
        role = address_of(self.node, "bootstrap" if founds else "members")
        return [Send(role, Relay(client=sender, request=request))]

    def _on_relayed(self, sender: Address, event: Relayed, now: Instant) -> Effects:
        return [Send(event.client, event.reply)]
