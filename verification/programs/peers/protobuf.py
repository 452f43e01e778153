"""As much of the protobuf wire format as a few small messages need.

Source: https://protobuf.dev/programming-guides/encoding/ .
"""

from __future__ import annotations

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

Fields = dict[int, int | bytes]
"""Field number to its value: an int, or the bytes of a string or of a message inside."""


def encode(fields: Fields) -> bytes:
    """Return the message with these fields; ints are not negative."""
    parts: list[bytes] = []
    for number, value in fields.items():
        if isinstance(value, bytes):
            parts += [_varint(number << 3 | BYTES), _varint(len(value)), value]
        else:
            parts += [_varint(number << 3 | VARINT), _varint(value)]
    return b"".join(parts)


def decode(message: bytes) -> Fields:
    """Return the fields of a message; of a repeated one the last.

    Raises:
        ValueError: it is no such message.

    """
    fields: Fields = {}
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            fields[number], at = _read_varint(message, at)
            continue
        size = {FIXED64: 8, FIXED32: 4}.get(kind)
        if kind == BYTES:
            size, at = _read_varint(message, at)
        if size is None or at + size > len(message):
            raise ValueError(f"no protobuf: field {number} of kind {kind} at byte {at}")
        fields[number] = message[at : at + size]
        at += size
    return fields


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte <= 0x7F:
            return value, at
        shift += 7
    raise ValueError("no protobuf: it ends inside a number")
