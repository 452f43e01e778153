"""The subset of CBOR on our wire: integers, text, bytes, booleans, null, arrays.

cbor2 reads it, and writes what is large. libipld writes what is small, because cbor2 takes long for
each array. As a reader cbor2 accepts far more, and some of it is an attack: a tag that becomes a
fraction of two numbers of half a megabyte keeps it busy for minutes. So every tag is refused
before its content is read, depth is bounded, and lengths must be definite. Other values, such as
maps and floats, fail the check against the declared types (``transport/codec.py``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NoReturn

import cbor2
from libipld import encode_dag_cbor

from fencelock.actors.api.name import INT_MAX

FRAME_BYTES_MAX = 1 << 20
"""Limit of a frame and of a message (1 MiB): it is built and checked in one turn."""

DEPTH_MAX = 16
"""Limit of nested arrays: twice what our deepest message needs."""

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


_CID = b"\xd8\x2a"
"""The head of tag 42. libipld puts it before bytes that look like a content id of IPLD."""

_CID_START = _CID[:1]
"""Searched for first: most values do not have it, and one byte is found much faster than two."""

LIBIPLD_BYTES_MAX = 8 << 10
"""Larger values are left to cbor2: to search them for a tag would take longer than cbor2 does."""


def dump(value: Any, size: int = 0) -> bytes:
    """Return a value made of lists and plain values as CBOR.

    The encoding is the canonical one: shortest heads, definite lengths (RFC 8949, section 4.2.1),
    so that equal messages are equal bytes. It has no tags.

    Args:
        value: ints, texts, bytes, booleans, None, and lists of them.
        size: about how many bytes it will take.

    Raises:
        ValueError: ``value`` has a tuple or a text with a surrogate.

    """
    if size > LIBIPLD_BYTES_MAX:
        return cbor2.dumps(value)
    data = encode_dag_cbor(value)
    return cbor2.dumps(value) if _CID_START in data and _CID in data else data


def load(data: bytes) -> Any:
    """Return the only value in ``data``, with a list for each array; types are unchecked.

    Raises:
        UndecodableError: not CBOR, a tag, an indefinite length, nested beyond
            `DEPTH_MAX`, larger than `FRAME_BYTES_MAX`, or with bytes after the value.

    """
    if len(data) > FRAME_BYTES_MAX:
        raise UndecodableError(f"{len(data)} bytes, at most {FRAME_BYTES_MAX}")
    try:
        value, mark = _read(_PAIR + data + _MARKED)
    except _UNREADABLE as error:
        raise UndecodableError(f"no CBOR that we speak: {error}") from error
    if mark != _MARK:
        raise UndecodableError("more bytes after the value")
    return value


_MARK = os.urandom(16)
"""Follows each value that is read. cbor2 reads bytes in half the time that it needs for a file, but
does not tell where the value ended. The mark does, since nobody outside this process can know it:
the item after the value is the mark only if the value ends where its bytes do."""

_MARKED = dump(_MARK)


def load_each(items: Sequence[bytes]) -> list[Any] | None:
    """Return what `load` returns for each of ``items``, or None if one may be refused.

    The items are read as one array, in half the time, with the mark behind each.
    """
    if not items:
        return []
    joined = _MARKED.join((array_head(2 * len(items)) + items[0], *items[1:], b""))
    if len(joined) > FRAME_BYTES_MAX:
        return None
    try:
        values = _read(joined)
    except _UNREADABLE:
        return None
    return values[::2] if values[1::2] == [_MARK] * len(items) else None


@lru_cache(maxsize=1024)
def array_head(length: int) -> bytes:
    return dump([None] * length)[:-length] if length else dump([])


_PAIR = array_head(2)


def _refuse(*_: Any) -> NoReturn:
    raise MalformedFrameError("tags are not spoken here")


_TAGS = dict.fromkeys((*range(0x400), 0xA7F8, 55799), _refuse)
"""Every tag that cbor2 decodes by itself, and room for later ones."""


def _read(data: bytes) -> list[Any]:
    """Read the array that we have put around values from elsewhere."""
    # A function, since a `partial` would copy its keywords at each call.
    values: list[Any] = cbor2.loads(
        data,
        tag_hook=_refuse,
        semantic_decoders=_TAGS,
        max_depth=1 + DEPTH_MAX,
        allow_indefinite=False,
        strict_hashable_types=True,
    )
    return values


_UNREADABLE = (cbor2.CBORDecodeError, MalformedFrameError, ValueError, RecursionError)
