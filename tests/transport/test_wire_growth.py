"""Messages that grow: optional fields at the end, between readers of two versions."""

from __future__ import annotations

import re
from contextlib import closing
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, cast

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import NODEFAULT
from msgspec.structs import astuple
from support.expect import PATIENCE_S, present
from support.frames import decode_frame
from support.paths import PINS
from support.real_nodes import config_in

from fencelock.actors.api.cluster_message import NodeStatus
from fencelock.actors.api.lock_message import Acquire, Granted, LockStatus
from fencelock.actors.api.session_message import Open
from fencelock.actors.message import REGISTRY, Address, Int64, Message
from fencelock.actors.paxos.wire import Accept, Ballot, Batch
from fencelock.actors.table.rules import LOG_COMMANDS
from fencelock.cluster.node.lock_machine import LockMachine
from fencelock.cluster.node.node import Node
from fencelock.cluster.node.storage.journal import Journal
from fencelock.cluster.node.storage.record import Entry
from fencelock.transport import frame as frame_module
from fencelock.transport.admission import FrameValidator
from fencelock.transport.cbor import MalformedFrameError
from fencelock.transport.codec import EXTRA_FIELDS_MAX, decode, encode, lists_of, pack
from fencelock.transport.frame import Envelope, Frame, encode_frame

TO, SENDER = Address("n1/proxy"), Address("me/session")


class Point(NamedTuple):
    x: Int64
    y: Int64 = 0


class GrownOrder(Message, tag=0xFF20):
    lock: str
    many: Int64
    label: str = ""
    limit: Int64 | None = 5
    places: tuple[Point, ...] = (Point(1, 2),)


NO_PLACE: list[Any] = [[]]
FULL: list[Any] = [0xFF20, "a", 3, "l", None, [[7, 8]]]
WHOLE = GrownOrder(lock="a", many=3, label="l", limit=None, places=(Point(7, 8),))


def framed(*messages: list[Any]) -> bytes:
    return cbor2.dumps([1, "test", 0, 0, [[TO, SENDER, messages]]])


def received(*messages: list[Any]) -> tuple[list[Message], int]:
    """Return ``messages`` as a node receives them, whether it has received such ones before or
    not."""
    raw = framed(*messages)
    fresh = FrameValidator("n1", "test", client=False)
    experienced = FrameValidator("n1", "test", client=False)
    assert isinstance(experienced.admit("me", framed(FULL)), Frame)
    frame = decode_frame(raw)
    assert frame == fresh.admit("me", raw) == experienced.admit("me", raw)
    return [one for _, _, one in frame.envelopes], frame.newer


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (3, GrownOrder(lock="a", many=3)),
        (4, GrownOrder(lock="a", many=3, label="l")),
        (5, GrownOrder(lock="a", many=3, label="l", limit=None)),
        (6, WHOLE),
    ],
)
def test_optional_fields_not_sent_have_their_defaults(length: int, message: Message) -> None:
    assert received(FULL[:length]) == ([message], 0)


@pytest.mark.parametrize("more", [1, 2, EXTRA_FIELDS_MAX])
def test_fields_that_only_a_newer_version_knows_are_ignored_and_counted(more: int) -> None:
    grown = [*FULL, *(["x", None, [1, [2]], True] * 4)[:more]]
    assert received(grown) == ([WHOLE], 1)
    assert received(FULL, grown, FULL, grown) == ([WHOLE] * 4, 2)


@pytest.mark.parametrize(
    ("items", "words"),
    [
        (FULL[:2], "Order: expected `array` of at least length 3, got 2"),
        (FULL[:1], "Order: expected `array` of at least length 3, got 1"),
        ([*FULL, *[0] * (EXTRA_FIELDS_MAX + 1)], "Order has 5 fields, not 22"),
        ([*FULL, *[0] * 1000], "Order has 5 fields, not 1005"),
    ],
)
def test_a_message_without_required_fields_or_with_far_too_many_is_dropped(
    items: list[Any], words: str
) -> None:
    with pytest.raises(MalformedFrameError, match=words):
        decode_frame(framed(items))


@pytest.mark.parametrize("extra", [[], ["more"]])
@pytest.mark.parametrize(
    ("at", "wrong", "words"),
    [
        (2, "3", r"Order\.many: '3': expected `int`"),
        (4, "5", r"Order\.limit: '5': expected `int | null`"),
        (5, NO_PLACE, r"Order\.places: \[\[\]\]: expected `array` of length 1 to 2, got 0"),
        (5, [[1, 2, 3]], r"Order\.places: .*: expected `array` of length 1 to 2, got 3"),
    ],
)
def test_known_fields_are_checked_and_structures_do_not_grow(
    extra: list[Any], at: int, wrong: Any, words: str
) -> None:
    with pytest.raises(MalformedFrameError, match=words):
        decode_frame(framed([*FULL[:at], wrong, *FULL[at + 1 :], *extra]))


