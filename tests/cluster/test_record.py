from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.samples import flipped

from fencelock.cluster.node.storage import record
from fencelock.cluster.node.storage.directory import JournalDamagedError
from fencelock.cluster.node.storage.record import (
    BLOCK_BITS,
    CHECKSUM,
    ENTRY,
    FORMAT_VERSION,
    GROUP,
    GROUP_BYTES,
    HEADER_BYTES,
    PREAMBLE_BYTES,
    RECORD_BYTES_MAX,
    Entry,
    FileKind,
    Group,
    Header,
    Mark,
    Scan,
    _group_at,  # pyright: ignore[reportPrivateUsage]
    encode_group,
    encode_header,
    entries_of,
    scan,
)

SALT = b"saltsalt"
HEADER = Header(FileKind.SEGMENT, 1, 1, SALT, bytes(8))
A = [Entry("acceptor", b"first"), Entry("server", b"second record")]
B = [Entry("acceptor", None), Entry("acceptor", b"the third")]
C = [Entry("server", b"x" * 100)]


def file_of(*groups: list[Entry], header: Header = HEADER) -> bytes:
    content = encode_header(header)
    for sequence, entries in enumerate(groups, start=header.first):
        content += encode_group(entries, salt=header.salt, offset=len(content), sequence=sequence)
    return content


def read(content: bytes) -> list[list[Entry]]:
    return [list(entries_of(content, group, "journal.bin")) for group in scan_of(content).groups]


def scan_of(content: bytes) -> Scan:
    return scan(content, "journal.bin", FileKind.SEGMENT)


def torn(content: bytes) -> bool:
    """Return whether all but the last group is read, and the rest is an unfinished write."""
    found = scan_of(content)
    assert read(content) == [A, B]
    written = content[BEFORE_LAST:].rstrip(b"\0")  # The rest may be room that was made.
    return (found.end, found.torn) == (BEFORE_LAST, len(written))


WHOLE = file_of(A, B, C)
BEFORE_LAST = len(file_of(A, B))
PATTERNS = st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 4000)), min_size=1, max_size=9)


def test_the_layout_is_pinned() -> None:
    preamble = "66656e63656c6f67" + "05000000" + "f1d28a06"  # The name, the version, the checksum.
    filed = "01000000" + "0100000000000000" + "0100000000000000" + SALT.hex() + "00" * 8
    assert encode_header(HEADER).hex() == preamble + filed + "84747779"
    prefix = SALT.hex() + "3800000000000000" + "0300000000000000" + "08000000"
    body = "01" + "02000000" + "72" + "6162"
    group = encode_group([Entry("r", b"ab")], salt=SALT, offset=56, sequence=3)
    assert group.hex() == prefix + "722838b6" + "c18f0700" + body
    snapshot = encode_header(HEADER._replace(kind=FileKind.SNAPSHOT)).hex()
    assert snapshot.startswith(preamble + "02000000")
    marks = [Entry("r", None), Entry("r", Mark.BEGIN), Entry("r", Mark.END)]
    group = encode_group(marks, salt=SALT, offset=56, sequence=3)
    assert group.hex().endswith("010000000072" + "01feffffff72" + "01ffffffff72")


@given(
    st.lists(
        st.lists(
            st.builds(
                Entry,
                st.text(min_size=1, max_size=60),
                st.none() | st.binary(min_size=1, max_size=300),
            ),
            max_size=5,
        ),
        max_size=9,
    )
)
def test_written_records_are_read_back_in_order(groups: list[list[Entry]]) -> None:
    content = file_of(*groups)
    assert read(content) == groups
    assert scan_of(content)[2:] == (len(content), 0)


def test_a_file_cut_anywhere_in_its_last_group_keeps_all_others() -> None:
    for size in range(BEFORE_LAST + 1, len(WHOLE)):
        assert torn(WHOLE[:size])


def test_any_flipped_bit_of_the_last_group_is_an_unfinished_write() -> None:
    for at in range(BEFORE_LAST, len(WHOLE)):
        for bit in range(8):
            assert torn(flipped(WHOLE, at, 1 << bit))


