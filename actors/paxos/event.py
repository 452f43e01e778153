"""Events between the roles of the log within a node, and their timers.

The first ones are exchanged with the proxy: `ProposalBatch`, `SlotOutcomes`, `ReadMachine`,
`LeaderChanged` and others. None of them crosses the wire.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fencelock.actors.effect import Fault
from fencelock.actors.membership import Membership
from fencelock.actors.message import Address, Event, Instant, Local, Message, Timer
from fencelock.actors.paxos.journal import Base
from fencelock.actors.paxos.wire import NO_BALLOT, Ballot, Batch, Locate, Propose, SnapshotChunk
from fencelock.actors.timing import TIMING, Timing


class ProposalBatch(Local):
    """Put ``commands`` into the log, in this order: all that ``client`` proposed in one turn.

    The proxy of a node sends it to the replica beside it. It stands for one `Propose` for each
    command, with the number at the same place in ``numbers``; between nodes those are sent one
    by one. The proxy has checked its commands, and encoded them for the machine that applies them.
    """

    client: Address
    numbers: tuple[int, ...]
    commands: tuple[bytes, ...]

    def each(self) -> Iterator[Propose]:
        """Return the proposals of which it consists."""
        for number, command in zip(self.numbers, self.commands, strict=True):
            yield Propose(client=self.client, number=number, command=command)


class Gather(Local):
    """A role to itself, queued behind all that has arrived: process that together.

    The proxy proposes it as one batch; the replica puts it into as few slots as possible.
    """


class SlotOutcomes(Local):
    """Replica to its listener, on every node: ``slot`` was applied, with these outcomes."""

    slot: int
    time_ms: int
    outcomes: tuple[Message, ...]


class Skipped(Local):
    """Replica to its listener: a snapshot of all slots before ``slot`` replaced the state.

    Outcomes of earlier slots that were not yet sent are never sent. A role that waits for one
    should ask again.
    """

    slot: int


class LeaderChanged(Local):
    """The node that leads is now ``leader``, empty if none is known.

    Failure detector to replica and leader, and replica to its listener.
    """

    leader: str


class ReadMachine(Local):
    """A role of this node to its replica: read the machine. Answered by `MachineRead`.

    With ``age_ms`` None the reply is linearizable: true at one instant between request and
    reply. It needs a leader's confirmation, so it may never come. Otherwise the reply comes
    from the replica's own state, at once or after one round, if that is provably fresh enough.
    """

    number: int
    query: Event
    age_ms: int | None
    watched: str = ""
    """The object that is watched, or empty. If nothing has changed, the reply is sent only when
    that object changes, after `CHANGES_WATCH_MS`, or when the state may be older than
    `WATCH_AGE_MS`."""


class MachineRead(Local):
    """The reply to the `ReadMachine` of that number: the state after all slots before ``slot``.

    ``reply`` is None if the state known here may be older than allowed, and a fault if a bug of
    ours kept the replica from answering.
    """

    number: int
    reply: Event | Fault | None
    slot: int
    age_ms: int
    """Largest possible age of the state (ms): 0 for linearizable. Without a reply, the best bound
    that could be proven; -1 if there was none."""
    quiet_ms: int = 0
    """The time since this node applied the last slot (ms): durations in ``reply`` end there."""


class Isolated(Local):
    """Failure detector to the listener: whether no majority has answered this leader recently."""

    isolated: bool


class Divergence(Local):
    """Replica to its listener: members' states differ. ``why`` is empty once they agree again."""

    why: str
    quarantined: bool
    """Whether this node stopped because of it."""


class Resign(Local):
    """To the failure detector: let another node lead, if this one does.

    Answered by `Resigned`: at once if this node does not lead, or none can lead next; otherwise
    once another node leads. If none comes to lead, there is no answer.
    """

    successor: str = ""
    """The node that is to lead next; empty for the one that has applied the most."""


class Resigned(Local):
    """This node does not lead, or found no successor. ``leader`` is the node to ask, if known."""

    leader: str


class Suspect(Local):
    """Failure detector to leader: the node that leads is silent. Stand ``above`` known ballots."""

    above: Ballot = NO_BALLOT


class Withdraw(Local):
    """To the leader: no majority answers, or this node has diverged. Do not lead."""


