"""Codecs of the values that CBOR has by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fencelock.transport.cbor import INT_MAX, INT_MIN, MalformedFrameError, shown
from fencelock.transport.compiled import Codec


def _check_int(value: Any) -> Any:
    if type(value) is not int:
        raise MalformedFrameError(f"{shown(value)} is no int")
    if not INT_MIN <= value <= INT_MAX:
        raise MalformedFrameError(f"{shown(value)} is not within {INT_MIN} to {INT_MAX}")
    return value


def _check_str(value: Any) -> Any:
    if type(value) is not str:
        raise MalformedFrameError(f"{shown(value)} is no str")
    return value


def _check_bytes(value: Any) -> Any:
    if type(value) is not bytes:
        raise MalformedFrameError(f"{shown(value)} is no bytes")
    return value


def _check_bool(value: Any) -> Any:
    if type(value) is not bool:
        raise MalformedFrameError(f"{shown(value)} is no bool")
    return value


PLAIN: Mapping[Any, Codec] = {
    int: Codec(
        _check_int,
        _check_int,
        "type({v}) is int",
        "{v}",
        (
            "(small[{v}] if 0 <= {v} < 256 else "
            "four(26, {v}) if 65536 <= {v} < 4294967296 else number({v}))",
        ),
    ),
    str: Codec(
        _check_str,
        _check_str,
        "type({v}) is str",
        "",
        ("text_heads[len(e{v} := {v}.encode())]", "e{v}"),
    ),
    bytes: Codec(
        _check_bytes, _check_bytes, "type({v}) is bytes", "", ("bytes_heads[len({v})]", "{v}")
    ),
    bool: Codec(
        _check_bool, _check_bool, "type({v}) is bool", "", (r"(b'\xf5' if {v} else b'\xf4')",)
    ),
}
"""By declared type."""

SIMPLE: frozenset[Any] = frozenset({str, bytes, bool})
"""Types whose values need no further check."""
