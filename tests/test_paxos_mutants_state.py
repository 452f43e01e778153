"""Bugs planted around the log: in its machine, its disk, its clocks and its leases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import pytest

from holdfast.actors.effect import Effects, Spawn
from holdfast.actors.message import NS_PER_MS, Address, Event, Instant, Message
from holdfast.actors.paxos.acceptor import Acceptor
from holdfast.actors.paxos.event import Decided, Learned, Reign
from holdfast.actors.paxos.message import Accept, HeartbeatAck
from holdfast.actors.paxos.monitor import Monitor
from holdfast.actors.paxos.replica import Replica
from holdfast.actors.role import Role
from holdfast.cluster.simulation.paxos_machine import Appended, Register, Request
from holdfast.cluster.simulation.paxos_run import Subject, run_log_seed
from holdfast.cluster.simulation.paxos_world import WatchedDisk, Watcher


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

    def snapshot(self) -> tuple[bytes, ...]:
        told, self.told = self.told, {}
        chunks = super().snapshot()
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


class HastyTime(Replica):
    """Begins a reign with a log time that is far ahead."""

    def handle(self, sender: Address, event: Any, now: Instant) -> Effects:
        if isinstance(event, Reign):
            event = replace(event, time_ms=self.clock.read(now) + 60_000)
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
    judge: str
    seeds: int
    subject: Subject


MUTANTS = {
    "1 no fsync": Mutant("P9", 5, Subject(disk=NeverSyncs)),
    "11 torn": Mutant("P3", 60, Subject(disk=TornTail)),
    "11 torn P1": Mutant("P1", 60, Subject(disk=TornTail)),
    "13 own count": Mutant("P12", 20, Subject(machine=OwnCount)),
    "13 own count P13": Mutant("P13", 20, Subject(machine=OwnCount)),
    "14 starts over": Mutant("P13", 20, Subject(machine=StartsOver)),
    "15 forgets": Mutant("P13", 20, Subject(machine=Forgets)),
    "19 snapshot forgets": Mutant("P12", 20, Subject(machine=SnapshotForgets)),
    "19 snapshot forgets P13": Mutant("P13", 20, Subject(machine=SnapshotForgets)),
    "18 extends nothing": Mutant("S1", 20, Subject(machine=ExtendsNothing)),
    "18 hasty time": Mutant("S1", 20, instead(Replica, HastyTime)),
    "20 own time": Mutant("P12", 20, instead(Replica, OwnTime)),
    "22 forgets lease": Mutant("P15", 60, instead(Acceptor, ForgetsItsLease)),
    "23 from answer": Mutant("P15", 60, instead(Monitor, CountsFromTheAnswer)),
    "17 no drift": Mutant("P15", 60, with_drift(0)),
}
