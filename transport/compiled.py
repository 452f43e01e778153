"""Generated source code that writes and reads one class of messages quickly.

The fields of a class and their types are known when it is declared. So the checks of all its
fields become one expression, as one would write it by hand for each class. A value that
fails it takes the slow path, field by field, which finds and reports the error. The source is
made of field names and constants of this module, never of received data.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, cast

from fencelock.actors.message import Message
from fencelock.transport.cbor import INT_MAX, INT_MIN, MalformedFrameError, array_head, dump, shown

Step = Callable[[Any], Any]
"""Converts a value to its other form, or raises `MalformedFrameError`."""

Pack = Callable[[Any], list[Any]]
Unpack = Callable[[list[Any]], Any]
Write = Callable[..., bytes]


KEPT_BYTES_MAX = 40 << 10
"""Limit up to which a message keeps its encoding (40 KiB): a full slot, which goes to a journal
and to all members, is not larger. In frames, messages of plain fields are encoded each time."""


class FieldCountError(MalformedFrameError):
    """A message has more or fewer fields than its class declares."""


class FieldTypeError(MalformedFrameError):
    """A field has a value of another type than declared.

    Args:
        text: names the field, the value and the type.
        name: the field.
        place: its place in the array.

    """

    def __init__(self, text: str, name: str, place: int) -> None:
        super().__init__(text)
        self.name = name
        self.place = place


class Codec(NamedTuple):
    """The codec of one declared type: two slow steps, and the source of the quick ones.

    Sources are expressions of ``{v}``, the name of a variable with the value.
    """

    pack: Step
    unpack: Step
    writable: str
    """Whether a value may be written by ``write``. Numbers need not be within 64 bits: `write`
    refuses others by itself."""
    write: tuple[str, ...]
    """Together, the CBOR of a value. For a NamedTuple, the head of its array."""
    readable: str
    """Whether an item, with its number in range, becomes a value by ``read``."""
    read: str = "{v}"
    """The value of an item. For a NamedTuple, ``{v}`` stands for its parts."""
    number: str = ""
    """The parts that must be within 0 to `INT_MAX` to be readable; empty if there are none."""
    scope: Mapping[str, Any] = {}
    """The names in these expressions."""
    parts: tuple[Codec, ...] = ()
    """The codecs of the parts of a NamedTuple."""
    long: bool = False
    """Whether writing a value may take long."""


NUMBERS = itertools.count()
"""Makes the names in generated source unique."""


class _Source:
    """The source that checks and converts the fields of one class, to be joined into a function."""

    def __init__(self, codecs: Sequence[Codec], names: Sequence[str], *, writes: bool) -> None:
        self.opened: list[str] = []
        """Statements that take NamedTuples apart."""
        self.results: list[str] = []
        self.scope: dict[str, Any] = dict(_SCOPE)
        self._writes = writes
        self._tests: list[str] = []
        self._numbers: list[str] = []
        for codec, name in zip(codecs, names, strict=True):
            self.results += self._add(codec, name)

    @property
    def test(self) -> str:
        """An expression that is true if all values may be converted.

        The bitwise "or" of numbers is within 0 to `INT_MAX` if and only if each is. A negative
        number, which is rare, makes it negative and takes the slow path.
        """
        numbers = [f"0 <= {' | '.join(self._numbers)} <= {INT_MAX}"] if self._numbers else []
        return " and ".join([*self._tests, *numbers]) or "True"

    def _add(self, codec: Codec, name: str) -> list[str]:
        """Add what converts the variable ``name``; return its results."""
        self.scope |= codec.scope
        self._tests.append((codec.writable if self._writes else codec.readable).format(v=name))
        if codec.number and not self._writes:
            self._numbers.append(codec.number.format(v=name))
        inner: list[str] = []
        if codec.parts:
            names = [f"{name}_{n}" for n in range(len(codec.parts))]
            self.opened.append(f"{', '.join(names)}, = {name}")
            for part, part_name in zip(codec.parts, names, strict=True):
                inner += self._add(part, part_name)
        if self._writes:
            return [*(piece.format(v=name) for piece in codec.write), *inner]
        return [codec.read.format(v=f"({', '.join(inner)},)" if codec.parts else name)]


def _define(name: str, lines: Sequence[str], scope: Mapping[str, Any]) -> Any:
    names = dict(scope)
    exec("\n".join(lines), names)  # As dataclasses do: from field names and constants.
    return names[name]


def quick_write(codecs: Mapping[str, Codec], opening: bytes, pack: Pack) -> Write:
    """Return a function that writes a message as CBOR; unusual values are packed and dumped.

    The encoder needs a microsecond for a dozen small values, most of it to start. Texts and
    numbers, which are most of a message, are written faster here.
    """
    names = [f"v{n}" for n in range(len(codecs))]
    source = _Source([*codecs.values()], names, writes=True)
    lines = [
        "def write(message, opening=usual):",
        "    try:",
        *(f"        {v} = message.{field}" for v, field in zip(names, codecs, strict=True)),
        *(f"        {statement}" for statement in source.opened),
        f"        if {source.test}:",
        f"            return join(({', '.join(['opening', *source.results])},))",
        "    except Unusual:",
        "        pass",
        "    return opening + dump(pack(message))[len(usual):]",
    ]
    write: Write = _define("write", lines, {**source.scope, "usual": opening, "pack": pack})
    return write


def keeping(write: Write, opening: bytes) -> Write:
    """Return a writer of envelopes that keeps encodings of messages, if they are not too large."""
    lines = [
        "def write_kept(message, opening):",
        "    data = getattr(message, 'encoded', None)",
        "    if data is None:",
        "        data = write(message)",
        f"        if len(data) <= {KEPT_BYTES_MAX}:",
        "            message.encoded = data",
        f"    return opening + data[{len(opening)}:]",
    ]
    write_kept: Write = _define("write_kept", lines, {"write": write})
    return write_kept


def quick_unpack(
    cls: type[Message], codecs: Mapping[str, Codec], long: Unpack, before: int = 0
) -> Unpack:
    """Return an unpacker for the array of a ``cls``; it leaves malformed ones to ``long``.

    The message is filled without its constructor, which would take three times as long for
    the same result; so a class may have no ``__post_init__``.

    Args:
        cls: the class of the message.
        codecs: its fields.
        long: the slow path, from tag and fields.
        before: the number of items before the tag; they are ignored.

    """
    assert not hasattr(cls, "__post_init__")
    names = [f"v{n}" for n in range(len(codecs))]
    source = _Source([*codecs.values()], names, writes=False)
    lines = [
        "def unpack(items):",
        "    try:",
        f"        {', '.join([*('_' * before), 'tag', *names])}, = items",
        *(f"        {statement}" for statement in source.opened),
        f"        if type(tag) is int and {source.test}:",
        "            message = new(cls)",
        *(
            f"            message.{field} = {value}"
            for field, value in zip(codecs, source.results, strict=True)
        ),
        "            return message",
        "    except Unusual:",
        "        pass",
        f"    return long(items[{before}:])",
    ]
    unpack: Unpack = _define("unpack", lines, {**source.scope, "long": long, "cls": cls})
    return unpack


def slow_pack(cls: type[Message], codecs: Mapping[str, Codec]) -> Pack:
    """Return a packer of ``cls`` that goes field by field, and names a wrong one."""
    steps = [(name, attrgetter(name), codec.pack) for name, codec in codecs.items()]
    tag = cls.TAG

    def pack(message: Any) -> list[Any]:
        items: list[Any] = [tag]
        name = ""
        try:
            for name, get, step in steps:  # noqa: B007  (the error below names it)
                items.append(step(get(message)))
        except MalformedFrameError as error:
            raise TypeError(f"{cls.__name__}.{name}: {error}") from error
        return items

    return pack


def slow_unpack(cls: type[Message], codecs: Mapping[str, Codec]) -> Unpack:
    """Return an unpacker of ``cls`` that goes field by field, and names a wrong one."""
    steps = [(name, codec.unpack) for name, codec in codecs.items()]
    length = 1 + len(steps)

    def unpack(items: list[Any]) -> Any:
        if not items or type(items[0]) is not int:  # A value may equal a tag, like 16.0.
            raise MalformedFrameError("a message begins with its tag")
        if len(items) != length:
            raise FieldCountError(f"{cls.__name__} has {length - 1} fields, not {len(items) - 1}")
        values: dict[str, Any] = {}
        name = ""
        try:
            for (name, step), item in zip(steps, items[1:], strict=True):
                values[name] = step(item)
        except MalformedFrameError as error:
            text = f"{cls.__name__}.{name}: {error}"
            raise FieldTypeError(text, name, 1 + len(values)) from error
        return cls(**values)

    return unpack


def called(codec: Codec) -> Codec:
    """Return a codec whose expressions call a function of their own for each value."""
    write, read = (f"{what}{next(NUMBERS)}" for what in ("write", "read"))
    to, of = (_Source([codec], ["value"], writes=writes) for writes in (True, False))
    scope = {
        name: _define(
            name,
            [
                f"def {name}(value):",
                *(f"    {statement}" for statement in source.opened),
                f"    if {source.test}:",
                f"        return {result}",
                "    raise Malformed",
            ],
            source.scope,
        )
        for name, source, result in (
            (write, to, f"join(({', '.join(to.results)},))"),
            (read, of, of.results[0]),
        )
    }
    return codec._replace(
        write=(f"{write}({{v}})",),
        read=f"{read}({{v}})",
        number="",
        scope={**codec.scope, **scope},
        parts=(),
    )


def writer_of_many(codec: Codec) -> Write:
    """Return a function that writes a tuple of values of ``codec`` as an array."""
    source = _Source([codec], ["one"], writes=True)
    add = f"made += ({', '.join(source.results)},)"
    write: Write = _loop(source, "[array_head(len(values))]", add, "join(made)")
    return write


def reader_of_many(codec: Codec) -> Unpack:
    """Return a function that reads an array into a tuple of values of ``codec``."""
    source = _Source([codec], ["one"], writes=False)
    read: Unpack = _loop(source, "[]", f"made.append({source.results[0]})", "tuple(made)")
    return read


def _loop(source: _Source, start: str, add: str, result: str) -> Any:
    """Compile a function that checks each of its values and does ``add`` with it."""
    lines = [
        "def each(values):",
        f"    made = {start}",
        "    for one in values:",
        *(f"        {statement}" for statement in source.opened),
        f"        if not ({source.test}):",
        "            raise Malformed",
        f"        {add}",
        f"    return {result}",
    ]
    return _define("each", lines, source.scope)


def _check_int(value: Any) -> Any:
    if type(value) is not int:
        raise MalformedFrameError(f"{shown(value)} is no int")
    if not INT_MIN <= value <= INT_MAX:
        raise MalformedFrameError(f"{shown(value)} is not within {INT_MIN} to {INT_MAX}")
    return value


def _check(cls: type) -> Step:
    def check(value: Any) -> Any:
        if type(value) is not cls:
            raise MalformedFrameError(f"{shown(value)} is no {cls.__name__}")
        return value

    return check


def _plain(cls: type, step: Step, write: tuple[str, ...], number: str = "") -> Codec:
    test = f"type({{v}}) is {cls.__name__}"
    return Codec(step, step, writable=test, write=write, readable=test, number=number)


SIMPLE: frozenset[Any] = frozenset({str, bytes, bool})
"""Types whose values need no further check."""

PLAIN: Mapping[Any, Codec] = {
    int: _plain(
        int,
        _check_int,
        (
            "(small[{v}] if 0 <= {v} < 256 else two(25, {v}) if 255 < {v} < 65536 else "
            "four(26, {v}) if 65535 < {v} < 4294967296 else eight(27, {v}) if {v} > 0 else "
            "dump(check_int({v})))",
        ),
        "{v}",
    ),
    str: _plain(str, _check(str), ("text_heads[len(e{v} := {v}.encode())]", "e{v}")),
    bytes: _plain(bytes, _check(bytes), ("bytes_heads[len({v})]", "{v}")),
    bool: _plain(bool, _check(bool), (r"(b'\xf5' if {v} else b'\xf4')",)),
}
"""The codecs of the values that CBOR has by itself, by declared type (RFC 8949, section 3.1)."""

_SCOPE: Mapping[str, Any] = {
    "Malformed": MalformedFrameError,
    "Unusual": (MalformedFrameError, LookupError, ValueError, TypeError, struct.error),
    "array_head": array_head,
    "bytes_heads": [dump(bytes(size))[:-size] if size else dump(b"") for size in range(256)],
    "check_int": _check_int,
    "dump": dump,
    "eight": struct.Struct(">Bq").pack,  # A greater number than 63 bits is refused.
    "four": struct.Struct(">BI").pack,
    "join": b"".join,
    "new": object.__new__,
    "new_tuple": cast("Any", tuple).__new__,
    "small": [dump(number) for number in range(256)],
    "text_heads": [dump("x" * size)[:-size] if size else dump("") for size in range(256)],
    "two": struct.Struct(">BH").pack,
}
"""The names in all generated source. ``Unusual`` is raised for a value that is not as declared, for
too few or too many items, for a long text, and for one that is not Unicode."""
