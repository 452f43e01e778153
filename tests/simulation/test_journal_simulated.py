"""`Checkpoint` in virtual time: a crash that loses unsynced data leaves the old or the new
records."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from support.judged import clean

from fencelock.actors.api.session_message import Alive, KeepAlive
from fencelock.actors.central import server as server_module
from fencelock.actors.central.server import LockServer
from fencelock.actors.central.wire import Held, Numbered
from fencelock.actors.clock import Clock
from fencelock.actors.effect import Checkpoint, Effect, Effects, Persist, Send, Spawn, Wake
from fencelock.actors.message import NS_PER_MS, Address, Instant, Message, Timer, address_of
from fencelock.actors.role import Host, Role
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.topology import NodeContext, ProtocolSettings, central
from fencelock.verification.simulation.disk import Disk
from fencelock.verification.simulation.faults import Faults, promise_of
from fencelock.verification.simulation.nemesis import Nemesis
from fencelock.verification.simulation.planting import in_place, planted
from fencelock.verification.simulation.report import RunReport
from fencelock.verification.simulation.run import run_seed
from fencelock.verification.simulation.world import World

READER = Address("n2/reader")


class LedgerTick(Timer):
    pass


def kept(number: int) -> Alive:
    return Alive(session="kept", node="n1", request=number)


class JournaledLedger(Role[LedgerTick]):
    """Counts on over crashes; each fourth number and the one after it begin its journal anew.

    Its messages are never ahead of its disk: after a crash it continues at least from there.
    """

    count = 0

    def __init__(self, address: Address, host: Host, *, records: tuple[Message, ...]) -> None:
        super().__init__(address, host)
        numbers = [each.request for each in records if isinstance(each, Alive)]
        self.number = numbers[-1] if numbers else 0
        assert numbers == list(range(numbers[0], self.number + 1)) if numbers else True
        assert not numbers or numbers[0] % 4 == 0 or numbers[0] == 1
        assert len(numbers) < 20  # Each fourth step forgets, unless a crash forgets the step.

    def begin(self, now: Instant) -> Effects:
        return [Wake(2, LedgerTick())]

    def handle(self, sender: Address, event: LedgerTick, now: Instant) -> Effects:
        self.number += 1
        keep: Effect = Persist(kept(self.number))
        effects = [keep]
        if self.number % 4 == 1 and self.number > 1:
            # Records persisted before in this turn are covered, later ones are not.
            effects = [keep, Checkpoint((kept(self.number - 1), kept(self.number)))]
        say = Send(READER, KeepAlive(session=self.address, request=self.number))
        return [*effects, say, Wake(2, LedgerTick())]


class JournalReader(Role[KeepAlive]):
    """Demands that no ledger ever sends a number twice: it would have forgotten one it sent."""

    def __init__(self, address: Address, host: Host) -> None:
        super().__init__(address, host)
        self.received: dict[str, int] = {}

    def handle(self, sender: Address, event: KeepAlive, now: Instant) -> Effects:
        assert event.request > self.received.get(event.session, 0)
        self.received[event.session] = event.request
        return ()


def ledgers(context: NodeContext) -> RoleSet:
    clock = Spawn(address_of(context.node, "clock"), Clock)
    roles = [
        Spawn(
            address_of(context.node, name),
            JournaledLedger,
            {"records": context.journal.get(name, ())},
        )
        for name in ("first", "second")
    ]
    return RoleSet((clock, *roles))


def readers(context: NodeContext) -> RoleSet:
    return RoleSet((Spawn(address_of(context.node, "clock"), Clock), Spawn(READER, JournalReader)))


def test_a_crash_leaves_what_a_checkpoint_replaces_or_the_checkpoint() -> None:
    lost = 0
    for seed in range(20):
        faults = Faults(
            crash_in_sync_per_mille=50,
            crash_every_ms=500,
            tail_lost=True,
            sync_us=1_000,
            down_ms=20,
        )
        world = World(seed, faults)
        world.add("n1", ledgers, member=True)
        world.add("n2", readers, member=True)
        world.may_die_in_sync = frozenset({"n1"})
        world.power_on_all()
        Nemesis(world, ("n1",)).begin()
        world.run(3_000 * NS_PER_MS)
        assert world.nodes["n1"].lives > 3
        lost += world.fault_counts["records lost"]
        reader: Any = world.role_at(READER)
        assert min(reader.received.values()) > 50
    assert lost > 20


def test_a_checkpoint_is_on_the_disk_whole_or_not_at_all() -> None:
    seen: set[tuple[Message, ...]] = set()
    for seed in range(40):
        disk = Disk()
        disk.append("role", kept(1))
        disk.append("other", kept(100))
        disk.sync()
        disk.append("role", kept(2))
        disk.checkpoint("role", [kept(3), kept(4)])
        disk.append("role", kept(5))
        disk.crash(Random(seed), loses_tail=True)
        found = disk.records()
        assert found["other"] == (kept(100),)
        seen.add(found["role"])
    old = (kept(1),)
    new = (kept(3), kept(4))
    assert seen == {old, (*old, kept(2)), new, (*new, kept(5))}


JOURNAL = ProtocolSettings(central_journal=True)


def run(seed: int, server: type[LockServer] = LockServer) -> RunReport:
    make_roles = planted(central, in_place(server))
    return run_seed(make_roles, seed, settings=JOURNAL, promise=promise_of("central", JOURNAL))


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the lock server begin its journal anew every few records."""
    monkeypatch.setattr(server_module, "SERVER_RECORDS_MAX", 2)


@pytest.mark.long
@pytest.mark.usefixtures("often")
def test_a_lock_server_that_begins_its_journal_anew_breaks_no_promise() -> None:
    seen = clean(map(run, range(40)))
    assert seen["central.journal_begun_anew"] > 100
    assert seen["central.holdings_replayed"] > 20


def forgets(kind: type[Message]) -> type[LockServer]:
    """Return a server that leaves records out when it begins its journal anew."""

    class Forgets(LockServer):
        def _record(self, record: Message) -> Effects:
            return tuple(without(kind, effect) for effect in super()._record(record))

    return Forgets


def without(left_out: type[Message], effect: Effect) -> Effect:
    if not isinstance(effect, Checkpoint):
        return effect
    return Checkpoint(tuple(each for each in effect.records if not isinstance(each, left_out)))


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(("kind", "first"), [(Numbered, 0), (Held, 75)])
def test_a_checkpoint_that_leaves_something_out_is_caught(kind: type[Message], first: int) -> None:
    assert any(run(seed, forgets(kind)).violation is not None for seed in range(first, 600))
