"""Requests in flight of a node's proxy: commands proposed and not yet answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, takewhile
from operator import attrgetter

from fencelock.actors.api.message import Cancel, KeepAlive
from fencelock.actors.api.request import Command, Key, Outcome
from fencelock.actors.effect import Effects, Send
from fencelock.actors.fast_construction import maker
from fencelock.actors.message import NS_PER_MS, Address, Instant
from fencelock.actors.paxos.event import Gather, ProposalBatch
from fencelock.actors.paxos.message import Propose
from fencelock.actors.paxos.proxy_clients import RemoteClient

ERRANDS_MAX = 100_000
"""Maximum commands in flight through one node; further requests are refused, to bound memory."""

ASK_AGAIN_MS = 500
"""A command without an outcome is proposed again after this (ms): a message may be lost."""

LOOK_AGAIN_MS = 5_000
"""Interval after which a wait known to the log is proposed again (ms), if its end was missed."""

LOOKS_MAX = 25
"""Maximum number of such waits proposed again at a time. Each is a command in the log, and where
thousands wait they must not be most of it."""

_propose = maker(Propose)


def is_full(count: int, limit: int, *, eases: bool) -> bool:
    """Return whether there is no room for one more command beside ``count``.

    The limit of commands that ease the load (`Command.EASES`) is twice as high.
    """
    return count >= limit and count >= (2 * limit if eases else limit)


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """One command that was sent to the log and has no outcome yet.

    Attributes:
        number: its number at the replicas; the same each time it is proposed.
        request: the request, which is the command.
        command: the same as encoded for the log.
        asker: receiver of the reply; it changes when the request is sent again.
        asked_at: the time of the request.
        since: the time of the first proposal; its outcome proves the state after that.
        proposed_at: the time of the last proposal, or when it was last known to wait in the log.
        guest: the client that is charged for it, None for a role of this node.

    """

    key: Key
    request: Command
    number: int
    command: bytes
    asker: Address
    asked_at: Instant
    since: Instant
    proposed_at: Instant
    guest: RemoteClient | None = None


_errand = maker(InFlightRequest)
_NUMBER: Callable[[InFlightRequest], int] = attrgetter("number")
_COMMAND: Callable[[InFlightRequest], bytes] = attrgetter("command")


class InFlightRequests:
    """All requests in flight. The log's outcome ends one; until then it is proposed again.

    Both queues are ordered by `InFlightRequest.proposed_at`, so the requests that are due come
    first and finding them is cheap. The cost also grows a little with entries removed from the
    front since the dict last grew, so all due requests are taken at once.

    Args:
        door: the proxy; outcomes are sent there.
        replica: the replica of the same node.
        encode: encodes a command for the log.

    """

    def __init__(self, door: Address, replica: Address, encode: Callable[[Command], bytes]) -> None:
        self.door = door
        self.replica = replica
        self._encode = encode
        self.number = 0
        self.by_key: dict[Key, InFlightRequest] = {}
        self.unheard: dict[int, InFlightRequest] = {}
        """Requests that the log is not known to have received."""
        self.queued: dict[int, InFlightRequest] = {}
        """Acquires that wait in the table."""
        self.gathered: list[InFlightRequest] = []
        """Requests to propose at the end of this turn, after the first was given to `gather`: a
        batch
        saves work for each of them."""
        self.unheard_before = Instant(-1)
        """Unconfirmed requests proposed before this instant are due."""
        self.queued_before = Instant(-1)

    def __len__(self) -> int:
        return len(self.by_key)

    def is_full(self, *, eases: bool) -> bool:
        """Return whether there is no room for another command."""
        return is_full(len(self.by_key), ERRANDS_MAX, eases=eases)

    def add(
        self,
        request: Command,
        key: Key,
        now: Instant,
        *,
        asker: Address,
        guest: RemoteClient | None = None,
    ) -> InFlightRequest:
        """Add a command, whose ``key`` must be free; the caller has it proposed."""
        assert key not in self.by_key
        self.number = number = self.number + 1
        in_flight_request = _errand(
            key=key,
            request=request,
            number=number,
            command=self._encode(request),
            asker=asker,
            asked_at=now,
            since=now,
            proposed_at=now,
            guest=guest,
        )
        self.by_key[key] = self.unheard[number] = in_flight_request
        if guest is not None:
            guest.in_flight_requests += 1
        return in_flight_request

    def propose(self, in_flight_request: InFlightRequest) -> Send:
        """Return the proposal of the request to this node's replica, which forwards it."""
        propose = _propose(
            client=self.door, number=in_flight_request.number, command=in_flight_request.command
        )
        return Send(self.replica, propose)

    def gather(self, in_flight_request: InFlightRequest) -> Effects:
        """Begin to gather, and have `bundled` called at the end of this turn."""
        self.gathered.append(in_flight_request)
        return (Send(self.door, Gather()),)

    def bundled(self) -> Effects:
        """Return the proposal of the gathered requests, if there are any."""
        if not self.gathered:
            return ()
        gathered, self.gathered = self.gathered, []
        numbers, commands = tuple(map(_NUMBER, gathered)), tuple(map(_COMMAND, gathered))
        return (
            Send(self.replica, ProposalBatch(client=self.door, numbers=numbers, commands=commands)),
        )

    def numbered(self, number: int) -> InFlightRequest | None:
        """Return the request that replicas know by ``number``, None if it is over."""
        return self.unheard.get(number) or self.queued.get(number)

    def end(self, in_flight_request: InFlightRequest) -> None:
        """Drop a request that has its outcome, or that is not wanted any more."""
        del self.by_key[in_flight_request.key]
        if self.unheard.pop(in_flight_request.number, None) is None:
            del self.queued[in_flight_request.number]
        guest = in_flight_request.guest
        if guest is not None:
            guest.in_flight_requests -= 1

    def answered_by(self, reply: Outcome) -> InFlightRequest | None:
        """Return the request to which ``reply`` is the reply, None if there is none here."""
        in_flight_request = self.by_key.get(reply.key)
        if in_flight_request is None or not isinstance(in_flight_request.request, reply.ANSWERS):
            return None
        return in_flight_request

    def make_room(self, request: Command, key: Key, guest: RemoteClient | None) -> None:
        """Drop requests in flight that a new command makes needless."""
        if isinstance(request, Cancel):
            session, owner, lock, number = key
            self.drop((session, owner, lock, -number))
        elif isinstance(request, KeepAlive) and guest is not None:
            self.keep_two(guest, key)

    def drop(self, key: Key) -> None:
        """Drop a command that another makes needless, if it is in flight."""
        in_flight_request = self.by_key.get(key)
        if in_flight_request is not None:
            self.end(in_flight_request)

    def keep_two(self, guest: RemoteClient, key: Key) -> None:
        """Make room for the keep-alive ``key``: only the oldest in flight is still needed.

        The oldest stays. Otherwise, where the log takes longer than a client's pause between two,
        each would be dropped for the next, and none ever confirmed.
        """
        oldest, *needless = [*(known for known in guest.keeps if known in self.by_key), key]
        for known in needless[:-1]:
            self.drop(known)
        guest.keeps = (oldest,) if oldest == key else (oldest, key)

    def forget_silent(self, now: Instant) -> int:
        """Drop the requests of silent clients; return their number."""
        gone = [
            in_flight_request
            for in_flight_request in self.by_key.values()
            if in_flight_request.guest is not None and in_flight_request.guest.is_silent(now)
        ]
        for in_flight_request in gone:
            self.end(in_flight_request)
        return len(gone)

    def known(self, in_flight_request: InFlightRequest, now: Instant) -> None:
        """Note that the log has queued this acquire, and will report when its wait ends."""
        self.unheard.pop(in_flight_request.number, None)
        self.queued.pop(in_flight_request.number, None)
        in_flight_request.proposed_at = now
        self.queued[in_flight_request.number] = in_flight_request

    def doubt(self, now: Instant, *, queued: bool = False) -> None:
        """Make all unconfirmed requests due, and with ``queued`` those that wait in the log too."""
        self.unheard_before = now
        if queued:
            self.queued_before = now

    def due(self, now: Instant, most: int) -> list[InFlightRequest]:
        """Return the requests to propose again, the longest due first, at most ``most``.

        All of them count as proposed now, and as unconfirmed until the log reports them.
        """
        waited = Instant(now - ASK_AGAIN_MS * NS_PER_MS + 1)
        looked = Instant(now - LOOK_AGAIN_MS * NS_PER_MS + 1)
        due = _older(self.unheard, max(waited, self.unheard_before), most)
        due += _older(self.queued, self.queued_before, most - len(due))
        due += _older(self.queued, looked, min(LOOKS_MAX, most - len(due)))
        for in_flight_request in due:
            in_flight_request.proposed_at = now
            self.unheard[in_flight_request.number] = in_flight_request
        return due


def _older(queue: dict[int, InFlightRequest], before: Instant, most: int) -> list[InFlightRequest]:
    """Remove from the front of ``queue`` requests proposed ``before``, at most ``most``."""
    old = takewhile(
        lambda in_flight_request: in_flight_request.proposed_at < before, queue.values()
    )
    taken = list(islice(old, most))
    for in_flight_request in taken:
        del queue[in_flight_request.number]
    return taken
