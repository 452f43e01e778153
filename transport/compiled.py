"""Generated source code that packs, writes and unpacks one class of messages quickly.

The fields of a class and their types are known when it is declared. So the checks of all its
fields become one expression, as somebody would write it by hand for each class. A value that
fails it takes the slow path (`fencelock.transport.schema`), which finds and reports the error.
The source is made of field names and constants of this module, never of received data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, NamedTuple, cast

from fencelock.actors.message import Message
from fencelock.transport.cbor import INT_MAX, INT_MIN, MalformedFrameError, dump

Pack = Callable[[Any], list[Any]]
Unpack = Callable[[list[Any]], Any]
Write = Callable[..., bytes]


Step = Callable[[Any], Any]
"""Converts a value to its other form, or raises `MalformedFrameError`."""


class Codec(NamedTuple):
    """Converts values of one type to plain ones, and back."""

    pack: Step
    unpack: Step
    test: str = ""
    """For values that CBOR has, an expression of ``{v}`` that is true for one of the type; with
    `number` it replaces the steps. Empty for others."""
    number: str = ""
    """An expression of ``{v}`` for what must be within 64 bits; empty where nothing must."""
    write: tuple[str, ...] = ()
    """For the same values, expressions of ``{v}`` that together are its CBOR (`short_write`);
    they refuse numbers that are out of range by themselves."""


class Way(NamedTuple):
    """A field and its codec."""

    name: str
    codec: Codec


def short_pack(cls: type[Message], ways: Sequence[Way], long: Pack) -> Pack:
    """Return a packer for a message of ``cls``; it leaves malformed ones to ``long``."""
    values = [f"v{n}" if way.codec.test else f"p{n}(v{n})" for n, way in enumerate(ways)]
    lines = [
        "def pack(message):",
        *(f"    v{n} = message.{way.name}" for n, way in enumerate(ways)),
        f"    if {_tests(ways)}{_ranges(ways)}:",
        "        try:",
        f"            return [{', '.join([str(cls.TAG), *values])}]",
        "        except Malformed:",
        "            pass",
        "    return long(message)",
    ]
    names = {f"p{n}": way.codec.pack for n, way in enumerate(ways)}
    pack: Pack = _define("pack", lines, {**names, "long": long})
    return pack


def short_write(ways: Sequence[Way], opening: bytes, pack: Pack) -> Write:
    """Return a function that writes a message as CBOR; unusual values are packed and dumped.

    The encoder needs a microsecond for a dozen small values, most of it to start. Texts and
    numbers, which are most of a message, are written faster here.

    Args:
        ways: the fields of the message.
        opening: the array's head and the message's tag. The returned function takes another
            opening as an option: an envelope has addresses between the two.
        pack: from a message to the whole array.

    """
    parts = ["opening"]
    for n, way in enumerate(ways):
        written = way.codec.write or (f"dump_{n}({{v}})",)
        parts += [part.format(v=f"v{n}") for part in written]
    lines = [
        "def write(message, opening=usual):",
        *(f"    v{n} = message.{way.name}" for n, way in enumerate(ways)),
        f"    if {_tests(ways)}:",
        "        try:",
        f"            return join(({', '.join(parts)},))",
        "        except Unusual:",
        "            pass",
        "    return opening + dump(pack(message))[len(usual):]",
    ]
    names = {f"dump_{n}": _dumping(way.codec.pack) for n, way in enumerate(ways)}
    scope = {**names, "pack": pack, "dump": dump, "usual": opening, "join": b"".join}
    write: Write = _define("write", lines, {**scope, **_WRITING})
    return write


def trimmed_write(
    ways: Sequence[Way], defaults: Sequence[Any], openings: Sequence[bytes], long: Step
) -> Write:
    """Return a function that writes a message as CBOR, without the last fields at their defaults.

    Args:
        ways: the fields of the message.
        defaults: the defaults of the optional ones, which are the last.
        openings: the array's head and the message's tag, for each number of fields kept.
        long: the slow path, for unusual values.

    """
    required = len(ways) - len(defaults)
    names: dict[str, Any] = {"join": b"".join, "long": long}
    lines = [
        "def write(message):",
        *(f"    v{n} = message.{way.name}" for n, way in enumerate(ways)),
        f"    if {_tests(ways)}:",
        "        try:",
    ]
    for kept in range(len(ways), required - 1, -1):
        parts = [f"opening_{kept}"]
        for n, way in enumerate(ways[:kept]):
            written = way.codec.write or (f"dump_{n}({{v}})",)
            parts += [part.format(v=f"v{n}") for part in written]
        names[f"opening_{kept}"] = openings[kept]
        names[f"default_{kept - 1}"] = defaults[kept - 1 - required] if kept > required else None
        unless = f"if v{kept - 1} != default_{kept - 1}: " if kept > required else ""
        lines.append(f"            {unless}return join(({', '.join(parts)},))")
    lines += ["        except Unusual:", "            pass", "    return long(message)"]
    names |= {f"dump_{n}": _dumping(way.codec.pack) for n, way in enumerate(ways)}
    write: Write = _define("write", lines, {**names, **_WRITING})
    return write


def _dumping(pack: Step) -> Callable[[Any], bytes]:
    """Return a function that encodes a value; an empty array, the usual one, is a constant."""

    def write(value: Any) -> bytes:
        packed = pack(value)
        return _NOTHING if packed == [] else dump(packed)

    return write


_NOTHING = dump([])

_UNUSUAL = (MalformedFrameError, IndexError, UnicodeEncodeError)
"""Raised for a value that is not as declared, a long text, and one that is not Unicode."""

_TEXT_HEADS = tuple(dump("x" * size)[:-size] if size else dump("") for size in range(256))
_BYTES_HEADS = tuple(dump(bytes(size))[:-size] if size else dump(b"") for size in range(256))
"""The CBOR heads of texts and of bytes, by size, for the frequent sizes."""

_SMALL = tuple(dump(number) for number in range(256))
_TWO_BYTES, _FOUR_BYTES, _EIGHT_BYTES = (Struct(layout).pack for layout in (">BH", ">BI", ">BQ"))


def number_bytes(value: int) -> bytes:
    """Return an integer as CBOR (RFC 8949, section 3.1, major type 0).

    Raises:
        MalformedFrameError: it does not fit into 64 bits with its sign.

    """
    if not 0 <= value <= INT_MAX:
        if INT_MIN <= value < 0:
            return dump(value)
        raise MalformedFrameError
    if value < 1 << 8:
        return _SMALL[value]
    if value < 1 << 16:
        return _TWO_BYTES(0x19, value)
    if value < 1 << 32:
        return _FOUR_BYTES(0x1A, value)
    return _EIGHT_BYTES(0x1B, value)


_WRITING: dict[str, Any] = {
    "four": _FOUR_BYTES,
    "number": number_bytes,
    "small": _SMALL,
    "text_heads": _TEXT_HEADS,
    "bytes_heads": _BYTES_HEADS,
    "Unusual": _UNUSUAL,
}
"""Names of the source that writes values."""


def short_unpack(cls: type[Message], ways: Sequence[Way], long: Unpack, before: int = 0) -> Unpack:
    """Return an unpacker for the array of a ``cls``; it leaves malformed ones to ``long``.

    The message is filled without its constructor, which would take three times as long for
    the same result; so a class may have no ``__post_init__``.

    Args:
        cls: the class of the message.
        ways: its fields.
        long: the slow path, from tag and fields.
        before: the number of items before the tag; they are ignored.

    """
    assert not hasattr(cls, "__post_init__")
    parts = [*("_" * before), "tag", *(f"v{n}" for n in range(len(ways)))]
    values = [f"v{n}" if way.codec.test else f"u{n}(v{n})" for n, way in enumerate(ways)]
    lines = [
        "def unpack(items):",
        "    try:",
        f"        {', '.join(parts)}, = items",
        f"        if type(tag) is int and {_tests(ways)}{_ranges(ways)}:",
        "            message = new(cls)",
        *(
            f"            message.{way.name} = {value}"
            for way, value in zip(ways, values, strict=True)
        ),
        "            return message",
        "    except Unfit:",
        "        pass",
        f"    return long(items[{before}:])",
    ]
    names = {f"u{n}": way.codec.unpack for n, way in enumerate(ways)}
    scope = {**names, "long": long, "cls": cls, "new": object.__new__, "Unfit": _UNFIT}
    unpack: Unpack = _define("unpack", lines, scope)
    return unpack


_UNFIT = (MalformedFrameError, ValueError)
"""Raised for a value that is not as declared, and for too few or too many items."""


def short_tuple(cls: Any, ways: Sequence[Way], long: Codec) -> Codec:
    """Return the codec of a NamedTuple, as an array; malformed ones are left to ``long``."""
    names = [f"v{n}" for n in range(len(ways))]
    packed = [v if way.codec.test else f"p{v}({v})" for v, way in zip(names, ways, strict=True)]
    unpacked = [v if way.codec.test else f"u{v}({v})" for v, way in zip(names, ways, strict=True)]
    pack = [
        "def pack(value):",
        "    if type(value) is cls:",
        f"        {', '.join(names)}, = value",
        f"        if {_tests(ways)}{_ranges(ways)}:",
        f"            return [{', '.join(packed)}]",
        "    return long(value)",
    ]
    unpack = [
        "def unpack(value):",
        f"    if type(value) is list and len(value) == {len(names)}:",
        f"        {', '.join(names)}, = value",
        f"        if {_tests(ways)}{_ranges(ways)}:",
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


def _ranges(ways: Sequence[Way]) -> str:
    """Return the rest of the expression of `_tests`: that all numbers are within 0 to `INT_MAX`.

    Their bitwise "or" is within these bounds if and only if each is. A negative number, which is
    rare, makes it negative and takes the slow path.
    """
    numbers = [way.codec.number.format(v=f"v{n}") for n, way in enumerate(ways) if way.codec.number]
    return f" and 0 <= {' | '.join(numbers)} <= {INT_MAX}" if numbers else ""


def _define(name: str, lines: Sequence[str], names: dict[str, Any]) -> Any:
    scope: dict[str, Any] = {**names, "Malformed": MalformedFrameError}
    exec("\n".join(lines), scope)  # As dataclasses do; see above.
    return scope[name]