def test_any_flipped_bit_before_the_last_group_is_damage() -> None:
    for at in range(BEFORE_LAST):
        for bit in range(8):
            with pytest.raises(JournalDamagedError, match=r"journal\.bin is damaged at byte"):
                scan_of(flipped(WHOLE, at, 1 << bit))


@given(PATTERNS)
def test_holes_in_the_last_group_are_an_unfinished_write(holes: list[tuple[int, int]]) -> None:
    """Its pages reach the disk in any order, and look like records of others."""
    inner = file_of(A, B)
    big = [Entry("server", inner * 8), Entry("server", encode_header(HEADER) * 30)]
    content = bytearray(file_of(A, B, big))
    size = len(content) - BEFORE_LAST
    for begin, length in holes:
        at = BEFORE_LAST + begin % size
        until = min(at + length, len(content))
        content[at:until] = bytes(until - at)
    assert content == file_of(A, B, big) or torn(bytes(content))


def test_a_damaged_group_is_known_by_the_begin_of_the_one_after_it_even_if_that_is_unfinished() -> (
    None
):
    for size in range(BEFORE_LAST + GROUP_BYTES, len(WHOLE)):
        with pytest.raises(JournalDamagedError):
            scan_of(flipped(WHOLE, BEFORE_LAST - 1)[:size])


def test_a_spoilt_group_with_anything_after_its_end_was_synced() -> None:
    with pytest.raises(JournalDamagedError, match="yet the file continues after it"):
        scan_of(flipped(WHOLE, BEFORE_LAST - 1)[: BEFORE_LAST + 1])


def test_damage_is_reported_with_its_offset_and_the_next_step() -> None:
    second = len(file_of(A))
    with pytest.raises(JournalDamagedError) as caught:
        scan_of(flipped(WHOLE, second))
    text = str(caught.value)
    assert f"journal.bin is damaged at byte {second}: group 2 cannot be read" in text
    assert f"another follows at byte {BEFORE_LAST}" in text
    assert "start the node with an empty one. It will serve and learn, and not vote until" in text
    assert 'run "fencelock replace" with its id' in text
    assert "empty folders grant nothing until an operator begins a new cluster" in text


def test_a_group_that_is_not_where_it_belongs_is_damage() -> None:
    for misplaced in (file_of(A) + file_of(A, B, C)[BEFORE_LAST:], WHOLE + WHOLE[BEFORE_LAST:]):
        assert len(read(misplaced)) < 4  # It names its place, so it does not pass.
    content = file_of(A)
    twice = content + encode_group(B, salt=SALT, offset=len(content), sequence=1)
    with pytest.raises(JournalDamagedError, match="group 1 lies where 2 belongs"):
        scan_of(twice)


@pytest.mark.parametrize("garbage", [b"\0" * 5000, b"\xff" * 5000, SALT * 600])
def test_garbage_after_the_last_group_is_an_unfinished_write(garbage: bytes) -> None:
    assert torn(file_of(A, B) + garbage)


def test_groups_of_another_file_behind_the_last_group_are_an_unfinished_write() -> None:
    """A crash may show what was on the disk before, at its place and in its order."""
    stale = file_of(A, B, C, header=HEADER._replace(salt=b"tlastlas"))
    assert torn(file_of(A, B) + stale[BEFORE_LAST:])
    assert torn(file_of(A, B) + stale[HEADER_BYTES:])
    assert torn(file_of(A, B) + bytes(100) + stale)


def test_a_file_whose_header_is_not_whole_and_is_all_there_is_was_never_made() -> None:
    for content in (*(WHOLE[:size] for size in range(HEADER_BYTES)), b"x", bytes(HEADER_BYTES)):
        assert scan_of(content) == Scan(None, [], 0, len(content))


@pytest.mark.parametrize("content", [b"x" * 100, b"\0" * 100, b"fencelog" + b"\0" * 100])
def test_a_file_that_does_not_begin_as_a_journal_is_refused(content: bytes) -> None:
    with pytest.raises(JournalDamagedError, match="does not begin as a segment does"):
        scan_of(content)


def test_a_snapshot_is_no_segment() -> None:
    with pytest.raises(JournalDamagedError, match="it is no snapshot"):
        scan(WHOLE, "journal.bin", FileKind.SNAPSHOT)


