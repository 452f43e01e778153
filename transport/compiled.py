"""The short way of packing and unpacking one class of messages, written out for it as source.

What a class needs is known when it is declared: which fields, of which types. So the checks
of all its fields become one expression, as somebody would write it by hand for each class.
Whatever does not pass it goes the long way (`holdfast.transport.schema`), which finds out
what is wrong and says so. The text is made of field names and constants of this module and
never of anything that arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from holdfast.actors.message import Message
from holdfast.transport.cbor import MalformedFrameError

Pack = Callable[[Any], list[Any]]
Unpack = Callable[[list[Any]], Any]


Step = Callable[[Any], Any]
"""Takes a value and returns it in its other form, or raises `MalformedFrameError`."""


class Codec(NamedTuple):
    """How values of one type are turned into plain ones, and back."""

    pack: Step
    unpack: Step
    test: str = ""
    """For values that CBOR has, an expression of ``{v}`` that is true for one of the type: it
    does instead of the steps. Empty for others."""


class Way(NamedTuple):
    """A field, and how its values go."""

    name: str
    codec: Codec


def short_pack(cls: type[Message], ways: Sequence[Way], long: Pack) -> Pack:
    """Return what packs a message of ``cls``, and leaves to ``long`` what is wrong."""
    values = [f"v{n}" if way.codec.test else f"p{n}(v{n})" for n, way in enumerate(ways)]
    lines = [
        "def pack(message):",
        *(f"    v{n} = message.{way.name}" for n, way in enumerate(ways)),
        f"    if {_tests(ways)}:",
        "        try:",
        f"            return [{', '.join([str(cls.TAG), *values])}]",
        "        except Malformed:",
        "            pass",
        "    return long(message)",
    ]
    names = {f"p{n}": way.codec.pack for n, way in enumerate(ways)}
    pack: Pack = _define("pack", lines, {**names, "long": long})
    return pack


def short_unpack(cls: type[Message], ways: Sequence[Way], long: Unpack) -> Unpack:
    """Return what unpacks the array of a ``cls``, and leaves to ``long`` what is wrong.

    The message is filled without its constructor, which would take three times as long to
    do the same; so a class may have no ``__post_init__``.
    """
    assert not hasattr(cls, "__post_init__")
    parts = ["tag", *(f"v{n}" for n in range(len(ways)))]
    values = [f"v{n}" if way.codec.test else f"u{n}(v{n})" for n, way in enumerate(ways)]
    lines = [
        "def unpack(items):",
        f"    if len(items) == {len(parts)}:",
        f"        {', '.join(parts)}{',' if len(parts) == 1 else ''} = items",
        f"        if {_tests(ways)}:",
        "            message = new(cls)",
        "            try:",
        *(
            f"                message.{way.name} = {value}"
            for way, value in zip(ways, values, strict=True)
        ),
        "                return message",
        "            except Malformed:",
        "                pass",
        "    return long(items)",
    ]
    names = {f"u{n}": way.codec.unpack for n, way in enumerate(ways)}
    scope = {**names, "long": long, "cls": cls, "new": object.__new__}
    unpack: Unpack = _define("unpack", lines, scope)
    return unpack


def short_tuple(cls: Any, ways: Sequence[Way], long: Codec) -> Codec:
    """Return how a NamedTuple goes, as an array; what is wrong is left to ``long``."""
    names = [f"v{n}" for n in range(len(ways))]
    packed = [v if way.codec.test else f"p{v}({v})" for v, way in zip(names, ways, strict=True)]
    unpacked = [v if way.codec.test else f"u{v}({v})" for v, way in zip(names, ways, strict=True)]
    pack = [
        "def pack(value):",
        "    if type(value) is cls:",
        f"        {', '.join(names)}, = value",
        f"        if {_tests(ways)}:",
        f"            return [{', '.join(packed)}]",
        "    return long(value)",
    ]
    unpack = [
        "def unpack(value):",
        f"    if type(value) is list and len(value) == {len(names)}:",
        f"        {', '.join(names)}, = value",
        f"        if {_tests(ways)}:",
        f"            return new(cls, ({', '.join(unpacked)},))",
        "    return long(value)",
    ]
    steps = {f"p{v}": way.codec.pack for v, way in zip(names, ways, strict=True)}
    steps |= {f"u{v}": way.codec.unpack for v, way in zip(names, ways, strict=True)}
    new: Any = cast("Any", tuple).__new__
    scope: dict[str, Any] = {**steps, "cls": cls, "new": new}
    return Codec(
        _define("pack", pack, {**scope, "long": long.pack}),
        _define("unpack", unpack, {**scope, "long": long.unpack}),
    )


def _tests(ways: Sequence[Way]) -> str:
    tests = [way.codec.test.format(v=f"v{n}") for n, way in enumerate(ways) if way.codec.test]
    return " and ".join(tests) or "True"


def _define(name: str, lines: Sequence[str], names: dict[str, Any]) -> Any:
    scope: dict[str, Any] = {**names, "Malformed": MalformedFrameError}
    exec("\n".join(lines), scope)  # As dataclasses are made; see above.
    return scope[name]
