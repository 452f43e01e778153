"""Bugs planted around the log: in its machine, its disk, its clocks and its leases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import pytest

from holdfast.actors.effect import Effects, Spawn
from holdfast.actors.message import NS_PER_MS, Address, Instant, Message
from holdfast.actors.paxos.acceptor import Acceptor
from holdfast.actors.paxos.event import Decided
from holdfast.actors.paxos.message import Accept, HeartbeatAck
from holdfast.actors.paxos.monitor import Monitor
from holdfast.actors.paxos.replica import Replica
from holdfast.actors.role import Role
from holdfast.cluster.simulation.paxos_machine import Appended, Register, Request
from holdfast.cluster.simulation.paxos_plan import Focus, draw_log_plan
from holdfast.cluster.simulation.paxos_run import Subject, run_log_seed
from holdfast.cluster.simulation.paxos_world import WatchedDisk


class NeverSyncs(WatchedDisk):
    """Says at once that everything is durable, and keeps nothing over a crash."""

    def sync(self) -> None:
        self.tail, self.unsynced = [], []


class TornTail(WatchedDisk):
    """Takes what a crash tore for a record."""

    def crash(self, random: Random, *, loses_tail: bool) -> int:
        torn = [r for records in self.unsynced for r in records if isinstance(r, Accept)]
        lost = super().crash(random, loses_tail=loses_tail)
        if lost and torn:
            rest = replace(torn[-1].batch, commands=torn[-1].batch.commands[:-1])
            self.append("acceptor", replace(torn[-1], batch=rest))
            self.sync()
        return lost


class OwnCount(Register):
    """Numbers entries by what this process appended, outside the state."""

    def __init__(self) -> None:
        super().__init__()
        self.appended = 0

    def append(self, request: Request, command: bytes) -> Appended:
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
    """Appends again what was appended already."""

    def append(self, request: Request, command: bytes) -> Appended:
        told = super().append(request, command)
        del self.told[request.client]
        return told


class SnapshotForgets(Register):
    """Leaves out of a snapshot what was answered to whom."""

    def photograph(self) -> Iterator[bytes | None]:
        told, self.told = self.told, {}
        chunks = super().photograph()
        self.told = told
        return chunks


class ExtendsNothing(Register):
    """Ends all sessions when a reign begins."""

    def extend(self, now: int) -> None:
        self.sessions = {name: (now, ttl) for name, (_, ttl) in self.sessions.items()}


class OwnTime(Replica):
    """Lets things fall due by the clock of its node."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        if isinstance(event, Decided):
            event = replace(event, batch=replace(event.batch, time_ms=now // NS_PER_MS))
        return super().handle(sender, event, now)


class ForgetsItsLease(Acceptor):
    """Begins a life as if it had promised nobody anything."""

    def begin(self, now: Instant) -> Effects:
        del now
        return ()


class CountsFromTheAnswer(Monitor):
    """Takes a lease for as long from the answer as was promised when it was given."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        if isinstance(event, HeartbeatAck) and event.number in self.asked:
            self.asked[event.number] = now
        return super().handle(sender, event, now)


def instead(role: type[Role[Any]], planted: type[Role[Any]]) -> Subject:
    return Subject(change=lambda s: replace(s, role=planted) if s.role is role else s)


def with_drift(drift_ppm: int) -> Subject:
    def change(spawn: Spawn) -> Spawn:
        if spawn.role is not Monitor:
            return spawn
        return replace(spawn, arguments={**spawn.arguments, "drift_ppm": drift_ppm})

    return Subject(change=change)


class Mutant(NamedTuple):
    """A bug, which judge is to see it, in which runs, and in how many of them at most."""

    judge: str
    seeds: int
    subject: Subject
    focus: Focus | None = None


LEASES = Focus.LEASES
MUTANTS = {
    "nothing is synced": Mutant("P9", 3, Subject(disk=NeverSyncs)),
    "a torn tail is a record": Mutant("P3", 30, Subject(disk=TornTail)),
    "a torn tail is a record, two chosen": Mutant("P1", 30, Subject(disk=TornTail)),
    "state outside the log": Mutant("P12", 10, Subject(machine=OwnCount)),
    "numbers start over": Mutant("P13", 20, Subject(machine=StartsOver)),
    "repetitions are applied": Mutant("P13", 10, Subject(machine=Forgets)),
    "a snapshot without answers": Mutant("P12", 20, Subject(machine=SnapshotForgets)),
    "a snapshot without answers, twice": Mutant("P13", 30, Subject(machine=SnapshotForgets)),
    "a new master ends sessions": Mutant("S1", 20, Subject(machine=ExtendsNothing)),
    "time is the node's own": Mutant("P12", 10, instead(Replica, OwnTime)),
    "a restart forgets the lease": Mutant("P15", 60, instead(Acceptor, ForgetsItsLease), LEASES),
    "a lease from the answer on": Mutant("P15", 30, instead(Monitor, CountsFromTheAnswer), LEASES),
    "a lease without drift": Mutant("P15", 30, with_drift(0), LEASES),
}


@pytest.mark.parametrize("bug", MUTANTS)
def test_every_planted_bug_is_seen_by_the_judge_named_for_it(bug: str) -> None:
    judge, seeds, subject, focus = MUTANTS[bug]
    for seed in range(seeds):
        plan = draw_log_plan(seed, focus)
        report = run_log_seed(seed, plan=plan, subject=subject, judged=frozenset({judge}))
        if f": {judge}, " in (report.violation or ""):
            return
    pytest.fail(f"not seen by {judge} in {seeds} seeds")
