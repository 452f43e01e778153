"""Every message of clients and peers, with each field at its extremes, one at a time."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING
from enum import IntEnum
from functools import cache
from random import Random
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import fencelock.actors
from fencelock.actors.api.request import Request
from fencelock.actors.message import REGISTRY, Message
from fencelock.transport.cbor import INT_MAX, INT_MIN

PACKAGE = "fencelock."
"""Tests define messages of their own, which no node knows."""

for _module in pkgutil.walk_packages(fencelock.actors.__path__, "fencelock.actors."):
    importlib.import_module(_module.name)  # So `REGISTRY` has every message.

INTEGERS = (
    *(0, 1, -1, 2, 255, 1_001, 10**6, 2**31 - 1, 2**31, 2**32, 2**53, 2**53 + 1),
    *(2**61, 2**62 - 2, 2**62 - 1, 2**62, INT_MAX - 1, INT_MAX, -(2**31), -(2**62), INT_MIN),
)
TEXTS = (
    *("", "x", "n1", "n2", "n1/proxy", "n2/replica", "a/b", "//", "*", "a.1", "me~2.17", "1", "-1"),
    *("\x00", "\n", "\x1f", "latch\x1fx", "rwlock\x1fx", "\u202e", "\u200b", "é" * 128, "é" * 129),
    *("\U0010ffff", "x" * 256, "x" * 257, "/" * 300, "tcp://127.0.0.1:1", "tcp://", "x" * 20_000),
)
BYTES = (b"", b"\x00", b"\xff" * 16, b"\x80", b"\x9f", b"fencelock-command", b"x" * 60_000)
MANY = 300
"""Length of the longest tuple."""

LARGE_BYTES = 1 << 19
"""A value is left out if a message with it would not fit a frame."""

Values = Mapping[str, Any]
"""Plausible values of fields, by name."""


@cache
def plain(hint: Any) -> Any:
    """Return the type behind a `NewType` or an optional one."""
    hint = getattr(hint, "__supertype__", hint)
    if get_origin(hint) in (Union, UnionType):
        return next(plain(one) for one in get_args(hint) if one is not NoneType)
    return hint


@cache
def arms(hint: Any) -> list[Any]:
    """Return all types that ``hint`` joins."""
    if get_origin(hint) in (Union, UnionType):
        return [arm for one in get_args(hint) for arm in arms(one)]
    return [getattr(hint, "__supertype__", hint)]


def hints_of(cls: Any) -> dict[str, Any]:
    """Return the declared types of a message or a named tuple."""
    return _hints_of(cls)


@cache
def _hints_of(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls)
    names: tuple[str, ...] = getattr(cls, "_fields", ()) or cls.__struct_fields__
    return {name: hints[name] for name in names}


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a field of that type may have ``value``."""
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_fits(one, get_args(kind)[0]) for one in value)  # pyright: ignore[reportUnknownVariableType]
    return isinstance(value, kind)


class Composer:
    """Makes messages.

    Args:
        values: the plausible values.

    """

    def __init__(self, values: Values) -> None:
        self.values = values

    def sound(self, cls: Any) -> Any:
        """Return a plausible instance of a message or a named tuple."""
        return cls(**{name: self.value(name, hint) for name, hint in hints_of(cls).items()})

    def value(self, name: str, hint: Any) -> Any:
        """Return a plausible value of the field ``name``."""
        known = self.values.get(name, MISSING)
        kind = plain(hint)
        if known is not MISSING and _fits(known, kind):
            return known
        if kind is int:
            return 1
        if kind is str:
            return "x"
        if kind is bytes:
            return b"x"
        if kind is bool:
            return False
        if get_origin(kind) is tuple:
            return (self.value(name, get_args(kind)[0]),)
        if issubclass(kind, IntEnum):
            return next(iter(kind))
        return self.sound(kind)

    def extremes(self, name: str, hint: Any) -> Iterator[Any]:
        """Yield the extremes of the field ``name``."""
        for kind in arms(hint):
            if kind is NoneType:
                yield None
            elif kind is bool:
                yield from (False, True)
            elif kind is int:
                yield from INTEGERS
            elif kind is str:
                yield from TEXTS
            elif kind is bytes:
                yield from BYTES
            elif get_origin(kind) is tuple:
                yield from self._tuples(name, get_args(kind)[0])
            elif issubclass(kind, IntEnum):
                yield from kind
            else:
                yield from self.variants(kind)

    def _tuples(self, name: str, item: Any) -> Iterator[Any]:
        yield ()
        one = self.value(name, item)
        yield from ((one,), (one, one), (one,) * MANY)
        for extreme in self.extremes(name, item):
            yield (extreme,)
            yield (one, extreme)

    def variants(self, cls: Any) -> Iterator[Any]:
        """Yield plausible instances of ``cls``, each with one field at one extreme."""
        hints = hints_of(cls)
        sound = {name: self.value(name, hint) for name, hint in hints.items()}
        yield cls(**sound)
        for name, hint in hints.items():
            for extreme in self.extremes(name, hint):
                yield cls(**{**sound, name: extreme})

    def drawn(self, cls: Any, random: Random) -> Any:
        """Return an instance of ``cls`` with some fields at extremes, chosen at random."""
        hints = hints_of(cls)
        share = random.choice((0.1, 0.3, 1.0))
        return cls(**{name: self._draw(name, hints[name], random, share) for name in hints})

    def _draw(self, name: str, hint: Any, random: Random, share: float) -> Any:
        if random.random() >= share:
            return self.value(name, hint)
        kind = random.choice(arms(hint))
        if kind is NoneType:
            return None
        if kind is bool:
            return random.random() < 0.5
        if kind is int:
            return random.choice(INTEGERS)
        if kind is str:
            return random.choice(TEXTS)
        if kind is bytes:
            return random.choice(BYTES)
        if get_origin(kind) is tuple:
            item = get_args(kind)[0]
            count = random.choice((0, 1, 1, 2, 3))
            return tuple(self._draw(name, item, random, share) for _ in range(count))
        if issubclass(kind, IntEnum):
            return random.choice(list(kind))
        return self.drawn(kind, random)


def requests() -> list[type[Request]]:
    """Return all messages of clients to nodes."""
    return [cls for cls in messages() if issubclass(cls, Request)]


def messages() -> list[type[Message]]:
    """Return all messages by tag, whoever sends them."""
    return [
        REGISTRY[tag] for tag in sorted(REGISTRY) if REGISTRY[tag].__module__.startswith(PACKAGE)
    ]


def variants_of(kinds: Sequence[type[Message]], values: Values) -> Iterator[Message]:
    """Yield all variants of all ``kinds``, one of each kind in turn."""
    composer = Composer(values)
    left = [iter(composer.variants(kind)) for kind in kinds]
    while left:
        for variants in [*left]:
            message = next(variants, None)
            if message is None:
                left.remove(variants)
            else:
                yield cast("Message", message)
