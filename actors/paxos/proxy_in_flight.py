"""What a node's door has under way in the log: commands proposed and not yet answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import islice, takewhile
from operator import attrgetter

from fencelock.actors.effect import Effects, Send
from fencelock.actors.fast_construction import maker
from fencelock.actors.lock.command import Command
from fencelock.actors.message import NS_PER_MS, Address, Instant
from fencelock.actors.paxos.event import Gather
from fencelock.actors.paxos.message import Propose
from fencelock.actors.paxos.proposal_batch import ProposalBatch
from fencelock.actors.paxos.proxy_clients import RemoteClient
from fencelock.actors.paxos.proxy_event import Asked

ERRANDS_MAX = 100_000
"""Commands under way through one node; beyond it a request is refused, memory does not grow."""

ASK_AGAIN_MS = 500
"""A command without an outcome is proposed again after this: it, or a master, may be lost."""

LOOK_AGAIN_MS = 5_000
"""A wait that the log knows is asked for again this seldom, in case its end was not heard."""

LOOKS_MAX = 25
"""How many such waits are asked for again at a time: each is a command in the log, and where
thousands wait they must not be most of it."""

NOBODY = Address("")
"""The asker of a command that the door gives for itself."""

_propose = maker(Propose)

Key = tuple[str, str, str, int]
"""What an outcome is addressed by: session, owner, lock, request. See the `key_of_` functions."""


class Kind(Enum):
    """What a command is for."""

    OPEN = "open"
    KEEP = "keep"
    END = "end"
    ACQUIRE = "acquire"
    RELEASE = "release"
    CANCEL = "cancel"
    EVICT = "evict"


ACQUIRE, RELEASE = Kind.ACQUIRE, Kind.RELEASE
"""What is asked for most: to look up a member of an enum takes as long as three other names."""

EASING = frozenset({Kind.KEEP, Kind.END, Kind.RELEASE, Kind.CANCEL})
"""What frees something, or keeps what is held: there is as much room for it again. Were it refused
because so much waits, nothing would end the waiting."""


def is_full(count: int, kind: Kind, limit: int) -> bool:
    """Return whether ``count`` commands are too many for one more of ``kind``.

    ``limit`` is how many may be there for most kinds.
    """
    return count >= limit and count >= (2 * limit if kind in EASING else limit)


def key_of_session(kind: Kind, session: str, request: int) -> Key:
    """Return the key of a command about a session; locks have names, so it is no claim's."""
    return (session, kind.value, "", request)


def key_of_cancel(session: str, owner: str, lock: str, request: int) -> Key:
    """Return the key of a cancel, which has the number of the acquire it undoes (1 or more)."""
    return (session, owner, lock, -request)


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """One command on its way into the log.

    Attributes:
        number: what replicas know it by; the same each time it is proposed.
        command: as the log carries it.
        asker: where the answer goes, `NOBODY` for none; it moves when the request is sent again.
        asked: the request as its asker said it, None for what the door wants for itself.
        asked_at: when it was asked for.
        since: when it was first proposed: what its outcome confirms was true after that.
        proposed_at: when it was last proposed, or known to wait in the log.
        guest: the client that is charged for it, None for one inside the node.
        own: whether it belongs to the node's own session.

    """

    key: Key
    kind: Kind
    number: int
    command: bytes
    asker: Address
    asked: Asked | None
    asked_at: Instant
    since: Instant
    proposed_at: Instant
    guest: RemoteClient | None = None
    own: bool = False


_errand = maker(InFlightRequest)
_NUMBER: Callable[[InFlightRequest], int] = attrgetter("number")
_COMMAND: Callable[[InFlightRequest], bytes] = attrgetter("command")


