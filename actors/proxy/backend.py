"""The interface of the protocols behind a node's proxy; the part of those that change members."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from msgspec.structs import replace

from fencelock.actors.api.account import ListMaps, Purge, ReadUsage, SetQuota
from fencelock.actors.api.backup_message import ReadBackup
from fencelock.actors.api.cluster_message import Elected, ProbeReply, Watch
from fencelock.actors.api.lock_message import Acquire, DisownHold, Inspect, LockStatus, Renew
from fencelock.actors.api.membership_message import ChangeMembers, MemberAction, ReadMembers
from fencelock.actors.api.operator_message import CloseSession, Evict, ListLocks, ListRecords
from fencelock.actors.api.request import Request
from fencelock.actors.api.session_message import Alive, KeepAlive, NodeAddress
from fencelock.actors.bootstrap_message import VotingStatus
from fencelock.actors.effect import Effect, Effects, Send
from fencelock.actors.error import UnsupportedError
from fencelock.actors.histogram import Histogram
from fencelock.actors.message import Address, Event, Instant, address_of
from fencelock.actors.proxy.clients import RemoteClients
from fencelock.actors.proxy.event import MembersKnown, Relay, Relayed, TimesUnfit

ANNOUNCED_MAX = 500
"""Maximum clients that are sent new members per tick: it takes a few milliseconds."""

Handler = Callable[[Address, Any, Instant], Effects]


class Status(NamedTuple):
    """The protocol's part of a node's description; see `NodeStatus` for the fields."""

    ready: bool
    detail: str
    locks: tuple[LockStatus, ...] = ()
    leader: str = ""
    elected: Elected | None = None


class Backend(ABC):
    """The protocol's part of a proxy: it gets requests decided, and replies to them.

    A handler that raises a `RefusedError` or an `UnavailableError` refuses the request.

    Attributes:
        requests: the handlers by request type; the handler of a base class serves its subclasses.
            The proxy refuses the types that are missing as unsupported.
        events: the handlers of all other events that the proxy accepts, by type.
        clients: the clients of the proxy; the latest is charged for the request that is handled.
        closed: reason why this node must not serve any more; empty while it may.
        removed: whether that ends once the group has this node as a member again.
        latencies: times from a request to its reply, by kind. ``wait`` is of acquires that waited
            in a queue, where the protocol tells them apart; otherwise these are in ``acquire``.

    """

    name: str
    TICK_MS: ClassVar[int]
    """Interval of `tick` (ms), while the backend is busy."""
    CLIENT_SILENCE_MS: ClassVar[int] = 15_000
    """A client silent for this long (ms) is gone or uses another node: its waits here end."""

    requests: Mapping[type[Request], Handler]
    events: Mapping[type[Event], Handler]

    def __init__(self, node: str, members: tuple[str, ...]) -> None:
        self.node = node
        self.members = members
        self.proxy = address_of(node, "proxy")
        self.clients = RemoteClients(node, self.CLIENT_SILENCE_MS)
        self.closed = ""
        self.removed = False
        self.latencies = {kind: Histogram() for kind in ("acquire", "wait", "release", "other")}

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of requests in flight."""

    @abstractmethod
    def is_busy(self) -> bool:
        """Return whether `tick` is wanted."""

    @abstractmethod
    def tick(self, now: Instant) -> Effects:
        """Repeat the requests that are due, and end those that time out."""

    @abstractmethod
    def forget(self, clients: list[str], now: Instant) -> Effects:
        """Drop the waits of ``clients`` (ids), which have fallen silent."""

    def cancel_waits(self, clients: list[str], now: Instant) -> Effects:
        """Cancel the waits of ``clients`` (ids), whose key was removed; their holds stay."""
        return self.forget(clients, now)

    @abstractmethod
    def gather_status(self, now: Instant) -> Effects:
        """Begin to gather what `status` shows."""

    @abstractmethod
    def status(self, now: Instant) -> Status | None:
        """Return the protocol's part of a description; None while it is being gathered."""

    def is_ready(self) -> bool:
        """Return whether requests can be decided now, as far as is known."""
        return self.serving()[0]

    def serving(self) -> tuple[bool, str]:
        """Return whether requests can reach a leader, and the node that leads if there is one."""
        return True, ""

    def leader_for(self, session: str) -> str:
        """Return the node that replies soonest to ``session``, empty if none is known."""
        return self.serving()[1]

    def alive(self, request: KeepAlive) -> Alive:
        """Return the reply to a keep-alive in a name that is not a session of the cluster."""
        return Alive(
            session=request.session,
            node=self.node,
            request=request.request,
            leader=self.leader_for(request.session),
        )

    def probe_reply(self, session: str, request: int) -> ProbeReply:
        """Return whether the node can serve ``session`` now."""
        serving, leader = self.serving()
        return ProbeReply(
            session=session, node=self.node, serving=serving, leader=leader, request=request
        )

    def pending(self) -> Iterable[tuple[Address, Request]]:
        """Return the requests in flight with their senders, to refuse them when service ends."""
        return ()

    def check_not_reentrant(self, acquire: Acquire) -> None:
        """Refuse an acquire of a lock that its owner may hold more than once."""
        if acquire.limit != 1:
            text = f"limit {acquire.limit} asks for a lock that its owner may hold more than once"
            raise UnsupportedError(f"{text}; {self.name} has none, paxos has")

    def check_linearizable(self, inspect: Inspect) -> None:
        """Refuse a read with a bound on its age."""
        if inspect.age_ms is not None:
            raise UnsupportedError(
                f"{self.name} cannot prove how old the knowledge of a node is, so it has no local "
                "reads with a bound (max_age); paxos has them"
            )

    def unsupported(self, request: Request) -> str:
        """Return why the protocol does not have ``request``, naming one that has it."""
        if isinstance(request, Evict | ListRecords) and self.name in _INSTEAD:
            return f"{self.name} {_INSTEAD[self.name]}"
        if isinstance(request, ListLocks | ListRecords | Evict | ReadBackup):
            text = f"{self.name} keeps no table of locks to list, to back up, or to take one from"
            return f"{text}; paxos does"
        if isinstance(request, ChangeMembers | ReadMembers):
            return (
                f"the members of a {self.name} cluster are those of its configuration: change the "
                "file and start all nodes anew; paxos and bakery change their members while they "
                "serve"
            )
        if isinstance(request, CloseSession):
            return (
                f"{self.name} keeps no sessions, so none can be closed: `fencelock who` names the "
                "client that holds a lock. paxos closes sessions"
            )
        if isinstance(request, SetQuota | ReadUsage):
            return (
                f"{self.name} has no quotas, and counts nothing by key: it keeps nothing that "
                "outlives its client; paxos has quotas"
            )
        if isinstance(request, Purge | ListMaps):
            return (
                f"{self.name} has no maps, latches or other things that outlive their clients, so "
                "there is nothing to list or to delete; paxos has them"
            )
        has_it = "bakery has it" if isinstance(request, Watch) else "paxos has it"
        if isinstance(request, Renew):
            has_it = "bakery and paxos have it"
        elif isinstance(request, DisownHold):
            has_it = "central and lamport have it"
        return f"{self.name} has no {type(request).__name__}; {has_it}"


_INSTEAD = {
    "bakery": (
        "keeps no sessions and takes no lock by force: a hold ends when its client releases it, or "
        "when its duration and grace are over. `fencelock who` names the client: stop it if it "
        "renews a hold that it shall not have. paxos takes locks by force"
    ),
    "central": (
        "keeps no sessions and no list of evictions. For each lock that was taken by force, the "
        "logs of the lock server's node and of the holder's node have a line (event=eviction). "
        "paxos lists both"
    ),
    "lamport": (
        "keeps no sessions and takes no lock by force: a hold ends when its client releases it, or "
        "when the node through which it is held is restarted. `fencelock who` names that node. "
        "paxos takes locks by force"
    ),
}
"""Advice about a hold, or about records, on protocols without a request for that."""


class MembersBackend(Backend):
    """Names the members to clients, and leaves requests about them to the role that decides.

    ``endpoints`` says where the first members are reached, as far as that is known.
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
