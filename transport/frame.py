"""What travels between two processes: envelopes in a frame, checked part by part; pure.

A frame is ``[version, cluster, view, stamp, [envelope, ...]]`` and an envelope
``[to, from, tag, field, ...]``, see ``transport/README.md``. The version comes first for
ever, so that it can be judged before anything else is interpreted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from holdfast.actors.message import Address, Message
from holdfast.transport.cbor import (
    FRAME_BYTES_MAX,
    INT_MAX,
    FrameTooLargeError,
    MalformedFrameError,
    dump,
    load,
    shown,
)
from holdfast.transport.schema import array, schema_of
from holdfast.transport.wire import encode, unpack

__all__ = [
    "ENVELOPES_MAX",
    "FRAME_BYTES_MAX",
    "WIRE_VERSION",
    "Envelope",
    "ForeignClusterError",
    "Frame",
    "FrameTooLargeError",
    "MalformedFrameError",
    "WrongVersionError",
    "check_address",
    "check_cluster",
    "check_node",
    "decode_frame",
    "encode_frame",
]

WIRE_VERSION = 1
"""Raised when a node of the version before could misread what a node of this one says."""

ENVELOPES_MAX = 4096
"""Messages in one frame: more than one turn's sends to one peer should be."""

CLUSTER_BYTES_MAX = 128
"""A cluster's id is a name an operator types."""

NODE_BYTES_MAX = 128
"""With ``#`` and a boot id it must fit a ZeroMQ routing id, which has 255 bytes."""

ROLE_BYTES_MAX = 128
"""A role's name, with the counter and boot id that make it unique."""

ANY_NODE = "*"
"""As the node of ``to``: whichever node reads this. For clients, who know only a TCP address."""

_FRAME_ITEMS = 5
_ENVELOPE_HEAD_ITEMS = 2
_SHORT_ARRAYS = range(0x81, 0x98)
"""First bytes of arrays of 1 to 23 items, whose first item is the next byte."""
_SMALL_INTS = range(24)
"""Integers that are their own encoding."""


class WrongVersionError(MalformedFrameError):
    """The frame speaks another version of the wire, ``version``."""

    def __init__(self, version: int) -> None:
        super().__init__(f"frame of wire version {version}, this node speaks {WIRE_VERSION}")
        self.version = version