def test_a_message_in_a_message_grows_like_others() -> None:
    status = LockStatus(lock="a", holder=None, waiters=(), waits_for=())
    items = lists_of(pack(status))
    report = NodeStatus(
        node="n1",
        protocol="paxos",
        nodes=(),
        ready=True,
        detail="",
        uptime_ms=1,
        counters=(),
        locks=(status,),
    )
    for nested in (items[:9], [*items, "more"]):
        sent = [[nested] if one == [items] else one for one in lists_of(pack(report))]
        (got,), _ = received(sent)
        assert got == report


def test_a_batch_which_is_part_of_records_has_no_unknown_fields() -> None:
    *head, batch, committed = lists_of(pack(ACCEPT))
    with pytest.raises(MalformedFrameError, match=r"Accept\.batch: .* of at most length 3"):
        decode_frame(framed([*head, [*batch, 0], committed]))


def test_all_fields_are_written_also_those_with_their_defaults() -> None:
    assert cbor2.loads(encode(GrownOrder(lock="a", many=3))) == [0xFF20, "a", 3, "", 5, [[1, 2]]]


POINTS = st.lists(st.builds(Point, st.integers(0, 9), st.integers(-9, 9)))
OPTIONAL: list[tuple[Any, Any, st.SearchStrategy[Any]]] = [
    (Int64, 7, st.integers(1 - (1 << 63), (1 << 63) - 1)),
    (str, "none", st.text(max_size=300)),
    (cast("Any", Int64) | None, None, st.none() | st.integers(-9, 9)),
    (tuple[Point, ...], (Point(1, 2),), POINTS.map(tuple)),
    (GrownOrder | None, None, st.none() | st.just(WHOLE)),
    (bytes, b"", st.binary(max_size=300)),
]
"""Type, default and values of each field that was added to a message, in the order of adding."""

GROWING = 0xFF24


def version(number: int) -> type[Message]:
    """Declare a message in its version ``number``, with as many optional fields."""
    REGISTRY.pop(GROWING, None)
    optional = {f"f{n}": one[:2] for n, one in enumerate(OPTIONAL[:number])}
    return declared(f"Version{number}", GROWING, **optional)


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_any_message_passes_between_any_two_versions(data: st.DataObject) -> None:
    theirs, ours = data.draw(st.tuples(*[st.integers(0, len(OPTIONAL))] * 2))
    known = [data.draw(values) for _, _, values in OPTIONAL[:theirs]]
    first = data.draw(st.integers(1 - (1 << 63), (1 << 63) - 1))
    sent = cast("Any", VERSIONS[theirs])(first=first, **{f"f{n}": v for n, v in enumerate(known)})
    raw = encode_frame(Frame("test", 0, 0, (Envelope(TO, SENDER, sent),)))
    defaults = [default for _, default, _ in OPTIONAL]
    expected = [first, *(known + defaults[theirs:])[:ours]]

    REGISTRY[GROWING] = VERSIONS[ours]
    frame_module._frame_type.cache_clear()  # pyright: ignore[reportPrivateUsage]
    (envelope,) = (frame := decode_frame(raw)).envelopes
    assert type(envelope[2]) is VERSIONS[ours]
    assert list(astuple(envelope[2])) == expected
    assert frame.newer == (theirs > ours)
    admission = FrameValidator("n1", "test", client=False)
    assert [admission.admit("me", raw) for _ in range(2)] == [frame, frame]


# Replicated commands and journal records.

ACCEPT = Accept(
    ballot=Ballot(1, Address("n1/leader")),
    slot=4,
    batch=Batch(time_ms=5, commands=(b"x",)),
    committed=3,
)
PIN_LINES = re.findall(r"^0x.*", PINS.read_text(encoding="utf-8"), re.MULTILINE)
PINNED = {int(tag, 16): bytes.fromhex(raw) for tag, _, raw in map(str.split, PIN_LINES)}


def optional_at_the_end(cls: type[Message]) -> int:
    defaults = reversed(cls.__struct_defaults__)
    return sum(1 for _ in takewhile(lambda default: default is not NODEFAULT, defaults))


FIELDS_OF_COMMANDS = {
    "Acquire": 9,
    "Release": 5,
    "AcquirePermits": 8,
    "ReleasePermits": 6,
    "ResizeSemaphore": 6,
    "AcquireReadWrite": 9,
    "Downgrade": 5,
    "AcquireAll": 6,
    "AcquireRetained": 9,
    "Detach": 7,
    "Attach": 8,
    "Cancel": 4,
    "KeepAlive": 2,
    "Open": 4,
    "End": 2,
    "Evict": 5,
    "CloseSession": 4,
    "CountDown": 7,
    "AwaitLatch": 8,
    "Lead": 7,
    "Renew": 6,
    "PutEntry": 11,
    "DeleteEntry": 8,
    "AwaitBarrier": 7,
    "AddToCounter": 7,
    "SetCounter": 8,
    "TakePermits": 8,
    "GivePermits": 5,
    "ResizePool": 6,
    "ChangeKeys": 20,
    "AwaitKey": 9,
    "SetQuota": 5,
    "Purge": 10,
    "ExtendSessions": 2,
}


