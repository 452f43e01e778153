"""Frames, the unit that travels between two processes, and the names in them. Pure.

A frame is ``[version, cluster, group, stamp, [envelope, ...]]`` and an envelope
``[to, from, tag, field, ...]``, see ``transport/README.md``. The version always comes first, so
that it can be checked before anything else is interpreted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

from fencelock.actors.api.name import forbidden_in, is_allowed
from fencelock.actors.message import Address, Message, address_of, message
from fencelock.transport.cbor import (
    FRAME_BYTES_MAX,
    INT_MAX,
    FrameTooLargeError,
    MalformedFrameError,
    array_head,
    dump,
    load,
    shown,
)
from fencelock.transport.codec import ENVELOPE_HEAD_ITEMS, array, schema_of, unpack_fitted

WIRE_VERSION = 1
"""Raised when a node of the previous version could misread a frame of this one."""

ENVELOPES_MAX = 4096
"""Limit of messages in one frame: more than one turn should send to one peer."""

FRAME_ITEMS = 5

USUAL_START = b"\x85\x01"
"""The usual first bytes: an array of `FRAME_ITEMS`, and `WIRE_VERSION`."""
_SHORT_ARRAYS = range(0x81, 0x98)
"""First bytes of arrays of 1 to 23 items. The next byte is the first item."""
_SMALL_INTS = range(24)
"""Integers that are their own encoding."""

CLUSTER_BYTES_MAX = 128
"""Limit of a cluster's id, which is a name that an operator types."""

NODE_BYTES_MAX = 128
"""Limit of a node's id: with ``#`` and a boot id it must fit a ZeroMQ routing id of 255 bytes."""

ROLE_BYTES_MAX = 128
"""Limit of a role's name, with the counter and boot id that make it unique."""

ANY_NODE = "*"
"""As the node of ``to``: any node that reads it. For clients, which know only a TCP address."""


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


@message(0x70)
class Rejected(Message):
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


class Frame(NamedTuple):
    """One frame: the unit that one process sends another."""

    cluster: str
    group: int
    """The group of the sender, 0 of clients and of a node that knows none."""
    stamp: int
    """Logical time of the sender when it sent the frame."""
    envelopes: Sequence[EnvelopeItems]
    newer: int = 0
    """Messages in a frame that arrived which had more fields than this version declares."""


new_frame: Callable[[tuple[Any, ...]], Frame] = partial(cast("Any", tuple).__new__, Frame)
"""Makes a frame of all its fields; its own constructor is Python code."""


def encode_frame(frame: Frame, alias: str = "") -> bytes:
    """Return ``frame`` as CBOR.

    Args:
        frame: the frame to encode.
        alias: our own name of the receiving node, which no other process knows: as the node of
            ``to``, it becomes ``*``.

    Raises:
        FrameTooLargeError: more than `FRAME_BYTES_MAX` bytes or `ENVELOPES_MAX` envelopes.
        ValueError: the cluster id or an address is not well-formed, or the group or the
            stamp is negative or beyond 63 bits.
        TypeError: a message has a field that is not of its declared type.

    """
    cluster, group, stamp, envelopes, _ = frame
    if len(envelopes) > ENVELOPES_MAX:
        raise FrameTooLargeError(f"{len(envelopes)} envelopes, at most {ENVELOPES_MAX}")
    if not 0 <= group | stamp <= INT_MAX:
        raise ValueError(f"group {group} or stamp {stamp}: 0 to {INT_MAX} are allowed")
    parts = [_start(cluster, group), dump(stamp), array_head(len(envelopes))]
    size = sum(map(len, parts))
    last_to = last_sender = None
    addresses, openings = b"", dict[type[Message], tuple[_Write, bytes]]()
    for to, sender, sent in envelopes:
        if to != last_to or sender != last_sender:  # Mostly one role answers one other.
            last_to, last_sender, openings = to, sender, {}
            addresses = (_unaliased(to, alias) if alias else _address(to)) + _address(sender)
        cls = type(sent)
        opened = openings.get(cls)
        if opened is None:
            write, head, tag = _ways.get(cls) or _way(cls)
            opened = openings[cls] = write, b"".join((head, addresses, tag))
        write, opening = opened
        part = write(sent, opening)
        size += len(part)
        if size > FRAME_BYTES_MAX:  # The caller sends fewer at a time: encode no more in vain.
            break
        parts.append(part)
    if size > FRAME_BYTES_MAX:
        raise FrameTooLargeError(f"frame of {size} bytes or more, at most {FRAME_BYTES_MAX}")
    return b"".join(parts)


@lru_cache(maxsize=64)
def _start(cluster: str, group: int) -> bytes:
    """Return the first bytes of every frame of a cluster."""
    check_cluster(cluster)
    return b"".join((array_head(FRAME_ITEMS), dump(WIRE_VERSION), dump(cluster), dump(group)))


_Write = Callable[[Any, bytes], bytes]

_ways: dict[type[Message], tuple[_Write, bytes, bytes]] = {}
"""By the classes used so far: the writer of an envelope's message, the head of the envelope, and
the tag, which follows the addresses."""


def _way(cls: type[Message]) -> tuple[_Write, bytes, bytes]:
    schema = schema_of(cls)
    head = array_head(ENVELOPE_HEAD_ITEMS + schema.length)
    _ways[cls] = schema.write_enveloped, head, dump(cls.TAG)
    return _ways[cls]


@lru_cache(maxsize=NAMES_KEPT)
def _address(address: str) -> bytes:
    """Return a valid address as CBOR, remembered; a refused one is not remembered."""
    check_address(address)
    return dump(address)


