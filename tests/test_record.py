from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cluster.storage.error import JournalDamagedError
from holdfast.cluster.storage.record import (
    HEADER_BYTES,
    PREFIX_BYTES,
    RECORD_BYTES_MAX,
    Scan,
    encode_records,
    header,
    scan,
)

PAYLOADS = [b"first", b"second record", b"the third"]


def file_of(*payloads: bytes) -> bytes:
    return header() + encode_records(payloads)


def test_the_layout_is_pinned() -> None:
    assert header().hex() == "686f6c646661737401000000593aee5e"
    assert encode_records([b"ab"]).hex() == "02000000" + "3a5a5023" + "6162"


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=20))
def test_what_was_written_is_read_back_in_order(payloads: list[bytes]) -> None:
    content = file_of(*payloads)
    assert scan(content, "j") == Scan(payloads, len(content), 0)


def test_a_file_cut_anywhere_in_its_last_record_keeps_all_others() -> None:
    content = file_of(*PAYLOADS)
    last = len(file_of(*PAYLOADS[:-1]))
    for size in range(last, len(content)):
        assert scan(content[:size], "j") == Scan(PAYLOADS[:-1], last, size - last)


def test_any_flipped_byte_of_the_last_record_is_an_unfinished_write() -> None:
    content = file_of(*PAYLOADS)
    last = len(file_of(*PAYLOADS[:-1]))
    for at in range(last, len(content)):
        spoilt = bytearray(content)
        spoilt[at] ^= 0xFF
        assert scan(bytes(spoilt), "j") == Scan(PAYLOADS[:-1], last, len(content) - last)


def test_any_flipped_bit_before_the_last_record_is_damage() -> None:
    content = file_of(*PAYLOADS)
    last = len(file_of(*PAYLOADS[:-1]))
    for at in range(last):
        for bit in range(8):
            spoilt = bytearray(content)
            spoilt[at] ^= 1 << bit
            with pytest.raises(JournalDamagedError, match=r"journal\.bin is damaged at byte"):
                scan(bytes(spoilt), "journal.bin")


def test_damage_is_told_with_its_offset_and_what_to_do() -> None:
    content = bytearray(file_of(*PAYLOADS))
    second = len(file_of(PAYLOADS[0]))
    content[second + PREFIX_BYTES] ^= 1
    third = len(file_of(*PAYLOADS[:2]))
    with pytest.raises(JournalDamagedError) as caught:
        scan(bytes(content), "/var/j")
    text = str(caught.value)
    assert f"/var/j is damaged at byte {second}: record 2" in text
    assert f"follows at byte {third}" in text
    assert "start the node as a new one" in text


@pytest.mark.parametrize("garbage", [b"\0" * 5000, b"\xff" * 5000, b"\1\0\0\0" * 1000])
def test_garbage_after_the_last_record_is_an_unfinished_write(garbage: bytes) -> None:
    content = file_of(*PAYLOADS)
    assert scan(content + garbage, "j") == Scan(PAYLOADS, len(content), len(garbage))


def test_a_file_without_a_whole_header_is_a_new_one() -> None:
    for size in range(HEADER_BYTES):
        assert scan(header()[:size], "j") == Scan([], 0, size)


@pytest.mark.parametrize("content", [b"x", b"\0" * 100, b"holdfast" + b"\0" * 100])
def test_what_does_not_begin_as_a_journal_is_refused(content: bytes) -> None:
    with pytest.raises(JournalDamagedError, match="does not begin as a journal does"):
        scan(content, "j")


def test_another_version_of_the_format_is_named() -> None:
    later = bytes.fromhex("686f6c646661737402000000") + struct.pack("<I", 0x4C5B95B7)
    assert len(later) == HEADER_BYTES
    with pytest.raises(JournalDamagedError, match="format 2, and this release reads 1"):
        scan(later, "j")


def test_a_length_beyond_the_limit_is_not_believed() -> None:
    content = file_of(b"a") + struct.pack("<II", RECORD_BYTES_MAX + 1, 0) + b"x" * 20
    assert scan(content, "j").records == [b"a"]


@pytest.mark.parametrize("payload", [b"", b"x" * (RECORD_BYTES_MAX + 1)])
def test_a_record_out_of_its_limits_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match="a record has 1 to 1048576 bytes, not"):
        encode_records([b"fine", payload])


def test_the_largest_record_is_read_back() -> None:
    content = file_of(b"x" * RECORD_BYTES_MAX, b"after")
    assert [len(record) for record in scan(content, "j").records] == [RECORD_BYTES_MAX, 5]


@given(st.binary(max_size=400))
def test_no_content_is_read_as_anything_but_records_or_refused(content: bytes) -> None:
    found = scan(file_of(*PAYLOADS) + content, "j")
    assert found.records[:3] == PAYLOADS
    assert found.end + found.torn == len(file_of(*PAYLOADS)) + len(content)
