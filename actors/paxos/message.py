"""The words of the replicated log between nodes, and the records in its journal. Tags 0x20-0x2f.

The log does not know what it carries: a command is bytes to it, up to
`COMMAND_BYTES_MAX`, read only by the `Machine` behind the replica. So sizes are exact, and
a batch that goes to two peers and a journal is packed as what it is, not walked three times.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from fencelock.actors.message import Address, Message, message

COMMAND_BYTES_MAX = 16 << 10
"""One command: a request of a client, not a document (bytes)."""

BATCH_BYTES_MAX = 32 << 10
"""All commands of one slot (bytes), so that `PAGE` slots fit a frame of 1 MiB twice over."""

BATCH_COMMANDS_MAX = 256
"""Commands in one slot: what one turn applies without keeping others waiting."""

PAGE = 16
"""Slots in one `Promise` or `Slots`, see `BATCH_BYTES_MAX`."""

CHUNK_BYTES_MAX = 256 << 10
"""A part of a snapshot (bytes): several fit one frame, and none needs a turn of its own."""

CHUNKS_MAX = 1 << 14
"""Parts of one snapshot: 4 GiB, more than a table in memory ever is."""

NUMBER_MAX = 1 << 62
"""Slots and times stay below it: a peer cannot push a counter over 63 bits. For rounds see
`fencelock.actors.paxos.rounds`."""


class Ballot(NamedTuple):
    """Ordered by round, then by leader, so that two leaders never share one."""

    round: int
    leader: Address


NO_BALLOT = Ballot(0, Address(""))
"""Lower than every ballot that is ever led."""


class Sized(Message):
    """A message with room for its size, which is no field, like `Message.encoded`."""

    __slots__ = ("counted",)
    counted: int


@message(0x2F)
class Batch(Sized):
    """The value of one slot: log time, and commands in order.

    Without commands and with time 0 it is the no-op that fills a hole; without commands
    and with a later time it is a tick, which lets fall due what was waiting for that time.
    """

    time_ms: int
    commands: tuple[bytes, ...]

    def size(self) -> int:
        """Return how much its commands are (bytes), and a little for each."""
        counted: int | None = getattr(self, "counted", None)
        if counted is None:
            counted = sum(map(len, self.commands)) + 64 * (1 + len(self.commands))
            self.counted = counted
        return counted

    def fits(self) -> bool:
        """Return whether it is within the limits of a slot."""
        sizes = list(map(len, self.commands))
        return (
            len(sizes) <= BATCH_COMMANDS_MAX
            and sum(sizes) <= BATCH_BYTES_MAX
            and max(sizes, default=0) <= COMMAND_BYTES_MAX
            and 0 <= self.time_ms < NUMBER_MAX
        )


NO_OP = Batch(time_ms=0, commands=())
"""What a new leader proposes where nobody can have decided anything."""


class Vote(NamedTuple):
    """What an acceptor accepted last in one slot (PMMC: a pvalue)."""

    slot: int
    ballot: Ballot
    batch: Batch


@message(0x20)
class Prepare(Message):
    """PMMC p1a: promise to heed no lower ballot; tell what you accepted from slot ``first``."""

    ballot: Ballot
    first: int


@message(0x21)
class Promise(Message):
    """PMMC p1b: ``ballot`` is the lowest I heed; ``votes`` is all I accepted, in part.

    ``votes`` are those of the slots from ``first`` up to ``more``, or to the end if that
    is None. ``first`` is the one asked for, or the first slot that this node has not
    applied, if that is later: what is before was decided, and can be had from its replica.
    ``voter`` is the id under which the sender votes (`bootstrap.vote_id`).
    """

    ballot: Ballot
    asked: int
    first: int
    votes: tuple[Vote, ...]
    more: int | None
    voter: int = 0


@message(0x22)
class Preempted(Message):
    """No: I promised ``ballot``, which is higher than yours."""

    ballot: Ballot


@message(0x23)
class Accept(Message):
    """PMMC p2a: accept ``batch`` for ``slot``; all slots before ``committed`` are decided.

    It is also the record of having accepted. A journal that has it knows, too, which of
    its votes under ``ballot`` had won by then, and can replay them after a restart.
    """

    ballot: Ballot
    slot: int
    batch: Batch
    committed: int


@message(0x24)
class Accepted(Message):
    """PMMC p2b: I accepted what you proposed for ``slot``, and it is on my disk."""

    ballot: Ballot
    slot: int
    voter: int = 0


@message(0x25)
class Commit(Message):
    """All slots before ``committed`` are decided; said when no `Accept` is there to say it."""

    ballot: Ballot
    committed: int


@message(0x26)
class Heartbeat(Message):
    """I lead. Promise me the lease anew, and answer with `HeartbeatAck`.

    ``everywhere`` is the slot before which every member has applied everything. ``heard``
    has for each member, in their order, the number of the last heartbeat whose answer
    was heard, 0 for none; it is empty while something of phase one is undecided. A
    majority answered heartbeat ``confirmed``, or later ones (0: none yet).
    """

    ballot: Ballot
    number: int
    committed: int
    everywhere: int
    heard: tuple[int, ...] = ()
    confirmed: int = 0


@message(0x27)
class HeartbeatAck(Message):
    """I follow ``ballot``, and adopt no other leader's for a lease from now; my next slot.

    ``voter`` is the id under which the sender votes (`bootstrap.vote_id`).
    """

    ballot: Ballot
    number: int
    applied: int
    voter: int = 0


@message(0x28)
class Propose(Message):
    """Put ``command`` into the log. Any replica takes it to the master's, from roles of members.

    Answered to ``client`` by the machine's outcomes and then `Proposed`, by `Declined`, or
    not at all; then it may be repeated: the machine tells a repetition by what the command
    says. ``number`` is the client's, to tell answers apart.
    """

    client: Address
    number: int
    command: bytes
    forwarded: bool = False


@message(0x29)
class Proposed(Message):
    """Your command is in ``slot``, was applied, and its outcomes were sent before this."""

    number: int
    slot: int


class Decline(IntEnum):
    """Why a command was not taken. Numbers are on the wire and never reused."""

    NOT_MASTER = 1
    """Whoever it was forwarded to is no master, or is none any more: propose it again."""
    OVERLOADED = 2
    """A queue is full. Nothing was done."""
    INVALID = 3
    """The machine cannot read it, or it is too large. Nothing was done, nor will be."""


@message(0x2A)
class Declined(Message):
    """Your command was not taken, or may not have been; ``master`` is who might, if known."""

    number: int
    why: Decline
    master: str


@message(0x2B)
class Fetch(Message):
    """Give me decided slots from ``first``; or part ``chunk`` of the snapshot of ``slot``.

    ``slot`` is 0 where decided slots are wanted; if they are gone, a snapshot begins.
    """

    first: int
    slot: int
    chunk: int


@message(0x2C)
class Slots(Message):
    """Decided batches from slot ``first`` on, up to `PAGE`; none if I have none of them."""

    first: int
    batches: tuple[Batch, ...]


@message(0x2D)
class SnapshotChunk(Message):
    """Part ``chunk`` of ``count`` of the state after all slots before ``slot``."""

    slot: int
    time_ms: int
    chunk: int
    count: int
    content: bytes


class Pledge(IntEnum):
    """What a `Pledged` record is about. Numbers are on disk and never reused."""

    PROMISED = 1
    """The acceptor heeds no lower ballot."""
    LED = 2
    """The leader used this ballot, and must never use it again, not in another life either."""


@message(0x2E)
class Pledged(Message):
    """A record: ``ballot`` was promised, or led, by this node."""

    pledge: Pledge
    ballot: Ballot
