"""Requests in flight of a node's proxy: commands proposed and not yet answered."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, takewhile
from operator import attrgetter
from typing import Protocol

from msgspec import Struct

from fencelock.actors.api.lock_message import Cancel
from fencelock.actors.api.request import Command, RequestKey
from fencelock.actors.api.session_message import KeepAlive
from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import NS_PER_MS, Address, Instant, ms_between
from fencelock.actors.paxos.event import Gather, ProposalBatch
from fencelock.actors.paxos.wire import Propose
from fencelock.actors.proxy.clients import RemoteClient, RemoteClients
from fencelock.actors.timing import TIMING

CHECK_WAIT_MS = 5_000
"""Interval after which a wait known to the log is proposed again (ms), if its end was missed."""

SILENT_WAIT_MS = CHECK_WAIT_MS + 1_000
"""Waits of a client that has sent nothing for this long (ms) are not proposed again. A client that
waits repeats its request at least every five seconds."""

WAIT_CHECKS_MAX = 25
"""Maximum number of such waits proposed again at a time. Each is a command in the log, and where
thousands wait they must not be most of it."""

COMMANDS_BYTES_MAX = 64 << 20
"""Maximum size of the commands in flight through one node (bytes, 64 MiB). More are refused."""

CLIENT_COMMANDS_BYTES_MAX = 16 << 20
"""The same limit for one client or, with keys, for all clients with one key (bytes, 16 MiB)."""


class CommandEncoder(Protocol):
    """Encodes a command for the log."""

    def __call__(self, command: Command, /, *, check: bool) -> bytes:
        """Return ``command`` as the log carries it; ``check`` the types of its fields or not."""
        ...


class LogRequest(Struct, eq=False):
    """One command that was sent to the log and has no outcome yet.

    Attributes:
        number: its number at the replicas; the same each time it is proposed.
        request: the request, which is the command.
        command: the same as encoded for the log.
        sender: receiver of the reply; it changes when the request is sent again.
        since: the time of the first proposal; its outcome proves the state after that.
        proposed_at: the time of the last proposal, or when it was last known to wait in the log.
        client: the client that is charged for it, None for a role of this node.

    """

    key: RequestKey
    request: Command
    number: int
    command: bytes
    sender: Address
    since: Instant
    proposed_at: Instant
    client: RemoteClient | None = None


_NUMBER: Callable[[LogRequest], int] = attrgetter("number")
_COMMAND: Callable[[LogRequest], bytes] = attrgetter("command")


class LogRequests:
    """All requests in flight. The log's outcome ends one; until then it is proposed again.

    Both queues are ordered by `LogRequest.proposed_at`, so the requests that are due come
    first and finding them is cheap. Removing from the front of a dict leaves gaps that
    later scans skip, so all due requests are taken at once.

    Args:
        proxy: the proxy; outcomes are sent there.
        replica: the replica of the same node.
        encode: encodes a command for the log.
        repeat_ms: a command without an outcome is proposed again after this: a message may be
            lost.

    """

    def __init__(
        self,
        proxy: Address,
        replica: Address,
        encode: CommandEncoder,
        repeat_ms: int = TIMING.outcome_ms,
    ) -> None:
        self.repeat_ms = repeat_ms
        self.proxy = proxy
        self.replica = replica
        self._encode = encode
        self.number = 0
        self.bytes = 0
        """The size of all commands in flight (bytes)."""
        self.by_key: dict[RequestKey, LogRequest] = {}
        self.unconfirmed: dict[int, LogRequest] = {}
        """Requests that the log is not known to have received."""
        self.queued: dict[int, LogRequest] = {}
        """Acquires that wait in the table."""
        self.gathered: list[LogRequest] = []
        """Requests to propose at the end of this turn; a batch saves work for each of them."""
        self.unconfirmed_before = Instant(-1)
        """Unconfirmed requests proposed before this instant are due."""
        self.queued_before = Instant(-1)

    def __len__(self) -> int:
        return len(self.by_key)

    def add(
        self,
        request: Command,
        key: RequestKey,
        now: Instant,
        *,
        sender: Address,
        client: RemoteClient | None = None,
    ) -> LogRequest:
        """Add a command; its ``key`` must be free. The caller then proposes it."""
        assert key not in self.by_key
        self.number = number = self.number + 1
        check = client is None  # A client's request was checked when its frame was read.
        pending = LogRequest(
            key=key,
            request=request,
            number=number,
            command=self._encode(request, check=check),
            sender=sender,
            since=now,
            proposed_at=now,
            client=client,
        )
        self.by_key[key] = self.unconfirmed[number] = pending
        self.bytes += (size := len(pending.command))
        if client is not None:
            client.usage.in_flight += 1
            client.usage.bytes += size
        return pending

    def repeat(
        self,
        pending: LogRequest,
        request: Command,
        sender: Address,
        client: RemoteClient | None,
    ) -> None:
        """Note that ``client`` sent the request again: it is charged, and gets the reply."""
        pending.sender, pending.request = sender, request
        if client is not pending.client:
            size = len(pending.command)
            if pending.client is not None:
                pending.client.usage.in_flight -= 1
                pending.client.usage.bytes -= size
            if client is not None:
                client.usage.in_flight += 1
                client.usage.bytes += size
            pending.client = client

    def propose(self, pending: LogRequest) -> Send:
        propose = Propose(client=self.proxy, number=pending.number, command=pending.command)
        return Send(self.replica, propose)

    def on_gather(self, sender: Address, event: Gather, now: Instant) -> Effects:
        """Propose all requests of this turn together."""
        if not self.gathered:
            return ()
        gathered, self.gathered = self.gathered, []
        numbers, commands = tuple(map(_NUMBER, gathered)), tuple(map(_COMMAND, gathered))
        return (
            Send(
                self.replica, ProposalBatch(client=self.proxy, numbers=numbers, commands=commands)
            ),
        )

    def numbered(self, number: int) -> LogRequest | None:
        """Return the request that replicas know by ``number``, or None if it is over."""
        return self.unconfirmed.get(number) or self.queued.get(number)

    def end(self, pending: LogRequest) -> None:
        """Drop a request that has its outcome, or that is not wanted any more."""
        del self.by_key[pending.key]
        if self.unconfirmed.pop(pending.number, None) is None:
            del self.queued[pending.number]
        self.bytes -= (size := len(pending.command))
        client = pending.client
        if client is not None:
            client.usage.in_flight -= 1
            client.usage.bytes -= size

    def make_room(self, request: Command, key: RequestKey, client: RemoteClient | None) -> None:
        """Drop requests in flight that a new command makes needless."""
        if isinstance(request, Cancel):
            session, owner, lock, number = key
            self._drop((session, owner, lock, -number))
        elif isinstance(request, KeepAlive) and client is not None:
            # Only the oldest in flight and the newest are needed. Without the oldest, where the
            # log takes longer than a client's pause between two, each would be dropped for the
            # next, and none ever confirmed.
            oldest, *needless = [*(known for known in client.keeps if known in self.by_key), key]
            for known in needless[:-1]:
                self._drop(known)
            client.keeps = (oldest,) if oldest == key else (oldest, key)

    def _drop(self, key: RequestKey) -> None:
        pending = self.by_key.get(key)
        if pending is not None:
            self.end(pending)

    def forget_silent(self, clients: RemoteClients, now: Instant) -> int:
        gone = [
            pending
            for pending in self.by_key.values()
            if pending.client is not None and clients.is_silent(pending.client, now)
        ]
        for pending in gone:
            self.end(pending)
        return len(gone)

    def known(self, pending: LogRequest, now: Instant) -> None:
        """Note that the log has queued this acquire, and will report when its wait ends."""
        self.unconfirmed.pop(pending.number, None)
        self.queued.pop(pending.number, None)
        pending.proposed_at = now
        self.queued[pending.number] = pending

    def doubt(self, now: Instant, *, queued: bool = False) -> None:
        """Make all unconfirmed requests due, and with ``queued`` those that wait in the log too."""
        self.unconfirmed_before = now
        if queued:
            self.queued_before = now

    def due(self, now: Instant, most: int) -> list[LogRequest]:
        """Return the requests to propose again, the longest due first, at most ``most``.

        All of them count as proposed now, and as unconfirmed until the log reports them. A wait
        of a client that is silent is left alone: its session would live on by the repetition.
        """
        repeat = Instant(now - self.repeat_ms * NS_PER_MS + 1)
        checked = Instant(now - CHECK_WAIT_MS * NS_PER_MS + 1)
        due = _older(self.unconfirmed, max(repeat, self.unconfirmed_before), most)
        waits = _older(self.queued, self.queued_before, most - len(due))
        checks = min(WAIT_CHECKS_MAX, most - len(due) - len(waits))
        recent = now - SILENT_WAIT_MS * NS_PER_MS
        for pending in [*waits, *_older(self.queued, checked, checks)]:
            if pending.client is not None and pending.client.received_at <= recent:
                self.known(pending, now)
            else:
                due.append(pending)
        for pending in due:
            pending.proposed_at = now
            self.unconfirmed[pending.number] = pending
        return due


def _older(queue: dict[int, LogRequest], before: Instant, most: int) -> list[LogRequest]:
    """Remove from the front of ``queue`` requests proposed ``before``, at most ``most``."""
    old = takewhile(lambda pending: pending.proposed_at < before, queue.values())
    taken = list(islice(old, most))
    for pending in taken:
        del queue[pending.number]
    return taken


SILENCE_NAMED_MS = 100
"""A shorter silence is the time since this very question (ms)."""


class QuorumContact:
    """The time of the log's last message, and the time since which one was expected."""

    def __init__(self, members: tuple[str, ...]) -> None:
        self.name(members)
        self.received_at = Instant(0)
        self.expected_at = Instant(0)
        """The time of a request that was sent while none was in flight."""

    def name(self, members: tuple[str, ...]) -> None:
        self.majority = f"a majority of {', '.join(members)}"

    def silent_ms(self, now: Instant) -> int:
        """Return how long a reply has been expected (ms)."""
        return ms_between(max(self.received_at, self.expected_at), now)

    def in_words(self, now: Instant) -> str:
        """Describe which nodes do not answer, and for how long, if that says something."""
        silent_ms = self.silent_ms(now)
        if silent_ms < SILENCE_NAMED_MS:
            return f"{self.majority} does not answer"
        return f"{self.majority} has not answered for {silent_ms} ms"
