"""The declared field types of a message, compiled once into a packer and an unpacker.

A field is an ``int``, ``str``, ``bytes``, ``bool``, an ``IntEnum``, a ``NewType`` or
``NamedTuple`` of those, a ``tuple[X, ...]``, a registered message class or a union of
them (nested as ``[tag, field, ...]``), or any of these ``| None``. A class with another
field is refused when it is compiled, which a test does for every registered class.

Packing turns a message into the lists and plain values that CBOR has, unpacking turns
them back; both check every value against its declaration, so that neither we nor a peer
can put anything else into a message.

An unpacker takes exactly the declared fields. Journals and the replicated log depend on that.
For a message in a frame, `fit` first adds the optional fields that an older peer does not send,
and removes those that only a newer peer knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from enum import IntEnum
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

from fencelock.actors.message import REGISTRY, Message
from fencelock.transport.cbor import MalformedFrameError, array_head, dump, shown
from fencelock.transport.compiled import (
    Codec,
    Step,
    Way,
    short_pack,
    short_tuple,
    short_unpack,
    short_write,
    trimmed_write,
)
from fencelock.transport.scalar_codecs import PLAIN, SIMPLE

ENVELOPE_HEAD_ITEMS = 2
"""Items of an envelope before the tag."""

EXTRA_FIELDS_MAX = 16
"""Fields that a message in a frame may have beyond those declared here. A message that grew by
more within one wire version should be a new message."""


class FieldCountError(MalformedFrameError):
    """A message has more or fewer fields than its class declares."""


class Schema(NamedTuple):
    """The codec of one class of messages: to ``[tag, field, ...]``, and back."""

    length: int
    """Items of the array: the tag and every field."""
    defaults: list[Any]
    """The packed defaults of the optional fields, which are the last ones."""
    opening_bytes: int
    """Size of the array's head and the tag (bytes)."""
    plain: bool
    """Whether every field is a value that CBOR has, so that encoding it again is quick."""
    pack: Callable[[Any], list[Any]]
    """From a message to the whole array."""
    unpack: Callable[[list[Any]], Any]
    """From the whole array, whose tag was read, to a message. It takes exactly `length` items,
    else it raises `FieldCountError`."""
    unpack_enveloped: Callable[[list[Any]], Any]
    """The same from an envelope: two addresses precede the tag and were checked before."""
    write: Callable[..., bytes]
    """From a message to the whole array as CBOR. A second argument replaces the array's head and
    tag."""


class TrimmedCodec(NamedTuple):
    """The codec of a command in the replicated log: without the last fields at their defaults.

    So a member that knows one optional field more writes the same bytes as the others, until
    somebody uses that field. All but the last optional fields are as in `Schema`.
    """

    write: Callable[[Any], bytes]
    """From a message to its array as CBOR."""
    read: Callable[[list[Any]], Any]
    """From an array, whose tag was read, to a message. One with more fields than the class
    declares is refused: a member that ignored a field would apply another command than others."""


def trimmed_codec(cls: type[Message]) -> TrimmedCodec:
    """Return the codec of the command ``cls`` in the log."""
    schema, hints = schema_of(cls), get_type_hints(cls)
    ways = [Way(field.name, _codec(hints[field.name], (cls,))) for field in _fields(cls)]
    unpack, length, packed = schema.unpack, schema.length, schema.defaults

    def long(message: Any) -> bytes:
        items, kept = schema.pack(message), len(packed)
        while kept and items[-1] == packed[kept - 1]:
            items.pop()
            kept -= 1
        return dump(items)

    def read(items: list[Any]) -> Any:
        missing = length - len(items)
        return unpack(items + packed[-missing:] if 0 < missing <= len(packed) else items)

    openings = [array_head(1 + kept) + dump(cls.TAG) for kept in range(length)]
    defaults = [one.default for one in _fields(cls) if one.default is not MISSING]
    return TrimmedCodec(trimmed_write(ways, defaults, openings, long), read)


def _fields(cls: type[Message]) -> tuple[Field[Any], ...]:
    return fields(cast("Any", cls))


_schemas: dict[type[Message], Schema] = {}


def schema_of(cls: type[Message]) -> Schema:
    """Return the schema of ``cls``, compiled at the first call.

    Raises:
        TypeError: ``cls`` is not registered, or has a field that cannot cross the wire.

    """
    return _schemas.get(cls) or _schema(cls, ())


