"""Messages between the roles of the log within a node."""

from __future__ import annotations

from fencelock.actors.message import Address, Instant, Local, Message, local
from fencelock.actors.paxos.message import NO_BALLOT, Ballot, Batch


@local
class Suspect(Local):
    """Failure detector to leader: the master is silent. Try to lead, ``above`` known ballots."""

    above: Ballot = NO_BALLOT


@local
class Withdraw(Local):
    """Failure detector to leader: the master is alive, or no majority answers. Do not lead."""


@local
class Candidate(Local):
    """Leader to failure detector: I try to lead under ``ballot``."""

    ballot: Ballot


@local
class LeadershipClaimed(Local):
    """Leader to failure detector: I lead. Let ``commander`` send heartbeats."""

    ballot: Ballot
    commander: Address


@local
class SteppedDown(Local):
    """Leader to failure detector and replica: I stepped down, and stay so for ``pause_ms``."""

    ballot: Ballot
    by: Ballot
    pause_ms: int


@local
class Heard(Local):
    """Acceptor to failure detector: ``ballot`` was promised, or its leader sent a heartbeat."""

    ballot: Ballot
    leads: bool
    """Whether its leader sent a heartbeat; if not, it is only a candidate."""


@local
class Pulse(Local):
    """Failure detector to commander: send heartbeat ``number``; the rest is as in `Heartbeat`."""

    number: int
    everywhere: int
    heard: tuple[int, ...]
    confirmed: int


@local
class LeaderChanged(Local):
    """The node that leads is now ``master``, empty if none is known.

    Failure detector to replica and leader, and replica to its listener.
    """

    master: str


@local
class Leased(Local):
    """Failure detector to replica: the lease of ``ballot`` holds until ``until`` (own clock).

    A majority answered a heartbeat that was sent at ``confirmed``, or a later one.
    """

    ballot: Ballot
    until: Instant
    confirmed: Instant


@local
class Confirm(Local):
    """Replica to failure detector: send a heartbeat now, without waiting for the next."""


@local
class Fresh(Local):
    """Acceptor to replica: everything known anywhere to be decided at ``since`` precedes ``slot``.

    ``since`` is by this node's clock. `freshness.StalenessBound` has the proof.
    """

    since: Instant
    slot: int


@local
class Adopted(Local):
    """Scout to leader (PMMC adopted): a majority promised ``ballot``.

    Slots before ``floor`` are decided, and ``source`` has them. ``batches`` must be proposed
    from ``floor`` on.
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
    """A role to itself, queued behind all that has arrived: process that together.

    The proxy proposes it as one batch; the replica puts it into as few slots as possible.
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
    """Replica to acceptor, and to the leader at its request: all before ``slot`` is applied."""

    slot: int


@local
class ReportApplied(Local):
    """Leader to replica: send me `Applied` now and after each slot, until I lead or step down."""


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
    """Catch-up to replica: send ``asker`` decided slots from ``first``, or make a snapshot.

    The last snapshot was of ``slot``, 0 if there is none. It is used again if all slots after
    it are still here.
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
    """Replica to catch-up: send the last snapshot to ``asker``."""

    asker: Address


@local
class Trimmed(Local):
    """Replica to acceptor and catch-up: the replica's stream covers all slots before ``slot``."""

    slot: int


@local
class LogFull(Local):
    """Acceptor to replica: my stream is too long; make a snapshot so that I can cut it."""


@local
class Restore(Local):
    """Catch-up to replica: take this state in place of yours."""

    slot: int
    time_ms: int
    chunks: tuple[bytes, ...]


@local
class Consult(Local):
    """A role of this node to its replica: read the machine. Answered by `Consulted`.

    With ``age_ms`` None the answer is linearizable: true at one instant between request and
    answer. It needs a master's confirmation, so it may never come. Otherwise the answer comes
    from the replica's own state, at once or after one round, if that is provably fresh enough.
    """

    number: int
    question: Local
    age_ms: int | None


@local
class Consulted(Local):
    """The answer to the `Consult` of that number: the state after all slots before ``slot``.

    ``answer`` is None if the state known here may be older than allowed.
    """

    number: int
    answer: Local | None
    slot: int
    age_ms: int
    """Largest possible age of the state (ms): 0 for linearizable. Without an answer, the best bound
    that could be proven; -1 if there was none."""


@local
class Resign(Local):
    """The host to the leader: hand over if you lead. Answered by `Resigned`, soon."""


@local
class Resigned(Local):
    """This node does not lead, or found no successor; ``master`` is the new leader, if known."""

    master: str


@local
class SlotOutcomes(Local):
    """Replica to its listener, on every node: ``slot`` was applied, with these outcomes."""

    slot: int
    time_ms: int
    outcomes: tuple[Message, ...]


@local
class Skipped(Local):
    """Replica to its listener: a snapshot of all slots before ``slot`` replaced the state.

    Outcomes of earlier slots that were not yet sent are never sent. A role that waits for one
    should ask again.
    """

    slot: int
