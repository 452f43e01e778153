"""What a frame may hold before it is decoded: bytes, arrays, envelopes. Pure."""

from __future__ import annotations

CLIENT_BYTES_MAX = 64 << 10
"""A client's frame is no larger (64 KiB); a member's may have `FRAME_BYTES_MAX`."""

CLIENT_ENVELOPES_MAX = 256
"""A client's frame has no more envelopes: what a gateway puts into one frame."""

SMALL_BYTES = 1024
"""A frame up to this size is decoded unchecked: a quarter of a millisecond at worst."""

ARRAY_SHARE = 8
"""There is at most one array in so many bytes, and `ARRAYS_FREE` more. An array costs a decoder
ten times what another item does. No message of ours has more: each of their arrays holds
a name, a command or several numbers."""

ARRAYS_FREE = 64

ITEM_SHARE = 4
"""There is at most one item in so many bytes, and `ITEMS_FREE` more, where items are counted."""

ITEMS_FREE = 256

_ARRAY_HEADS = bytes(range(0x80, 0xA0))
"""Every first byte of an array; in text they are parts of characters beyond ASCII."""

_ARGUMENT_BYTES = {24: 1, 25: 2, 26: 4, 27: 8}
"""How many bytes follow a head, by its lowest five bits, to say its number."""

_BYTES, _TEXT, _ARRAY = 2, 3, 4
"""Major types of CBOR (RFC 8949, section 3.1)."""


def has_few_arrays(data: bytes) -> bool:
    """Return whether ``data`` has no more arrays than a frame of ours.

    The bytes that may begin an array are counted, which takes a microsecond for a kilobyte. If
    there are too many, they may belong to text or byte strings, so the items are walked through,
    which ends at the first array, or the first item, too many.
    """
    size = len(data)
    most = ARRAYS_FREE + size // ARRAY_SHARE
    return size - len(data.translate(None, _ARRAY_HEADS)) <= most or _walk(data, most)


def _walk(data: bytes, arrays_max: int) -> bool:
    """Return whether ``data`` has few arrays, and few items of any kind.

    What is no CBOR of ours passes: the decoder refuses it where it begins.
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
