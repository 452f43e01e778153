"""Frames, the unit that travels between two processes, and the names in them. Pure.

A frame is ``[version, cluster, group, stamp, [envelope, ...]]``, an envelope
``[to, from, [message, ...]]`` and a message ``[tag, field, ...]``, see ``transport/README.md``. The
version always comes first, so that it can be checked before anything else is interpreted. Then
msgspec checks and converts the whole frame in one call.

In a process each message has its own `Envelope`. On the wire, consecutive messages from one role to
another share an envelope, since two addresses cost the codec as much as a small message.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, Union

from msgspec import Meta, Struct, ValidationError, convert, defstruct

from fencelock.actors.api.name import INT_MAX, forbidden_in, is_allowed
from fencelock.actors.message import (
    ADDRESS_PART_BYTES_MAX,
    ANY_NODE,
    REGISTRY,
    Address,
    Int64,
    Message,
    Natural,
    address_of,
)
from fencelock.transport.cbor import (
    FRAME_BYTES_MAX,
    FrameTooLargeError,
    MalformedFrameError,
    dump,
    load,
    shown,
)
from fencelock.transport.codec import (
    EXTRA_FIELDS_MAX,
    NATIVE,
    check_types,
    class_of,
    explained,
    first_of,
    lists_of,
    pack,
    prepare,
    unpack,
)

WIRE_VERSION = 1
"""Raised when a node of the previous version could misread a frame of this one."""

MESSAGES_MAX = 4096
"""Limit of messages in one frame: more than one turn should send to one peer."""

FRAME_ITEMS = 5

USUAL_START = b"\x85\x01"
"""The usual first bytes: an array of `FRAME_ITEMS`, and `WIRE_VERSION`."""
_SHORT_ARRAYS = range(0x81, 0x98)
"""First bytes of arrays of 1 to 23 items. The next byte is the first item."""
_SMALL_INTS = range(24)
"""Integers that are their own encoding."""

NAMES_KEPT = 16_384
"""Limit of remembered addresses, which are not checked again: for more clients than a node
remembers."""


class WrongVersionError(MalformedFrameError):
    """The frame is of another version of the wire, ``version``."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"frames of version {version} are refused by a node of wire version {WIRE_VERSION}"
        )
        self.version = version


class ForeignClusterError(MalformedFrameError):
    """The frame is for the cluster ``found``, but this node is of ``expected``."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(
            f"frames for cluster {found!r} are refused by a node of cluster {expected!r}"
        )
        self.found = found


class Mismatch(IntEnum):
    """A reason to refuse the frames of a link. Numbers are on the wire and never reused."""

    VERSION = 1
    """The frame is of another version of the wire."""
    CLUSTER = 2
    """The frame is for another cluster."""
    QUOTA = 3
    """The sender sends more than a node takes from one client; its connection will be closed."""
    ID_TAKEN = 4
    """Another process uses the sender's id over an open connection."""
    GROUP = 5
    """The frame is of another group of the same cluster."""


class Rejected(Message, tag=0x70):
    """Your frame was dropped for ``code``; ``detail`` explains it, with both values.

    It is never answered, and its layout never changes, so that every version understands it.
    """

    code: Mismatch
    detail: str


class Envelope(NamedTuple):
    """A message with its receiver's and its sender's address."""

    to: Address
    sender: Address
    message: Message


EnvelopeItems = tuple[Address, Address, Message]
"""An `Envelope` as a plain tuple: the path of every message makes none of the class."""


class Frame(Struct, frozen=True):
    """One frame: the unit that one process sends another."""

    cluster: str
    group: int
    """The group of the sender, 0 of clients and of a node that knows none."""
    stamp: int
    """Logical time of the sender when it sent the frame."""
    envelopes: Sequence[EnvelopeItems]
    newer: int = 0
    """Messages in a frame that arrived which had more fields than this version declares."""


