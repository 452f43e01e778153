"""Messages between nodes, and records of the journal. Tags from 0x20, 0xa0 and 0xd8.

The log does not interpret its content: a command is bytes, up to `COMMAND_BYTES_MAX`, which
only the `Machine` behind the replica reads. So sizes are exact, and a batch for two peers
and a journal is copied as it is, without being encoded three times.
"""

from collections.abc import Iterable
from enum import IntEnum
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from fencelock.actors.message import Address, Int64, Message, node_of
from fencelock.actors.timing import TIMING, Timing

COMMAND_BYTES_MAX = 68 << 10
"""Maximum size of a command (bytes): the largest value of a map, and 4 KiB for the other fields."""

BATCH_BYTES_MAX = 32 << 10
"""Maximum size of the commands of a slot (bytes), unless it has only one command. `PAGE` such slots
take half of a frame of 1 MiB."""

BATCH_COMMANDS_MAX = 256
"""Maximum commands in a slot: as many as one turn applies without delaying other roles."""

PAGE = 16
"""Maximum slots in a `Promise` or `Slots`."""

SLOTS_BYTES_MAX = 512 << 10
"""Size of the batches of such a message (bytes, 512 KiB) from which on no slot is added. With the
largest last slot, they fit into a frame and a journal record of 1 MiB."""

CHUNK_BYTES_MAX = 256 << 10
"""Maximum size of a snapshot's part (bytes): several fit a frame, and none needs its own turn."""

CHUNKS_MAX = 1 << 14
"""Maximum parts of a snapshot: 4 GiB, more than any table in memory."""

PAXOS_NUMBER_MAX = 1 << 62
"""Slots and times stay below this, so that a peer cannot push a counter over 63 bits. For rounds
see `config.ROUND_JUMP_MAX`."""

SCHEME = 1
"""Version of the digest computation. Raised with each change: only equal schemes are compared."""

DIGEST_COUNTERS_MAX = 16
"""Maximum counters in a `TableDigest`; they are for people."""

COUNTER_NAME_BYTES_MAX = 32
"""Maximum length of a counter's name (bytes)."""


class Ballot(NamedTuple):
    """Ordered by round, then by leader, so that two leaders never share one."""

    round: Int64
    leader: Address


def shown_ballot(ballot: Ballot) -> str:
    return f"round {ballot.round} of {node_of(ballot.leader)}" if ballot.round else "none"


NO_BALLOT = Ballot(0, Address(""))
"""A ballot below every real one."""


class Batch(Message, tag=0x2F, forbid_unknown_fields=True, dict=True):
    """The value of one slot: log time, and commands in order.

    Without commands and with time 0 it is the no-op that fills a hole. Without commands and
    with a later time it is a tick, which lets deadlines expire. It is part of records, so it never
    has unknown fields.
    """

    time_ms: Int64
    commands: tuple[bytes, ...]
    origin: Ballot = NO_BALLOT
    """The ballot under which it was proposed first. Later leaders propose it again unchanged."""

    @cached_property
    def size(self) -> int:
        """The size of its commands (bytes), with a little overhead for each."""
        return sum(map(len, self.commands)) + 64 * (1 + len(self.commands))


def page_of(batches: Iterable[Batch]) -> int:
    """Return the number of leading ``batches`` that one message may have."""
    count = size = 0
    for batch in islice(batches, PAGE):
        count += 1
        size += batch.size
        if size >= SLOTS_BYTES_MAX:
            break
    return count


FITTING_BYTES = 64 * BATCH_COMMANDS_MAX
"""A batch of at most this `Batch.size` has few and small commands: it certainly `fits`."""


def fits(batch: Batch) -> bool:
    """Return whether ``batch`` is within the limits of a slot."""
    commands = len(batch.commands)
    total = batch.size - 64 * (1 + commands)
    return (
        commands <= BATCH_COMMANDS_MAX
        and (total <= BATCH_BYTES_MAX or (commands == 1 and total <= COMMAND_BYTES_MAX))
        and batch.time_ms >= 0
    )


NO_OP = Batch(time_ms=0, commands=())
"""The value that a new leader proposes for a slot for which no value can have been decided."""


class Vote(NamedTuple):
    """The last batch that an acceptor accepted in a slot (PMMC: a pvalue)."""

    slot: Int64
    ballot: Ballot
    batch: Batch


class LeaderMessage(Message):
    """What a leader, its scout or its commander sends under its ``ballot``."""

    ballot: Ballot


class Prepare(LeaderMessage, tag=0x20):
    """PMMC p1a: promise to accept no lower ballot; report your votes from slot ``first`` on.

    ``view`` is the number of the newest view that the sender knows.
    """

    first: Int64
    view: Int64 = 0