class Candidate(Local):
    """Leader to failure detector: I try to lead."""


class SteppedDown(Local):
    """Leader to failure detector and replica: I stepped down, and stay so for ``pause_ms``."""

    pause_ms: int


class BallotSeen(Local):
    """Acceptor to failure detector: ``ballot`` was promised, or its leader sent a heartbeat."""

    ballot: Ballot
    leads: bool
    """Whether its leader sent a heartbeat; if not, it is only a candidate."""
    timing: Timing = TIMING
    """The times of a leader that sent a heartbeat."""


class SendHeartbeat(Local):
    """Failure detector to commander: send heartbeat ``number``; the rest is as in `Heartbeat`."""

    number: int
    min_applied: int
    acked: tuple[int, ...]
    confirmed: int
    view: int
    timing: Timing = TIMING


class LeaseHeld(Local):
    """Failure detector to replica: the lease of ``ballot`` holds until ``until`` (own clock).

    A majority answered a heartbeat that was sent at ``confirmed``, or a later one.
    """

    ballot: Ballot
    until: Instant
    confirmed: Instant


class ConfirmLease(Local):
    """Replica to failure detector: send a heartbeat now, without waiting for the next."""


class Fresh(Local):
    """Acceptor to replica: everything known anywhere to be decided at ``since`` precedes ``slot``.

    ``since`` is by this node's clock. `freshness.StalenessBound` has the proof.
    """

    since: Instant
    slot: int


class Adopted(Local):
    """Scout to leader (PMMC adopted): a majority promised ``ballot``.

    Slots before ``floor`` are decided, and ``source`` has them. ``batches`` must be proposed
    from ``floor`` on.
    """

    ballot: Ballot
    floor: int
    source: str
    batches: tuple[Batch, ...]


class Leadership(Local):
    """Leader to replica and failure detector: I lead, and ``commander`` works for me.

    The replica gives commands slots from ``first``, at times not before ``time_ms``. The failure
    detector sends heartbeats.
    """

    ballot: Ballot
    commander: Address
    first: int
    time_ms: int


class Order(Local):
    """Replica to commander: let ``batch`` be decided for ``slot``."""

    slot: int
    batch: Batch


class Decided(Local):
    """Commander to replica: ``slot`` is decided."""

    slot: int
    batch: Batch


class Learned(Local):
    """Acceptor or catch-up to replica: these slots are decided, and all before ``committed``."""

    slots: tuple[tuple[int, Batch], ...]
    committed: int


class Applied(Local):
    """Replica to acceptor, and to the leader at its request: all before ``slot`` is applied."""

    slot: int


class ReportApplied(Local):
    """Leader to replica: send me `Applied` after each slot, until I lead or step down."""


class MinApplied(Local):
    """Acceptor to replica: every member has applied everything before ``slot``."""

    slot: int


class Lacking(Local):
    """To catch-up: get the slots from ``first`` up to ``target``.

    ``source`` has them, if a member is known to. ``leader`` leads, and is spared if another has
    them; both may be empty.
    """

    first: int
    target: int
    source: str = ""
    leader: str = ""


class Export(Local):
    """Proxy to replica: return part ``chunk`` of the snapshot of ``slot``, 0 for a new one.

    Answered by `Exported` with the same number.
    """

    number: int
    slot: int
    chunk: int


class Exported(Local):
    """Replica to proxy: a part of a snapshot; with count 0 it is being made.

    ``part`` is None if there is no such part, for the reason ``why``.
    """

    number: int
    part: SnapshotChunk | None
    why: str = ""


class Trimmed(Local):
    """Replica to acceptor and catch-up: the replica's stream covers all slots before ``slot``."""

    slot: int


class LogFull(Local):
    """Acceptor to replica: my stream is long, and it can be cut if you make a snapshot.

    It has ``written`` bytes.
    """

    written: int


class Restore(Local):
    """Catch-up to replica: take this state in place of yours."""

    base: Base


class HandOverTo(Local):
    """Failure detector to leader: hand over to ``successor``, and then answer ``client``."""

    successor: str
    client: Address


class Drain(Local):
    """Leader to replica: give no more slots and do not rely on the lease. Answered by `Drained`."""

    ballot: Ballot


class Drained(Local):
    """Replica to leader: all slots of ``ballot`` are applied here, and no more are given."""

    ballot: Ballot


