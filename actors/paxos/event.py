"""What the roles of the log say to each other within a node."""

from __future__ import annotations

from fencelock.actors.message import Address, Instant, Local, Message, local
from fencelock.actors.paxos.message import NO_BALLOT, Ballot, Batch


@local
class Suspect(Local):
    """Monitor to leader: the master is silent. Try to lead, ``above`` the ballots heard of."""

    above: Ballot = NO_BALLOT


@local
class Withdraw(Local):
    """Monitor to leader: the master lives after all, or hears no majority. Do not lead."""


@local
class Candidate(Local):
    """Leader to monitor: I try to lead under ``ballot``."""

    ballot: Ballot


@local
class LeadershipClaimed(Local):
    """Leader to monitor: I lead. Let ``commander`` send heartbeats."""

    ballot: Ballot
    commander: Address


@local
class SteppedDown(Local):
    """Leader to monitor and replica: I lead no more, and not again for ``pause_ms``."""

    ballot: Ballot
    by: Ballot
    pause_ms: int


@local
class Heard(Local):
    """Acceptor to monitor: ``ballot`` was promised, or its leader sent a heartbeat."""

    ballot: Ballot
    leads: bool
    """Whether its leader said so; else it only tries to."""


@local
class Pulse(Local):
    """Monitor to commander: send heartbeat ``number``; the rest is as in `Heartbeat`."""

    number: int
    everywhere: int
    heard: tuple[int, ...]
    confirmed: int


@local
class LeaderChanged(Local):
    """``master`` is the node that leads, empty if none is known.

    Monitor to replica and leader, and replica to its listener.
    """

    master: str


@local
class Leased(Local):
    """Monitor to replica: the lease of ``ballot`` holds until ``until`` (own clock).

    A majority answered a heartbeat that was sent at ``confirmed``, or a later one.
    """

    ballot: Ballot
    until: Instant
    confirmed: Instant


@local
class Confirm(Local):
    """Replica to monitor: send a heartbeat now, and do not wait for the next."""


@local
class Fresh(Local):
    """Acceptor to replica: whatever anybody knew to be decided at ``since`` is before ``slot``.

    ``since`` is by the own clock. See `freshness.Proofs` for why.
    """

    since: Instant
    slot: int


@local
class Adopted(Local):
    """Scout to leader (PMMC adopted): a majority promised ``ballot``.

    What is before slot ``floor`` was decided, and ``source`` has it. ``batches`` is what
    must be proposed from ``floor`` on.
    """

    ballot: Ballot
    floor: int
    source: str
    batches: tuple[Batch, ...]


@local
class Leadership(Local):
    """Leader to replica: give commands slots from ``first``, at times not before ``time_ms``."""

    ballot: Ballot
    commander: Address
    first: int
    time_ms: int


@local
class Order(Local):
    """Replica to commander: let ``batch`` be decided for ``slot``."""

    slot: int
    batch: Batch


@local
class Gather(Local):
    """A role to itself, behind all that has come: let it go on together.

    The door bundles it; the replica gives it slots, as few as it fits into.
    """


@local
class Decided(Local):
    """Commander to replica: ``slot`` is decided."""

    slot: int
    batch: Batch


@local
class Learned(Local):
    """Acceptor or catch-up to replica: these slots are decided, and all before ``committed``."""

    slots: tuple[tuple[int, Batch], ...]
    committed: int


@local
class Applied(Local):
    """Replica to acceptor and leader: everything before slot ``slot`` is applied."""

    slot: int


@local
class MinApplied(Local):
    """Acceptor to replica: every member has applied everything before ``slot``."""

    slot: int


@local
class Lacking(Local):
    """To catch-up: get the slots from ``first`` up to ``target``; ``source`` may have them."""

    first: int
    target: int
    source: str


@local
class FetchSlots(Local):
    """Catch-up to replica: send ``asker`` decided slots from ``first``, or give a snapshot.

    The last one was of ``slot``, 0 if there is none. It still does if all after it is here.
    """

    asker: Address
    first: int
    slot: int


@local
class SnapshotTaken(Local):
    """Replica to catch-up: the state after all slots before ``slot``, for ``askers``."""

    askers: tuple[Address, ...]
    slot: int
    time_ms: int
    chunks: tuple[bytes, ...]


@local
class ResendChunk(Local):
    """Replica to catch-up: give ``asker`` the last photograph."""

    asker: Address


@local
class Trimmed(Local):
    """Replica to acceptor and catch-up: the replica's stream stands for all before ``slot``."""

    slot: int


@local
class LogFull(Local):
    """Acceptor to replica: my stream has grown too long, make it possible to cut it."""


@local
class Restore(Local):
    """Catch-up to replica: take this state in place of yours."""

    slot: int
    time_ms: int
    chunks: tuple[bytes, ...]


@local
class Consult(Local):
    """A role of this node to its replica: read the machine. Answered by `Consulted`.

    With ``age_ms`` None the answer is linearizable: true at one instant between question
    and answer. It comes when a master confirms it, so it may never come. Else the answer
    is the replica's own, at once or after one round, if it can be shown to be no older.
    """

    number: int
    question: Local
    age_ms: int | None


@local
class Consulted(Local):
    """The answer to the `Consult` of that number: the state after all slots before ``slot``.

    ``answer`` is None if what is known here may be older than was allowed.
    """

    number: int
    answer: Local | None
    slot: int
    age_ms: int
    """How old it may be when it is given: 0 for linearizable. Without an answer, what could have
    been had; -1 if nothing could."""


@local
class Resign(Local):
    """The host to the leader: let another lead, if you do. Answered by `Resigned`, soon."""


@local
class Resigned(Local):
    """This node does not lead, or found nobody who would; ``master`` leads, if that is known."""

    master: str


@local
class SlotOutcomes(Local):
    """Replica to its listener, on every node: ``slot`` was applied, and this came of it."""

    slot: int
    time_ms: int
    outcomes: tuple[Message, ...]


@local
class Skipped(Local):
    """Replica to its listener: a state was taken over that is after all slots before ``slot``.

    Outcomes of slots before it that were not told are never told. Whoever waits for one
    should ask again.
    """

    slot: int
