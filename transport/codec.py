"""Messages to CBOR, and back from bytes that are not trusted.

A message is an array of its tag and its fields, as `fencelock.actors.message.Message` says. msgspec
makes a message from such an array. Of a message that arrives, it checks each value against the
declared type of its field. Of messages that leave, it checks a user's arguments, what is written to
a log or a journal, and frames between members. These are checked because a member drops a frame
with one wrong message as a whole, and with it the requests of other clients. A frame from or to a
client has the messages of that client only.

A message that leaves is first written as MessagePack, which msgspec does in one call (`pack`). A
decoder of the declared type checks the result, and `lists_of` turns it into the lists that are
written as CBOR.

A message in a frame may have more fields than are declared here, up to `EXTRA_FIELDS_MAX`. They
are ignored, since the sender is of a newer version. A record of a journal, a part of a snapshot and
a command of the log may not: a node that ignored a field of its own promises could break them, and
a member that ignored a field of a command would apply another command than the others. Missing
fields at the end take their defaults, in all of these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from threading import RLock
from typing import Any, TypeVar

from msgspec import Struct, ValidationError, convert, to_builtins
from msgspec.msgpack import Decoder, Encoder

from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import REGISTRY, Message
from fencelock.transport.cbor import (
    FRAME_BYTES_MAX,
    FrameTooLargeError,
    MalformedFrameError,
    dump,
    load,
    shown,
)

EXTRA_FIELDS_MAX = 16
"""Fields that a message in a frame may have beyond those declared here. A message that grew by
more within one wire version should be a new message."""

NATIVE = (bytes,)
"""Types beyond JSON's that CBOR has, so msgspec leaves their values alone."""

pack: Callable[[Any], bytes] = Encoder().encode
"""Writes a value as MessagePack, with an array for each message."""

lists_of: Callable[[bytes], Any] = Decoder().decode
"""Reads what `pack` wrote, with a list for each array."""

_ERROR = re.compile(r"(?P<text>.*?)(?: - at `\$(?:\[(?P<place>\d+)\])?.*`)?", re.DOTALL)
"""An error's text. The place of the wrong value begins with that of its field."""

M = TypeVar("M", bound=Message)


class FieldError(MalformedFrameError):
    """A field has a value that its declaration does not allow; ``place`` is that in the array."""

    def __init__(self, text: str, place: int) -> None:
        super().__init__(text)
        self.place = place


def encode(message: Message, *, check: bool = True) -> bytes:
    """Return ``message`` as ``[tag, field, ...]``, fields in the order declared.

    Raises:
        TypeError: a field has a value that its declaration does not allow.
        InvalidRequestError: a text has a surrogate, as `os.fsdecode` makes them.
        FrameTooLargeError: the result is larger than `FRAME_BYTES_MAX`.

    """
    cls = type(message)
    try:
        packed = pack(message)
        if check:
            (_checks.get(cls) or prepare(cls))(packed)
    except _UNFIT as error:
        raise _reason(message, error) from error
    data = dump(lists_of(packed), len(packed))
    if len(data) > FRAME_BYTES_MAX:
        name = type(message).__name__
        raise FrameTooLargeError(f"{name} takes {len(data)} bytes, at most {FRAME_BYTES_MAX}")
    return data


def decode(data: bytes) -> Message:
    """Return the message in ``data``, which has no further fields than its class declares.

    Raises:
        MalformedFrameError: too long, not our subset of CBOR, trailing bytes, an
            unknown tag, or fields of the wrong number or type.

    """
    items = load(data)
    cls = class_of(items)
    if len(items) > cls.ITEMS:
        raise MalformedFrameError(
            f"{cls.__name__} has {cls.ITEMS - 1} fields, not {len(items) - 1}"
        )
    return unpack(cls, items)


_preparing = RLock()
_checks: dict[type[Struct], Callable[[bytes], object]] = {}
"""By class, the check of a value that `pack` wrote; see `prepare`."""


def prepare(cls: type[Struct]) -> Callable[[bytes], object]:
    """Let msgspec gather what it has to do for ``cls`` and for all structs in it.

    msgspec does that at the first use of a class, without a lock: the process crashes if two
    threads, of two nodes for example, begin with one class at the same time.

    Returns:
        The check of a value that `pack` wrote. It raises `msgspec.ValidationError` if the value
        does not fit ``cls``.

    """
    with _preparing:
        check = _checks[cls] = Decoder(cls).decode
    return check


def unpack(cls: type[M], items: list[Any]) -> M:
    """Return the message of class ``cls`` that ``items`` are; further fields are ignored.

    Raises:
        FieldError: a field has a value that its declaration does not allow.
        MalformedFrameError: a field is missing.

    """
    if cls not in _checks:
        prepare(cls)
    try:
        return convert(items, cls, builtin_types=NATIVE)
    except ValidationError as error:
        raise _explained(cls, items, error) from error


def class_of(value: Any) -> type[Message]:
    """Return the class of the message that ``value`` is, by its tag.

    Raises:
        MalformedFrameError: it is no array that begins with the tag of a message.

    """
    tag = first_of(value)
    cls = REGISTRY.get(tag)
    if cls is None:
        raise MalformedFrameError(f"no message has tag {tag:#x}")
    return cls


def first_of(value: Any) -> int:
    """Return the first item of an array: the tag of a message, or the version of a frame.

    Raises:
        MalformedFrameError: ``value`` is no array, or does not begin with an int.

    """
    if type(value) is not list or not value or type(value[0]) is not int:  # pyright: ignore[reportUnknownArgumentType]
        raise MalformedFrameError(f"{shown(value)} is no array that begins with an int")  # pyright: ignore[reportUnknownArgumentType]
    first: int = value[0]
    return first


def check_types(message: Message) -> None:
    """Refuse ``message`` if a field has a value that its declaration does not allow.

    Raises:
        TypeError: naming the field and the value.
        InvalidRequestError: a text has a surrogate.

    """
    cls = type(message)
    try:
        (_checks.get(cls) or prepare(cls))(pack(message))
    except _UNFIT as error:
        raise _reason(message, error) from error


_UNFIT = ValidationError, OverflowError, UnicodeEncodeError


def _reason(message: Message, error: Exception) -> Exception:
    """Return what to raise for a message that cannot leave: it names the field and its value."""
    cls = type(message)
    if isinstance(error, UnicodeEncodeError):
        text = f"the text {error.object[:80]!a} has a surrogate, which is no character"
        return InvalidRequestError(f"{cls.__name__}: {text}")
    if isinstance(error, OverflowError):  # It does not tell which number is too large.
        items = to_builtins(message, builtin_types=NATIVE)
    else:
        items = lists_of(pack(message))
    try:
        unpack(cls, items)
    except MalformedFrameError as reason:
        return TypeError(str(reason))
    return error


def _explained(cls: type[Message], items: list[Any], error: ValidationError) -> MalformedFrameError:
    return explained(cls.__name__, ("tag", *cls.__struct_fields__), items, error)


def explained(
    what: str, fields: Sequence[str], items: list[Any], error: ValidationError
) -> MalformedFrameError:
    """Return msgspec's ``error`` about ``items`` in words that name the wrong field and its value.

    ``fields`` are the names of the items, and ``what`` that of what they should be.
    """
    found = _ERROR.fullmatch(str(error))
    assert found is not None
    text = found["text"][:1].lower() + found["text"][1:]
    if found["place"] is None:
        return MalformedFrameError(f"{what}: {text}")
    place = int(found["place"])
    return FieldError(f"{what}.{fields[place]}: {shown(items[place])}: {text}", place)
