"""Encoding a message as CBOR, and decoding one from bytes that are not trusted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fencelock.actors.message import REGISTRY, Message
from fencelock.transport.cbor import (
    FRAME_BYTES_MAX,
    FrameTooLargeError,
    MalformedFrameError,
    load,
)
from fencelock.transport.schema import Schema, array, fit, schema_of, tag_of

__all__ = [
    "FRAME_BYTES_MAX",
    "FrameTooLargeError",
    "MalformedFrameError",
    "decode",
    "encode",
    "pack",
    "unpack",
    "unpack_fitted",
]


KEPT_BYTES_MAX = 40 << 10
"""Limit up to which a message keeps its encoding (40 KiB): a full slot, which goes to a journal
and to all members, is not larger. In frames, messages of plain fields are encoded anew."""


def encode(message: Message) -> bytes:
    """Return ``message`` as ``[tag, field, ...]``, fields in the order declared.

    Raises:
        TypeError: a field has a value that its declaration does not allow, an int beyond signed
            64 bits included, or the class has a field that cannot cross the wire.
        FrameTooLargeError: the result is larger than `FRAME_BYTES_MAX`.

    """
    data: bytes | None = getattr(message, "encoded", None)
    if data is not None:
        return data
    cls = type(message)
    data = (_writers.get(cls) or _writer(cls))(message)
    if len(data) > FRAME_BYTES_MAX:
        raise FrameTooLargeError(
            f"{cls.__name__} takes {len(data)} bytes, at most {FRAME_BYTES_MAX}"
        )
    if len(data) <= KEPT_BYTES_MAX:
        message.encoded = data
    return data


def decode(data: bytes) -> Message:
    """Return the message in ``data``, which has exactly the fields that its class declares.

    Raises:
        MalformedFrameError: too long, not our subset of CBOR, trailing bytes, an
            unknown tag, or fields of the wrong number or type.

    """
    return unpack(array(load(data)))


def pack(message: Message) -> list[Any]:
    """Return ``message`` as an array of plain values.

    Raises:
        TypeError: see `encode`.

    """
    return schema_of(type(message)).pack(message)


def unpack(items: list[Any]) -> Message:
    """Return the message in ``items``: its tag, then exactly the declared fields.

    Raises:
        MalformedFrameError: see `decode`.

    """
    if items and type(items[0]) is int:
        unpacker = _unpackers.get(items[0])
        if unpacker is not None:
            return unpacker(items)
    _unpackers[tag_of(items)] = _schema_in(items).unpack
    return _unpackers[items[0]](items)


def unpack_fitted(items: list[Any]) -> tuple[Message, bool]:
    """Return the message that ``items`` are, and whether it has fields that are unknown here.

    A peer of another version may send fewer optional fields, or more (`fit`).

    Raises:
        MalformedFrameError: see `decode`.

    """
    schema = _schema_in(items)
    return schema.unpack(fit(schema, items)), len(items) > schema.length


def _schema_in(items: list[Any]) -> Schema:
    """Return the schema of the message that ``items`` are, by its tag."""
    tag = tag_of(items)
    cls = REGISTRY.get(tag)
    if cls is None:
        raise MalformedFrameError(f"no message has tag {tag:#x}")
    return schema_of(cls)


def _writer(cls: type[Message]) -> Callable[[Any], bytes]:
    _writers[cls] = schema_of(cls).write
    return _writers[cls]


_writers: dict[type[Message], Callable[[Any], bytes]] = {}
"""Writers, by the classes used so far."""

_unpackers: dict[int, Callable[[list[Any]], Message]] = {}
"""Unpackers, by the tags received so far, each known."""
