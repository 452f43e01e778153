"""Bugs planted around the log: in its machine, its disk, its clocks and its leases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import with_long
from support.judged import LogMutant, assert_bug_seen, with_role

from fencelock.actors.effect import Checkpoint, CheckpointEnd, CheckpointPart, Effects, Send, Spawn
from fencelock.actors.message import NS_PER_MS, Address, Instant, Message
from fencelock.actors.paxos.acceptor import Acceptor
from fencelock.actors.paxos.commander import Commander
from fencelock.actors.paxos.event import (
    CommanderResend,
    Decided,
    GapCheck,
    LeaseHeld,
    MachineRead,
    Order,
    ReadMachine,
    SteppedDown,
)
from fencelock.actors.paxos.failure_detector import FailureDetector
from fencelock.actors.paxos.leader import Leader
from fencelock.actors.paxos.machine import Part
from fencelock.actors.paxos.message import Accept, HeartbeatAck, Pledged, Release
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.role import Role
from fencelock.verification.simulation.paxos_machine import Appended, AppendRequest, Register
from fencelock.verification.simulation.paxos_run import LogSubject
from fencelock.verification.simulation.paxos_world import WatchedDisk
from fencelock.verification.simulation.plan import Focus


class NeverSyncs(WatchedDisk):
    """Reports at once that everything is durable, and keeps nothing over a crash."""

    def sync(self) -> None:
        self.tail, self.unsynced = [], []


class TornTail(WatchedDisk):
    """Takes a record that a crash tore for a whole one."""

    def crash(self, random: Random, *, loses_tail: bool) -> int:
        torn = [r for records in self.unsynced for r in records if isinstance(r, Accept)]
        lost = super().crash(random, loses_tail=loses_tail)
        if lost and torn:
            rest = replace(torn[-1].batch, commands=torn[-1].batch.commands[:-1])
            self.append("acceptor", replace(torn[-1], batch=rest))
            self.sync()
        return lost


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


class OwnTime(Replica):
    """Lets things fall due by the clock of its node."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        if isinstance(event, Decided):
            event = replace(event, batch=replace(event.batch, time_ms=now // NS_PER_MS))
        return super().handle(sender, event, now)


class ForgetsItsLease(Acceptor):
    """Begins a life as if it had never promised."""

    def begin(self, now: Instant) -> Effects:
        return ()


class WaitsForItsOwnLease(Acceptor):
    """Forgets that the leases of an earlier life may have been longer."""

    def begin(self, now: Instant) -> Effects:
        self.recorded_lease_ms = self.lease_ms
        return super().begin(now)


class ReliesOnItsOwnLease(FailureDetector):
    """Takes every acceptor's lease to be as long as its own."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        if isinstance(event, HeartbeatAck):
            event = replace(event, lease_ms=self.timing.lease_ms)
        return super().handle(sender, event, now)


class CountsFromTheAnswer(FailureDetector):
    """Takes a lease for as long from the answer as was promised when it was given."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        if isinstance(event, HeartbeatAck) and event.number in self.asked:
            self.asked[event.number] = now
        return super().handle(sender, event, now)


class KeepsTheLease(Leader):
    """Hands over, gives its lease back, and keeps relying on it."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        effects = super().handle(sender, event, now)
        sent = [one.message for one in effects if isinstance(one, Send)]
        if not any(isinstance(message, Release) for message in sent):
            return effects
        return [
            e for e in effects if not isinstance(e, Send) or not isinstance(e.message, SteppedDown)
        ]


class NeverAsksAgain(Commander):
    """Takes it that every proposal arrives."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        return () if isinstance(event, CommanderResend) else super().handle(sender, event, now)


class Embellishes(Commander):
    """Proposes more than was requested."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        if isinstance(event, Order) and event.batch.commands:
            more = replace(event.batch, commands=(*event.batch.commands, b"extend it"))
            event = replace(event, batch=more)
        return super().handle(sender, event, now)


class NeverMissesAnything(Replica):
    """Assumes that all members learned of a decision."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        return () if isinstance(event, GapCheck) else super().handle(sender, event, now)


class ReadsOnAndOn(Replica):
    """Reads under a lease that ended."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        if isinstance(event, LeaseHeld):
            event = replace(event, until=Instant(event.until + 10**10))
        return super().handle(sender, event, now)


class ReadsWhatItHas(Replica):
    """Reads its own state and calls that linearizable."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        if isinstance(event, ReadMachine) and event.age_ms is None:
            answer = self.machine.read(event.query)
            read = MachineRead(number=event.number, reply=answer, slot=1, age_ms=0)
            return (Send(sender, read),)
        return super().handle(sender, event, now)


class CallsItNew(Replica):
    """Reports that its state is not old at all."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        return [
            Send(one.to, replace(one.message, age_ms=0))
            if isinstance(one, Send) and isinstance(one.message, MachineRead)
            else one
            for one in super().handle(sender, event, now)
        ]


class TrimsTooEarly(Replica):
    """Lets others forget slots that its own records do not cover yet."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        effects = super().handle(sender, event, now)
        return sorted(
            effects, key=lambda effect: isinstance(effect, CheckpointPart | CheckpointEnd)
        )


class EndsItsCheckpointEarly(Replica):
    """Forgets the former snapshot when the first part of the next one is written."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        effects = super().handle(sender, event, now)
        early = any(isinstance(effect, CheckpointPart) and effect.first for effect in effects)
        return [*effects, CheckpointEnd()] if early else effects


def leaves_out(kind: type[Message]) -> type[Role[Any]]:
    """Return an acceptor that leaves records out when it trims."""

    class LeavesOut(Acceptor):
        def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
            return [
                Checkpoint(tuple(r for r in one.records if not isinstance(r, kind)))
                if isinstance(one, Checkpoint)
                else one
                for one in super().handle(sender, event, now)
            ]

    return LeavesOut


def with_drift(drift_ppm: int) -> LogSubject:
    def change(spawn: Spawn) -> Spawn:
        if spawn.role is not FailureDetector:
            return spawn
        return replace(spawn, arguments={**spawn.arguments, "drift_ppm": drift_ppm})

    return LogSubject(change=change)


LEASES, MIXED = Focus.LEASES, Focus.MIXED_LEASES
MUTANTS = {
    "nothing is synced": LogMutant("durable-before-sent", 3, LogSubject(disk=NeverSyncs), first=11),
    "a torn tail is a record": LogMutant("one-batch-a-ballot", 30, LogSubject(disk=TornTail)),
    "a torn tail is a record, two chosen": LogMutant(
        "one-batch-a-slot", 40, LogSubject(disk=TornTail), Focus.DUELS, first=5
    ),
    "state outside the log": LogMutant("slots-in-order", 10, LogSubject(machine=OwnCount)),
    "numbers start over": LogMutant("one-outcome", 20, LogSubject(machine=StartsOver), first=8),
    "repetitions are applied": LogMutant("one-outcome", 10, LogSubject(machine=Forgets), first=7),
    "a snapshot without answers": LogMutant(
        "slots-in-order", 20, LogSubject(machine=SnapshotForgets)
    ),
    "a snapshot without answers, twice": LogMutant(
        "one-outcome", 30, LogSubject(machine=SnapshotForgets), first=7
    ),
    "a new leader ends sessions": LogMutant(
        "session-outlives-trust", 20, LogSubject(machine=ExtendsNothing), first=6
    ),
    "time is the node's own": LogMutant("slots-in-order", 10, with_role(OwnTime)),
    "a restart forgets the lease": LogMutant(
        "one-lease", 30, with_role(ForgetsItsLease), LEASES, first=15
    ),
    "a restart waits for its own lease": LogMutant(
        "one-lease", 40, with_role(WaitsForItsOwnLease), MIXED, first=31
    ),
    "all leases are as long as the leader's": LogMutant(
        "one-lease", 40, with_role(ReliesOnItsOwnLease), MIXED, first=22
    ),
    "a lease from the answer on": LogMutant(
        "one-lease", 26, with_role(CountsFromTheAnswer), LEASES, first=31
    ),
    "a lease without drift": LogMutant("one-lease", 30, with_drift(0), LEASES, first=12),
    "a lease given back and kept": LogMutant(
        "one-lease", 20, with_role(KeepsTheLease), LEASES, first=12
    ),
    "reads after the lease": LogMutant(
        "reads-are-fresh", 40, with_role(ReadsOnAndOn), LEASES, first=11
    ),
    "reads what is there": LogMutant("reads-are-fresh", 10, with_role(ReadsWhatItHas), first=11),
    "an age that is too low": LogMutant("reads-are-fresh", 10, with_role(CallsItNew), first=13),
    "trims before it is durable": LogMutant("trimmed-is-durable", 20, with_role(TrimsTooEarly)),
    "ends a checkpoint early": LogMutant(
        "trimmed-is-durable", 20, with_role(EndsItsCheckpointEarly), first=7
    ),
    "trims votes": LogMutant("trimmed-is-durable", 20, with_role(leaves_out(Accept))),
    "trims the promise": LogMutant("promises-kept", 20, with_role(leaves_out(Pledged)), first=7),
    "a command that was never proposed": LogMutant(
        "chosen-was-proposed", 10, LogSubject(), spawned=Embellishes, first=7
    ),
    "proposals are made once": LogMutant(
        "all-served-in-the-end", 20, LogSubject(), spawned=NeverAsksAgain, first=6
    ),
    "gaps stay": LogMutant("all-served-in-the-end", 20, with_role(NeverMissesAnything), first=11),
}


@pytest.mark.parametrize("bug", with_long(MUTANTS, "proposals are made once"))
def test_every_planted_bug_is_seen_by_the_judge_named_for_it(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    assert_bug_seen(monkeypatch, MUTANTS[bug])
