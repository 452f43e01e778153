"""Limits checked before a frame is decoded: bytes, arrays, envelopes. Pure."""

from __future__ import annotations

CLIENT_BYTES_MAX = 64 << 10
"""Limit of a client's frame (64 KiB); a member's may have `FRAME_BYTES_MAX`."""

CLIENT_ENVELOPES_MAX = 256
"""Limit of envelopes in a client's frame: as many as a gateway puts into one frame."""

SMALL_BYTES = 1024
"""A frame up to this size is decoded unchecked: that takes a quarter of a millisecond at worst."""

ARRAY_SHARE = 8
"""A frame has at most one array for so many bytes, and `ARRAYS_FREE` more. An array costs a
decoder ten times as much as another item. Our own messages stay below: each of their arrays
holds a name, a command or several numbers."""

ARRAYS_FREE = 64

ITEM_SHARE = 4
"""A frame whose items are counted has at most one for so many bytes, and `ITEMS_FREE` more."""

ITEMS_FREE = 256

_ARRAY_HEADS = bytes(range(0x80, 0xA0))
"""All first bytes of an array; in text they are parts of characters beyond ASCII."""

_ARGUMENT_BYTES = {24: 1, 25: 2, 26: 4, 27: 8}
"""Sizes of the number that follows a head (bytes), by the head's lowest five bits."""

_BYTES, _TEXT, _ARRAY = 2, 3, 4
"""Major types of CBOR (RFC 8949, section 3.1)."""


def has_few_arrays(data: bytes) -> bool:
    """Return whether ``data`` has no more arrays than our own frames have.

    First count the bytes that may begin an array, which takes a microsecond for a kilobyte. If
    there are too many, they may belong to text or byte strings: then walk through the items, up
    to the first array, or the first item, too many.
    """
    size = len(data)
    most = ARRAYS_FREE + size // ARRAY_SHARE
    return size - len(data.translate(None, _ARRAY_HEADS)) <= most or _walk(data, most)


def _walk(data: bytes, arrays_max: int) -> bool:
    """Return whether ``data`` has few arrays, and few items of any kind.

    It accepts malformed CBOR, which the decoder refuses where it begins.
    """
    size, at, arrays = len(data), 0, 0
    for _ in range(ITEMS_FREE + size // ITEM_SHARE):
        if at >= size:
            return True
        head = data[at]
        major, number = head >> 5, head & 31
        length = _ARGUMENT_BYTES.get(number, 0)
        at += 1 + length
        if major == _ARRAY:
            arrays += 1
            if arrays > arrays_max:
                return False
        elif major in (_BYTES, _TEXT):
            at += int.from_bytes(data[at - length : at]) if length else number
    return False
