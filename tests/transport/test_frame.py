"""Frames: bounds, the checks of what a peer sends, and commands of the log."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import Any, cast

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.expect import checked
from support.frames import decode_frame

from fencelock.actors.api.cluster_message import Describe
from fencelock.actors.api.lock_message import Acquire, Granted, Inspect, Release
from fencelock.actors.api.map import PutEntry
from fencelock.actors.api.name import INT_MAX
from fencelock.actors.api.session_message import Open
from fencelock.actors.message import Address, Message
from fencelock.actors.paxos.wire import Ballot, Batch, Promise, Vote
from fencelock.cluster.node.lock_machine import LockMachine
from fencelock.transport import frame as frame_module
from fencelock.transport.admission import (
    CLIENT_FRAME_BYTES_MAX,
    CLIENT_MESSAGES_MAX,
    SMALL_BYTES,
    Dropped,
    FrameValidator,
    has_few_arrays,
    link_of,
)
from fencelock.transport.cbor import (
    DEPTH_MAX,
    FRAME_BYTES_MAX,
    FrameTooLargeError,
    MalformedFrameError,
    dump,
    load,
    load_each,
)
from fencelock.transport.codec import encode
from fencelock.transport.connections import Connection
from fencelock.transport.frame import (
    MESSAGES_MAX,
    WIRE_VERSION,
    Envelope,
    ForeignClusterError,
    Frame,
    Mismatch,
    Rejected,
    WrongVersionError,
    encode_frame,
)
from fencelock.transport.listener import Clients

ACQUIRE = Acquire(lock="orders/42", session="s-1", owner="o", request=1, wait_ms=5000)
ENVELOPE = Envelope(Address("n1/proxy"), Address("s-1/session"), ACQUIRE)
FRAME = Frame("test", 0, 9, (ENVELOPE,))
NOTHING: list[Any] = []
RAW: list[Any] = cbor2.loads(encode_frame(FRAME))


def test_a_frame_is_pinned_byte_for_byte() -> None:
    assert encode_frame(FRAME).hex() == (
        "85"  # [
        "01"  # 1 (the version),
        "6474657374"  # "test",
        "0009"  # 0 (the group), 9 (the stamp),
        "81"  # [
        "83"  # [
        "686e312f70726f7879"  # "n1/proxy",
        "6b732d312f73657373696f6e"  # "s-1/session",
        "81"  # [
        "8a10"  # [0x10 (Acquire),
        "63732d31"  # "s-1",
        "01"  # 1,
        "616f"  # "o",
        "696f72646572732f3432"  # "orders/42",
        "191388"  # 5000,
        "01600000"  # 1, "", 0, 0]]]]]
    )
    assert decode_frame(encode_frame(FRAME)) == FRAME


def test_a_frame_may_be_empty_or_full() -> None:
    for frame in (replace(FRAME, envelopes=()), replace(FRAME, envelopes=(ENVELOPE,) * 4096)):
        assert decode_frame(encode_frame(frame)) == frame
        assert encode_frame(frame) == cbor2.dumps(cbor2.loads(encode_frame(frame)), canonical=True)


def changed(at: int, value: object) -> bytes:
    return cbor2.dumps([*RAW[:at], value, *RAW[at + 1 :]])


def enveloped(at: int, value: object) -> bytes:
    (envelope,) = RAW[4]
    return changed(4, [[*envelope[:at], value, *envelope[at + 1 :]]])


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "no CBOR that we speak: premature end of stream"),
        (b"\xff", "no CBOR that we speak: break code encountered"),
        (cbor2.dumps({}), "no array"),
        (cbor2.dumps([]), "no array that begins with an int"),
        (changed(0, "1"), "begins with an int"),
        (changed(0, True), "begins with an int"),
        (cbor2.dumps(RAW[:4]), "5 items, not 4"),
        (cbor2.dumps([*RAW, 0]), "5 items, not 6"),
        (changed(1, -1), "^-1 is no name$"),
        (changed(1, ""), "cluster id '' has 0 bytes, 1 to 128 are allowed"),
        (changed(1, "x" * 129), r"cluster id 'x+\.\.\. has 129 bytes, 1 to 128 are allowed"),
        (changed(1, "a\x00b"), r"cluster id 'a\\x00b' has U.0000, which is not allowed"),
        (changed(2, -1), r"Frame\.group: -1: expected `int` >= 0"),
        (changed(2, 1 << 63), r"Frame\.group: 9223372036854775808"),
        (changed(2, True), r"Frame\.group: True"),
        (changed(2, 0.0), r"Frame\.group: 0\.0"),
        (changed(2, None), r"Frame\.group: None"),
        (changed(3, -1), r"Frame\.stamp: -1: expected `int` >= 0"),
        (changed(3, 1 << 63), r"Frame\.stamp: 9223372036854775808"),
        (changed(3, True), r"Frame\.stamp: True"),
        (changed(3, 1.0), r"Frame\.stamp: 1\.0"),
        (changed(3, None), r"Frame\.stamp: None"),
        (changed(4, None), r"Frame\.envelopes: None: expected `array`"),
        (changed(4, [1]), "expected `array`, got `int`"),
        (changed(4, [NOTHING]), "length 3, got 0"),
        (changed(4, [["n1/proxy", "s-1/session"]]), "length 3, got 2"),
        (changed(4, [RAW[4][0]] * (MESSAGES_MAX + 1)), "length <= 4096"),
        (enveloped(2, RAW[4][0][2] * (MESSAGES_MAX + 1)), "length <= 4096"),
        (changed(4, [[*RAW[4][0][:2], RAW[4][0][2] * 2050]] * 2), "4100 messages, at most 4096"),
        (enveloped(2, NOTHING), "length >= 1"),
        (enveloped(2, RAW[4][0][2][0]), "16 is no array that begins with an int"),
        (enveloped(0, 5), "expected `str`, got `int`"),
        (enveloped(0, "proxy"), "address 'proxy' is not of the form node/role"),
        (enveloped(0, "n1/proxy/x"), "address 'n1/proxy/x' is not of the form node/role"),
        (enveloped(0, "/proxy"), "node id '' has 0 bytes, 1 to 128 are allowed"),
        (enveloped(1, "n1/"), "role '' has 0 bytes, 1 to 128 are allowed"),
        (enveloped(1, "n" * 129 + "/x"), r"node id 'n+\.\.\. has 129 bytes"),
        (enveloped(1, "n/" + "x" * 129), r"role 'x+\.\.\. has 129 bytes"),
        (enveloped(1, "n\n/x"), r"node id 'n\\n' has U.000A, which is not allowed"),
        (enveloped(2, [[0x7777]]), "no message has tag 0x7777"),
        (enveloped(2, [["10"]]), "begins with an int"),
        (enveloped(2, [[*RAW[4][0][2][0][:5], -1.5]]), r"Acquire\.wait_ms: -1\.5: expected `int"),
        (encode_frame(FRAME) + b"\x00", "more bytes after"),
        (encode_frame(FRAME)[:-1], "CBOR"),
        (b"\x00" * (FRAME_BYTES_MAX + 1), "^1048577 bytes, at most 1048576$"),
    ],
)
def test_a_malformed_frame_is_refused_saying_what_is_wrong(raw: bytes, words: str) -> None:
    with pytest.raises(MalformedFrameError, match=words):
        decode_frame(raw)


def test_the_version_is_judged_before_anything_else() -> None:
    rests: list[list[Any]] = [[], [{}], RAW[1:]]
    for version in (0, 2, -1, 1 << 40):
        for rest in rests:
            with pytest.raises(WrongVersionError, match=f"version {version} are refused") as caught:
                decode_frame(cbor2.dumps([version, *rest]))
            assert caught.value.version == version
    for tail in (b"\xc1\x00", b"\x9f\xff", b"\x81" * 100, b"\xff"):  # CBOR that we do not use.
        with pytest.raises(WrongVersionError):
            decode_frame(b"\x85\x02" + tail)
    assert WIRE_VERSION == 1


def test_the_cluster_is_judged_before_the_envelopes() -> None:
    assert decode_frame(encode_frame(FRAME), cluster="test") == FRAME
    for raw in (encode_frame(FRAME), changed(4, [[1]])):
        with pytest.raises(
            ForeignClusterError, match="'test' are refused by a node of cluster 'prod'"
        ):
            decode_frame(raw, cluster="prod")


def test_a_frame_above_the_limits_does_not_leave() -> None:
    with pytest.raises(FrameTooLargeError, match="4097 messages, at most 4096"):
        encode_frame(replace(FRAME, envelopes=(ENVELOPE,) * 4097))
    large = Envelope(ENVELOPE.to, ENVELOPE.sender, Granted(lock="x" * 600_000, fence=1))
    encode_frame(replace(FRAME, envelopes=(large,)))
    with pytest.raises(FrameTooLargeError, match=r"^frame of 1200\d{3} bytes, at most 1048576$"):
        encode_frame(replace(FRAME, envelopes=(large, large)))


def frame_with(**fields: Any) -> Frame:
    """Return a frame of an envelope with other ``fields``."""
    return replace(FRAME, envelopes=(ENVELOPE, ENVELOPE._replace(**fields)))


@pytest.mark.parametrize(
    ("frame", "error", "words"),
    [
        (replace(FRAME, cluster=""), ValueError, "cluster id '' has 0 bytes"),
        (
            replace(FRAME, group=-1),
            ValueError,
            f"^group -1 or stamp 9: 0 to {INT_MAX} are allowed$",
        ),
        (
            replace(FRAME, stamp=INT_MAX + 1),
            ValueError,
            f"^group 0 or stamp {INT_MAX + 1}: 0 to {INT_MAX} are allowed$",
        ),
        (frame_with(to=Address("proxy")), ValueError, "address 'proxy' is not of the form"),
        (frame_with(sender=Address("a/b/c")), ValueError, "address 'a/b/c' is not of the form"),
        (replace(FRAME, group=True), TypeError, r"Frame\.group: True: expected `int`"),
        (frame_with(message=None), TypeError, "None"),
        (frame_with(message=Granted(lock="a", fence=1 << 63)), TypeError, rf"fence: {1 << 63}: "),
        (frame_with(message=Granted(lock="a", fence=1 << 70)), TypeError, rf"fence: {1 << 70}: "),
    ],
)
def test_a_frame_with_an_unfit_value_does_not_leave(
    frame: Frame, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        encode_frame(frame)


class Name(str):
    __slots__ = ()


def test_a_cluster_may_be_of_a_subclass_of_text() -> None:
    assert decode_frame(encode_frame(replace(FRAME, cluster=Name("test")))) == FRAME


@pytest.mark.parametrize(
    "bomb",
    [
        b"\xc2" + cbor2.dumps(b"\xff" * 500_000),
        b"\xc4\x82\x01\xc2" + cbor2.dumps(b"\xff" * 500_000),
        b"\xc5\x82\x1a\x40\x00\x00\x00\xc2" + cbor2.dumps(b"\xff" * 500_000),
        b"\xc4\x82\x1b\x7f\xff\xff\xff\xff\xff\xff\xff\x01",
        cbor2.dumps(cbor2.CBORTag(35, "(" * 400_000)),
        cbor2.dumps(cbor2.CBORTag(36, "\n" * 1_000_000)),
        bytes.fromhex("d81c81d81d00"),
        bytes.fromhex("9b7fffffffffffffff"),
        bytes.fromhex("7b7fffffffffffffff"),
        bytes.fromhex("5b00000000ffffffff"),
        bytes.fromhex("bb7fffffffffffffff"),
        bytes.fromhex("9a00100000") * 100,
        b"\x81" * 1_000_000,
        b"\xc1" * 1_000_000,
        b"\xa1" * 1_000_000,
        b"\x9a\x00\x0f\xff\xf0" + b"\x80" * 0xFFFF0,
    ],
    ids=lambda bomb: bomb[:8].hex(),
)
def test_a_frame_made_to_be_expensive_is_refused_cheaply(bomb: bytes) -> None:
    """The second and third keep cbor2 busy for minutes, where tags are let through."""
    begun = time.process_time()
    for raw in (bomb, b"\x85\x01" + bomb):
        with pytest.raises(MalformedFrameError):
            decode_frame(raw[:FRAME_BYTES_MAX])
    assert time.process_time() - begun < 20


def test_a_map_whose_keys_collide_is_refused_cheaply() -> None:
    """Arrays as keys would be hashed without a secret: 40,000 with one hash take a minute."""
    keys = b"".join(b"\x82" + cbor2.dumps(n) + b"\x00\x00" for n in range(40_000))
    with pytest.raises(MalformedFrameError, match="map key"):
        decode_frame(b"\x81\xb9\x9c\x40" + keys)


def test_an_identity_names_its_link() -> None:
    assert link_of(b"n1#7f.0") == "n1"
    assert link_of("käse#1".encode()) == "käse"
    for nameless in (b"", b"n1", b"n1#", b"#1", b"\x00abcd", b"\xff#1", b"a/b#1", b"*#1"):
        assert link_of(nameless) is None


def test_a_node_admits_what_is_addressed_to_it_and_completes_the_star() -> None:
    admission = FrameValidator("n1", "test", client=False)
    assert admission.admit("s-1", encode_frame(FRAME)) == FRAME
    star = replace(FRAME, envelopes=(ENVELOPE._replace(to=Address("*/proxy")),))
    assert admission.admit("s-1", encode_frame(star)) == FRAME
    assert admission.admit("s", encode_frame(FRAME)) == Dropped("wire.spoofed_sender")
    assert FrameValidator("n", "test", client=False).admit("s-1", encode_frame(FRAME)) == Dropped(
        "wire.misdirected"
    )


def test_a_sender_cannot_pass_for_a_role_of_the_node_itself() -> None:
    admission = FrameValidator("s-1", "test", client=False)
    ours = replace(FRAME, envelopes=(ENVELOPE._replace(to=Address("s-1/proxy")),))
    assert admission.admit("s-1", encode_frame(ours)) == Dropped("wire.spoofed_sender")


def test_only_so_many_clients_are_remembered() -> None:
    clients = Clients(lambda _: True, most=2)
    a, b, again, c = (Connection(-1, None, name=name) for name in "abac")
    assert not clients.note(a)
    assert not clients.note(b)
    assert not clients.note(again)
    assert clients.note(c)
    known = {name: clients.connection(name) for name in "abc"}
    assert known == {"a": again, "b": None, "c": c}
    clients.gone("a")
    assert len(clients) == 1


# Commands of the log are read many at a time, with the result of reading them one by one


def read_from_file(data: bytes) -> object:
    """Return the value in ``data`` as cbor2 reads it from a file, which tells where it ends.

    Raises:
        ValueError: it is refused, or does not end where ``data`` does.

    """
    stream = io.BytesIO(data)
    value: object = cbor2.load(
        stream, max_depth=DEPTH_MAX, allow_indefinite=False, strict_hashable_types=True
    )
    if stream.tell() != len(data):
        raise ValueError("more bytes")
    return value


def read_or_refused(read: Callable[[bytes], object], data: bytes) -> object:
    """Return what ``read`` makes of ``data``, or `ValueError` if it refuses it."""
    try:
        return read(data)
    except (MalformedFrameError, cbor2.CBORDecodeError, ValueError):
        return ValueError


HEADS = b"\x81 \x82 \x83 \x01 \x42 \x50 \x51 \x58\x10 \x58\x11 \x59\0\x10 \x18 \xf6 \x9f \xff"
PIECES = st.sampled_from([*HEADS.split(b" "), b"a", b"x" * 16, dump("b"), b""])
"""Heads of arrays and texts as long as the mark behind a value, of longer and shorter ones."""

PIECED = st.lists(PIECES, max_size=5).map(b"".join)


@given(PIECED)
def test_a_value_ends_where_its_bytes_do_or_is_refused(data: bytes) -> None:
    assert read_or_refused(load, data) == read_or_refused(read_from_file, data)


def test_frames_read_at_a_time_equal_those_read_one_by_one() -> None:
    items = [dump([1, "a", None]), dump(b"x" * 300), dump([[]]), dump(7)]
    assert load_each(items) == [load(item) for item in items]
    assert load_each([]) == []


@pytest.mark.parametrize(
    "items",
    [
        [b"\x82\x01", b"\x02"],  # The first takes the bytes after it as its own.
        [b"\x01\x01", b"\x02"],  # The first is two.
        [b"", b"\x01\x02"],
        [b"\x42", b"", dump(1)],
        [b"\x58\x11", dump(1)],  # A text as long as the mark with its head.
        [b"\x51", dump(1)],
        [b"\x50", dump(1)],
        [b"\x01\x58", dump(1)],  # A longer head for the mark.
        [b"\x9f\x01\xff"],
        [b"\xc1\x01", dump(1)],
        [b"\xff"],
    ],
)
def test_items_that_run_into_one_another_are_not_read_at_a_time(items: list[bytes]) -> None:
    assert load_each(items) is None


def test_items_as_deep_as_may_be_are_read() -> None:
    deep = b"\x81" * DEPTH_MAX + b"\x01"
    assert load_each([deep]) == [load(deep)] == [read_from_file(deep)]
    assert load_each([b"\x81" + deep]) is None
    with pytest.raises(MalformedFrameError):
        load(b"\x81" + deep)


@given(st.lists(PIECED, max_size=4))
def test_bytes_of_a_peer_are_never_read_otherwise_than_one_by_one(items: list[bytes]) -> None:
    together = load_each(items)
    assert together is None or together == [read_from_file(item) for item in items]


def test_what_a_local_caller_changes_after_its_request_changes_no_table() -> None:
    value = bytearray(b"first")
    opening = Open(session="me", ttl_ms=5_000)
    put = PutEntry(session="me.1", request=1, map="m", entry_key="k", value=cast("bytes", value))
    here, there = LockMachine(), LockMachine()
    written = [here.write(opening), here.write(put)]
    value[:] = b"other"
    for machine in (here, there):
        machine.apply(1_000, written)
    assert here.digest() == there.digest()


def test_a_machine_applies_commands_together_as_one_by_one() -> None:
    opening = encode(Open(session="me", ttl_ms=5_000))
    acquires = [
        encode(Acquire(session="me.1", owner="o", request=n, lock=f"l{n}", limit=0)) for n in (1, 2)
    ]
    strange = encode(Granted(lock="l1", fence=1))
    for batch in ([opening, *acquires], [opening, b"\x82", acquires[0]], [opening, strange]):
        together, single, knowing = LockMachine(), LockMachine(), LockMachine()
        outcomes = together.apply(5, batch)
        assert outcomes == [single.apply(5, [command])[0] for command in batch]
        assert [knowing.admits(command) for command in batch[1:]] == [
            together.admits(c) for c in batch[1:]
        ]
        assert outcomes == knowing.apply(5, batch)
        assert together.digest() == single.digest() == knowing.digest()


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


@pytest.mark.parametrize("size", [60_000, CLIENT_FRAME_BYTES_MAX])
def test_no_clients_nested_arrays_are_decoded(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_module, "load", None)
    dropped = checked(Dropped, node().admit("me", arrays(size)))
    assert dropped.counter == "wire.malformed"
    assert dropped.hostile


def test_no_members_mebibyte_of_nested_arrays_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_module, "load", None)
    assert checked(Dropped, node().admit("n2", arrays(FRAME_BYTES_MAX))).counter == "wire.malformed"


def test_arrays_behind_many_other_items_are_refused_too() -> None:
    """A walk through the items ends, whatever they are."""
    numbers = b"\x9a" + (30_000).to_bytes(4, "big") + b"\x00" * 30_000
    raw = b"\x85\x01" + cbor2.dumps("test") + b"\x00\x00" + b"\x82" + numbers + arrays(30_000)
    assert not has_few_arrays(raw, member=False)


def test_only_a_member_may_send_more_than_64_kib() -> None:
    granted = Granted(lock="l" * 200, fence=1, session="s" * 100, owner="o" * 100, request=1)
    raw = frame_of(200, "n2", granted)
    assert len(raw) > CLIENT_FRAME_BYTES_MAX
    assert isinstance(node().admit("n2", raw), Frame)

    raw = frame_of(200, "me", granted)
    assert node().admit("me", raw) == Dropped("wire.oversized", hostile=True)


def test_a_clients_frame_has_no_more_envelopes_than_a_gateway_sends() -> None:
    describe = Describe(session="me", request=1)
    assert isinstance(node().admit("me", frame_of(CLIENT_MESSAGES_MAX, "me", describe)), Frame)
    raw = frame_of(CLIENT_MESSAGES_MAX + 1, "me", describe)
    admission = node()
    for _ in range(2):  # A frame that is like others is judged in another way.
        assert admission.admit("me", raw) == Dropped("wire.oversized")
    assert isinstance(admission.admit("n2", frame_of(MESSAGES_MAX, "n2", describe)), Frame)


def test_messages_that_would_be_left_out_count_for_the_limit_of_a_clients_frame() -> None:
    """A node that knows its group takes nothing but requests over a link without one."""
    admission = node()
    admission.group = 7
    describe = Describe(session="me", request=1)
    requests = [Envelope(Address("n1/proxy"), Address("me/session"), describe)] * 200
    for others, passed in ((56, 200), (57, None)):
        left_out = [Envelope(Address("n1/acceptor"), Address("me/session"), describe)] * others
        judged = admission.admit("me", encode_frame(Frame("test", 0, 0, [*requests, *left_out])))
        assert (len(judged.envelopes) if isinstance(judged, Frame) else None) == passed
    assert judged == Dropped("wire.oversized")


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


TO, SENDER = Address("*/proxy"), Address("me/session")

RELEASE: list[Any] = [0x11, "me.1", 1, "o", 7, "lock"]
INSPECT: list[Any] = [0x13, "me.1", 1, None, "lock"]
ITEMS: list[Any] = [0x10, "me.1", 1, "o", "lock", None, 1, "l", 0, 0]
PLAIN_ENVELOPE: list[Any] = [TO, SENDER, [RELEASE]]


def valid_frame_of(*messages: Message) -> bytes:
    return encode_frame(Frame("test", 0, 0, tuple(Envelope(TO, SENDER, m) for m in messages)))


def experienced() -> FrameValidator:
    admission = FrameValidator("n1", "test", client=False)
    raw = valid_frame_of(Release(lock="x", fence=1), Inspect(lock="x"), Acquire(lock="x"))
    assert isinstance(admission.admit("me", raw), Frame)
    return admission


def with_item(at: int, value: Any) -> list[Any]:
    return [TO, SENDER, [[*RELEASE[:at], value, *RELEASE[at + 1 :]]]]


TAGS: list[Any] = [17.0, True, None, "17", [17], {}, 0x12, 0x70, 1 << 63]
AGES: list[Any] = ["1", False, 0.0, 1 << 63, []]
ODD: list[Any] = [
    [],
    PLAIN_ENVELOPE[:1],
    PLAIN_ENVELOPE[:2],
    [*PLAIN_ENVELOPE, 0],
    [TO, SENDER, *RELEASE],
    [TO, SENDER, NOTHING],
    [TO, SENDER, [NOTHING]],
    [TO, SENDER, RELEASE],
    [TO, SENDER, None],
    [TO, SENDER, [RELEASE, None]],
    [TO, SENDER, [RELEASE[:1]]],
    [TO, SENDER, [RELEASE[:2]]],
    [TO, SENDER, [[*RELEASE, *range(17)]]],
    [TO, SENDER, [[*RELEASE[:3], 5, 7, "lock", "more"]]],
    [TO, SENDER, [dict.fromkeys(RELEASE)]],
    [TO, SENDER, [dict(enumerate(RELEASE))]],
    dict(enumerate(PLAIN_ENVELOPE)),
    "".join(("*/proxy", "me/session")),
    b"bytes of no meaning",
    None,
    0x11,
    *(with_item(0, tag) for tag in TAGS),
    *([to, SENDER, [RELEASE]] for to in (None, 1, [TO], "n2/proxy", "*", "")),
    *([TO, sender, [RELEASE]] for sender in (None, 1, [SENDER], "you/session", "", TO)),
    [None, None, [RELEASE]],
    ["", "", [RELEASE]],
    *(with_item(5, lock) for lock in (None, 1, b"lock", ["lock"])),
    *(with_item(4, fence) for fence in (None, "7", True, 7.0, 1 << 63, -(1 << 63))),
    *([TO, SENDER, [[*INSPECT[:3], age_ms, "lock"]]] for age_ms in AGES),
]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("behind", [0, 1])
def test_an_odd_frame_is_dropped_as_if_it_were_the_first(odd: Any, behind: int) -> None:
    raw = cbor2.dumps([1, "test", 0, 0, [PLAIN_ENVELOPE] * behind + [odd]])
    judged = checked(Dropped, experienced().admit("me", raw))
    assert judged == FrameValidator("n1", "test", client=False).admit("me", raw)


@pytest.mark.parametrize("behind", [0, 1])
@pytest.mark.parametrize(
    ("of_another_version", "newer"),
    [(ITEMS[:5], 0), (ITEMS[:-1], 0), ([*ITEMS, "more"], 1), ([*ITEMS, *range(16)], 1)],
)
def test_a_message_of_another_version_passes_as_if_it_were_the_first(
    of_another_version: list[Any], newer: int, behind: int
) -> None:
    raw = cbor2.dumps([1, "test", 0, 0, [[TO, SENDER, [RELEASE] * behind + [of_another_version]]]])
    judged = checked(Frame, experienced().admit("me", raw))
    assert judged.newer == newer
    assert judged == FrameValidator("n1", "test", client=False).admit("me", raw)
    (*_, (_, _, message)) = judged.envelopes
    own = ("wait_ms", "limit", "label", "hold_ms", "grace_ms")
    known = dict(zip(own, of_another_version[5:], strict=False))
    assert message == replace(Acquire(lock="lock", session="me.1", owner="o", request=1), **known)


@pytest.mark.parametrize("number", [0, 1, 255, (1 << 63) - 1, -1, 1 - (1 << 63)])
def test_every_number_of_64_bits_passes(number: int) -> None:
    for odd in (with_item(2, number), [TO, SENDER, [[*INSPECT[:3], number, "lock"]]]):
        raw = cbor2.dumps([1, "test", 0, 0, [odd, PLAIN_ENVELOPE]])
        judged = checked(Frame, experienced().admit("me", raw))
        assert judged == FrameValidator("n1", "test", client=False).admit("me", raw)


def test_a_refusal_is_never_familiar() -> None:
    admission = experienced()
    raw = valid_frame_of(Rejected(code=Mismatch.CLUSTER, detail="no"))
    for _ in range(3):
        assert admission.admit("me", raw) == Dropped("wire.rejected", Mismatch.CLUSTER, "no")
