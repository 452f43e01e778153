"""`Checkpoint` on both hosts: what stands for a role's earlier records, and for no other's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.dispatchers import StartRoles, dispatchers

from fencelock.actors.api.message import Acquire, Granted
from fencelock.actors.effect import Checkpoint, Effect, Effects, Persist, Send, Spawn
from fencelock.actors.message import Address, Instant, Local, Message, address_of
from fencelock.actors.role import Host, Role
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.storage.directory import JournalFailedError
from fencelock.cluster.node.storage.journal import Journal
from fencelock.transport.codec import decode

LONG_S = 60.0
FIRST, SECOND = address_of("n1", "first"), address_of("n1", "second")


class BlockCheckpoint(Local):
    entered: threading.Event
    leave: threading.Event


def record(number: int) -> Granted:
    return Granted(lock="record", fence=number)


class CheckpointClerk(Role[Acquire | BlockCheckpoint]):
    """Persists the number of each "persist"; at a "checkpoint" lets one stand for all before."""

    def __init__(self, address: Address, host: Host) -> None:
        super().__init__(address, host)
        self.number = 0

    def handle(self, sender: Address, event: Acquire | BlockCheckpoint, now: Instant) -> Effects:
        match event:
            case BlockCheckpoint():
                event.entered.set()
                event.leave.wait(LONG_S)
                return ()
            case Acquire():
                self.number += 1
                kept = record(self.number)
                keep: dict[str, Effect] = {
                    "persist": Persist(kept),
                    "checkpoint": Checkpoint((record(-self.number), kept)),
                    "nothing": Checkpoint(()),
                }
                return [keep[event.lock], Send(sender, kept)]


@pytest.fixture
def start() -> Iterator[StartRoles]:
    with dispatchers() as start:
        yield start


CLERKS = RoleSet((Spawn(FIRST, CheckpointClerk), Spawn(SECOND, CheckpointClerk)))


def kept(folder: Path) -> dict[str, tuple[Message, ...]]:
    with closing(Journal.open(folder)) as journal:
        found = journal.take_records()
    return {role: tuple(decode(each) for each in records) for role, records in found.items()}


def say(dispatcher: Dispatcher, role: Address, *words: str) -> None:
    for word in words:
        dispatcher.ref(role).ask(Acquire(lock=word), timeout=LONG_S)


def test_a_checkpoint_stands_for_what_its_own_role_wrote_before(
    start: StartRoles, tmp_path: Path
) -> None:
    dispatcher = start(CLERKS, Journal.open(tmp_path))
    say(dispatcher, FIRST, "persist", "persist")
    say(dispatcher, SECOND, "persist")
    say(dispatcher, FIRST, "persist", "checkpoint", "persist")
    say(dispatcher, SECOND, "persist")
    assert dispatcher.stop(LONG_S)
    assert kept(tmp_path) == {
        "first": (record(-4), record(4), record(5)),
        "second": (record(1), record(2)),
    }


def test_a_checkpoint_of_nothing_leaves_nothing(start: StartRoles, tmp_path: Path) -> None:
    dispatcher = start(CLERKS, Journal.open(tmp_path))
    say(dispatcher, FIRST, "persist", "nothing")
    assert dispatcher.stop(LONG_S)
    assert kept(tmp_path) == {}


def test_a_checkpoint_covers_what_was_persisted_earlier_in_its_turn_and_nothing_later(
    start: StartRoles, tmp_path: Path
) -> None:
    appended: list[int] = []

    class Counting(Journal):
        def append(self, entries: Any) -> None:
            appended.append(len(entries))
            super().append(entries)

    dispatcher = start(CLERKS, Counting.open(tmp_path))
    entered, leave = threading.Event(), threading.Event()
    dispatcher.ref(FIRST).tell(BlockCheckpoint(entered=entered, leave=leave))
    assert entered.wait(LONG_S)
    words = ("persist", "checkpoint", "persist")
    asked = [dispatcher.ref(FIRST).ask(Acquire(lock=word), block=False) for word in words]
    other = dispatcher.ref(SECOND).ask(Acquire(lock="persist"), block=False)
    leave.set()
    for future in (*asked, other):
        future.get(timeout=LONG_S)
    assert dispatcher.stop(LONG_S)
    assert appended == [6]
    found = kept(tmp_path)
    assert found == {"first": (record(-2), record(2), record(3)), "second": (record(1),)}


def failing(step: str) -> type[Journal]:
    """Return a journal on a disk that is full when it comes to ``step``."""

    def fail(journal: Journal) -> None:
        del journal
        raise JournalFailedError("no space left on device")

    return type("FullDisk", (Journal,), {step: fail})


def test_nothing_leaves_a_role_between_its_checkpoint_and_the_sync(
    start: StartRoles, tmp_path: Path
) -> None:
    dispatcher = start(CLERKS, failing("sync").open(tmp_path))
    asked = dispatcher.ref(FIRST).ask(Acquire(lock="checkpoint"), block=False)
    assert dispatcher.stopped.wait(LONG_S)
    with pytest.raises(Exception, match="has stopped"):
        asked.get(timeout=LONG_S)
    assert isinstance(dispatcher.failure, JournalFailedError)


def test_a_node_whose_disk_has_no_room_for_a_snapshot_stops(
    start: StartRoles, tmp_path: Path
) -> None:
    dispatcher = start(CLERKS, failing("trim").open(tmp_path))
    say(dispatcher, FIRST, "persist")  # It is durable, so it is answered.
    assert dispatcher.stopped.wait(LONG_S)
    assert isinstance(dispatcher.failure, JournalFailedError)


class SlowChild(Role[Acquire]):
    """Persists as it begins: what it is spawned by was held for the disk already."""

    def begin(self, now: Instant) -> Effects:
        return [Persist(record(9)), Send(FIRST, Acquire(lock="persist"))]

    def handle(self, sender: Address, event: Acquire, now: Instant) -> Effects:
        return ()


class CheckpointParent(CheckpointClerk):
    def handle(self, sender: Address, event: Acquire | BlockCheckpoint, now: Instant) -> Effects:
        effects = super().handle(sender, event, now)
        return [effects[0], Spawn(SECOND, SlowChild), *effects[1:]] if self.number == 1 else effects


def test_what_a_role_persists_that_was_spawned_by_what_was_held_is_written_at_once(
    start: StartRoles, tmp_path: Path
) -> None:
    dispatcher = start(RoleSet((Spawn(FIRST, CheckpointParent),)), Journal.open(tmp_path))
    say(dispatcher, FIRST, "persist")
    assert dispatcher.stop(LONG_S)
    assert kept(tmp_path) == {"first": (record(1), record(2)), "second": (record(9),)}