def test_no_command_of_the_log_gets_a_field() -> None:
    """A member of an earlier release would skip such a command, and reach another state."""
    fields = {cls.__name__: cls.ITEMS - 1 for cls in LOG_COMMANDS}
    grown = {name: n for name, n in fields.items() if n != FIELDS_OF_COMMANDS.get(name, n)}
    assert not grown, "declare a new command with the field: transport/README.md, Versions"
    assert fields == FIELDS_OF_COMMANDS, "add the new command here"


@pytest.mark.parametrize("cls", LOG_COMMANDS, ids=lambda cls: cls.__name__)
def test_a_replicated_command_has_exactly_its_fields(cls: type[Message]) -> None:
    """A member that ignored a field would apply another command than the others.

    Optional fields at the end may be missing, and then have their defaults.
    """
    raw = PINNED[cls.TAG]
    assert LockMachine().admits(raw)
    items = cbor2.loads(raw)
    required = cls.ITEMS - optional_at_the_end(cls)
    for kept in range(1, len(items)):
        assert LockMachine().admits(cbor2.dumps(items[:kept])) == (kept >= required)
    for other in ([*items, 0], [*items, "more"]):
        assert not LockMachine().admits(cbor2.dumps(other))


def test_a_command_of_another_length_changes_no_table() -> None:
    opening = encode(Open(session="me", ttl_ms=5_000))
    acquire = cbor2.loads(encode(Acquire(session="me.1", owner="o", request=1, lock="l", limit=0)))
    for other in ([*acquire, 0], acquire[:1]):
        changed, unchanged = LockMachine(), LockMachine()
        outcomes = changed.apply(5, [opening, cbor2.dumps(other)])
        assert outcomes == [*unchanged.apply(5, [opening]), ()]
        assert changed.digest() == unchanged.digest()


def test_a_journal_record_has_no_unknown_fields() -> None:
    """`decode` reads journals and snapshots; a record of a newer version is an error there."""
    items = cbor2.loads(encode(ACCEPT))
    assert decode(cbor2.dumps(items)) == ACCEPT
    assert decode(cbor2.dumps(FULL[:4])) == GrownOrder(lock="a", many=3, label="l")
    for newer in ([*FULL, 0], [*items, 0]):
        with pytest.raises(MalformedFrameError, match="fields, not"):
            decode(cbor2.dumps(newer))
    with pytest.raises(MalformedFrameError, match="Accept: expected `array` of at least length 5"):
        decode(cbor2.dumps(items[:-1]))


@pytest.mark.parametrize("length", [3, 5])
def test_a_node_does_not_start_from_a_record_of_another_length(length: int, tmp_path: Path) -> None:
    config = config_in(tmp_path, nodes=1)
    with Node.start(config, "n1", found=True) as node:
        assert isinstance(node.proxy.ask(Acquire(lock="a"), timeout=PATIENCE_S), Granted)
    folder = present(config.folder_of("n1"))
    with closing(Journal.open(folder)) as journal:
        accepted = cbor2.loads(journal.take_records()["acceptor"][-1])
        assert accepted[0] == Accept.TAG
        journal.append([Entry("acceptor", cbor2.dumps([*accepted, 0][: 1 + length]))])
        journal.sync()
    words = {3: "Accept: expected `array` of at least", 5: "Accept has 4 fields, not 5"}
    with pytest.raises(MalformedFrameError, match=words[length]):
        Node.start(config, "n1", found=True)


# Declarations.


def declared(name: str, tag: int, **optional: tuple[Any, Any]) -> type[Message]:
    """Declare a message with a required field and ``optional`` ones: type and default of each."""
    types = {"first": Int64, **{each: hint for each, (hint, _) in optional.items()}}
    defaults = {each: default for each, (_, default) in optional.items()}
    body = {"__annotations__": types, "__module__": __name__, **defaults}
    declare: Any = type(Message)
    made: type[Message] = declare(name, (Message,), body, tag=tag)
    return made


def test_a_field_with_a_default_is_only_allowed_at_the_end() -> None:
    with pytest.raises(TypeError, match="Required field 'last' cannot follow optional fields"):

        class Wrong(Message, tag=0xFF21):  # pyright: ignore[reportUnusedClass]
            first: Int64
            label: str = ""
            last: Int64

    assert 0xFF21 not in REGISTRY


VERSIONS = [version(number) for number in range(len(OPTIONAL) + 1)]
