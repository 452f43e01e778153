"""The subset of CBOR on our wire, read with cbor2: integers, text, bytes, booleans, null, arrays.

cbor2 accepts far more, and some of it is an attack: a tag that becomes a fraction of two
numbers of half a megabyte keeps it busy for minutes. So every tag is refused before its
content is read, depth is bounded, and lengths must be definite. Other values, such as maps
and floats, fail the check against the declared types (``transport/codec.py``).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NoReturn

import cbor2

FRAME_BYTES_MAX = 1 << 20
"""Limit of a frame and of a message (1 MiB): it is built and checked in one turn."""

DEPTH_MAX = 16
"""Limit of nested arrays: twice what our deepest message needs."""

INT_MAX = (1 << 63) - 1
INT_MIN = -INT_MAX
"""Integers are signed 64-bit, which every language has, and each can be negated: the refusal of a
`Cancel` has its number with the other sign."""

_SHOWN_CHARS = 60


class MalformedFrameError(Exception):
    """A peer sent bytes that are not a message of ours. Drop the frame; keep the peer."""


class UndecodableError(MalformedFrameError):
    """The bytes are not in our subset of CBOR: no version of fencelock has ever sent them."""


class FrameTooLargeError(ValueError):
    """The value to send is larger than a frame may be; the text has both sizes."""


def shown(value: object) -> str:
    """Return ``value`` short enough for an error's text."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."


dump: Callable[[Any], bytes] = cbor2.dumps
"""Encodes a value made of lists and plain values as CBOR.

Without maps and floats cbor2's encoding is the canonical one: shortest heads, definite
lengths (RFC 8949, section 4.2.1), so that equal messages are equal bytes.
"""


def load(data: bytes) -> Any:
    """Return the only value in ``data``, with a list for each array; types are unchecked.

    Raises:
        UndecodableError: not CBOR, a tag, an indefinite length, nested beyond
            `DEPTH_MAX`, larger than `FRAME_BYTES_MAX`, or with bytes after the value.

    """
    if len(data) > FRAME_BYTES_MAX:
        raise UndecodableError(f"{len(data)} bytes, at most {FRAME_BYTES_MAX}")
    stream = io.BytesIO(data)
    try:
        value: Any = cbor2.load(
            stream,
            semantic_decoders=_REFUSED,
            tag_hook=_refuse_tag,
            max_depth=DEPTH_MAX,
            allow_indefinite=False,
            strict_hashable_types=True,
        )
    except (cbor2.CBORDecodeError, MalformedFrameError, ValueError, RecursionError) as error:
        raise UndecodableError(f"no CBOR that we speak: {error}") from error
    left = len(data) - stream.tell()
    if left:
        raise UndecodableError(f"{left} bytes after the value")
    return value


_MARK = b"fencelock-command"
"""A mark that cannot overlap itself, since its first letter occurs once."""
_MARKED = dump(_MARK)


def load_each(items: Sequence[bytes]) -> list[Any] | None:
    """Return what `load` returns for each of ``items``, or None if one may be refused.

    The items are read as one array, in half the time, with a mark behind each. A count ensures
    that the mark occurs nowhere else. So if each value is followed by the mark, each mark is
    one of ours. The byte before the mark, 0x51, is a whole head for 17 bytes: longer heads for
    17 bytes end in 0x11. So a value ends where its item ends, whatever lengths the items state.
    """
    if not items:
        return []
    joined = _MARKED.join((array_head(2 * len(items)) + items[0], *items[1:], b""))
    if joined.count(_MARK) != len(items):
        return None
    try:
        values = load(joined)
    except MalformedFrameError:
        return None
    return values[::2] if values[1::2] == [_MARK] * len(items) else None


@lru_cache(maxsize=1024)
def array_head(length: int) -> bytes:
    """Return the head of a CBOR array of ``length`` items."""
    return dump([None] * length)[:-length] if length else dump([])


def _refuse(*_: Any) -> NoReturn:
    raise MalformedFrameError("tags are not spoken here")


_refuse_tag: Any = _refuse
_REFUSED: Any = dict.fromkeys((*range(0x400), 0xA7F8, 55799), _refuse)
"""Every tag that cbor2 decodes by itself, and room for later ones: they are refused here."""