class Promise(Message, tag=0x21):
    """PMMC p1b: ``ballot`` is the lowest that I accept; ``votes`` is a page of my votes.

    The page has the votes for slots from ``first`` up to ``more``, or to the end if that is
    None. ``first`` is the slot asked for, or the first that this node has not applied, if that
    is later: earlier slots are decided, and its replica has them. ``voter`` is the id under
    which the sender votes (`bootstrap.vote_id`).
    """

    ballot: Ballot
    asked: Int64
    first: Int64
    votes: tuple[Vote, ...]
    more: Int64 | None
    voter: Int64 = 0


class Preempted(Message, tag=0x22):
    """Rejection: I promised ``ballot``, which is higher than yours."""

    ballot: Ballot


class Accept(LeaderMessage, tag=0x23):
    """PMMC p2a: accept ``batch`` for ``slot``; all slots before ``committed`` are decided.

    It is also the journal's record of the vote. From it recovery knows which votes under
    ``ballot`` had won by then, and replays them after a restart.
    """

    slot: Int64
    batch: Batch
    committed: Int64


class Accepted(Message, tag=0x24):
    """PMMC p2b: I accepted your proposal for ``slot``, and it is on my disk."""

    ballot: Ballot
    slot: Int64
    voter: Int64 = 0


class Commit(LeaderMessage, tag=0x25):
    """All slots before ``committed`` are decided; sent when no `Accept` carries that."""

    committed: Int64


class Heartbeat(LeaderMessage, tag=0x26):
    """I lead. Renew my lease, and answer with `HeartbeatAck`.

    Every member has applied all slots before ``min_applied``. ``acked`` has for each member, in
    order, the number of the last heartbeat whose answer arrived, or 0 for none; it is empty while a
    slot of phase one is undecided. A majority answered heartbeat ``confirmed``, or later ones (0:
    none yet). ``view`` is the number of the newest view, whose members are meant.
    """

    number: Int64
    committed: Int64
    min_applied: Int64
    acked: tuple[Int64, ...] = ()
    confirmed: Int64 = 0
    view: Int64 = 0
    timing: Timing = TIMING
    """The sender's times, which must also be the receiver's. Without the field: the defaults."""


class HeartbeatAck(Message, tag=0x27):
    """I follow ``ballot``, and adopt no other leader's for a lease from now; with my next slot.

    ``voter`` is the id under which the sender votes (`bootstrap.vote_id`), and ``view`` the number
    of the newest view that it knows.
    """

    ballot: Ballot
    number: Int64
    applied: Int64
    voter: Int64 = 0
    view: Int64 = 0
    sync_us: Int64 = 0
    """Mean time of the sender's last syncs (us), or 0 if not known."""
    sync_age_ms: Int64 = 0
    """Time since the first of these syncs began (ms)."""
    lease_ms: Int64 = TIMING.lease_ms
    """Length of the sender's lease (ms)."""
    version: str = ""
    """The version of the sender's software, for operators; empty in most answers."""
    log_version: Int64 = 1
    """The version of the log up to which the sender can apply commands (`LOG_VERSION`)."""
    stored: Int64 = 0
    """The sender's journal has the state after all slots before this one."""


class Propose(Message, tag=0x28):
    """Put ``command`` into the log. Members send it; any replica forwards it to the leader.

    The machine's outcomes, or `Declined`, are sent to ``client``. If neither arrives, it may be
    repeated: the machine recognises a repetition by the command's content. ``number`` is the
    client's, and names the command in `Declined`.
    """

    client: Address
    number: Int64
    command: bytes
    forwarded: bool = False


class Decline(IntEnum):
    """Reason why a command was not taken. Numbers are on the wire and never reused."""

    NOT_LEADER = 1
    """The replica it was forwarded to does not lead (any more): propose it again."""
    OVERLOADED = 2
    """A queue is full. Nothing was done."""
    INVALID = 3
    """The machine cannot read it, or it is too large. It is never done."""


class Declined(Message, tag=0x2A):
    """Your command was not taken, or may not have been; ``leader`` is the node to ask, if known."""

    number: Int64
    why: Decline
    leader: str


class Fetch(Message, tag=0x2B):
    """Send me decided slots from ``first``; or part ``chunk`` of the snapshot of ``slot``.

    ``slot`` is 0 in a request for decided slots; if they are gone, a snapshot is sent instead.
    """

    first: Int64
    slot: Int64
    chunk: Int64


class Slots(Message, tag=0x2C):
    """Decided batches from slot ``first`` on, up to `PAGE`; empty if I have none of them."""

    first: Int64
    batches: tuple[Batch, ...]