@lru_cache(maxsize=NAMES_KEPT)
def _unaliased(address: Address, alias: str) -> bytes:
    node, _, role = address.partition("/")
    return _address(address_of(ANY_NODE, role) if node == alias else address)


def decode_frame(data: bytes, *, cluster: str | None = None) -> Frame:
    """Return the frame in ``data``.

    Args:
        data: the received bytes, all of them.
        cluster: the only cluster id to accept, checked before any envelope is read, or None for
            any.

    Raises:
        WrongVersionError: its version is not `WIRE_VERSION`.
        ForeignClusterError: it is for another cluster than ``cluster``.
        MalformedFrameError: the base of both; raised for anything else that is wrong.

    """
    return frame_of(open_frame(data), cluster)


def open_frame(data: bytes) -> list[Any]:
    """Return the items of a frame after checking its version and nothing else.

    Raises:
        WrongVersionError: its version is not `WIRE_VERSION`.
        MalformedFrameError: it is not our CBOR, or not an array that begins with a version.

    """
    if not data.startswith(USUAL_START):
        _judge_first_bytes(data)
    items = array(load(data))
    if not items or type(items[0]) is not int:
        raise MalformedFrameError("a frame begins with its version")
    if items[0] != WIRE_VERSION:
        raise WrongVersionError(items[0])
    return items


def _judge_first_bytes(data: bytes) -> None:
    """Refuse another version before its frame is parsed: it may use CBOR that we do not.

    This covers frames that begin with a short array and a small number, as all known versions
    do; `open_frame` refuses others if they can be parsed.
    """
    if len(data) > 1 and data[0] in _SHORT_ARRAYS and data[1] in _SMALL_INTS:
        version = data[1]
        if version != WIRE_VERSION:
            raise WrongVersionError(version)


def frame_of(items: list[Any], cluster: str | None) -> Frame:
    """Return the frame in ``items``, as `open_frame` returned them; see `decode_frame`."""
    _, found, group, stamp, packed = array(items, FRAME_ITEMS)
    _check_name_of(check_cluster, found)
    if cluster is not None and found != cluster:
        raise ForeignClusterError(found, cluster)
    for number in (group, stamp):
        if type(number) is not int or not 0 <= number <= INT_MAX:
            raise MalformedFrameError(f"{shown(number)} is no group and no stamp")
    envelopes = array(packed)
    if len(envelopes) > ENVELOPES_MAX:
        raise MalformedFrameError(f"{len(envelopes)} envelopes, at most {ENVELOPES_MAX}")
    opened = [_envelope(one) for one in envelopes]
    newer = sum(has_more for _, has_more in opened)
    return Frame(found, group, stamp, tuple([envelope for envelope, _ in opened]), newer)


def _envelope(packed: object) -> tuple[Envelope, bool]:
    """Return an envelope, and whether its message has fields that are unknown here."""
    items = array(packed)
    if len(items) <= ENVELOPE_HEAD_ITEMS:
        raise MalformedFrameError(
            f"an envelope has to, from, tag and fields, not {len(items)} items"
        )
    to, sender = items[0], items[1]
    _check_name_of(check_address, to)
    _check_name_of(check_address, sender)
    message, has_more = unpack_fitted(items[ENVELOPE_HEAD_ITEMS:])
    return Envelope(to, sender, message), has_more


def _check_name_of(check: Callable[[str], None], name: object) -> None:
    if type(name) is not str:
        raise MalformedFrameError(f"{shown(name)} is no name")
    try:
        check(name)
    except ValueError as error:
        raise MalformedFrameError(str(error)) from error


def check_name(what: str, name: str, limit: int) -> None:
    """Refuse a name that is empty, longer than ``limit`` bytes or has a forbidden character.

    Raises:
        ValueError: naming ``what``, the value and the limit.

    """
    size = len(name.encode(errors="replace"))
    if not 1 <= size <= limit:
        raise ValueError(f"{what} {shown(name)} has {size} bytes, 1 to {limit} are allowed")
    if not is_allowed(name):
        raise ValueError(f"{what} {shown(name)} has {forbidden_in(name)}, which is not allowed")


def check_cluster(cluster: str) -> None:
    """Refuse a cluster id that is empty, above `CLUSTER_BYTES_MAX` or has a forbidden character.

    Raises:
        ValueError: naming the value and the limit.

    """
    check_name("cluster id", cluster, CLUSTER_BYTES_MAX)


def check_node(node: str) -> None:
    """Refuse a node id that cannot be part of an address and of a routing id.

    Raises:
        ValueError: empty, above `NODE_BYTES_MAX`, ``*``, or with a character that
            is not allowed, ``/`` or ``#``.

    """
    check_name("node id", node, NODE_BYTES_MAX)
    if node == ANY_NODE or "/" in node or "#" in node:
        raise ValueError(f"node id {shown(node)} may not be '*', nor have '/' or '#'")


def check_address(address: str) -> None:
    """Refuse an address that is not ``node/role``.

    Raises:
        ValueError: not exactly one ``/``, or a part that is empty, above `NODE_BYTES_MAX`
            or `ROLE_BYTES_MAX`, or has a forbidden character.

    """
    node, slash, role = address.partition("/")
    if not slash or "/" in role:
        raise ValueError(f"address {shown(address)} is not of the form node/role")
    check_name("node id", node, NODE_BYTES_MAX)
    check_name("role", role, ROLE_BYTES_MAX)
