"""The dispatcher and a real disk: messages leave after their records are durable, and a turn syncs
once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pykka
import pytest
from support.dispatchers import dispatchers

from fencelock.actors.api.message import Acquire, Granted
from fencelock.actors.effect import CheckpointPart, Effects, Persist, Send, Spawn
from fencelock.actors.message import Address, Instant, Local, address_of
from fencelock.actors.role import Host, Role
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.host.scheduler import PARTS_MAX
from fencelock.cluster.node.storage.directory import JournalFailedError
from fencelock.cluster.node.storage.journal import Journal
from fencelock.transport.codec import decode
from fencelock.transport.hub import SocketHub

LONG_S = 20.0
ROLE = address_of("n1", "role")
Start = Callable[..., Dispatcher]


class BlockDisk(Local):
    entered: threading.Event
    leave: threading.Event


class PersistingClerk(Role[Acquire | BlockDisk]):
    """Persists a number for each "persist", and tells the last one for anything else.

    For each "part" it begins a checkpoint.
    """

    def __init__(self, address: Address, host: Host) -> None:
        super().__init__(address, host)
        self.persisted = 0

    def handle(self, sender: Address, event: Acquire | BlockDisk, now: Instant) -> Effects:
        match event:
            case Acquire(lock="persist"):
                self.persisted += 1
                record = Granted(lock="persist", fence=self.persisted)
                return [Persist(record), Send(sender, record)]
            case Acquire(lock="part"):
                record = Granted(lock="part", fence=self.persisted)
                return [CheckpointPart((record,), first=True), Send(sender, record)]
            case Acquire():
                return [Send(sender, Granted(lock=event.lock, fence=self.persisted))]
            case BlockDisk():
                event.entered.set()
                event.leave.wait(LONG_S)
                return ()


@pytest.fixture
def start() -> Iterator[Start]:
    with dispatchers() as start:

        def start_clerk(journal: Journal) -> Dispatcher:
            return start(RoleSet((Spawn(ROLE, PersistingClerk),)), journal)

        yield start_clerk


def test_what_was_answered_after_a_persist_is_on_the_disk(start: Start, tmp_path: Path) -> None:
    dispatcher = start(Journal.open(tmp_path))
    granted = dispatcher.ref(ROLE).ask(Acquire(lock="persist"), timeout=LONG_S)
    (journal,) = tmp_path.glob("*.journal")
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / journal.name).write_bytes(journal.read_bytes())  # As a crash here would leave it.
    reopened = Journal.open(copy)
    (records,) = reopened.take_records().values()
    assert [decode(record) for record in records] == [granted]
    reopened.close()


class CountingJournal(Journal):
    syncs = 0

    def sync(self) -> None:
        self.syncs += 1
        super().sync()


def test_records_of_one_turn_share_one_sync(start: Start, tmp_path: Path) -> None:
    journal = CountingJournal.open(tmp_path)
    ref = start(journal).ref(ROLE)
    entered, leave = threading.Event(), threading.Event()
    ref.tell(BlockDisk(entered=entered, leave=leave))
    assert entered.wait(LONG_S)
    futures = [ref.ask(Acquire(lock="persist"), block=False) for _ in range(50)]
    leave.set()
    assert [future.get(timeout=LONG_S).fence for future in futures] == list(range(1, 51))
    assert journal.syncs == 1


def test_parts_of_a_checkpoint_wait_for_the_next_sync_and_keep_their_place(
    start: Start, tmp_path: Path
) -> None:
    journal = CountingJournal.open(tmp_path)
    ref = start(journal).ref(ROLE)
    locks = ["persist", "part", "persist", "part", "part", "persist"]
    for lock in locks:
        ref.ask(Acquire(lock=lock), timeout=LONG_S)
    assert journal.syncs == 3
    ref.stop()
    with closing(Journal.open(tmp_path)) as reopened:
        (records,) = reopened.take_records().values()
    written = [decode(record) for record in records]
    assert [one.lock for one in written if isinstance(one, Granted)] == locks


def test_parts_for_which_no_other_record_comes_are_synced_together(
    start: Start, tmp_path: Path
) -> None:
    journal = CountingJournal.open(tmp_path)
    ref = start(journal).ref(ROLE)
    for count in range(2 * PARTS_MAX):
        ref.ask(Acquire(lock="part"), timeout=LONG_S)
        assert journal.syncs in {count // PARTS_MAX, (count + 1) // PARTS_MAX}
    ref.ask(Acquire(lock="after"), timeout=LONG_S)
    assert journal.syncs == 2


def test_nothing_leaves_a_role_between_its_persist_and_the_sync(
    start: Start, tmp_path: Path
) -> None:
    """The second reply depends on the record of the first event, and must also wait for it."""
    seen: list[bool] = []

    class Watched(CountingJournal):
        def sync(self) -> None:
            seen.append(second.get(timeout=0) is not None if _is_set(second) else False)
            super().sync()

    ref = start(Watched.open(tmp_path)).ref(ROLE)
    entered, leave = threading.Event(), threading.Event()
    ref.tell(BlockDisk(entered=entered, leave=leave))
    assert entered.wait(LONG_S)
    first = ref.ask(Acquire(lock="persist"), block=False)
    second = ref.ask(Acquire(lock="after"), block=False)
    leave.set()
    assert first.get(timeout=LONG_S).fence == 1
    assert second.get(timeout=LONG_S).fence == 1
    assert seen == [False]


def _is_set(future: pykka.Future[Any]) -> bool:
    try:
        future.get(timeout=0)
    except pykka.Timeout:
        return False
    return True


def test_a_disk_that_fails_stops_the_node_before_it_speaks_of_what_it_could_not_write(
    tmp_path: Path,
) -> None:
    class RaisesAfterPersist(Journal):
        def sync(self) -> None:
            raise JournalFailedError("no space left on device")

    hub = SocketHub(
        node="n1", boot=1, cluster="c", listen=None, peers={}, count=lambda name, times: None
    )
    dispatcher = Dispatcher("n1", hub, journal=RaisesAfterPersist.open(tmp_path))
    dispatcher.start(RoleSet((Spawn(ROLE, PersistingClerk),)))
    asked = dispatcher.ref(ROLE).ask(Acquire(lock="persist"), block=False)
    assert dispatcher.stopped.wait(LONG_S)
    assert isinstance(dispatcher.failure, JournalFailedError)
    with pytest.raises(pykka.ActorDeadError):
        asked.get(timeout=LONG_S)
