"""The codec of messages: encoding as CBOR, and decoding from bytes that are not trusted.

A field is an ``int``, ``str``, ``bytes``, ``bool``, an ``IntEnum``, a ``NewType`` or
``NamedTuple`` of those, a ``tuple[X, ...]``, a registered message class or a union of
them (nested as ``[tag, field, ...]``), or any of these ``| None``. A class with another
field is refused when it is compiled, which a test does for every registered class.

Each class is compiled into one function that writes a message and one that reads it
(``compiled.py``). Both check every value against its declaration, so that neither we nor a peer
can put anything else into a message.

A reader takes exactly the declared fields. Journals and the replicated log depend on that. The
last fields of a `TRIMMED` message may be missing.
For a message in a frame, `unpack_fitted` first adds the optional fields that an older peer does
not send, and removes those that only a newer peer knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from enum import IntEnum
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

from fencelock.actors.message import REGISTRY, Message
from fencelock.transport.cbor import (
    FRAME_BYTES_MAX,
    FrameTooLargeError,
    MalformedFrameError,
    array_head,
    dump,
    load,
    shown,
)
from fencelock.transport.compiled import (
    KEPT_BYTES_MAX,
    NUMBERS,
    PLAIN,
    SIMPLE,
    Codec,
    FieldTypeError,
    Pack,
    Step,
    Unpack,
    Write,
    called,
    keeping,
    quick_unpack,
    quick_write,
    reader_of_many,
    slow_pack,
    slow_unpack,
    writer_of_many,
)

ENVELOPE_HEAD_ITEMS = 2
"""Items of an envelope before the tag."""

EXTRA_FIELDS_MAX = 16
"""Fields that a message in a frame may have beyond those declared here. A message that grew by
more within one wire version should be a new message."""


_STAND_INS = (None, 0, "", False, b"")
"""One of these is a value of most types."""


class Schema(NamedTuple):
    """The codec of one class of messages: to ``[tag, field, ...]``, and back."""

    length: int
    """Items of the array: the tag and every field."""
    defaults: list[Any]
    """The packed defaults of the optional fields, which are the last ones."""
    pack: Pack
    """From a message to the whole array, field by field."""
    unpack: Unpack
    """From the whole array to a message; its tag was read. It takes exactly `length` items (fewer
    if the message is `TRIMMED`), else it raises `FieldCountError`."""
    unpack_enveloped: Unpack
    """The same from an envelope: two addresses precede the tag and were checked before."""
    write: Write
    """From a message to the whole array as CBOR."""
    write_enveloped: Write
    """The same with a second argument that replaces the array's head and tag: an envelope has
    addresses between the two. A message that takes long to write keeps its encoding: several
    peers and a journal may need it."""


class TrimmedCodec(NamedTuple):
    """The codec of a command in the replicated log: without the last fields at their defaults.

    So a member that knows one optional field more writes the same bytes as the others, until
    a message uses that field.
    """

    write: Callable[[Any], bytes]
    """From a message to its array as CBOR."""
    read: Unpack
    """From an array to a message; its tag was read. One with more fields than the class declares is
    refused: a member that ignored a field would apply another command than others."""


def trimmed_codec(cls: type[Message]) -> TrimmedCodec:
    """Return the codec of the command ``cls`` in the log."""
    schema = schema_of(cls)
    write = _trimmed_write(cls, _codecs(cls, ()), schema.pack)
    return TrimmedCodec(write, _padded(schema.unpack, schema.length, schema.defaults))


def _trimmed_write(cls: type[Message], codecs: Mapping[str, Codec], pack: Pack) -> Write:
    """Return a writer of ``cls`` that leaves out its last fields at their defaults."""
    declared = fields(cast("Any", cls))
    optional = [(one.name, one.default) for one in declared if one.default is not MISSING]

    def writer(kept: int) -> Write:
        opening = array_head(1 + kept) + dump(cls.TAG)
        first = {field.name: codecs[field.name] for field in declared[:kept]}
        return quick_write(first, opening, lambda message: pack(message)[: 1 + kept])

    writers = [writer(len(declared) - trimmed) for trimmed in range(1 + len(optional))]

    def write(message: Any) -> bytes:
        trimmed = 0
        for name, default in reversed(optional):
            if getattr(message, name) != default:
                break
            trimmed += 1
        return writers[trimmed](message)

    return write


def _trimmed_pack(pack: Pack, defaults: list[Any]) -> Pack:
    def trimmed(message: Any) -> list[Any]:
        items = pack(message)
        for default in reversed(defaults):
            if items[-1] != default:
                break
            items.pop()
        return items

    return trimmed


def _padded(unpack: Unpack, length: int, defaults: list[Any]) -> Unpack:
    """Return an unpacker of arrays that may lack optional fields."""

    def read(items: list[Any]) -> Any:
        missing = length - len(items)
        return unpack(items + defaults[-missing:] if 0 < missing <= len(defaults) else items)

    return read


_schemas: dict[type[Message], Schema] = {}

_unpackers: dict[int, Unpack] = {}
"""Unpackers, by the tags received so far, each known."""


def schema_of(cls: type[Message]) -> Schema:
    """Return the schema of ``cls``, compiled at the first call.

    Raises:
        TypeError: ``cls`` is not registered, or has a field that cannot cross the wire.

    """
    return _schemas.get(cls) or _schema(cls, ())


def encode(message: Message) -> bytes:
    """Return ``message`` as ``[tag, field, ...]``, fields in the order declared.

    Raises:
        TypeError: a field has a value that its declaration does not allow, an int beyond signed
            64 bits included, or the class has a field that cannot cross the wire.
        FrameTooLargeError: the result is larger than `FRAME_BYTES_MAX`.

    """
    data: bytes | None = getattr(message, "encoded", None)
    if data is not None:
        return data
    cls = type(message)
    data = (_schemas.get(cls) or _schema(cls, ())).write(message)
    if len(data) > FRAME_BYTES_MAX:
        raise FrameTooLargeError(
            f"{cls.__name__} takes {len(data)} bytes, at most {FRAME_BYTES_MAX}"
        )
    if len(data) <= KEPT_BYTES_MAX:
        message.encoded = data
    return data


def decode(data: bytes) -> Message:
    """Return the message in ``data``, which has exactly the fields that its class declares.

    Raises:
        MalformedFrameError: too long, not our subset of CBOR, trailing bytes, an
            unknown tag, or fields of the wrong number or type.

    """
    return unpack(array(load(data)))


def pack(message: Message) -> list[Any]:
    """Return ``message`` as an array of plain values.

    Raises:
        TypeError: see `encode`.

    """
    return schema_of(type(message)).pack(message)


def unpack(items: list[Any]) -> Message:
    """Return the message in ``items``: its tag, then exactly the declared fields.

    Raises:
        MalformedFrameError: see `decode`.

    """
    if items and type(items[0]) is int:
        unpacker = _unpackers.get(items[0])
        if unpacker is not None:
            message: Message = unpacker(items)
            return message
    _unpackers[tag_of(items)] = _schema_in(items).unpack
    return unpack(items)


def unpack_fitted(items: list[Any]) -> tuple[Message, bool]:
    """Return the message that ``items`` are, and whether it has fields that are unknown here.

    A message of an older version lacks optional fields: they get their defaults. A message of a
    newer version has up to `EXTRA_FIELDS_MAX` more fields: they are removed unread.

    Raises:
        MalformedFrameError: see `decode`.

    """
    schema = _schema_in(items)
    extra = len(items) - schema.length
    if 0 < extra <= EXTRA_FIELDS_MAX:
        return schema.unpack(items[: schema.length]), True
    if -len(schema.defaults) <= extra < 0:
        items = [*items, *schema.defaults[extra:]]
    return schema.unpack(items), False


def unpack_despite(items: list[Any]) -> tuple[Message, list[FieldTypeError]]:
    """Return the message that ``items`` are, with stand-ins for fields of a wrong type, and these.

    Raises:
        MalformedFrameError: it is not even that.

    """
    wrong: list[FieldTypeError] = []
    stand_ins: Iterator[Any] = iter(())
    while True:
        try:
            return unpack_fitted(items)[0], wrong
        except FieldTypeError as error:
            if not wrong or error.place != wrong[-1].place:
                wrong.append(error)
                stand_ins = iter(_STAND_INS)
            try:
                items[error.place] = next(stand_ins)
            except (IndexError, StopIteration):
                raise error from None


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


def tag_of(items: list[Any]) -> int:
    """Return the tag with which the array of a message begins.

    Raises:
        MalformedFrameError: it begins with something else, or is empty.

    """
    if not items or type(items[0]) is not int:
        raise MalformedFrameError("a message begins with its tag")
    tag: int = items[0]
    return tag


def _schema_in(items: list[Any]) -> Schema:
    """Return the schema of the message that ``items`` are, by its tag."""
    tag = tag_of(items)
    cls = REGISTRY.get(tag)
    if cls is None:
        raise MalformedFrameError(f"no message has tag {tag:#x}")
    return schema_of(cls)


def _schema(cls: type[Message], within: tuple[type, ...]) -> Schema:
    """Compile ``cls``, which is a field of the classes ``within``."""
    if cls in _schemas:
        return _schemas[cls]
    if REGISTRY.get(getattr(cls, "TAG", -1)) is not cls:
        raise TypeError(f"{cls.__name__} is not registered with @message")
    if cls in within:
        path = " > ".join(c.__name__ for c in (*within, cls))
        raise TypeError(f"{path}: a message that contains itself has no bounded depth")
    codecs = _codecs(cls, within)
    length, defaults = 1 + len(codecs), _defaults(cls, codecs)
    pack = slow_pack(cls, codecs)
    unpack = slow_unpack(cls, codecs)
    if cls.TRIMMED:
        unpack = _padded(unpack, length, defaults)
    opening = array_head(length) + dump(cls.TAG)
    write = quick_write(codecs, opening, pack)
    quick = cls.TRIMMED or not any(codec.long for codec in codecs.values())
    _schemas[cls] = Schema(
        length=length,
        defaults=defaults,
        pack=_trimmed_pack(pack, defaults) if cls.TRIMMED else pack,
        unpack=quick_unpack(cls, codecs, unpack),
        unpack_enveloped=quick_unpack(cls, codecs, unpack, ENVELOPE_HEAD_ITEMS),
        write=_trimmed_write(cls, codecs, pack) if cls.TRIMMED else write,
        write_enveloped=write if quick else keeping(write, opening),
    )
    return _schemas[cls]


def _codecs(cls: type[Message], within: tuple[type, ...]) -> dict[str, Codec]:
    """Compile the fields of ``cls``, by name."""
    try:
        hints = get_type_hints(cls)
    except NameError as error:
        raise TypeError(f"{cls.__name__}: {error}; import the type at run time too") from error
    codecs: dict[str, Codec] = {}
    for field in fields(cast("Any", cls)):
        try:
            codecs[field.name] = _codec(hints[field.name], (*within, cls))
        except TypeError as error:
            raise TypeError(f"{cls.__name__}.{field.name}: {error}") from error
    return codecs


def _defaults(cls: type[Message], codecs: Mapping[str, Codec]) -> list[Any]:
    """Return the packed defaults of the optional fields of ``cls``."""
    defaults: list[Any] = []
    for field in fields(cast("Any", cls)):
        if field.default is not MISSING:
            try:
                defaults.append(codecs[field.name].pack(field.default))
            except MalformedFrameError as error:
                raise TypeError(f"{cls.__name__}.{field.name}: its default: {error}") from error
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
    if inner.parts:
        inner = called(inner)
    none = (r"b'\xf6'", *["b''"] * len(inner.write))
    return inner._replace(
        pack=_unless_none(inner.pack),
        unpack=_unless_none(inner.unpack),
        writable=f"({{v}} is None or {inner.writable})",
        write=tuple(
            f"({n} if {{v}} is None else {part})"
            for n, part in zip(none, inner.write, strict=False)
        ),
        readable=f"({{v}} is None or {inner.readable})",
        read="{v}" if inner.read == "{v}" else f"(None if {{v}} is None else {inner.read})",
        number=inner.number and f"({inner.number} or 0)",
    )


def _unless_none(step: Step) -> Step:
    return lambda value: None if value is None else step(value)


def _tuple_codec(hint: Any, within: tuple[type, ...]) -> Codec:
    match get_args(hint):
        case (item, end) if end is ...:
            codec = _codec(item, within)
        case _:
            raise TypeError(f"{hint!r}: only tuple[X, ...] can cross the wire")

    def pack(value: Any) -> Any:
        if type(value) is not tuple:
            raise MalformedFrameError(f"{shown(value)} is no tuple")
        items: tuple[Any, ...] = value  # pyright: ignore[reportUnknownVariableType]
        return [codec.pack(one) for one in items]

    def unpack(value: Any) -> Any:
        return tuple([codec.unpack(one) for one in array(value)])

    n = next(NUMBERS)
    scope: dict[str, Any]
    if item in SIMPLE:
        simple = f" and set(map(type, {{v}})) <= simple{n}"
        write, read, scope = "dump([*{v}])", "tuple({v})", {f"simple{n}": {item}}
    else:
        simple, write, read = "", f"write{n}({{v}})", f"read{n}({{v}})"
        scope = {f"write{n}": writer_of_many(codec), f"read{n}": reader_of_many(codec)}
    return Codec(
        pack,
        unpack,
        writable=f"type({{v}}) is tuple{simple}",
        write=(rf"({write} if {{v}} else b'\x80')",),
        readable=f"type({{v}}) is list{simple}",
        read=f"({read} if {{v}} else ())",
        scope=scope,
        long=True,
    )


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

    n = next(NUMBERS)
    return Codec(
        pack,
        unpack,
        writable=f"type({{v}}) is enum{n}",
        write=(f"written{n}[{{v}}]",),
        readable="type({v}) is int",
        read=f"members{n}[{{v}}]",
        scope={
            f"enum{n}": enum,
            f"written{n}": {member: dump(int(member)) for member in enum},
            f"members{n}": members,
        },
    )


def _named_tuple_codec(cls: Any, within: tuple[type, ...]) -> Codec:
    hints = get_type_hints(cls)
    codecs = tuple(_codec(hints[name], within) for name in cls._fields)

    def pack(value: Any) -> Any:
        if type(value) is not cls:
            raise MalformedFrameError(f"{shown(value)} is no {cls.__name__}")
        parts = cast("tuple[Any, ...]", value)
        return [codec.pack(part) for codec, part in zip(codecs, parts, strict=True)]

    def unpack(value: Any) -> Any:
        parts = array(value, len(codecs))
        return cls(*[codec.unpack(part) for codec, part in zip(codecs, parts, strict=True)])

    n = next(NUMBERS)
    return Codec(
        pack,
        unpack,
        writable=f"type({{v}}) is tuple{n}",
        write=(f"head{n}",),
        readable="type({v}) is list",
        read=f"new_tuple(tuple{n}, {{v}})",
        scope={f"tuple{n}": cls, f"head{n}": array_head(len(codecs))},
        parts=codecs,
        long=any(codec.long for codec in codecs),
    )


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

    n = next(NUMBERS)
    return Codec(
        pack,
        unpack,
        writable=f"type({{v}}) in writers{n}",
        write=(f"writers{n}[type({{v}})]({{v}})",),
        readable="type({v}) is list",
        read=f"readers{n}[{{v}}[0]]({{v}})",
        scope={
            f"writers{n}": {arm: schema.write for arm, schema in by_class.items()},
            f"readers{n}": {tag: schema.unpack for tag, schema in by_tag.items()},
        },
        long=True,
    )