def preamble(version: int) -> bytes:
    versioned = b"fencelog" + struct.pack("<I", version)
    return versioned + struct.pack("<I", zlib.crc32(versioned))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("more", [b"", b"\2\0\0\0\x3a\x5a\x50\x23ab" * 20])
def test_a_journal_of_an_old_format_is_refused_with_what_to_do(version: int, more: bytes) -> None:
    assert preamble(1) == bytes.fromhex("66656e63656c6f6701000000a645e889")
    text = f"format {version}, of a development version"
    with pytest.raises(JournalDamagedError, match=text) as caught:
        scan_of(preamble(version) + more)
    assert "move the data folder of every node aside" in str(caught.value)


def test_a_later_version_of_the_format_is_named() -> None:
    later = FORMAT_VERSION + 1
    assert len(preamble(later)) == PREAMBLE_BYTES
    text = f"format {later}, and this release reads {FORMAT_VERSION}: start"
    with pytest.raises(JournalDamagedError, match=text):
        scan_of(preamble(later))


@pytest.mark.parametrize("payload", [b"", b"x" * (RECORD_BYTES_MAX + 1)])
def test_a_record_out_of_its_limits_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match="a record has 1 to 1048576 bytes, not"):
        file_of([Entry("r", b"fine"), Entry("r", payload)])


@pytest.mark.parametrize("stream", ["", "x" * 256, "\u00e9" * 128])
def test_a_name_out_of_its_limits_is_refused(stream: str) -> None:
    with pytest.raises(ValueError, match="a stream's name has 1 to 255 bytes, not"):
        file_of([Entry(stream, b"fine")])


def test_the_largest_record_is_read_back() -> None:
    largest = [Entry("r", b"x" * RECORD_BYTES_MAX)]
    assert read(file_of(largest, A)) == [largest, A]


@pytest.mark.parametrize(
    "body",
    [
        ENTRY.pack(2, 3) + b"\xff\xfeabc",
        ENTRY.pack(2, 9_000) + b"ababc",
        ENTRY.pack(200, 1) + b"ab",
        ENTRY.pack(2, 0x7FFFFFFF) + b"ab",
        b"\2",
    ],
    ids=["a name of no text", "a long record", "a long name", "an unknown mark", "half an entry"],
)
@pytest.mark.parametrize("after", [b"", b"x" * 20_000], ids=["at the end", "before more"])
def test_a_sound_group_without_entries_is_damage_with_its_place(body: bytes, after: bytes) -> None:
    """Its checksums are right: something other than a journal wrote it."""
    at = len(file_of(A))
    prefix = GROUP.pack(SALT, at, 2, len(body), zlib.crc32(body))
    content = file_of(A) + prefix + CHECKSUM.pack(zlib.crc32(prefix)) + body
    group = scan_of(content).groups[-1]
    place = f"journal.bin is damaged at byte {group.begin}: .*If a majority"
    with pytest.raises(JournalDamagedError, match=place):
        list(entries_of(content + after, group, "journal.bin"))


@pytest.mark.parametrize("salt", [bytes(8), b"\1" * 8])
def test_a_search_for_a_salt_that_lies_everywhere_tries_few_places(
    salt: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def counted(content: bytes, salt: bytes, offset: int) -> Group | None:
        tried.append(offset)
        return _group_at(content, salt, offset)

    monkeypatch.setattr(record, "_group_at", counted)
    content = file_of(header=HEADER._replace(salt=salt)) + salt[:1] * (1 << 20)
    assert scan_of(content).groups == []
    assert len(tried) <= (1 << BLOCK_BITS) + 2


def test_a_group_behind_damage_is_found_wherever_it_lies() -> None:
    block = 1 << BLOCK_BITS
    empty = len(file_of([Entry("r", b"x")])) - 1
    for begin in (*range(block - 20, block + 4), *range(2 * block - 17, 2 * block + 2)):
        content = file_of([Entry("r", b"x" * (begin - empty))], B)
        with pytest.raises(JournalDamagedError, match=f"another follows at byte {begin}"):
            scan_of(flipped(content, HEADER_BYTES + 9))


@given(st.binary(max_size=400))
def test_no_content_is_read_as_anything_but_what_was_written(content: bytes) -> None:
    assert torn(file_of(A, B) + content) or not content