class ForeignClusterError(MalformedFrameError):
    """The frame is for the cluster ``found``, and we are ``expected``."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(f"frame for cluster {found!r}, this is cluster {expected!r}")
        self.found = found


class Envelope(NamedTuple):
    """A message with the address it goes to and the one it comes from."""

    to: Address
    sender: Address
    message: Message


class Frame(NamedTuple):
    """What one process sends another in one piece."""

    cluster: str
    view: int
    """Number of the membership the sender goes by, 0 where the protocol has only one."""
    stamp: int
    """Logical time of the sender when the frame left."""
    envelopes: tuple[Envelope, ...]


def check_name(what: str, name: str, limit: int) -> None:
    """Refuse a name that is empty, longer than ``limit`` bytes or not printable.

    Raises:
        ValueError: naming ``what``, the value and the limit.

    """
    size = len(name.encode(errors="replace"))
    if not 1 <= size <= limit:
        raise ValueError(f"{what} {shown(name)} has {size} bytes, 1 to {limit} are allowed")
    if not name.isprintable():
        raise ValueError(f"{what} {shown(name)} has characters that do not print")


def check_cluster(cluster: str) -> None:
    """Refuse a cluster id that is empty, above `CLUSTER_BYTES_MAX` or not printable.

    Raises:
        ValueError: naming the value and the limit.

    """
    check_name("cluster id", cluster, CLUSTER_BYTES_MAX)


def check_node(node: str) -> None:
    """Refuse a node id that cannot be part of an address and of a routing id.

    Raises:
        ValueError: empty, above `NODE_BYTES_MAX`, not printable, ``*``, or with ``/`` or ``#``.

    """
    check_name("node id", node, NODE_BYTES_MAX)
    if node == ANY_NODE or "/" in node or "#" in node:
        raise ValueError(f"node id {shown(node)} may not be '*', nor have '/' or '#'")


def check_address(address: str) -> None:
    """Refuse what is no ``node/role``.

    Raises:
        ValueError: not exactly one ``/``, or a part that is empty, above `NODE_BYTES_MAX`
            or `ROLE_BYTES_MAX`, or not printable.

    """
    node, slash, role = address.partition("/")
    if not slash or "/" in role:
        raise ValueError(f"address {shown(address)} is not of the form node/role")
    check_name("node id", node, NODE_BYTES_MAX)
    check_name("role", role, ROLE_BYTES_MAX)


def encode_frame(frame: Frame) -> bytes:
    """Return ``frame`` as CBOR.

    Raises:
        FrameTooLargeError: more than `FRAME_BYTES_MAX` bytes or `ENVELOPES_MAX` envelopes.
        ValueError: the cluster id or an address is not well-formed, or the view or the
            stamp is negative or beyond 63 bits.
        TypeError: a message has a field of another type than it declares.

    """
    cluster, view, stamp, envelopes = frame
    if len(envelopes) > ENVELOPES_MAX:
        raise FrameTooLargeError(f"{len(envelopes)} envelopes, at most {ENVELOPES_MAX}")
    for name, number in (("view", view), ("stamp", stamp)):
        if not 0 <= number <= INT_MAX:
            raise ValueError(f"{name} is {number}, 0 to {INT_MAX} are allowed")
    parts = [_start(cluster, view), dump(stamp), _head(len(envelopes))]
    for to, sender, message in envelopes:
        length = schema_of(type(message)).length
        parts += (
            _head(_ENVELOPE_HEAD_ITEMS + length),
            _name(check_address, to),
            _name(check_address, sender),
            encode(message)[len(_head(length)) :],
        )
    data = b"".join(parts)
    if len(data) > FRAME_BYTES_MAX:
        raise FrameTooLargeError(f"frame of {len(data)} bytes, at most {FRAME_BYTES_MAX}")
    return data


@lru_cache(maxsize=64)
def _start(cluster: str, view: int) -> bytes:
    """Return what every frame of a cluster begins with."""
    return b"".join(
        (_head(_FRAME_ITEMS), dump(WIRE_VERSION), _name(check_cluster, cluster), dump(view))
    )


@lru_cache(maxsize=64)
def _head(length: int) -> bytes:
    """Return how CBOR begins an array of ``length`` items."""
    return dump([None] * length)[:-length] if length else dump([])


@lru_cache(maxsize=4096)
def _name(check: Callable[[str], None], name: str) -> bytes:
    """Return one of the few names in use as CBOR; what ``check`` refuses is not remembered."""
    check(name)
    return dump(name)


@lru_cache(maxsize=4096)
def _check_once(check: Callable[[str], None], name: str) -> None:
    """Check the few names in use once each; what is refused is not remembered."""
    check(name)


def decode_frame(data: bytes, *, cluster: str | None = None) -> Frame:
    """Return the frame in ``data``.

    Args:
        data: what arrived, all of it.
        cluster: the only cluster id to accept, judged before any envelope is read; None
            for any.

    Raises:
        WrongVersionError: its version is not `WIRE_VERSION`.
        ForeignClusterError: it is for another cluster than ``cluster``.
        MalformedFrameError: the base of both; anything else that is wrong with it.

    """
    _judge_first_bytes(data)
    items = array(load(data))
    if not items or type(items[0]) is not int:
        raise MalformedFrameError("a frame begins with its version")
    if items[0] != WIRE_VERSION:
        raise WrongVersionError(items[0])
    _, found, view, stamp, packed = array(items, _FRAME_ITEMS)
    _check_name_of(check_cluster, found)
    if cluster is not None and found != cluster:
        raise ForeignClusterError(found, cluster)
    for number in (view, stamp):
        if type(number) is not int or not 0 <= number <= INT_MAX:
            raise MalformedFrameError(f"{shown(number)} is no view and no stamp")
    envelopes = array(packed)
    if len(envelopes) > ENVELOPES_MAX:
        raise MalformedFrameError(f"{len(envelopes)} envelopes, at most {ENVELOPES_MAX}")
    return Frame(found, view, stamp, tuple([_envelope(one) for one in envelopes]))


def _judge_first_bytes(data: bytes) -> None:
    """Refuse another version before its frame is parsed: it may use CBOR that we do not.

    Looks at frames that begin with a short array and a small number, as all do that we know;
    another version written in another way is refused by `decode_frame` if it can be parsed.
    """
    if len(data) > 1 and data[0] in _SHORT_ARRAYS and data[1] in _SMALL_INTS:
        version = data[1]
        if version != WIRE_VERSION:
            raise WrongVersionError(version)


def _envelope(packed: object) -> Envelope:
    items = array(packed)
    if len(items) <= _ENVELOPE_HEAD_ITEMS:
        raise MalformedFrameError(
            f"an envelope has to, from, tag and fields, not {len(items)} items"
        )
    to, sender = items[0], items[1]
    _check_name_of(check_address, to)
    _check_name_of(check_address, sender)
    return Envelope(to, sender, unpack(items[_ENVELOPE_HEAD_ITEMS:]))


def _check_name_of(check: Callable[[str], None], name: object) -> None:
    if type(name) is not str:
        raise MalformedFrameError(f"{shown(name)} is no name")
    try:
        _check_once(check, name)
    except ValueError as error:
        raise MalformedFrameError(str(error)) from error