class Succeed(Local):
    """Failure detector to leader: the node that leads in ``ballot`` asks you to stand."""

    ballot: Ballot


class ScoutResend(Timer):
    """Ask again the acceptors that have not answered."""


class CommanderResend(Timer):
    """Ask again for votes that have not come."""


class SpreadDecisions(Timer):
    """Report decisions to followers, and send the proposals that some have not received."""


class HeartbeatDue(Timer):
    """Send a heartbeat of ``ballot``."""

    ballot: Ballot


class LeaseExpired(Timer):
    """Record the length of leases: longer ones, which an earlier life gave, are over."""


class LeaderCheck(Timer):
    """Check whether the leader has been silent for too long."""

    deadline: Instant


class LogTimeDue(Timer):
    """Let log time pass to ``due_ms``, when the machine may have work, while ``ballot`` leads."""

    ballot: Ballot
    due_ms: int


class BatchDelay(Timer):
    """Stop delaying patient commands for others to share their slot with."""


class GapCheck(Timer):
    """Check whether ``slot`` is still missing."""

    slot: int


class FetchRetry(Timer):
    """Check whether fetch ``attempt`` was answered."""

    attempt: int


class WriteChunk(Timer):
    """Make the next part of the snapshot."""


class ExpireSnapshot(Timer):
    """Drop the last snapshot, unless a part of it was requested since ``use``."""

    use: int


class ReadAgain(Timer):
    """Ask again for what reads wait for, and drop reads that waited too long."""


class AgeCheck(Timer):
    """Reply to local reads that have waited long enough, from the present state."""


class WatchCheck(Timer):
    """Reply to reads that have waited long enough for a change, or to all if the state is old."""


class ServeDue(Timer):
    """Look up the next reads that are due, since a step looks up only some."""


class HandOverLate(Timer):
    """Stop the hand-over of ``ballot`` from waiting for slots under way."""

    ballot: Ballot


class Compare(Timer):
    """Ask again for the digests of ``slot`` that are missing."""

    slot: int
    attempt: int


class Isolate(Timer):
    """The leader of this node has stepped down: end all its roles of the log."""


class ViewChanged(Local):
    """Replica to the other roles of the log: `LogConfig` has other views than before."""

    overtaken: bool = False
    """Whether this node leads, and learned that from others: its commander may still ask for votes
    on slots of a view that is over, whose members vote on them no more."""


class ProposeChange(Local):
    """To the replica: let ``membership`` be the next one, if that is possible now."""

    membership: Membership
    joiner_applied: int | None = None
    """The first slot that a new member has not applied; it may lack `JOIN_SLOTS`."""


class Behind(Local):
    """Acceptor to failure detector: ``node`` knows a view that is not known here."""

    node: str


class Fetched(Local):
    """Catch-up to failure detector: about ``bytes_left`` are missing; 0 once nothing is."""

    bytes_left: int


class ReportState(Local):
    """Failure detector to replica: answer the `Locate` ``number`` of ``asker`` by `Located`."""

    asker: Address
    number: int


class DescribeNodes(Local):
    """To the failure detector: describe the other nodes. Answered by `NodesDescribed`."""


class NodeFacts(NamedTuple):
    """A leader's knowledge of another node."""

    node: str
    applied: int
    """The first slot that it has not applied, as it last reported."""
    last_message_ms: int
    """Time since then (ms)."""
    view: int
    """The newest view that it knows."""
    learner: Locate | None
    """Its last report as a node that is no member, or None if it sent none."""
    lag: int = 0
    """Slots that it lacked when it sent that report."""
    version: str = ""
    """The version of its software, empty if it is not known."""


class NodesDescribed(Local):
    """The leader, empty if none is known, and the other nodes that have reported to this one."""

    leader: str
    nodes: tuple[NodeFacts, ...]
    stored: int = 0
    """At the leader: a majority's journals have everything before this slot."""
    ballot: Ballot = NO_BALLOT
    """At the leader: its ballot. What the members answered under another one is not here."""


class TargetDue(Timer):
    """Check whether the group has its target size, and whether its members answer."""


class LocateDue(Timer):
    """Ask other nodes which slots are decided; ``number`` is the timer's number."""

    number: int
