"""Bugs planted in the log, each to be seen by the judge named for it while all others look away.

They are in its roles and its messages, in its machine, its disk, its clocks and its leases.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import with_long
from support.judged import JudgedRun, PlantedBug, log_run
from support.planted_bugs import Patch, as_plant, instead, returning

from fencelock.actors.effect import (
    Checkpoint,
    CheckpointEnd,
    CheckpointPart,
    Effect,
    Effects,
    Persist,
    Send,
)
from fencelock.actors.message import NS_PER_MS, Address, Event, Instant, Local, Message
from fencelock.actors.paxos import member
from fencelock.actors.paxos.acceptor import Acceptor
from fencelock.actors.paxos.commander import Commander
from fencelock.actors.paxos.config import View, replica_of
from fencelock.actors.paxos.event import (
    Adopted,
    Decided,
    Learned,
    LeaseHeld,
    MachineRead,
    Order,
    ReadMachine,
    SteppedDown,
)
from fencelock.actors.paxos.failure_detector import FailureDetector, LeaderLease
from fencelock.actors.paxos.journal import Recovered
from fencelock.actors.paxos.leader import Leader, Scout
from fencelock.actors.paxos.machine import Part
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.paxos.wire import (
    NO_OP,
    Accept,
    Accepted,
    Ballot,
    Commit,
    Heartbeat,
    HeartbeatAck,
    Pledged,
    Preempted,
    Prepare,
    Promise,
    Release,
)
from fencelock.actors.role import Role
from fencelock.verification.simulation.paxos_machine import Appended, AppendRequest, Register
from fencelock.verification.simulation.paxos_run import LogSubject, run_log_seed
from fencelock.verification.simulation.paxos_world import WatchedDisk
from fencelock.verification.simulation.plan import Focus, LogPlan, draw_log_plan

SEEDS = 60
"""Seeds of which one must show a planted bug."""


def receives(
    role: type[Role[Any]], kind: Any, alter: Callable[[Any, Any], Event]
) -> tuple[Patch, ...]:
    """Let a role receive something else than a ``kind``."""

    @as_plant
    def handle(sound: Any, one: Any, sender: Address, event: Any, now: Instant) -> Any:
        return sound(one, sender, alter(one, event) if isinstance(event, kind) else event, now)

    return ((role, "handle", handle),)


def sends(
    role: type[Role[Any]], kind: type[Event], alter: Callable[[Any], Message | Local]
) -> tuple[Patch, ...]:
    """Let a role send something else than a ``kind``."""

    @as_plant
    def handle(sound: Any, *how: Any) -> Effects:
        return [
            Send(one.to, alter(one.message))
            if isinstance(one, Send) and isinstance(one.message, kind)
            else one
            for one in sound(*how)
        ]

    return ((role, "handle", handle),)


def returns(
    role: type[Role[Any]], alter: Callable[[Any, Any, Effects], Sequence[Effect]]
) -> tuple[Patch, ...]:
    """Let a role return other effects."""

    @as_plant
    def handle(sound: Any, one: Any, sender: Address, event: Any, now: Instant) -> Any:
        return alter(one, event, sound(one, sender, event, now))

    return ((role, "handle", handle),)


def too_late(role: type[Role[Any]], *kinds: type[Event]) -> tuple[Patch, ...]:
    """Let a role write after everything else, and nothing wait for it."""
    written = (Persist, Checkpoint, CheckpointPart, CheckpointEnd)

    def alter(_: Any, event: Event, effects: Effects) -> Sequence[Effect]:
        if not isinstance(event, kinds):
            return effects
        return sorted(effects, key=lambda effect: isinstance(effect, written))

    return returns(role, alter)


# Votes and ballots


def no_votes(scout: Scout, promise: Promise) -> Event:
    return replace(promise, votes=())


def lowest_first(scout: Scout, promise: Promise) -> Event:
    """Turn the order of the ballots of all votes round."""
    last = scout.ballot.round - 1
    votes = (
        v._replace(ballot=Ballot(last - v.ballot.round, v.ballot.leader)) for v in promise.votes
    )
    return replace(promise, votes=tuple(votes))


@as_plant
def half_is_enough(sound: Any, view: View) -> None:
    sound(view)
    object.__setattr__(view, "majority", (len(view.members) + 1) // 2)


def obeys_the_past(acceptor: Acceptor, event: Event, effects: Effects) -> Sequence[Effect]:
    """Also accept batches below the promise."""
    refused = [e for e in effects if isinstance(e, Send) and isinstance(e.message, Preempted)]
    if not isinstance(event, Accept) or not refused:
        return effects
    accepted = Accepted(ballot=event.ballot, slot=event.slot)
    return (Persist(event), Send(refused[0].to, accepted))


def only_rounds_count(acceptor: Acceptor, event: Event) -> Event:
    """Take every ballot of the promised round for the promised one."""
    ballot = getattr(event, "ballot", acceptor.promised)
    if ballot.round == acceptor.promised.round:
        acceptor.promised = ballot
    return event


def counts_messages(role: type[Role[Any]], kind: type[Promise | Accepted]) -> tuple[Patch, ...]:
    """Take each reply for that of another acceptor."""

    @as_plant
    def handle(sound: Any, one: Any, sender: Address, event: Any, now: Instant) -> Any:
        if not isinstance(event, kind):
            return sound(one, sender, event, now)
        one._taken = getattr(one, "_taken", 0) + 1
        view = one.config.newest
        other = view.acceptors[one._taken % len(view.acceptors)]
        return sound(one, other, replace(event, voter=view.registered.get(other, 0)), now)

    return ((role, "handle", handle),)


def one_page(promise: Promise) -> Message:
    """Report the first vote only, and say that this is all."""
    return replace(promise, votes=promise.votes[:1], more=None)


# Decisions


def closes_gaps(replica: Replica, learned: Learned) -> Event:
    """Take a batch decided behind a gap for the next one."""
    if not learned.slots:
        return learned
    gap = max(0, learned.slots[0][0] - replica.decided.next)
    return replace(learned, slots=tuple((slot - gap, batch) for slot, batch in learned.slots))


def any_vote_has_won(acceptor: Acceptor, event: Event, effects: Effects) -> Sequence[Effect]:
    """Take one's own vote for the decision, in any ballot."""
    if not isinstance(event, Commit | Heartbeat):
        return effects
    votes = acceptor.votes
    slots = tuple((slot, votes.by_slot[slot].batch) for slot in votes.slots(0, event.committed))
    learned = Learned(slots=slots, committed=event.committed)
    return [*effects, Send(replica_of(acceptor.node), learned)]


