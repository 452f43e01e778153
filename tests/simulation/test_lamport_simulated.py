"""`lamport` under every fault it survives, and mutants of it that the judges catch."""

from __future__ import annotations

import dataclasses
import re

import pytest
from msgspec.structs import replace
from support.judged import clean, seen_in
from support.onlooker import run_read_seed

from fencelock.actors.clock import Clock
from fencelock.actors.effect import Effect, Effects
from fencelock.actors.lamport.order import QueuePlace
from fencelock.actors.lamport.process import LockProcess
from fencelock.actors.lamport.wire import Neighbors, PeerJoined
from fencelock.actors.message import Instant
from fencelock.actors.proxy.event import QueryLock, Ready
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.topology import NodeContext, ProtocolSettings, lamport
from fencelock.verification.simulation.faults import promise_of
from fencelock.verification.simulation.planting import in_place, planted
from fencelock.verification.simulation.report import RunReport
from fencelock.verification.simulation.run import run_seed
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import Judge
from fencelock.verification.simulation.world import World

NS_PER_US = 1_000
SEEDS = 20
SEEDS_FOR_A_MUTANT = 160
SEEDS_WITH_READS = 6


class Memory:
    """Gives a node no date for its clock, unless no process is left that knows the time.

    The date from which a real node starts its clock would hide most faults of a restart. Without
    it, only a time that no process remembers cannot be recovered; so the date is given once there
    was a moment without a ready process.
    """

    def __init__(self, mutant: type[LockProcess] | type[Clock] | None = None) -> None:
        self.mutant = mutant
        self.ready: set[tuple[str, int]] = set()
        self.lost = False
        self.worlds: list[World] = []

    def judges(self, world: World) -> list[Judge]:
        self.worlds.append(world)
        return [self]

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        if isinstance(delivered.event, Ready) and delivered.event.ready:
            self.ready.add((delivered.node, delivered.boot))

    def crashed(self, node: str, boot: int) -> None:
        if (node, boot) in self.ready:
            self.ready.remove((node, boot))
            self.lost = self.lost or not self.ready

    def make_roles(self, context: NodeContext) -> RoleSet:
        date = self.worlds[0].time // NS_PER_US if self.lost else 0
        return self.with_mutant(dataclasses.replace(context, first_stamp=date))

    def with_mutant(self, context: NodeContext) -> RoleSet:
        return (planted(lamport, in_place(self.mutant)) if self.mutant else lamport)(context)


def run(seed: int, mutant: type[LockProcess] | type[Clock] | None = None) -> RunReport:
    memory = Memory(mutant)
    promise = promise_of("lamport", ProtocolSettings())
    return run_seed(memory.make_roles, seed, promise=promise, judges=memory.judges)


class CountsEarlierWords(LockProcess):
    """Takes a message for evidence although it is not stamped later than the request."""

    def _may_enter(self, lock: str, place: QueuePlace) -> bool:
        return self.requests.first(lock) == place and all(self.evidence.received.values())


class LeavesTies(LockProcess):
    """Orders by stamp alone, so that two requests can be first."""

    def _may_enter(self, lock: str, place: QueuePlace) -> bool:
        first = self.requests.first(lock)
        return first is not None and first.stamp == place.stamp and self.evidence.covers(place)


class ConfusesProcesses(LockProcess):
    """Takes the reply of one process for the replies of all, as the essay's slip could."""

    def _note(self, origin: str, stamp: int, now: Instant) -> list[Effect]:
        effects = super()._note(origin, stamp, now)
        for other in self.others:
            if self.evidence.received[other] < stamp:
                effects += super()._note(other, stamp, now)
        return effects


class RequestsUnwelcomed(LockProcess):
    """Requests as soon as it has started, before it has received time and requests."""

    def _on_neighbors(self, neighbors: Neighbors, now: Instant) -> Effects:
        effects = super()._on_neighbors(neighbors, now)
        self.rejoin.ready = True
        return effects


class KeepsTheDead(LockProcess):
    """Keeps the requests of a former life, which will never be released."""

    def _on_peer_joined(self, joined: PeerJoined, now: Instant) -> Effects:
        requests, self.requests = self.requests, type(self.requests)()
        effects = super()._on_peer_joined(joined, now)
        self.requests = requests
        return effects


class HearsNoTime(Clock):
    """Planted bug: its clock does not move past the stamps that it receives: IR2 is missing."""

    def arrived(self, stamp: int) -> bool:
        return True


def test_no_seed_breaks_a_promise_and_every_fault_occurred() -> None:
    seen = clean(map(run, range(SEEDS)))
    met = (
        "early_held",
        "entry",
        "late_introduce_dropped",
        "other_life_dropped",
        "peer_joined",
        "probe",
        "repeat_dropped",
        "resent",
        "welcome",
    )
    assert [name for name in met if not seen[f"lamport.{name}"]] == []
    assert seen["grants"] >= 10 * SEEDS


def test_no_read_reports_a_lock_as_free_that_is_held_all_the_while() -> None:
    counts = clean(run_read_seed("lamport", seed) for seed in range(SEEDS_WITH_READS))
    assert (
        min(counts["onlooker.reported_free"], counts["onlooker.reported_held"])
        > 10 * SEEDS_WITH_READS
    )


class TellsWhatItKnows(LockProcess):
    """Calls a lock free if it knows of no request."""

    def _on_query(self, query: QueryLock, now: Instant) -> Effects:
        return super()._on_query(replace(query, proven=False), now)


class ProvesUnwelcomed(LockProcess):
    """Takes an empty queue for a proof, although it has not received the requests of others."""

    def _on_query(self, query: QueryLock, now: Instant) -> Effects:
        return super()._on_query(replace(query, proven=self.rejoin.ready), now)


@pytest.mark.parametrize(("mutant", "first"), [(TellsWhatItKnows, 34), (ProvesUnwelcomed, 0)])
def test_a_read_that_proves_nothing_is_caught(mutant: type[LockProcess], first: int) -> None:
    make_roles = Memory(mutant).with_mutant
    seeds = range(first, first + SEEDS_FOR_A_MUTANT)
    reports = (run_read_seed("lamport", seed, make_roles=make_roles) for seed in seeds)
    assert seen_in("reads:", reports)


def test_a_client_whose_clock_jumped_beyond_its_first_session_is_served() -> None:
    report = run_seed("lamport", 700_016)
    opened = re.compile(r"Opened\(session='c1~2', .*assigned='c1'")
    assert any(map(opened.search, report.trace()))
    assert report.violation is None


@pytest.mark.parametrize(
    ("mutant", "first"),
    [
        (CountsEarlierWords, 0),
        (LeavesTies, 127),
        (ConfusesProcesses, 0),
        (RequestsUnwelcomed, 0),
        (KeepsTheDead, 0),
        (HearsNoTime, 0),
    ],
)
def test_a_planted_bug_is_caught(mutant: type[LockProcess] | type[Clock], first: int) -> None:
    seeds = range(first, first + SEEDS_FOR_A_MUTANT)
    assert any(run(seed, mutant).violation for seed in seeds)
