"""A frame is checked by its size and a count before anything of it is decoded."""

from __future__ import annotations

import cbor2
import pytest

from fencelock.actors.api.message import Acquire, Describe, Granted
from fencelock.actors.message import Address
from fencelock.actors.paxos.message import Ballot, Batch, Promise, Vote
from fencelock.transport import frame as frame_module
from fencelock.transport.admission import (
    CLIENT_BYTES_MAX,
    CLIENT_ENVELOPES_MAX,
    SMALL_BYTES,
    Dropped,
    FrameValidator,
    has_few_arrays,
)
from fencelock.transport.cbor import FRAME_BYTES_MAX
from fencelock.transport.frame import ENVELOPES_MAX, Envelope, Frame, encode_frame


def frame_of(count: int, sender: str, message: Describe | Acquire | Granted) -> bytes:
    envelope = Envelope(Address("n1/proxy"), Address(f"{sender}/session"), message)
    return encode_frame(Frame("test", 0, 0, (envelope,) * count))


def arrays(size: int) -> bytes:
    """Return a frame of about ``size`` bytes, nearly all of them empty arrays."""
    count = size - 32
    start = b"\x85\x01" + cbor2.dumps("test") + b"\x00\x00"
    return start + b"\x9a" + count.to_bytes(4, "big") + b"\x80" * count


def node() -> FrameValidator:
    return FrameValidator("n1", "test", client=False, members=frozenset({"n2"}))


@pytest.mark.parametrize("size", [60_000, CLIENT_BYTES_MAX])
def test_a_clients_frame_of_nested_arrays_is_not_decoded(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_module, "load", None)
    dropped = node().admit("me", arrays(size))
    assert isinstance(dropped, Dropped)
    assert dropped.counter == "wire.malformed"
    assert dropped.hostile


def test_a_members_frame_of_a_mebibyte_of_nested_arrays_is_not_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frame_module, "load", None)
    dropped = node().admit("n2", arrays(FRAME_BYTES_MAX))
    assert isinstance(dropped, Dropped)
    assert dropped.counter == "wire.malformed"


def test_arrays_behind_many_other_items_are_refused_too() -> None:
    """A walk through the items ends, whatever they are."""
    numbers = b"\x9a" + (30_000).to_bytes(4, "big") + b"\x00" * 30_000
    raw = b"\x85\x01" + cbor2.dumps("test") + b"\x00\x00" + b"\x82" + numbers + arrays(30_000)
    assert not has_few_arrays(raw, member=False)


def test_only_a_member_may_send_more_than_64_kib() -> None:
    granted = Granted(lock="l" * 200, fence=1, session="s" * 100, owner="o" * 100, request=1)
    raw = frame_of(200, "n2", granted)
    assert len(raw) > CLIENT_BYTES_MAX
    assert isinstance(node().admit("n2", raw), Frame)

    raw = frame_of(200, "me", granted)
    assert node().admit("me", raw) == Dropped("wire.oversized", hostile=True)


def test_a_clients_frame_has_no_more_envelopes_than_a_gateway_sends() -> None:
    describe = Describe(session="me", request=1)
    assert isinstance(node().admit("me", frame_of(CLIENT_ENVELOPES_MAX, "me", describe)), Frame)
    raw = frame_of(CLIENT_ENVELOPES_MAX + 1, "me", describe)
    admission = node()
    for _ in range(2):  # A frame that is like others is judged in another way.
        assert admission.admit("me", raw) == Dropped("wire.oversized")
    assert isinstance(admission.admit("n2", frame_of(ENVELOPES_MAX, "n2", describe)), Frame)


@pytest.mark.parametrize("lock", ["orders/42", "é" * 120, "訂單" * 40, "🔒" * 60])
def test_frames_of_ours_pass_in_whatever_script_their_names_are(lock: str) -> None:
    acquire = Acquire(lock=lock, session="me", owner=lock, request=1 << 40, label=lock)
    for count in (1, 20, 60):
        raw = frame_of(count, "me", acquire)
        assert has_few_arrays(raw, member=False)
        assert isinstance(node().admit("me", raw), Frame)


@pytest.mark.parametrize("commands", [(), (b"\x85\x18`bc1\x01\x19\x0b\xb8",)])
def test_a_members_frame_of_the_smallest_votes_passes(commands: tuple[bytes, ...]) -> None:
    """Simulated seed 10719 of paxos: such a frame was dropped, and so was each repetition."""
    ballot = Ballot(1, Address("a/leader"))
    votes = tuple(Vote(slot, ballot, Batch(time_ms=0, commands=commands)) for slot in range(16))
    promise = Promise(ballot=ballot, asked=1, first=0, votes=votes, more=None)
    envelope = Envelope(Address("n1/scout-3"), Address("n2/acceptor"), promise)
    raw = encode_frame(Frame("test", 0, 0, (envelope,) * 60))
    assert len(raw) > SMALL_BYTES
    assert isinstance(node().admit("n2", raw), Frame)


def test_bytes_that_look_like_arrays_pass_within_a_byte_string() -> None:
    assert has_few_arrays(cbor2.dumps([b"\x80" * 10 * SMALL_BYTES, "text", 1 << 40]), member=False)
