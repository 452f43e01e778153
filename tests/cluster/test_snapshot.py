"""Segments and snapshots: their records, their size, and the detection of damage."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.samples import flipped

from fencelock.cluster.node.storage.directory import JournalDamagedError, JournalFailedError
from fencelock.cluster.node.storage.journal import Journal
from fencelock.cluster.node.storage.record import HEADER_BYTES, Entry, Mark
from fencelock.cluster.node.storage.segment import CHUNK_BYTES, segment_path

SMALL = 2_000
"""Length of a segment here (bytes)."""


def opened(folder: Path, size: int = SMALL) -> closing[Journal]:
    return closing(Journal.open(folder, segment_bytes_max=size))


def kept(folder: Path) -> dict[str, list[bytes]]:
    with opened(folder) as journal:
        return journal.take_records()


def write(journal: Journal, *entries: Entry) -> None:
    journal.append(entries)
    journal.sync()
    journal.trim()


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name != "lock")


def names(folder: Path) -> list[str]:
    return [path.name for path in files(folder)]


def sizes(folder: Path) -> int:
    return sum(path.stat().st_size for path in files(folder))


def written(path: Path) -> bytes:
    """Return the content of a file without the room behind it; no group of a segment ends in zeros.

    A header may, and the last group of a snapshot: their checksums depend on a random salt.
    """
    content = path.read_bytes()
    if path.suffix == ".snapshot":
        return content  # No room is made there.
    return content[:HEADER_BYTES] + content[HEADER_BYTES:].rstrip(b"\0")


def payload(number: int) -> bytes:
    return b"%d" % number * 20


@pytest.fixture
def segmented(tmp_path: Path) -> Path:
    """A folder with four segments."""
    with opened(tmp_path) as journal:
        for number in range(100):
            write(journal, Entry("role", payload(number)))
            if journal.path == segment_path(tmp_path, 4):
                break
    assert names(tmp_path) == [f"0000000{number}.journal" for number in range(1, 5)]
    return tmp_path


@pytest.fixture
def trimmed(tmp_path: Path) -> Path:
    """A folder with a snapshot and a segment; beside it, in ``before``, as it was right before."""
    folder, before = tmp_path / "now", tmp_path / "before"
    with opened(folder) as journal:
        write(journal, Entry("quiet", b"here from the start"))
        for number in range(1000):
            journal.append([Entry("role", None), Entry("role", payload(number))])
            journal.sync()
            shutil.copytree(folder, before, dirs_exist_ok=True)
            full = journal.disk_bytes
            journal.trim()
            if journal.disk_bytes < full:
                break
        write(journal, Entry("role", b"after"))
    (number,) = [int(path.stem) for path in folder.glob("*.snapshot")]
    assert names(folder) == [f"{number:08d}.journal", f"{number:08d}.snapshot"]
    return folder


def test_a_segment_that_is_full_gets_a_successor(segmented: Path) -> None:
    found = kept(segmented)["role"]
    assert found == [payload(number) for number in range(len(found))]
    for number in range(1, 4):
        assert SMALL < segment_path(segmented, number).stat().st_size < SMALL + 200


def test_a_missing_segment_is_noticed(segmented: Path) -> None:
    for number in range(1, 4):
        content = segment_path(segmented, number).read_bytes()
        segment_path(segmented, number).unlink()
        with pytest.raises(JournalDamagedError, match=f"0{number}.journal is missing"):
            Journal.open(segmented)
        segment_path(segmented, number).write_bytes(content)


def test_a_segment_in_the_place_of_another_is_noticed(segmented: Path, tmp_path: Path) -> None:
    shutil.copy(segment_path(segmented, 3), segment_path(segmented, 2))
    with pytest.raises(JournalDamagedError, match="the segment 3 from group"):
        Journal.open(segmented)
    with opened(tmp_path / "other") as journal:
        while journal.path != segment_path(tmp_path / "other", 3):
            write(journal, Entry("role", payload(7)))
    shutil.copy(segment_path(tmp_path / "other", 2), segment_path(segmented, 2))
    with pytest.raises(JournalDamagedError, match="does not go on where the file before it ends"):
        Journal.open(segmented)


def test_only_the_last_segment_may_end_in_an_unfinished_write(segmented: Path) -> None:
    path = segment_path(segmented, 2)
    whole = path.read_bytes()
    for content in (whole[:-1], whole[:60], whole[:HEADER_BYTES], whole[:10], b""):
        path.write_bytes(content)
        with pytest.raises(
            JournalDamagedError, match=r"what came after it was written|go on where"
        ):
            Journal.open(segmented)
        assert path.read_bytes() == content
    path.write_bytes(whole)
    last = segment_path(segmented, 4)
    last.write_bytes(written(last)[:-1])
    with opened(segmented) as journal:
        assert journal.torn_bytes > 0


def test_any_flipped_byte_of_a_full_segment_refuses(segmented: Path) -> None:
    path = segment_path(segmented, 2)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(flipped(whole, at, 1))
        with pytest.raises(JournalDamagedError):
            Journal.open(segmented)


def test_a_successor_that_was_being_made_is_made_anew(segmented: Path) -> None:
    before = kept(segmented)
    header = segment_path(segmented, 4).read_bytes()[:HEADER_BYTES]
    for content in (header[:20], bytes(HEADER_BYTES), b""):
        segment_path(segmented, 5).write_bytes(content)
        assert kept(segmented) == before
        assert not segment_path(segmented, 5).exists()


def test_a_damaged_snapshot_refuses_at_every_byte_once_the_segments_are_gone(trimmed: Path) -> None:
    (path,) = trimmed.glob("*.snapshot")
    whole = path.read_bytes()
    spoilt = [flipped(whole, at, 1) for at in range(len(whole))]
    for content in [*spoilt, *(whole[:size] for size in range(len(whole))), whole + b"\0"]:
        path.write_bytes(content)
        with pytest.raises(JournalDamagedError):
            Journal.open(trimmed)
        assert path.read_bytes() == content
    path.unlink()
    with pytest.raises(JournalDamagedError, match=r"00000001\.journal is missing"):
        Journal.open(trimmed)


def test_a_snapshot_without_its_segment_refuses(trimmed: Path) -> None:
    (path,) = trimmed.glob("*.journal")
    header = path.read_bytes()[:HEADER_BYTES]
    path.write_bytes(header[:-1])  # It was durable before the snapshot was: this is no crash.
    with pytest.raises(JournalDamagedError):
        Journal.open(trimmed)
    path.unlink()
    with pytest.raises(JournalDamagedError, match=r"\.journal is missing"):
        Journal.open(trimmed)


def test_a_damaged_snapshot_does_no_harm_while_all_it_stands_for_is_there(
    trimmed: Path, tmp_path: Path
) -> None:
    found = kept(trimmed)
    for older in (tmp_path / "before").glob("*.journal"):
        shutil.copy(older, trimmed)  # As right after the snapshot got its name.
    (path,) = trimmed.glob("*.snapshot")
    path.write_bytes(path.read_bytes()[:-1])
    assert kept(trimmed) == found
    assert not path.exists()
    assert kept(trimmed) == found


def test_rests_of_interrupted_removals_or_snapshots_go(trimmed: Path, tmp_path: Path) -> None:
    found, files = kept(trimmed), names(trimmed)
    shutil.copy(segment_path(tmp_path / "before", 1), trimmed)
    (trimmed / "00000009.partial").write_bytes(b"half a snapshot")
    assert kept(trimmed) == found
    assert names(trimmed) == files


def test_records_that_cannot_be_read_back_are_not_replaced_by_a_snapshot(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        write(journal, Entry("role", payload(1)))
        last = len(written(journal.path)) - 1
        journal.path.write_bytes(flipped(journal.path.read_bytes(), last, 1))
        write(journal, *[Entry("other", b"x" * 900)] * 9)
        with pytest.raises(JournalFailedError, match=r"could not be trimmed: .* damaged at byte"):
            write(journal, Entry("other", None))
    with pytest.raises(JournalDamagedError):
        Journal.open(tmp_path)


def test_a_file_that_lost_its_end_meanwhile_is_not_replaced_by_a_snapshot(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        first = journal.path
        for _ in range(9):
            write(journal, Entry("role", payload(1)), Entry("other", b"x" * 900))
        os.truncate(first, len(written(first)) - 1)
        with pytest.raises(JournalFailedError, match=f"{first} is damaged: its end is gone"):
            write(journal, Entry("other", None))


def test_a_snapshot_is_written_in_chunks(tmp_path: Path) -> None:
    big = [Entry("big", b"%d" % number * 60_000) for number in range(10, 20)]
    with opened(tmp_path) as journal:
        write(journal, *big, *[Entry("role", b"x" * 900_000)] * 5)
        write(journal, Entry("role", None))
    assert names(tmp_path) == ["00000003.journal", "00000003.snapshot"]
    assert sizes(tmp_path) > 4 * CHUNK_BYTES
    assert kept(tmp_path) == {"big": [entry.payload for entry in big]}


def test_a_large_checkpoint_in_parts_stays_where_it_was_written(tmp_path: Path) -> None:
    """Only the few records of others in front of it move into a snapshot."""
    parts = [Entry("table", b"%d" % number * 10_000) for number in range(10, 20)]
    with opened(tmp_path) as journal:
        write(journal, Entry("quiet", b"q"))
        for turn in range(3):
            write(journal, Entry("table", Mark.BEGIN))
            for number, part in enumerate(parts):
                write(journal, part)
                write(journal, Entry("other", b"%d" % number))
            write(journal, Entry("table", Mark.END), Entry("other", None))
            written_bytes = len(parts) * 20_000
            assert journal.disk_bytes < written_bytes + 4 * SMALL
            snapshots = list(tmp_path.glob("*.snapshot"))
            assert snapshots or not turn
            assert all(snapshot.stat().st_size < SMALL for snapshot in snapshots)
            for _ in range(9):
                write(journal)  # Removes what was replaced.
            assert sizes(tmp_path) < written_bytes + 5 * SMALL
    assert kept(tmp_path) == {"quiet": [b"q"], "table": [part.payload for part in parts]}


def test_an_unfinished_checkpoint_is_read_beside_what_it_was_to_replace(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        write(journal, Entry("table", b"old"), Entry("other", b"o"))
        write(journal, Entry("table", Mark.BEGIN), Entry("table", b"half"))
    assert kept(tmp_path) == {"table": [b"old", b"half"], "other": [b"o"]}
    with opened(tmp_path) as journal:
        write(journal, Entry("table", Mark.BEGIN), Entry("table", b"new 1"))
        write(journal, Entry("table", b"persisted meanwhile"))
        write(journal, Entry("table", b"new 2"), Entry("table", Mark.END))
    new = [b"new 1", b"persisted meanwhile", b"new 2"]
    assert kept(tmp_path) == {"table": new, "other": [b"o"]}


def test_no_file_is_replaced_in_which_an_unfinished_checkpoint_began(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        write(journal, Entry("table", b"old" * 50))
        write(journal, Entry("table", Mark.BEGIN), Entry("table", b"new 1"))
        for number in range(40):
            write(journal, Entry("other", None), Entry("other", b"%d" % number * 100))
        assert not list(tmp_path.glob("*.snapshot"))
        write(journal, Entry("table", b"new 2"), Entry("table", Mark.END))
        assert list(tmp_path.glob("*.snapshot"))
    assert kept(tmp_path)["table"] == [b"new 1", b"new 2"]


def test_room_stays_bounded_and_the_work_for_it_too(tmp_path: Path) -> None:
    """Two roles that begin anew at different times, one that wrote once, for long."""
    most = 0
    with opened(tmp_path, size=20_000) as journal:
        write(journal, Entry("quiet", b"q"))
        for number in range(6_000):
            fast = [Entry("fast", None)] if number % 10 == 0 else []
            slow = [Entry("slow", None)] if number % 100 == 0 else []
            write(journal, *fast, *slow, Entry("fast", payload(1)), Entry("slow", payload(2)))
            if number % 50 == 0:
                most = max(most, journal.disk_bytes)
                assert sizes(tmp_path) <= journal.disk_bytes + 20_000
                assert journal.disk_bytes == sum(len(written(path)) for path in files(tmp_path))
        last = journal.path
    assert 20_000 < most < 40_000
    assert 10 < int(last.stem) < 100
    found = kept(tmp_path)
    assert found == {"quiet": [b"q"], "fast": [payload(1)] * 10, "slow": [payload(2)] * 100}


STEPS = st.lists(
    st.lists(
        st.builds(
            Entry,
            st.sampled_from(["a", "b", "c"]),
            st.none() | st.sampled_from(Mark) | st.binary(min_size=1, max_size=80),
        ),
        max_size=6,
    ),
    max_size=60,
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(STEPS, st.sets(st.integers(0, 60)))
def test_a_journal_returns_the_records_that_roles_wrote_and_did_not_forget(
    tmp_path: Path, steps: list[list[Entry]], restarts: set[int]
) -> None:
    shutil.rmtree(tmp_path)
    model: dict[str, list[bytes]] = {}
    begun: dict[str, int] = {}
    journal = Journal.open(tmp_path, segment_bytes_max=300)
    for number, entries in enumerate(steps):
        write(journal, *entries)
        before = {stream: len(records) for stream, records in model.items()}
        for stream, record in entries:
            if record is None:
                for each in (model, begun, before):
                    each.pop(stream, None)
            elif record is Mark.BEGIN:
                begun[stream] = before.get(stream, 0)
            elif record is Mark.END:
                ended = begun.pop(stream, 0)
                del model.get(stream, [])[:ended]
                before[stream] = max(0, before.get(stream, 0) - ended)
            else:
                model.setdefault(stream, []).append(record)
        model = {stream: records for stream, records in model.items() if records}
        if number in restarts:
            journal.close()
            journal = Journal.open(tmp_path, segment_bytes_max=300)
            assert journal.take_records() == model
    journal.close()
    assert kept(tmp_path) == model
