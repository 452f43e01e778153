"""Frames like earlier ones are checked in one pass, with the result of the full check."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cbor2
import pytest

from fencelock.actors.api.message import Acquire, Inspect, Release
from fencelock.actors.message import Address, Message
from fencelock.transport.admission import Dropped, FrameValidator
from fencelock.transport.frame import Envelope, Frame, Mismatch, Rejected, encode_frame

TO, SENDER = Address("*/proxy"), Address("me/session")

RELEASE: list[Any] = [TO, SENDER, 0x11, "lock", 7, "me.1", "o", 1]
INSPECT: list[Any] = [TO, SENDER, 0x13, "lock", "me.1", 1, None]


def frame_of(*messages: Message) -> bytes:
    return encode_frame(Frame("test", 0, 0, tuple(Envelope(TO, SENDER, m) for m in messages)))


def experienced() -> FrameValidator:
    admission = FrameValidator("n1", "test", client=False)
    raw = frame_of(Release(lock="x", fence=1), Inspect(lock="x"), Acquire(lock="x"))
    assert isinstance(admission.admit("me", raw), Frame)
    return admission


def with_item(at: int, value: Any) -> list[Any]:
    return [*RELEASE[:at], value, *RELEASE[at + 1 :]]


TAGS: list[Any] = [17.0, True, None, "17", [17], {}, 0x12, 0x70, 1 << 63]
AGES: list[Any] = ["1", False, 0.0, 1 << 63, []]
ODD: list[Any] = [
    [],
    RELEASE[:1],
    RELEASE[:2],
    RELEASE[:3],
    RELEASE[:4],
    [*RELEASE, *range(17)],
    [*RELEASE[:6], 5, 1, "more"],
    dict.fromkeys(RELEASE),
    dict(enumerate(RELEASE)),
    "".join(("*/proxy", "me/session")),
    b"bytes of no meaning",
    None,
    0x11,
    *(with_item(2, tag) for tag in TAGS),
    *(with_item(0, to) for to in (None, 1, [TO], "n2/proxy", "*", "")),
    *(with_item(1, sender) for sender in (None, 1, [SENDER], "you/session", "", TO)),
    [None, None, *RELEASE[2:]],
    ["", "", *RELEASE[2:]],
    *(with_item(3, lock) for lock in (None, 1, b"lock", ["lock"])),
    *(with_item(4, fence) for fence in (None, "7", True, 7.0, 1 << 63, -(1 << 63))),
    *([*INSPECT[:6], age_ms] for age_ms in AGES),
]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("behind", [0, 1])
def test_what_is_odd_is_dropped_as_if_it_were_the_first(odd: Any, behind: int) -> None:
    raw = cbor2.dumps([1, "test", 0, 0, [RELEASE] * behind + [odd]])
    judged = experienced().admit("me", raw)
    assert isinstance(judged, Dropped)
    assert judged == FrameValidator("n1", "test", client=False).admit("me", raw)


@pytest.mark.parametrize("behind", [0, 1])
@pytest.mark.parametrize(
    ("of_another_version", "newer"),
    [(RELEASE[:5], 0), (RELEASE[:-1], 0), ([*RELEASE, "more"], 1), ([*RELEASE, *range(16)], 1)],
)
def test_a_message_of_another_version_passes_as_if_it_were_the_first(
    of_another_version: list[Any], newer: int, behind: int
) -> None:
    raw = cbor2.dumps([1, "test", 0, 0, [RELEASE] * behind + [of_another_version]])
    judged = experienced().admit("me", raw)
    assert isinstance(judged, Frame)
    assert judged.newer == newer
    assert judged == FrameValidator("n1", "test", client=False).admit("me", raw)
    (*_, (_, _, message)) = judged.envelopes
    known = dict(zip(("session", "owner", "request"), of_another_version[5:], strict=False))
    assert message == replace(Release(lock="lock", fence=7), **known)


@pytest.mark.parametrize("number", [0, 1, 255, (1 << 63) - 1, -1, 1 - (1 << 63)])
def test_every_number_of_64_bits_passes(number: int) -> None:
    for odd in (with_item(4, number), [*INSPECT[:6], number]):
        raw = cbor2.dumps([1, "test", 0, 0, [odd, RELEASE]])
        judged = experienced().admit("me", raw)
        assert isinstance(judged, Frame)
        assert judged == FrameValidator("n1", "test", client=False).admit("me", raw)


@pytest.mark.parametrize("field", ["view", "stamp"])
@pytest.mark.parametrize("number", [-1, 1 << 63, True, 0.0, None])
def test_the_numbers_of_a_frame_are_judged(field: str, number: Any) -> None:
    numbers = [number, 5] if field == "view" else [5, number]
    judged = experienced().admit("me", cbor2.dumps([1, "test", *numbers, [RELEASE]]))
    assert isinstance(judged, Dropped)
    assert judged.counter == "wire.malformed"


def test_a_refusal_is_never_familiar() -> None:
    admission = experienced()
    raw = frame_of(Rejected(code=Mismatch.CLUSTER, detail="no"))
    for _ in range(3):
        assert admission.admit("me", raw) == Dropped("wire.rejected", Mismatch.CLUSTER, "no")