class SnapshotChunk(Message, tag=0x2D):
    """Part ``chunk`` of ``count`` of the state after all slots before ``slot``.

    With ``count`` 0 it has no content: the sender is making that snapshot, and will send its first
    part.
    """

    slot: Int64
    time_ms: Int64
    chunk: Int64
    count: Int64
    content: bytes


class Pledge(IntEnum):
    """Kind of a `Pledged` record. Numbers are on disk and never reused."""

    PROMISED = 1
    """The acceptor accepts no lower ballot."""
    LED = 2
    """The leader used this ballot, and must never use it again, even in another life."""
    LEASE = 3
    """The acceptor's leases last for up to so many milliseconds as the ballot's round says.
    Without such a record they last for the default."""
    APPLIED = 4
    """The acceptor voted after this node had applied all slots before the ballot's round, which the
    rest of the journal may not show: a snapshot of another member is written only bit by bit."""


class Pledged(Message, tag=0x2E):
    """A record: ``ballot`` was promised, or led, by this node."""

    pledge: Pledge
    ballot: Ballot


class ReadIndex(Message, tag=0xA0):
    """Replica to the leader's: return a slot after all that is decided by now.

    Answered by `ReadIndexReached` as soon as the leader knows that it still leads, or not at
    all. It may be repeated.
    """

    number: Int64


class ReadIndexReached(Message, tag=0xA1):
    """Every slot known to be decided when that `ReadIndex` was first sent is before ``slot``."""

    number: Int64
    slot: Int64


class TakeOver(Message, tag=0xA2):
    """Leader to another node's failure detector: my ``ballot`` ends; stand for election."""

    ballot: Ballot


class Release(LeaderMessage, tag=0xA3):
    """Leader to acceptor: I no longer rely on the lease of ``ballot``; end it."""


class Figure(NamedTuple):
    """One counter of a state machine, such as how many sessions are open."""

    name: str
    value: Int64


UNWILLING = 15
"""The priority of a node that only an operator makes a member."""


class Locate(Message, tag=0xD8):
    """Failure detector to failure detector: return which node leads, and which slots are decided.

    A node that is no member asks, and one that receives no leader's heartbeats. The rest
    describes the sender, which may become a member. Answered by `Located`.
    """

    applied: Int64
    """The first slot that it has not applied."""
    view: Int64
    """The number of the newest view that it knows."""
    journal: Int64
    """The id of its journal."""
    ready: bool
    """Whether it would vote as a member."""
    endpoint: str
    """The endpoint at which other nodes reach it, or empty if it does not know."""
    version: str
    number: Int64 = 0
    """The number of this request, 1 or more."""
    bytes_left: Int64 = 0
    """Estimate of the bytes that it still has to fetch; 0 if there are none, or if it is not
    known."""
    priority: Int64 = UNWILLING
    """1 to 14: the smaller, the earlier it becomes a member. `UNWILLING`: never by itself."""
    life: Int64 = 0
    """Random number of the sender's life, which settles equal priorities."""
    log_version: Int64 = 1
    """The version of the log up to which the sender can apply commands (`LOG_VERSION`)."""


NO_REPORT = Locate(applied=1, view=0, journal=0, ready=True, endpoint="", version="")
"""The report of a node about which nothing is known."""


class Located(Message, tag=0xD9):
    """The node that leads is ``leader``, empty if none is known here.

    Slots before ``applied`` are decided, and the sender has them. They include every slot that any
    node knew to be decided ``age_ms`` before this was sent; -1 if there is no such bound.
    ``number`` is the number of the `Locate`, or 0 if this is no reply.
    """

    leader: str
    applied: Int64
    view: Int64
    number: Int64 = 0
    age_ms: Int64 = -1


class TableDigest(Message, tag=0xAD):
    """Replica to replica: the digest of my state after all slots before ``slot``.

    A replica that has not sent its own digest of this slot sends it once it has applied that far.
    With ``asks`` it replies in any case, if it still has the digest.
    """

    scheme: Int64
    slot: Int64
    state: Int64
    """Equal for equal states."""
    decided: Int64 | None
    """Equal if the same was decided since the previous agreed slot, or None if the sender restored
    a snapshot since then, so that it did not apply all slots."""
    counters: tuple[Figure, ...]
    asks: bool


class Skip(Message, tag=0xAC):
    """In a journal, written by ``fencelock repair``: refuse the commands of ``slot`` that raise."""

    slot: Int64
    operator: str
    """The operator who repaired this member; only for its log."""


class Diverged(Message, tag=0xAE):
    """A record: this node's state differed from a majority's. It never votes or serves again."""

    slot: Int64
    why: str
