"""Frames, the unit that travels between two processes: encoded, and decoded with checks. Pure.

A frame is ``[version, cluster, view, stamp, [envelope, ...]]`` and an envelope
``[to, from, tag, field, ...]``, see ``transport/README.md``. The version always comes first, so
that it can be checked before anything else is interpreted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from fencelock.actors.message import Address, Message, address_of
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
from fencelock.transport.name import ANY_NODE, NAMES_KEPT, check_address, check_cluster

__all__ = [
    "ENVELOPES_MAX",
    "ENVELOPE_HEAD_ITEMS",
    "FRAME_BYTES_MAX",
    "FRAME_ITEMS",
    "USUAL_START",
    "WIRE_VERSION",
    "Envelope",
    "EnvelopeItems",
    "ForeignClusterError",
    "Frame",
    "FrameTooLargeError",
    "MalformedFrameError",
    "WrongVersionError",
    "decode_frame",
    "encode_frame",
    "frame_of",
    "open_frame",
]

WIRE_VERSION = 1
"""Raised when a node of the version before could misread a frame of this one."""

ENVELOPES_MAX = 4096
"""Limit of messages in one frame: more than one turn should send to one peer."""

FRAME_ITEMS = 5

USUAL_START = b"\x85\x01"
"""The usual first bytes: an array of `FRAME_ITEMS`, and `WIRE_VERSION`."""
_SHORT_ARRAYS = range(0x81, 0x98)
"""First bytes of arrays of 1 to 23 items, whose first item is the next byte."""
_SMALL_INTS = range(24)
"""Integers that are their own encoding."""


class WrongVersionError(MalformedFrameError):
    """The frame is of another version of the wire, ``version``."""

    def __init__(self, version: int) -> None:
        super().__init__(f"frame of wire version {version}, this node speaks {WIRE_VERSION}")
        self.version = version


class ForeignClusterError(MalformedFrameError):
    """The frame is for the cluster ``found``, but this node is of ``expected``."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(f"frame for cluster {found!r}, this is cluster {expected!r}")
        self.found = found


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
    view: int
    """Number of the membership that the sender uses, 0 where the protocol has only one."""
    stamp: int
    """Logical time of the sender when it sent the frame."""
    envelopes: tuple[EnvelopeItems, ...]
    newer: int = 0
    """Messages in a frame that arrived which had more fields than this version declares."""


def encode_frame(frame: Frame, alias: str = "") -> bytes:
    """Return ``frame`` as CBOR.

    Args:
        frame: the frame to encode.
        alias: our own name of the receiving node, which nobody else knows: as the node of
            ``to``, it becomes ``*``.

    Raises:
        FrameTooLargeError: more than `FRAME_BYTES_MAX` bytes or `ENVELOPES_MAX` envelopes.
        ValueError: the cluster id or an address is not well-formed, or the view or the
            stamp is negative or beyond 63 bits.
        TypeError: a message has a field that is not of its declared type.

    """
    cluster, view, stamp, envelopes, _ = frame
    if len(envelopes) > ENVELOPES_MAX:
        raise FrameTooLargeError(f"{len(envelopes)} envelopes, at most {ENVELOPES_MAX}")
    if not 0 <= view | stamp <= INT_MAX:
        raise ValueError(f"view {view} or stamp {stamp}: 0 to {INT_MAX} are allowed")
    parts = [_start(cluster, view), dump(stamp), array_head(len(envelopes))]
    last_to = last_sender = None
    addresses, openings = b"", dict[type[Message], tuple[_Write, bytes]]()
    for to, sender, message in envelopes:
        if to != last_to or sender != last_sender:  # Mostly one role answers one other.
            last_to, last_sender, openings = to, sender, {}
            addresses = (_unaliased(to, alias) if alias else _address(to)) + _address(sender)
        cls = type(message)
        opened = openings.get(cls)
        if opened is None:
            write, head, tag = _ways.get(cls) or _way(cls)
            opened = openings[cls] = write, b"".join((head, addresses, tag))
        write, opening = opened
        parts.append(write(message, opening))
    data = b"".join(parts)
    if len(data) > FRAME_BYTES_MAX:
        raise FrameTooLargeError(f"frame of {len(data)} bytes, at most {FRAME_BYTES_MAX}")
    return data


@lru_cache(maxsize=64)
def _start(cluster: str, view: int) -> bytes:
    """Return the first bytes of every frame of a cluster."""
    check_cluster(cluster)
    return b"".join((array_head(FRAME_ITEMS), dump(WIRE_VERSION), dump(cluster), dump(view)))


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
        cluster: the only cluster id to accept, checked before any envelope is read; None
            for any.

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
    _, found, view, stamp, packed = array(items, FRAME_ITEMS)
    _check_name_of(check_cluster, found)
    if cluster is not None and found != cluster:
        raise ForeignClusterError(found, cluster)
    for number in (view, stamp):
        if type(number) is not int or not 0 <= number <= INT_MAX:
            raise MalformedFrameError(f"{shown(number)} is no view and no stamp")
    envelopes = array(packed)
    if len(envelopes) > ENVELOPES_MAX:
        raise MalformedFrameError(f"{len(envelopes)} envelopes, at most {ENVELOPES_MAX}")
    opened = [_envelope(one) for one in envelopes]
    newer = sum(has_more for _, has_more in opened)
    return Frame(found, view, stamp, tuple([envelope for envelope, _ in opened]), newer)


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
