"""The journal: records, checkpoints, what waits for them, and the room ahead of its groups."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pykka
import pytest
from support.expect import PATIENCE_S
from support.programs import Child
from support.role_harness import BlockThread, StartRoles, blocked, dispatchers
from support.samples import flipped

from fencelock.actors.api.lock_message import Acquire, Release
from fencelock.actors.effect import (
    Checkpoint,
    CheckpointPart,
    Effect,
    Effects,
    Persist,
    Send,
    Spawn,
)
from fencelock.actors.message import Address, Instant, Message, address_of
from fencelock.actors.role import Host, Role
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.host.scheduler import WAITING_PARTS_MAX
from fencelock.cluster.node.storage.directory import (
    LOCK_NAME,
    FolderBusyError,
    JournalDamagedError,
    JournalFailedError,
)
from fencelock.cluster.node.storage.journal import Journal
from fencelock.cluster.node.storage.record import GROUP_BYTES, HEADER_BYTES, Entry
from fencelock.cluster.node.storage.segment import ROOM_BYTES, ROOM_BYTES_MIN, segment_path
from fencelock.transport.codec import decode


def entries(*payloads: bytes) -> list[Entry]:
    return [Entry("role", payload) for payload in payloads]


def keep(folder: Path, *payloads: bytes) -> Path:
    with closing(Journal.open(folder)) as journal:
        journal.append(entries(*payloads))
        journal.sync()
        return journal.path


def kept(folder: Path) -> list[bytes]:
    with closing(Journal.open(folder)) as journal:
        return journal.take_records().get("role", [])


@pytest.fixture
def descriptors() -> Iterator[None]:
    before = sorted(os.listdir("/proc/self/fd"))
    yield
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.usefixtures("descriptors")
def test_appended_records_are_there_when_the_journal_is_opened_again(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "yet" / "there"
    keep(folder, b"a", b"b")
    keep(folder, b"c")
    assert kept(folder) == [b"a", b"b", b"c"]


def test_each_role_gets_its_own_records_once(tmp_path: Path) -> None:
    with closing(Journal.open(tmp_path)) as journal:
        journal.append([Entry("a", b"1"), Entry("b", b"2"), Entry("a", b"3")])
        journal.sync()
    with closing(Journal.open(tmp_path)) as journal:
        assert journal.take_records() == {"a": [b"1", b"3"], "b": [b"2"]}
        assert journal.take_records() == {}


def test_any_cut_or_flip_of_the_last_group_is_cut_and_the_journal_goes_on(tmp_path: Path) -> None:
    path = keep(tmp_path, b"a", b"b")
    before = path.stat().st_size
    with closing(Journal.open(tmp_path)) as journal:  # Makes the records that it found durable.
        assert path.stat().st_size == before + GROUP_BYTES
        journal.append([*entries(b"the last"), Entry("role", None), *entries(b"records")])
        journal.sync()
    whole = path.read_bytes()
    last = before + GROUP_BYTES
    cuts = [whole[:size] for size in range(last + 1, len(whole))]
    flips = [flipped(whole, at, 0x10) for at in range(last, len(whole))]
    for content in cuts + flips:
        path.write_bytes(content)
        with closing(Journal.open(tmp_path)) as journal:
            assert journal.take_records() == {"role": [b"a", b"b"]}
            assert journal.torn_bytes == len(content[last:].rstrip(b"\0"))
            journal.append(entries(b"c"))
            journal.sync()
        assert kept(tmp_path) == [b"a", b"b", b"c"]


@pytest.mark.usefixtures("descriptors")
def test_any_flipped_byte_of_what_a_start_relied_on_refuses(tmp_path: Path) -> None:
    path = keep(tmp_path, b"a", b"b")
    end = path.stat().st_size
    assert kept(tmp_path) == [b"a", b"b"]
    whole = path.read_bytes()
    for at in range(end):
        content = flipped(whole, at, 0x10)
        path.write_bytes(content)
        with pytest.raises(JournalDamagedError, match="is damaged at byte"):
            Journal.open(tmp_path)
        assert path.read_bytes() == content


def test_a_segment_that_cannot_be_one_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = keep(tmp_path, b"first")
    content = path.read_bytes()

    def read_nothing(path: Path) -> bytes:
        raise AssertionError(f"{path} was read")

    def link_to_zeros() -> None:
        path.symlink_to("/dev/zero")

    def make_long() -> None:
        path.write_bytes(content)
        os.truncate(path, 3 << 30)

    monkeypatch.setattr(Path, "read_bytes", read_nothing)
    for make, why in (
        (link_to_zeros, "no regular file"),
        (lambda: os.mkfifo(path), "no regular file"),
        (make_long, "has 3221225472 bytes, and a segment has at most"),
    ):
        path.unlink()
        make()
        with pytest.raises(JournalDamagedError, match=why):
            Journal.open(tmp_path)


def test_starting_again_and_again_writes_nothing_more(tmp_path: Path) -> None:
    path = keep(tmp_path, b"a")
    sizes: set[int] = set()
    for _ in range(3):
        assert kept(tmp_path) == [b"a"]
        sizes.add(path.stat().st_size)
    assert len(sizes) == 1


def test_a_journal_whose_making_was_interrupted_is_made_anew(tmp_path: Path) -> None:
    header = keep(tmp_path, b"a").read_bytes()[:HEADER_BYTES]
    for content in (*(header[:size] for size in range(HEADER_BYTES)), bytes(HEADER_BYTES)):
        segment_path(tmp_path, 1).write_bytes(content)
        keep(tmp_path, b"a")
        assert kept(tmp_path) == [b"a"]


def test_a_second_append_before_the_sync_is_a_bug_of_ours(tmp_path: Path) -> None:
    with closing(Journal.open(tmp_path)) as journal:
        journal.append(entries(b"a"))
        with pytest.raises(AssertionError, match="one-append-one-sync"):
            journal.append(entries(b"b"))
        with pytest.raises(AssertionError, match="not durable"):
            journal.trim()


def test_a_second_journal_in_the_same_process_is_refused(tmp_path: Path) -> None:
    with closing(Journal.open(tmp_path)) as journal:
        with pytest.raises(FolderBusyError) as caught:
            Journal.open(tmp_path)
        assert f"{tmp_path} is in use by process {os.getpid()}" in str(caught.value)
        journal.append(entries(b"a"))  # The refusal did no harm to the first one.
        journal.sync()
    assert kept(tmp_path) == [b"a"]


def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    holding = """
        import sys, pathlib
        from fencelock.cluster.node.storage.journal import Journal
        journal = Journal.open(pathlib.Path(sys.argv[1]))
        print("open")
        sys.stdin.read()
    """
    with Child("-u", "-c", textwrap.dedent(holding), str(tmp_path)) as process:
        assert process.line() == "open"
        with pytest.raises(FolderBusyError, match=f"in use by process {process.pid}:"):
            Journal.open(tmp_path)
        process.kill()
        process.wait(PATIENCE_S)
    assert kept(tmp_path) == []


def test_a_holder_that_cannot_be_named_is_unknown(tmp_path: Path) -> None:
    with closing(Journal.open(tmp_path)):
        (tmp_path / LOCK_NAME).write_bytes(b"\xff\xfe")
        with pytest.raises(FolderBusyError, match="in use by process unknown"):
            Journal.open(tmp_path)


def test_a_write_that_is_cut_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite

    def write_three(descriptor: int, content: memoryview, offset: int) -> int:
        return write(descriptor, content[:3], offset)

    with closing(Journal.open(tmp_path)) as journal:
        monkeypatch.setattr(os, "pwrite", write_three)
        journal.append(entries(b"a long record", b"and another"))
        journal.sync()
    monkeypatch.undo()
    assert kept(tmp_path) == [b"a long record", b"and another"]


def test_a_record_out_of_its_limits_writes_nothing(tmp_path: Path) -> None:
    with closing(Journal.open(tmp_path)) as journal:
        with pytest.raises(ValueError, match="1 to 1048576 bytes, not 0"):
            journal.append(entries(b"fine", b""))
        journal.append(entries(b"after"))
        journal.sync()
    assert kept(tmp_path) == [b"after"]


def test_a_closed_journal_refuses_and_may_be_closed_again(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    journal.close()
    journal.close()
    with pytest.raises(ValueError, match="is closed"):
        journal.append(entries(b"a"))


@pytest.mark.usefixtures("descriptors")
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(JournalFailedError, match=r"file/n1 cannot be opened"):
        Journal.open(tmp_path / "file" / "n1")


FIRST, SECOND = address_of("n1", "first"), address_of("n1", "second")


def record(number: int) -> Release:
    return Release(lock="record", fence=number)


class CheckpointClerk(Role[Acquire | BlockThread]):
    """Writes one more number for each request, in the way that its lock's name says, and replies
    with it; "after" writes nothing, and is answered with the last number."""

    def __init__(self, address: Address, host: Host) -> None:
        super().__init__(address, host)
        self.number = 0

    def handle(self, sender: Address, event: Acquire | BlockThread, now: Instant) -> Effects:
        match event:
            case BlockThread():
                event.wait()
                return ()
            case Acquire(lock="after"):
                return [Send(sender, record(self.number))]
            case Acquire():
                self.number += 1
                kept_by_role = record(self.number)
                keep: dict[str, Effect] = {
                    "persist": Persist(kept_by_role),
                    "part": CheckpointPart((kept_by_role,), first=True),
                    "checkpoint": Checkpoint((record(-self.number), kept_by_role)),
                    "nothing": Checkpoint(()),
                }
                return [keep[event.lock], Send(sender, kept_by_role)]


@pytest.fixture
def start() -> Iterator[StartRoles]:
    with dispatchers() as start:
        yield start


CLERKS = RoleSet((Spawn(FIRST, CheckpointClerk), Spawn(SECOND, CheckpointClerk)))


def kept_by_role(folder: Path) -> dict[str, tuple[Message, ...]]:
    with closing(Journal.open(folder)) as journal:
        found = journal.take_records()
    return {role: tuple(decode(each) for each in records) for role, records in found.items()}


def send(dispatcher: Dispatcher, role: Address, *words: str) -> None:
    for lock in words:
        dispatcher.ref(role).ask(Acquire(lock=lock), timeout=PATIENCE_S)


def test_a_checkpoint_stands_for_what_its_role_wrote(start: StartRoles, tmp_path: Path) -> None:
    dispatcher = start(CLERKS, Journal.open(tmp_path))
    send(dispatcher, FIRST, "persist", "persist")
    send(dispatcher, SECOND, "persist")
    send(dispatcher, FIRST, "persist", "checkpoint", "persist")
    send(dispatcher, SECOND, "persist")
    assert dispatcher.stop(PATIENCE_S)
    assert kept_by_role(tmp_path) == {
        "first": (record(-4), record(4), record(5)),
        "second": (record(1), record(2)),
    }


def test_a_checkpoint_of_nothing_leaves_nothing(start: StartRoles, tmp_path: Path) -> None:
    dispatcher = start(CLERKS, Journal.open(tmp_path))
    send(dispatcher, FIRST, "persist", "nothing")
    assert dispatcher.stop(PATIENCE_S)
    assert kept_by_role(tmp_path) == {}


def test_a_checkpoint_covers_what_was_persisted_earlier_in_its_turn_and_nothing_later(
    start: StartRoles, tmp_path: Path
) -> None:
    journal = CountingJournal.open(tmp_path)
    dispatcher = start(CLERKS, journal)
    leave = blocked(dispatcher.ref(FIRST))
    words = ("persist", "checkpoint", "persist")
    asked = [dispatcher.ref(FIRST).ask(Acquire(lock=lock), block=False) for lock in words]
    other = dispatcher.ref(SECOND).ask(Acquire(lock="persist"), block=False)
    leave.set()
    for future in (*asked, other):
        future.get(timeout=PATIENCE_S)
    assert dispatcher.stop(PATIENCE_S)
    assert journal.appended == [6]
    found = kept_by_role(tmp_path)
    assert found == {"first": (record(-2), record(2), record(3)), "second": (record(1),)}


def test_a_record_before_an_answer_is_on_the_disk(start: StartRoles, tmp_path: Path) -> None:
    dispatcher = start(CLERKS, Journal.open(tmp_path))
    send(dispatcher, FIRST, "persist")
    (journal,) = tmp_path.glob("*.journal")
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / journal.name).write_bytes(journal.read_bytes())  # As a crash here would leave it.
    assert kept_by_role(copy) == {"first": (record(1),)}


class CountingJournal(Journal):
    """Counts its groups, by their entries, and how often it waits for the disk."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.appended: list[int] = []
        self.syncs = 0

    def append(self, entries: Any) -> None:
        self.appended.append(len(entries))
        super().append(entries)

    def sync(self) -> None:
        self.syncs += 1
        super().sync()


