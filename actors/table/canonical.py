"""Values as bytes, the same on every machine and in every Python: for hashes and sizes."""

from __future__ import annotations

from json import JSONEncoder
from typing import Any

from fencelock.actors.message import Message


def spell(value: Any) -> bytes:
    """Return the canonical encoding of a message, or of a tuple of simple values or messages.

    It is JSON in ASCII, and never shorter than the CBOR of the same value, so that it
    bounds that too. ``repr`` would not do: its escapes differ between Python versions.
    """
    return _ENCODER.encode(value).encode("ascii")


def _plain(value: object) -> list[Any]:
    """Return a message as its tag and its fields, in declaration order."""
    assert isinstance(value, Message)
    names: tuple[str, ...] = type(value).__slots__
    return [value.TAG, *(getattr(value, name) for name in names)]


_ENCODER = JSONEncoder(separators=(",", ":"), check_circular=False, default=_plain)