def encode_frame(frame: Frame, alias: str = "", *, check: bool = True) -> bytes:
    """Return ``frame`` as CBOR.

    Args:
        frame: the frame to encode.
        alias: our own name of the receiving node, which no other process knows: as the node of
            ``to``, it becomes ``*``.
        check: whether to check the types of all fields, as the receiver will. It drops a frame
            with one wrong message as a whole.

    Raises:
        FrameTooLargeError: more than `FRAME_BYTES_MAX` bytes or `MESSAGES_MAX` messages.
        ValueError: the cluster id or an address is not well-formed, or the group or the
            stamp is negative or beyond 63 bits.
        TypeError: a message has a field that is not of its declared type.

    """
    if len(frame.envelopes) > MESSAGES_MAX:
        raise FrameTooLargeError(f"{len(frame.envelopes)} messages, at most {MESSAGES_MAX}")
    if not 0 <= frame.group | frame.stamp <= INT_MAX:
        raise ValueError(f"group {frame.group} or stamp {frame.stamp}: 0 to {INT_MAX} are allowed")
    shared: list[tuple[Address, Address, list[Message]]] = []
    last_to = last_sender = ""
    messages: list[Message] = []
    for to, sender, message in frame.envelopes:
        if to != last_to or sender != last_sender or not shared:
            last_to, last_sender, messages = to, sender, []
            there = _unaliased(to, alias) if alias else _valid(to)
            shared.append((there, _valid(sender), messages))
        messages.append(message)
    cluster = _valid_cluster(frame.cluster)
    try:
        packed = pack((WIRE_VERSION, cluster, frame.group, frame.stamp, shared))
    except OverflowError:
        for _, _, message in frame.envelopes:
            check_types(message)
        raise
    if check:
        _, refuse_wrong = _frame_type(len(REGISTRY))
        try:
            refuse_wrong(packed)
        except ValidationError as error:
            raise TypeError(str(_explained(lists_of(packed), error))) from error
    data = dump(lists_of(packed), len(packed))
    if len(data) > FRAME_BYTES_MAX:
        raise FrameTooLargeError(f"frame of {len(data)} bytes, at most {FRAME_BYTES_MAX}")
    return data


@lru_cache(maxsize=64)
def _valid_cluster(cluster: str) -> str:
    check_cluster(cluster)
    return str(cluster)  # A subclass cannot be encoded.


@lru_cache(maxsize=NAMES_KEPT)
def _valid(address: Address) -> Address:
    """Return a valid address; a refused one is not remembered."""
    check_address(address)
    return address


@lru_cache(maxsize=NAMES_KEPT)
def _unaliased(address: Address, alias: str) -> Address:
    node, _, role = address.partition("/")
    return _valid(address_of(ANY_NODE, role) if node == alias else address)


def open_frame(data: bytes) -> list[Any]:
    """Return the items of a frame after checking its version and nothing else.

    Another version is refused before its frame is parsed: it may use CBOR that we do not. That
    covers frames that begin with a short array and a small number, as all known versions do.
    Others are refused if they can be parsed.

    Raises:
        WrongVersionError: its version is not `WIRE_VERSION`.
        MalformedFrameError: it is not our CBOR, or not an array that begins with a version.

    """
    if len(data) > 1 and data[0] in _SHORT_ARRAYS and data[1] in _SMALL_INTS:
        _check_version(data[1])
    items: list[Any] = load(data)
    _check_version(first_of(items))
    return items


def _check_version(version: int) -> None:
    if version != WIRE_VERSION:
        raise WrongVersionError(version)


class ReceivedFrame(Struct, array_like=True, forbid_unknown_fields=True):
    """A frame as it is on the wire; its addresses are unchecked."""

    version: Int64
    cluster: str
    group: Natural
    stamp: Natural
    envelopes: tuple[tuple[Address, Address, tuple[Message, ...]], ...]