class InFlightRequests:
    """All commands under way. The log's outcome ends an errand; until then it is repeated.

    Both queues are in the order of `InFlightRequest.proposed_at`, so that what is due is in front
    and a look at them costs what is due; and a little for what has left the front since the dict
    grew last, so what is due is taken in one look.

    Args:
        door: whose errands these are; outcomes come there.
        replica: of the same node.
        encode: a command as the log carries it.

    """

    def __init__(self, door: Address, replica: Address, encode: Callable[[Command], bytes]) -> None:
        self.door = door
        self.replica = replica
        self._encode = encode
        self.number = 0
        self.by_key: dict[Key, InFlightRequest] = {}
        self.unheard: dict[int, InFlightRequest] = {}
        """Of which the log is not known to know."""
        self.queued: dict[int, InFlightRequest] = {}
        """Acquires that wait in the table."""
        self.gathered: list[InFlightRequest] = []
        """What is to be proposed at the end of this turn, after the first was put to `gather`:
        what is done for a bundle need not be done for each."""
        self.unheard_before = Instant(-1)
        """What was proposed before this, and is unheard, is due."""
        self.queued_before = Instant(-1)

    def __len__(self) -> int:
        return len(self.by_key)

    def is_full(self, kind: Kind) -> bool:
        """Return whether no more of ``kind`` can be taken on."""
        return is_full(len(self.by_key), kind, ERRANDS_MAX)

    def add(
        self,
        kind: Kind,
        key: Key,
        command: Command,
        now: Instant,
        *,
        asker: Address = NOBODY,
        asked: Asked | None = None,
        guest: RemoteClient | None = None,
        own: bool = False,
    ) -> InFlightRequest:
        """Take on a command, whose ``key`` must be free; the caller has it proposed."""
        assert key not in self.by_key
        self.number = number = self.number + 1
        in_flight_request = _errand(
            key=key,
            kind=kind,
            number=number,
            command=self._encode(command),
            asker=asker,
            asked=asked,
            asked_at=now,
            since=now,
            proposed_at=now,
            guest=guest,
            own=own,
        )
        self.by_key[key] = self.unheard[number] = in_flight_request
        if guest is not None:
            guest.in_flight_requests += 1
        return in_flight_request

    def propose(self, in_flight_request: InFlightRequest) -> Send:
        """Return the proposal of ``errand`` to this node's replica, which passes it on."""
        propose = _propose(
            client=self.door, number=in_flight_request.number, command=in_flight_request.command
        )
        return Send(self.replica, propose)

    def gather(self, in_flight_request: InFlightRequest) -> Effects:
        """Begin to gather, and have `bundled` called at the end of this turn."""
        self.gathered.append(in_flight_request)
        return (Send(self.door, Gather()),)

    def bundled(self) -> Effects:
        """Return the proposal of what was gathered, if anything was."""
        if not self.gathered:
            return ()
        gathered, self.gathered = self.gathered, []
        numbers, commands = tuple(map(_NUMBER, gathered)), tuple(map(_COMMAND, gathered))
        return (
            Send(self.replica, ProposalBatch(client=self.door, numbers=numbers, commands=commands)),
        )

    def numbered(self, number: int) -> InFlightRequest | None:
        """Return the errand that replicas know by ``number``, None if it is over."""
        return self.unheard.get(number) or self.queued.get(number)

    def end(self, in_flight_request: InFlightRequest) -> None:
        """Forget ``errand``: it has its outcome, or nobody wants it any more."""
        del self.by_key[in_flight_request.key]
        if self.unheard.pop(in_flight_request.number, None) is None:
            del self.queued[in_flight_request.number]
        guest = in_flight_request.guest
        if guest is not None:
            guest.in_flight_requests -= 1

    def make_room(self, kind: Kind, key: Key, guest: RemoteClient | None) -> None:
        """Drop what is under way and made needless by a new command."""
        if kind is Kind.CANCEL:
            session, owner, lock, number = key
            self.drop((session, owner, lock, -number))
        elif kind is Kind.KEEP and guest is not None:
            self.keep_two(guest, key)

    def drop(self, key: Key) -> None:
        """Forget a command that another makes needless, if it is under way."""
        in_flight_request = self.by_key.get(key)
        if in_flight_request is not None:
            self.end(in_flight_request)

    def keep_two(self, guest: RemoteClient, key: Key) -> None:
        """Make room for the keep-alive ``key``: those under way but the oldest are needless now.

        The oldest goes on: where the log takes longer than a client's pause between two,
        each would else be dropped for the next, and none ever confirmed.
        """
        oldest, *needless = [*(known for known in guest.keeps if known in self.by_key), key]
        for known in needless[:-1]:
            self.drop(known)
        guest.keeps = (oldest,) if oldest == key else (oldest, key)

    def forget_silent(self, now: Instant) -> int:
        """Forget what silent clients asked for; return how much that was."""
        gone = [
            in_flight_request
            for in_flight_request in self.by_key.values()
            if in_flight_request.guest is not None and in_flight_request.guest.is_silent(now)
        ]
        for in_flight_request in gone:
            self.end(in_flight_request)
        return len(gone)

    def known(self, in_flight_request: InFlightRequest, now: Instant) -> None:
        """Note that the log knows of ``errand``, an acquire, and will say when it is over."""
        self.unheard.pop(in_flight_request.number, None)
        self.queued.pop(in_flight_request.number, None)
        in_flight_request.proposed_at = now
        self.queued[in_flight_request.number] = in_flight_request

    def doubt(self, now: Instant, *, queued: bool = False) -> None:
        """Let all be due that is unheard, and what is ``queued`` too if that is asked for."""
        self.unheard_before = now
        if queued:
            self.queued_before = now

    def due(self, now: Instant, most: int) -> list[InFlightRequest]:
        """Return what should be proposed again, the longest due first, at most ``most``.

        All of it counts as proposed now, and as unheard until the log speaks of it.
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
    """Take from the front of ``queue`` what was proposed ``before``, at most ``most``."""
    old = takewhile(
        lambda in_flight_request: in_flight_request.proposed_at < before, queue.values()
    )
    taken = list(islice(old, most))
    for in_flight_request in taken:
        del queue[in_flight_request.number]
    return taken