@as_plant
def votes_are_decisions(sound: Any, records: Sequence[Message]) -> Recovered:
    """Recover one's own votes as decisions."""
    known: Recovered = sound(records)
    decided = list(known.decided)
    while (slot := len(decided) + 1) in known.votes:
        decided.append(known.votes[slot].batch)
    votes = {slot: vote for slot, vote in known.votes.items() if slot > len(decided)}
    return dataclasses.replace(known, decided=tuple(decided), votes=votes)


def never_learns(lead: Leader, adopted: Adopted) -> Event:
    """Propose from the first slot that is not applied here, whatever others have decided."""
    return replace(adopted, floor=min(adopted.floor, lead.config.applied))


def no_holes(adopted: Adopted) -> Local:
    """Leave out the slots for which no acceptor reported anything."""
    return replace(adopted, batches=tuple(batch for batch in adopted.batches if batch != NO_OP))


def embellishes(commander: Commander, order: Order) -> Event:
    """Propose more than was requested."""
    if not order.batch.commands:
        return order
    return replace(
        order, batch=replace(order.batch, commands=(*order.batch.commands, b"extend it"))
    )


# The disk


def never_syncs(disk: WatchedDisk) -> None:
    """Report at once that everything is durable, and keep nothing over a crash."""
    disk.tail, disk.unsynced = [], []


@as_plant
def torn_tail(sound: Any, disk: WatchedDisk, random: Random, *, loses_tail: bool) -> int:
    """Take a record that a crash tore for a whole one."""
    torn = [r for records in disk.unsynced for r in records if isinstance(r, Accept)]
    lost: int = sound(disk, random, loses_tail=loses_tail)
    if lost and torn:
        rest = replace(torn[-1].batch, commands=torn[-1].batch.commands[:-1])
        disk.append("acceptor", replace(torn[-1], batch=rest))
        disk.sync()
    return lost