@lru_cache(maxsize=1)
def _frame_type(declared: int) -> tuple[type[ReceivedFrame], Callable[[bytes], object]]:
    """Return the type of a frame with any of the messages that are ``declared`` by now.

    The second item is its check, see `prepare`.

    msgspec remembers what it has to do for a struct, and for no other type: so a union is always
    the type of a struct's field.
    """
    message: Any = Union[tuple(REGISTRY.values())]  # noqa: UP007
    define: Any = defstruct
    messages: Any = Annotated[tuple[message, ...], Meta(min_length=1, max_length=MESSAGES_MAX)]
    envelope: Any = tuple[Address, Address, messages]
    envelopes: Any = Annotated[tuple[envelope, ...], Meta(max_length=MESSAGES_MAX)]
    frame: type[ReceivedFrame] = define("Frame", [("envelopes", envelopes)], bases=(ReceivedFrame,))
    return frame, prepare(frame)


def read_frame(data: bytes, cluster: str | None) -> tuple[ReceivedFrame, list[Any]]:
    """Return a frame, and its envelopes as arrays of plain values.

    Raises:
        WrongVersionError: its version is not `WIRE_VERSION`.
        ForeignClusterError: it is for another cluster than ``cluster``, if that is given; checked
            before any envelope is read.
        MalformedFrameError: the base of both; for anything else that is wrong. Unchecked are the
            addresses, the number of messages in all envelopes, and further fields (`is_newer`).

    """
    items: list[Any] = load(data) if data.startswith(USUAL_START) else open_frame(data)
    if len(items) != FRAME_ITEMS:
        raise MalformedFrameError(f"a frame has {FRAME_ITEMS} items, not {len(items)}")
    found = items[1]
    if found != cluster:
        _check_name_of(check_cluster, found)
        if cluster is not None:
            raise ForeignClusterError(found, cluster)
    kind, _ = _frame_type(len(REGISTRY))
    try:
        return convert(items, kind, builtin_types=NATIVE), items[-1]
    except ValidationError as error:
        raise _explained(items, error) from error


def is_newer(message: Message, fields: list[Any]) -> bool:
    """Return whether ``message`` came with more ``fields`` than are declared here.

    Raises:
        MalformedFrameError: it has more than `EXTRA_FIELDS_MAX` more.

    """
    extra = len(fields) - message.ITEMS
    if extra > EXTRA_FIELDS_MAX:
        name = type(message).__name__
        raise MalformedFrameError(f"{name} has {message.ITEMS - 1} fields, not {len(fields) - 1}")
    return extra > 0


def _explained(items: list[Any], error: ValidationError) -> MalformedFrameError:
    """Return msgspec's ``error`` about a frame in words that name the field and its value."""
    try:
        for _, _, messages in items[-1]:
            for message in messages:
                unpack(class_of(message), message)
    except MalformedFrameError as wrong:
        return wrong
    except (TypeError, ValueError):
        pass  # The envelopes are no arrays of three items, with an array as the last.
    return explained("Frame", ReceivedFrame.__struct_fields__, items, error)


def _check_name_of(check: Callable[[str], None], name: object) -> None:
    if type(name) is not str:
        raise MalformedFrameError(f"{shown(name)} is no name")
    try:
        check(name)
    except ValueError as error:
        raise MalformedFrameError(str(error)) from error


def check_received_address(address: str) -> None:
    _check_name_of(check_address, address)


def check_name(what: str, name: str) -> None:
    size = len(name.encode(errors="replace"))
    if not 1 <= size <= ADDRESS_PART_BYTES_MAX:
        allowed = f"1 to {ADDRESS_PART_BYTES_MAX} are allowed"
        raise ValueError(f"{what} {shown(name)} has {size} bytes, {allowed}")
    if not is_allowed(name):
        raise ValueError(f"{what} {shown(name)} has {forbidden_in(name)}, which is not allowed")


def check_cluster(cluster: str) -> None:
    check_name("cluster id", cluster)


def check_node(node: str) -> None:
    """Refuse a node id that cannot be part of an address and of a routing id."""
    check_name("node id", node)
    if node == ANY_NODE or "/" in node or "#" in node:
        raise ValueError(f"node id {shown(node)} may not be '*', nor have '/' or '#'")


def check_address(address: str) -> None:
    node, slash, role = address.partition("/")
    if not slash or "/" in role:
        raise ValueError(f"address {shown(address)} is not of the form node/role")
    check_name("node id", node)
    check_name("role", role)