def test_records_of_one_turn_share_one_sync(start: StartRoles, tmp_path: Path) -> None:
    journal = CountingJournal.open(tmp_path)
    ref = start(CLERKS, journal).ref(FIRST)
    leave = blocked(ref)
    futures = [ref.ask(Acquire(lock="persist"), block=False) for _ in range(50)]
    leave.set()
    assert [future.get(timeout=PATIENCE_S).fence for future in futures] == list(range(1, 51))
    assert journal.syncs == 1


def test_parts_of_a_checkpoint_wait_for_the_next_sync_and_keep_their_place(
    start: StartRoles, tmp_path: Path
) -> None:
    journal = CountingJournal.open(tmp_path)
    dispatcher = start(CLERKS, journal)
    send(dispatcher, FIRST, "persist", "part", "persist", "part", "part", "persist")
    assert journal.syncs == 3
    assert dispatcher.stop(PATIENCE_S)
    assert kept_by_role(tmp_path) == {"first": tuple(map(record, range(1, 7)))}


def test_parts_for_which_no_other_record_comes_are_synced_together(
    start: StartRoles, tmp_path: Path
) -> None:
    journal = CountingJournal.open(tmp_path)
    dispatcher = start(CLERKS, journal)
    for count in range(2 * WAITING_PARTS_MAX):
        send(dispatcher, FIRST, "part")
        assert journal.syncs in {count // WAITING_PARTS_MAX, (count + 1) // WAITING_PARTS_MAX}
    send(dispatcher, FIRST, "after")
    assert journal.syncs == 2


def test_nothing_leaves_before_the_sync_of_a_persist(start: StartRoles, tmp_path: Path) -> None:
    """The second reply depends on the record of the first event, and must also wait for it."""
    seen: list[bool] = []

    class Watched(Journal):
        def sync(self) -> None:
            seen.append(_is_set(second))
            super().sync()

    ref = start(CLERKS, Watched.open(tmp_path)).ref(FIRST)
    leave = blocked(ref)
    first = ref.ask(Acquire(lock="persist"), block=False)
    second = ref.ask(Acquire(lock="after"), block=False)
    leave.set()
    assert first.get(timeout=PATIENCE_S).fence == 1
    assert second.get(timeout=PATIENCE_S).fence == 1
    assert seen == [False]


def _is_set(future: pykka.Future[Any]) -> bool:
    try:
        future.get(timeout=0)
    except pykka.Timeout:
        return False
    return True


def failing(step: str) -> type[Journal]:
    """Return a journal on a disk that is full when it comes to ``step``."""

    def fail(journal: Journal) -> None:
        raise JournalFailedError("no space left on device")

    return type("FullDisk", (Journal,), {step: fail})


@pytest.mark.parametrize("word", ["persist", "checkpoint"])
def test_a_disk_that_fails_stops_the_node_before_it_sends(
    start: StartRoles, tmp_path: Path, word: str
) -> None:
    dispatcher = start(CLERKS, failing("sync").open(tmp_path))
    asked = dispatcher.ref(FIRST).ask(Acquire(lock=word), block=False)
    assert dispatcher.stopped.wait(PATIENCE_S)
    with pytest.raises(pykka.ActorDeadError, match="has stopped"):
        asked.get(timeout=PATIENCE_S)
    assert isinstance(dispatcher.failure, JournalFailedError)


def test_a_node_whose_disk_has_no_room_for_a_snapshot_stops(
    start: StartRoles, tmp_path: Path
) -> None:
    dispatcher = start(CLERKS, failing("trim").open(tmp_path))
    send(dispatcher, FIRST, "persist")  # It is durable, so it is answered.
    assert dispatcher.stopped.wait(PATIENCE_S)
    assert isinstance(dispatcher.failure, JournalFailedError)


class SlowChild(Role[Acquire]):
    """Persists as it begins: what it is spawned by was held for the disk already."""

    def begin(self, now: Instant) -> Effects:
        return [Persist(record(9)), Send(FIRST, Acquire(lock="persist"))]

    def handle(self, sender: Address, event: Acquire, now: Instant) -> Effects:
        return ()


class CheckpointParent(CheckpointClerk):
    def handle(self, sender: Address, event: Acquire | BlockThread, now: Instant) -> Effects:
        effects = super().handle(sender, event, now)
        return [effects[0], Spawn(SECOND, SlowChild), *effects[1:]] if self.number == 1 else effects


def test_a_record_of_a_role_that_was_spawned_by_a_held_event_is_written_at_once(
    start: StartRoles, tmp_path: Path
) -> None:
    dispatcher = start(RoleSet((Spawn(FIRST, CheckpointParent),)), Journal.open(tmp_path))
    send(dispatcher, FIRST, "persist")
    assert dispatcher.stop(PATIENCE_S)
    assert kept_by_role(tmp_path) == {"first": (record(1), record(2)), "second": (record(9),)}


SECTOR = 512
"""Size of the blocks that a disk writes whole or not at all (bytes)."""

SMALL = 8_000
"""Length of a segment here (bytes)."""


def opened(folder: Path, size: int = SMALL) -> closing[Journal]:
    return closing(Journal.open(folder, segment_bytes_max=size))


def write(journal: Journal, *payloads: bytes) -> None:
    """Write a group as a node does, which makes room after it."""
    journal.append(entries(*payloads))
    journal.sync()
    journal.trim()


def last_of(folder: Path) -> Path:
    return max(folder.glob("*.journal"))


def noise(seed: int, size: int) -> bytes:
    return Random(seed).randbytes(size)


def crashes(before: bytes, after: bytes, picks: Iterator[tuple[bool, ...]]) -> Iterator[bytes]:
    """Yield the possible contents after a crash in a write: any of its sectors are written, no
    others."""
    changed = [
        at
        for at in range(0, len(after), SECTOR)
        if before[at : at + SECTOR] != after[at : at + SECTOR]
    ]
    for picked in picks:
        content = bytearray(before.ljust(len(after), b"\0"))
        for at, reached in zip(changed, picked, strict=False):
            if reached:
                content[at : at + SECTOR] = after[at : at + SECTOR]
        yield bytes(content)


def written_once_more(folder: Path, *payloads: bytes) -> tuple[bytes, bytes]:
    """Append one more group; return the segment before and after."""
    with opened(folder) as journal:
        before = journal.path.read_bytes()
        journal.append(entries(*payloads))
        after = journal.path.read_bytes()
        assert (len(before), len(after)) == (SMALL, SMALL)
    return before, after


def test_room_is_made_after_the_first_group_and_again_when_little_is_left(tmp_path: Path) -> None:
    with closing(Journal.open(tmp_path)) as journal:
        assert journal.path.stat().st_size < 100
        sizes: list[int] = []
        for _ in range(30):
            write(journal, b"x" * 50_000)
            size = journal.path.stat().st_size
            if size not in sizes:
                assert size == journal.disk_bytes + ROOM_BYTES
                sizes.append(size)
            assert size - journal.disk_bytes >= ROOM_BYTES_MIN
        size = journal.disk_bytes
        assert size // ROOM_BYTES < len(sizes) <= 1 + size // ROOM_BYTES_MIN
        assert journal.path.read_bytes()[journal.disk_bytes :].strip(b"\0") == b""


def test_room_ends_where_the_segment_does_and_a_full_one_has_none(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        while journal.path == segment_path(tmp_path, 1):
            write(journal, b"x" * 300)
            assert journal.path.stat().st_size == SMALL or journal.disk_bytes > SMALL
        full = segment_path(tmp_path, 1)
        assert SMALL < full.stat().st_size < SMALL + 400
        assert full.read_bytes()[-300:] == b"x" * 300


def test_a_start_goes_on_in_the_room_that_is_there(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        write(journal, b"a")
    for number in range(3):
        with opened(tmp_path) as journal:
            assert journal.torn_bytes == 0
            write(journal, b"%d" % number)
        assert last_of(tmp_path).stat().st_size == SMALL
    assert kept(tmp_path) == [b"a", b"0", b"1", b"2"]


def test_a_group_larger_than_the_room_makes_the_file_longer(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        write(journal, b"a")
        write(journal, b"x" * 3 * SMALL)
        write(journal, b"b")
    assert kept(tmp_path) == [b"a", b"x" * 3 * SMALL, b"b"]


def test_any_sectors_of_a_write_into_the_room_may_have_reached_the_disk(tmp_path: Path) -> None:
    """Every choice of sectors: the rest of one write is never taken for a part of the next."""
    with opened(tmp_path) as journal:
        write(journal, b"a", b"b")
    with opened(tmp_path):
        pass  # Proves that the above was durable.
    before, after = written_once_more(tmp_path, noise(1, 700), bytes(600), noise(2, 900))
    path = last_of(tmp_path)
    found: set[int] = set()
    for content in crashes(before, after, product([False, True], repeat=6)):
        path.write_bytes(content)
        with opened(tmp_path) as journal:
            records = journal.take_records()["role"]
            assert records == [b"a", b"b"] or content == after
            assert (journal.torn_bytes == 0) == (content in {before, after})
            found.add(len(records))
            write(journal, b"c")
        with opened(tmp_path) as journal:
            assert journal.take_records()["role"] == [*records, b"c"]
            assert journal.torn_bytes == 0
    assert found == {2, 5}


def test_crash_after_crash_leaves_what_was_promised_and_nothing_else(tmp_path: Path) -> None:
    """Each crash tears a write at the place where others were torn before it."""
    random = Random(7)
    promised: list[bytes] = []
    with opened(tmp_path) as journal:
        write(journal)
    torn = 0
    for number in range(120):
        with opened(tmp_path) as journal:
            found = journal.take_records().get("role", [])
            assert found[: len(promised)] == promised
            assert len(found) in {len(promised), len(promised) + 1}
            torn += journal.torn_bytes > 0
            promised = found
            if number % 3 == 0:
                write(journal, b"kept %d" % number)
                promised = [*promised, b"kept %d" % number]
            path, before = journal.path, journal.path.read_bytes()
            journal.append(entries(noise(number, random.randrange(1, 2_000))))
            if journal.path != path:
                path, before = journal.path, b""
            after = path.read_bytes()
        if before:
            picks = iter([tuple(random.random() < 0.6 for _ in range(6))])
            path.write_bytes(next(crashes(before, after, picks)))
    assert torn > 20
    assert int(last_of(tmp_path).stem) > 3


def test_a_crash_while_room_is_made_leaves_any_part_of_it(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        write(journal, b"a")
        end = journal.disk_bytes
        whole = journal.path.read_bytes()
    for size in (end, end + 1, end + SECTOR, SMALL - 1):
        last_of(tmp_path).write_bytes(whole[:size])
        with opened(tmp_path) as journal:
            assert journal.take_records() == {"role": [b"a"]}
            assert journal.torn_bytes == 0
            write(journal, b"b")
        assert kept(tmp_path) == [b"a", b"b"]


def test_an_older_segment_that_lost_its_last_group_to_zeros_is_noticed(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        while journal.path == segment_path(tmp_path, 1):
            write(journal, b"x" * 300)
    full = segment_path(tmp_path, 1)
    whole = full.read_bytes()
    full.write_bytes(whole[:-350] + bytes(350))
    with pytest.raises(JournalDamagedError, match=r"damaged at byte|go on where the file before"):
        Journal.open(tmp_path)
    full.write_bytes(whole + bytes(1000))  # Room alone is no record.
    assert set(kept(tmp_path)) == {b"x" * 300}