def ends_its_checkpoint_early(replica: Replica, event: Event, effects: Effects) -> Sequence[Effect]:
    """Forget the former snapshot when the first part of the next one is written."""
    early = any(isinstance(effect, CheckpointPart) and effect.first for effect in effects)
    return [*effects, CheckpointEnd()] if early else effects


def leaves_out(kind: type[Message]) -> tuple[Patch, ...]:
    """Let an acceptor leave records out when it trims."""

    def alter(acceptor: Acceptor, event: Event, effects: Effects) -> Sequence[Effect]:
        return [
            Checkpoint(tuple(r for r in one.records if not isinstance(r, kind)))
            if isinstance(one, Checkpoint)
            else one
            for one in effects
        ]

    return returns(Acceptor, alter)


# The machine. The judge has a sound one, so these bugs are in classes of their own.


class OwnCount(Register):
    """Numbers entries by this process's count of appends, outside the state."""

    def __init__(self) -> None:
        super().__init__()
        self.appended = 0

    def append(self, request: AppendRequest, command: bytes) -> Appended:
        self.position = self.appended
        self.appended += 1
        return super().append(request, command)


class StartsOver(Register):
    """Numbers entries from the beginning when no session is left."""

    def advance(self, time_ms: int) -> Sequence[Message]:
        expired = super().advance(time_ms)
        if expired and not self.sessions:
            self.position = 0
        return expired


class Forgets(Register):
    """Appends an entry again that was appended already."""

    def append(self, request: AppendRequest, command: bytes) -> Appended:
        last = super().append(request, command)
        del self.last[request.client]
        return last


class SnapshotForgets(Register):
    """Leaves the outcomes of clients out of a snapshot."""

    def snapshot(self) -> Iterator[Part | None]:
        last, self.last = self.last, {}
        chunks = super().snapshot()
        self.last = last
        return chunks


class ExtendsNothing(Register):
    """Ends all sessions when a leadership begins."""

    def extend(self, now: int) -> None:
        self.sessions = {name: (now, ttl) for name, (_, ttl) in self.sessions.items()}


def on(machine: type[Register]) -> JudgedRun:
    return partial(run_log_seed, subject=LogSubject(machine=machine))


# Clocks, leases and reads