def array(value: Any, length: int | None = None) -> list[Any]:
    """Return ``value``, which must be an array, of ``length`` items if that is given.

    Raises:
        MalformedFrameError: it is not.

    """
    if type(value) is not list:
        raise MalformedFrameError(f"{shown(value)} is no array")
    items: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
    if length is not None and len(items) != length:
        raise MalformedFrameError(f"{len(items)} items, not {length}")
    return items


def fit(schema: Schema, items: list[Any]) -> list[Any]:
    """Return ``items`` with as many fields as ``schema`` declares, if a peer's may differ so.

    A message of an older version lacks optional fields: they get their defaults. A message of a
    newer version has up to `EXTRA_FIELDS_MAX` more fields: they are removed unread. Any other
    array is returned as it is, and `Schema.unpack` refuses it.
    """
    extra = len(items) - schema.length
    if 0 < extra <= EXTRA_FIELDS_MAX:
        return items[: schema.length]
    if -len(schema.defaults) <= extra < 0:
        return [*items, *schema.defaults[extra:]]
    return items


def _schema(cls: type[Message], within: tuple[type, ...]) -> Schema:
    """Compile ``cls``, which is a field of the classes ``within``."""
    if cls in _schemas:
        return _schemas[cls]
    if REGISTRY.get(getattr(cls, "TAG", -1)) is not cls:
        raise TypeError(f"{cls.__name__} is not registered with @message")
    if cls in within:
        path = " > ".join(c.__name__ for c in (*within, cls))
        raise TypeError(f"{path}: a message that contains itself has no bounded depth")
    try:
        hints = get_type_hints(cls)
    except NameError as error:
        raise TypeError(f"{cls.__name__}: {error}; import the type at run time too") from error
    codecs: list[tuple[str, Codec]] = []
    for field in fields(cast("Any", cls)):
        try:
            codecs.append((field.name, _codec(hints[field.name], (*within, cls))))
        except TypeError as error:
            raise TypeError(f"{cls.__name__}.{field.name}: {error}") from error
    ways = [Way(name, codec) for name, codec in codecs]
    pack = short_pack(cls, ways, _packer(cls, codecs))
    unpack = _unpacker(cls, codecs)
    opening = array_head(1 + len(ways)) + dump(cls.TAG)
    _schemas[cls] = Schema(
        length=1 + len(ways),
        defaults=_defaults(cls, codecs),
        opening_bytes=len(opening),
        plain=all(codec.write for _, codec in codecs),
        pack=pack,
        unpack=short_unpack(cls, ways, unpack),
        unpack_enveloped=short_unpack(cls, ways, unpack, ENVELOPE_HEAD_ITEMS),
        write=short_write(ways, opening, pack),
    )
    return _schemas[cls]


def _defaults(cls: type[Message], codecs: list[tuple[str, Codec]]) -> list[Any]:
    """Return the packed defaults of the optional fields of ``cls``."""
    defaults: list[Any] = []
    for field, (name, codec) in zip(fields(cast("Any", cls)), codecs, strict=True):
        if field.default is not MISSING:
            try:
                defaults.append(codec.pack(field.default))
            except MalformedFrameError as error:
                raise TypeError(f"{cls.__name__}.{name}: its default: {error}") from error
    return defaults


def _codec(hint: Any, within: tuple[type, ...]) -> Codec:
    """Compile one declared type."""
    hint = getattr(hint, "__supertype__", hint)  # NewType
    if hint in PLAIN:
        return PLAIN[hint]
    origin = get_origin(hint)
    if origin in (UnionType, Union):
        return _union_codec(hint, within)
    if origin is tuple:
        return _tuple_codec(hint, within)
    if hasattr(hint, "_fields"):
        return _named_tuple_codec(hint, within)
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return _enum_codec(hint)
    if isinstance(hint, type) and issubclass(hint, Message):
        return _nested_codec((hint,), within)
    raise TypeError(f"{hint!r} cannot cross the wire")


def _union_codec(hint: Any, within: tuple[type, ...]) -> Codec:
    some = [arm for arm in get_args(hint) if arm is not NoneType]
    if len(some) == 1:
        inner = _codec(some[0], within)
    elif all(isinstance(arm, type) and issubclass(arm, Message) for arm in some):
        inner = _nested_codec(tuple(some), within)
    else:
        raise TypeError(f"{hint!r}: only messages and None may be joined with |")
    if NoneType not in get_args(hint):
        return inner
    test = inner.test and f"({{v}} is None or {inner.test})"
    none = (r"b'\xf6'", *["b''"] * len(inner.write))
    write = [
        f"({n} if {{v}} is None else {part})" for n, part in zip(none, inner.write, strict=False)
    ]
    number = inner.number and f"({inner.number} or 0)"
    return Codec(_unless_none(inner.pack), _unless_none(inner.unpack), test, number, tuple(write))


