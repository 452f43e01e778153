"""Odd frames are judged alike by a node that knows the sender and by one that does not."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from msgspec.structs import replace

from fencelock.actors.api.message import Acquire, Inspect, Release
from fencelock.actors.message import Address, Message
from fencelock.transport.admission import Dropped, FrameValidator
from fencelock.transport.frame import Envelope, Frame, Mismatch, Rejected, encode_frame

TO, SENDER = Address("*/proxy"), Address("me/session")

RELEASE: list[Any] = [0x11, "lock", 7, "me.1", "o", 1]
INSPECT: list[Any] = [0x13, "lock", "me.1", 1, None]
ENVELOPE: list[Any] = [TO, SENDER, RELEASE]


def frame_of(*messages: Message) -> bytes:
    return encode_frame(Frame("test", 0, 0, tuple(Envelope(TO, SENDER, m) for m in messages)))


def experienced() -> FrameValidator:
    admission = FrameValidator("n1", "test", client=False)
    raw = frame_of(Release(lock="x", fence=1), Inspect(lock="x"), Acquire(lock="x"))
    assert isinstance(admission.admit("me", raw), Frame)
    return admission


def with_item(at: int, value: Any) -> list[Any]:
    return [TO, SENDER, [*RELEASE[:at], value, *RELEASE[at + 1 :]]]


TAGS: list[Any] = [17.0, True, None, "17", [17], {}, 0x12, 0x70, 1 << 63]
AGES: list[Any] = ["1", False, 0.0, 1 << 63, []]
ODD: list[Any] = [
    [],
    ENVELOPE[:1],
    ENVELOPE[:2],
    [*ENVELOPE, 0],
    [TO, SENDER, *RELEASE],
    [TO, SENDER, []],
    [TO, SENDER, RELEASE[:1]],
    [TO, SENDER, RELEASE[:2]],
    [TO, SENDER, [*RELEASE, *range(17)]],
    [TO, SENDER, [*RELEASE[:4], 5, 1, "more"]],
    [TO, SENDER, dict.fromkeys(RELEASE)],
    [TO, SENDER, dict(enumerate(RELEASE))],
    dict(enumerate(ENVELOPE)),
    "".join(("*/proxy", "me/session")),
    b"bytes of no meaning",
    None,
    0x11,
    *(with_item(0, tag) for tag in TAGS),
    *([to, SENDER, RELEASE] for to in (None, 1, [TO], "n2/proxy", "*", "")),
    *([TO, sender, RELEASE] for sender in (None, 1, [SENDER], "you/session", "", TO)),
    [None, None, RELEASE],
    ["", "", RELEASE],
    *(with_item(1, lock) for lock in (None, 1, b"lock", ["lock"])),
    *(with_item(2, fence) for fence in (None, "7", True, 7.0, 1 << 63, -(1 << 63))),
    *([TO, SENDER, [*INSPECT[:4], age_ms]] for age_ms in AGES),
]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("behind", [0, 1])
def test_what_is_odd_is_dropped_as_if_it_were_the_first(odd: Any, behind: int) -> None:
    raw = cbor2.dumps([1, "test", 0, 0, [ENVELOPE] * behind + [odd]])
    judged = experienced().admit("me", raw)
    assert isinstance(judged, Dropped)
    assert judged == FrameValidator("n1", "test", client=False).admit("me", raw)


@pytest.mark.parametrize("behind", [0, 1])
@pytest.mark.parametrize(
    ("of_another_version", "newer"),
    [(RELEASE[:3], 0), (RELEASE[:-1], 0), ([*RELEASE, "more"], 1), ([*RELEASE, *range(16)], 1)],
)
def test_a_message_of_another_version_passes_as_if_it_were_the_first(
    of_another_version: list[Any], newer: int, behind: int
) -> None:
    odd = [TO, SENDER, of_another_version]
    raw = cbor2.dumps([1, "test", 0, 0, [ENVELOPE] * behind + [odd]])
    judged = experienced().admit("me", raw)
    assert isinstance(judged, Frame)
    assert judged.newer == newer
    assert judged == FrameValidator("n1", "test", client=False).admit("me", raw)
    (*_, (_, _, message)) = judged.envelopes
    known = dict(zip(("session", "owner", "request"), of_another_version[3:], strict=False))
    assert message == replace(Release(lock="lock", fence=7), **known)


@pytest.mark.parametrize("number", [0, 1, 255, (1 << 63) - 1, -1, 1 - (1 << 63)])
def test_every_number_of_64_bits_passes(number: int) -> None:
    for odd in (with_item(2, number), [TO, SENDER, [*INSPECT[:4], number]]):
        raw = cbor2.dumps([1, "test", 0, 0, [odd, ENVELOPE]])
        judged = experienced().admit("me", raw)
        assert isinstance(judged, Frame)
        assert judged == FrameValidator("n1", "test", client=False).admit("me", raw)


@pytest.mark.parametrize("field", ["group", "stamp"])
@pytest.mark.parametrize("number", [-1, 1 << 63, True, 0.0, None])
def test_the_numbers_of_a_frame_are_judged(field: str, number: Any) -> None:
    numbers = [number, 5] if field == "group" else [5, number]
    judged = experienced().admit("me", cbor2.dumps([1, "test", *numbers, [ENVELOPE]]))
    assert isinstance(judged, Dropped)
    assert judged.counter == "wire.malformed"


def test_a_refusal_is_never_familiar() -> None:
    admission = experienced()
    raw = frame_of(Rejected(code=Mismatch.CLUSTER, detail="no"))
    for _ in range(3):
        assert admission.admit("me", raw) == Dropped("wire.rejected", Mismatch.CLUSTER, "no")