@as_plant
def own_time(sound: Any, replica: Replica, sender: Address, event: Any, now: Instant) -> Any:
    """Let things fall due by the clock of a node."""
    if isinstance(event, Decided):
        event = replace(event, batch=replace(event.batch, time_ms=now // NS_PER_MS))
    return sound(replica, sender, event, now)


@as_plant
def waits_for_its_own_lease(sound: Any, acceptor: Acceptor, now: Instant) -> Any:
    """Forget that the leases of an earlier life may have been longer."""
    acceptor.recorded_lease_ms = acceptor.lease_ms
    return sound(acceptor, now)


def relies_on_its_own_lease(detector: FailureDetector, ack: HeartbeatAck) -> Event:
    """Take every acceptor's lease to be as long as its own."""
    return replace(ack, lease_ms=detector.timing.lease_ms)


@as_plant
def counts_from_the_answer(
    sound: Any, detector: FailureDetector, acceptor: Address, ack: HeartbeatAck, now: Instant
) -> Any:
    """Take a lease for as long from the answer as was promised when it was given."""
    if ack.number in detector.asked:
        detector.asked[ack.number] = now
    return sound(detector, acceptor, ack, now)


@as_plant
def no_drift(sound: Any, lease: LeaderLease, config: Any, lease_ms: int, drift_ppm: int) -> None:
    sound(lease, config, lease_ms, 0)


def keeps_the_lease(lead: Leader, event: Event, effects: Effects) -> Sequence[Effect]:
    """Hand over, give the lease back, and keep relying on it."""
    sent = [one.message for one in effects if isinstance(one, Send)]
    if not any(isinstance(message, Release) for message in sent):
        return effects
    return [e for e in effects if not isinstance(e, Send) or not isinstance(e.message, SteppedDown)]


def reads_on_and_on(replica: Replica, held: LeaseHeld) -> Event:
    """Read under a lease that ended."""
    return replace(held, until=Instant(held.until + 10**10))


@as_plant
def reads_what_it_has(
    sound: Any, replica: Replica, sender: Address, event: Any, now: Instant
) -> Any:
    """Read the own state and call that linearizable."""
    if isinstance(event, ReadMachine) and event.age_ms is None:
        answer = replica.machine.read(event.query)
        read = MachineRead(number=event.number, reply=answer, slot=1, age_ms=0)
        return (Send(sender, read),)
    return sound(replica, sender, event, now)


def calls_it_new(read: MachineRead) -> Local:
    """Report that a state is not old at all."""
    return replace(read, age_ms=0)


# Plans that provoke bugs


def dies_in_syncs(seed: int) -> LogPlan:
    """Let nodes lose what they did not sync, most often a promise or a ballot, and return soon."""
    plan = draw_log_plan(seed, Focus.DUELS)
    faults = dataclasses.replace(plan.faults, sync_us=2_000, tail_lost=True, down_ms=5)
    return dataclasses.replace(plan, crash_at_ballot_per_mille=300, faults=faults)


def focused(focus: Focus) -> JudgedRun:
    return log_run(partial(draw_log_plan, focus=focus))


DUELS, LEASES, MIXED = map(focused, (Focus.DUELS, Focus.LEASES, Focus.MIXED_LEASES))
DIES_IN_SYNCS = log_run(dies_in_syncs)

PROMISES_LATE = too_late(Acceptor, Prepare)
VOTES_LATE = too_late(Acceptor, Accept, Prepare)
LEADS_LATE = too_late(Leader, Event)
NO_VOTES = receives(Scout, Promise, no_votes)
LOWEST = receives(Scout, Promise, lowest_first)
ONLY_ROUNDS = receives(Acceptor, Event, only_rounds_count)
TORN_TAIL = ((WatchedDisk, "crash", torn_tail),)
MUTANTS = {
    "promise before it is durable": PlantedBug("durable-before-sent", PROMISES_LATE),
    "promise before it is durable, forgotten": PlantedBug(
        "promises-kept", PROMISES_LATE, run=DIES_IN_SYNCS
    ),
    "vote before it is durable": PlantedBug("durable-before-sent", VOTES_LATE),
    "vote before it is durable, forgotten": PlantedBug("one-batch-a-slot", VOTES_LATE),
    "ballot before it is durable": PlantedBug("durable-before-sent", LEADS_LATE),
    "ballot before it is durable, twice": PlantedBug(
        "one-life-a-ballot", LEADS_LATE, run=DIES_IN_SYNCS
    ),
    "votes are ignored": PlantedBug("highest-vote-proposed", NO_VOTES),
    "votes are ignored, two chosen": PlantedBug("one-batch-a-slot", NO_VOTES),
    "the lowest ballot": PlantedBug("highest-vote-proposed", LOWEST, run=DUELS),
    "the lowest ballot, two chosen": PlantedBug("one-batch-a-slot", LOWEST, run=DUELS, first=8),
    "half is a majority": PlantedBug(
        "distinct-majority", ((View, "__post_init__", half_is_enough),), first=7
    ),
    "accepts below the promise": PlantedBug(
        "no-vote-below-promise", returns(Acceptor, obeys_the_past), first=6
    ),
    "ballots without a node": PlantedBug("no-vote-below-promise", ONLY_ROUNDS, first=1),
    "ballots without a node, promise": PlantedBug("promises-kept", ONLY_ROUNDS, first=1),
    "counts votes, not voters": PlantedBug(
        "distinct-majority", counts_messages(Commander, Accepted)
    ),
    "counts promises, not acceptors": PlantedBug(
        "distinct-majority", counts_messages(Scout, Promise)
    ),
    "applies past a gap": PlantedBug("slots-in-order", receives(Replica, Learned, closes_gaps)),
    "a promise of one page": PlantedBug(
        "promises-report-votes", sends(Acceptor, Promise, one_page)
    ),
    "any vote has won": PlantedBug(
        "decisions-stay", returns(Acceptor, any_vote_has_won), run=DUELS, first=7
    ),
    "votes recovered as decisions": PlantedBug(
        "slots-in-order", ((member, "recover", votes_are_decisions),)
    ),
    "leads without catching up": PlantedBug(
        "highest-vote-proposed", receives(Leader, Adopted, never_learns), run=DUELS, first=10
    ),
    "holes are closed": PlantedBug(
        "highest-vote-proposed", sends(Scout, Adopted, no_holes), run=DUELS, first=2
    ),
    "a command that was never proposed": PlantedBug(
        "chosen-was-proposed", receives(Commander, Order, embellishes), first=7
    ),
    "proposals are made once": PlantedBug(
        "all-served-in-the-end", ((Commander, "_on_resend", returning(())),), first=6
    ),
    "gaps stay": PlantedBug(
        "all-served-in-the-end", ((Replica, "_on_gap_check", returning(())),), first=11
    ),
    "nothing is synced": PlantedBug(
        "durable-before-sent", ((WatchedDisk, "sync", instead(never_syncs)),), first=11
    ),
    "a torn tail is a record": PlantedBug("one-batch-a-ballot", TORN_TAIL),
    "a torn tail is a record, two chosen": PlantedBug(
        "one-batch-a-slot", TORN_TAIL, run=DUELS, first=5
    ),
    "trims before it is durable": PlantedBug("trimmed-is-durable", too_late(Replica, Event)),
    "ends a checkpoint early": PlantedBug(
        "trimmed-is-durable", returns(Replica, ends_its_checkpoint_early), first=7
    ),
    "trims votes": PlantedBug("trimmed-is-durable", leaves_out(Accept)),
    "trims the promise": PlantedBug("promises-kept", leaves_out(Pledged), first=7),
    "state outside the log": PlantedBug("slots-in-order", (), run=on(OwnCount)),
    "numbers start over": PlantedBug("one-outcome", (), run=on(StartsOver), first=8),
    "repetitions are applied": PlantedBug("one-outcome", (), run=on(Forgets), first=7),
    "a snapshot without answers": PlantedBug("slots-in-order", (), run=on(SnapshotForgets)),
    "a snapshot without answers, twice": PlantedBug(
        "one-outcome", (), run=on(SnapshotForgets), first=7
    ),
    "a new leader ends sessions": PlantedBug(
        "session-outlives-trust", (), run=on(ExtendsNothing), first=6
    ),
    "time is the node's own": PlantedBug("slots-in-order", ((Replica, "handle", own_time),)),
    "a restart forgets the lease": PlantedBug(
        "one-lease", ((Acceptor, "begin", returning(())),), run=LEASES, first=15
    ),
    "a restart waits for its own lease": PlantedBug(
        "one-lease", ((Acceptor, "begin", waits_for_its_own_lease),), run=MIXED, first=31
    ),
    "all leases are as long as the leader's": PlantedBug(
        "one-lease",
        receives(FailureDetector, HeartbeatAck, relies_on_its_own_lease),
        run=MIXED,
        first=22,
    ),
    "a lease from the answer on": PlantedBug(
        "one-lease", ((FailureDetector, "_on_ack", counts_from_the_answer),), run=LEASES, first=31
    ),
    "a lease without drift": PlantedBug(
        "one-lease", ((LeaderLease, "__init__", no_drift),), run=LEASES, first=12
    ),
    "a lease given back and kept": PlantedBug(
        "one-lease", returns(Leader, keeps_the_lease), run=LEASES, first=12
    ),
    "reads after the lease": PlantedBug(
        "reads-are-fresh", receives(Replica, LeaseHeld, reads_on_and_on), run=LEASES, first=11
    ),
    "reads what is there": PlantedBug(
        "reads-are-fresh", ((Replica, "handle", reads_what_it_has),), first=11
    ),
    "an age that is too low": PlantedBug(
        "reads-are-fresh", sends(Replica, MachineRead, calls_it_new), first=13
    ),
}


@pytest.mark.parametrize(
    "bug", with_long(MUTANTS, "accepts below the promise", "proposals are made once")
)
def test_every_planted_bug_is_seen_by_the_judge_named_for_it(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    planted = MUTANTS[bug]
    planted.assert_seen(monkeypatch, planted.run, SEEDS)