def _unless_none(step: Step) -> Step:
    return lambda value: None if value is None else step(value)


def _tuple_codec(hint: Any, within: tuple[type, ...]) -> Codec:
    match get_args(hint):
        case (item, end) if end is ...:
            codec = _codec(item, within)
        case _:
            raise TypeError(f"{hint!r}: only tuple[X, ...] can cross the wire")
    simple = {item} & SIMPLE

    def pack(value: Any) -> Any:
        if type(value) is not tuple:
            raise MalformedFrameError(f"{shown(value)} is no tuple")
        items: tuple[Any, ...] = value  # pyright: ignore[reportUnknownVariableType]
        if set(map(type, items)) <= simple:
            return list(items)
        return [codec.pack(one) for one in items]

    def unpack(value: Any) -> Any:
        items = array(value)
        if set(map(type, items)) <= simple:
            return tuple(items)
        return tuple([codec.unpack(one) for one in items])

    return Codec(pack, unpack)


def _enum_codec(enum: type[IntEnum]) -> Codec:
    members = {int(member): member for member in enum}

    def pack(value: Any) -> Any:
        if type(value) is not enum:
            raise MalformedFrameError(f"{shown(value)} is no {enum.__name__}")
        return int(value)

    def unpack(value: Any) -> Any:
        if type(value) is not int or value not in members:
            raise MalformedFrameError(f"{shown(value)} is no {enum.__name__}")
        return members[value]

    return Codec(pack, unpack)


def _named_tuple_codec(cls: Any, within: tuple[type, ...]) -> Codec:
    hints = get_type_hints(cls)
    codecs = [_codec(hints[name], within) for name in cls._fields]

    def pack(value: Any) -> Any:
        if type(value) is not cls:
            raise MalformedFrameError(f"{shown(value)} is no {cls.__name__}")
        parts = cast("tuple[Any, ...]", value)
        return [codec.pack(part) for codec, part in zip(codecs, parts, strict=True)]

    def unpack(value: Any) -> Any:
        parts = array(value, len(codecs))
        return cls(*[codec.unpack(part) for codec, part in zip(codecs, parts, strict=True)])

    ways = [Way("", codec) for codec in codecs]
    return short_tuple(cls, ways, Codec(pack, unpack))


def _nested_codec(arms: tuple[type[Message], ...], within: tuple[type, ...]) -> Codec:
    """Compile a field that is itself a message: one of ``arms``, told apart by the tag."""
    by_class = {arm: _schema(arm, within) for arm in arms}
    by_tag = {arm.TAG: schema for arm, schema in by_class.items()}
    names = " | ".join(arm.__name__ for arm in arms)

    def pack(value: Any) -> Any:
        schema = by_class.get(type(value))  # pyright: ignore[reportUnknownArgumentType]
        if schema is None:
            raise MalformedFrameError(f"{shown(value)} is no {names}")
        return schema.pack(value)

    def unpack(value: Any) -> Any:
        items = array(value)
        schema = by_tag.get(tag_of(items))
        if schema is None:
            raise MalformedFrameError(f"tag {items[0]:#x} is no {names}")
        return schema.unpack(items)

    return Codec(pack, unpack)


def tag_of(items: list[Any]) -> int:
    """Return the tag with which the array of a message begins.

    Raises:
        MalformedFrameError: it begins with something else, or is empty.

    """
    if not items or type(items[0]) is not int:
        raise MalformedFrameError("a message begins with its tag")
    tag: int = items[0]
    return tag


def _packer(cls: type[Message], codecs: list[tuple[str, Codec]]) -> Callable[[Any], list[Any]]:
    steps = [(name, attrgetter(name), codec.pack) for name, codec in codecs]
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


def _unpacker(cls: type[Message], codecs: list[tuple[str, Codec]]) -> Callable[[list[Any]], Any]:
    steps = [(name, codec.unpack) for name, codec in codecs]
    length = 1 + len(steps)

    def unpack(items: list[Any]) -> Any:
        tag_of(items)  # Values that equal an integer tag, like 16.0, are refused here.
        if len(items) != length:
            raise FieldCountError(f"{cls.__name__} has {length - 1} fields, not {len(items) - 1}")
        values: dict[str, Any] = {}
        name = ""
        try:
            for (name, step), item in zip(steps, items[1:], strict=True):
                values[name] = step(item)
        except MalformedFrameError as error:
            raise MalformedFrameError(f"{cls.__name__}.{name}: {error}") from error
        return cls(**values)

    return unpack
