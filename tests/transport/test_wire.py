"""The codec: every message there and back, its bytes pinned, and nothing else accepted.

``tests/support/wire_pins.txt`` has the bytes of every registered message: tag, name and hex, a line
each. ``PYTHONPATH=tests python tests/transport/test_wire.py --rewrite`` writes it anew. Review the
difference: other versions no longer understand what changed there.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from enum import IntEnum
from types import NoneType
from typing import Any, NamedTuple, cast, get_args, get_origin, get_type_hints

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paths import PINS

import fencelock.actors
from fencelock.actors.api.message import Acquire, Granted, LockStatus, Refused
from fencelock.actors.message import REGISTRY, Message, message
from fencelock.transport.cbor import FRAME_BYTES_MAX, FrameTooLargeError, MalformedFrameError
from fencelock.transport.codec import decode, encode, schema_of
from fencelock.transport.frame import Rejected

_SAMPLES: dict[type, Any] = {int: 7, str: "word", bytes: b"\x00\xff", bool: True}
_VALUES: dict[type, st.SearchStrategy[Any]] = {
    int: st.integers(1 - (1 << 63), (1 << 63) - 1),
    str: st.text(max_size=40),
    bytes: st.binary(max_size=40),
    bool: st.booleans(),
}


def declared() -> list[type[Message]]:
    """Return every message of the package, by tag: those of tests and simulations are left out."""
    for module in pkgutil.walk_packages(fencelock.actors.__path__, "fencelock.actors."):
        importlib.import_module(module.name)
    homes = ("fencelock.actors.", "fencelock.transport.")
    ours = [cls for cls in REGISTRY.values() if cls.__module__.startswith(homes)]
    return sorted(ours, key=lambda cls: cls.TAG)


def fields_of(cls: type) -> dict[str, Any]:
    """Return the declared types, in order, of a message class or a NamedTuple."""
    hints = get_type_hints(cls)
    names = cast("Any", cls)
    order = names._fields if hasattr(cls, "_fields") else names.__dataclass_fields__
    return {name: hints[name] for name in order}


def sample(hint: Any) -> Any:
    """Return one value of the declared type ``hint``, always the same."""
    hint = getattr(hint, "__supertype__", hint)
    if hint in _SAMPLES:
        return _SAMPLES[hint]
    if get_origin(hint) is tuple:
        return (sample(get_args(hint)[0]),)
    if get_args(hint):
        return sample(get_args(hint)[0])
    if issubclass(hint, IntEnum):
        return next(iter(hint))
    return hint(**{name: sample(field) for name, field in fields_of(hint).items()})


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for every value of the declared type ``hint``."""
    hint = getattr(hint, "__supertype__", hint)
    if hint in _VALUES:
        return _VALUES[hint]
    if hint is NoneType:
        return st.none()
    if get_origin(hint) is tuple:
        return st.lists(values(get_args(hint)[0]), max_size=3).map(tuple)
    if get_args(hint):
        return st.one_of([values(arm) for arm in get_args(hint)])
    if issubclass(hint, IntEnum):
        return st.sampled_from(list(hint))
    return st.builds(hint, **{name: values(field) for name, field in fields_of(hint).items()})


def pinned() -> str:
    """Return the lines that ``wire_pins.txt`` should have."""
    return "".join(
        f"{cls.TAG:#04x} {cls.__name__} {encode(sample(cls)).hex()}\n" for cls in declared()
    )


def test_the_bytes_of_every_message_are_pinned() -> None:
    """A change here is a change of the wire: on purpose, with ``--rewrite``, or a mistake."""
    assert PINS.read_text(encoding="utf-8") == pinned()


def test_an_acquire_is_these_bytes() -> None:
    acquire = Acquire(lock="orders/42", session="s", owner="o", request=1, wait_ms=None)
    assert encode(acquire).hex() == (
        "8a10"  # [0x10,
        "696f72646572732f3432"  # "orders/42",
        "6173616f"  # "s", "o",
        "01f6"  # 1, null,
        "01600000"  # 1, "", 0, 0]
    )


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_every_message_survives_the_wire_in_its_one_encoding(data: st.DataObject) -> None:
    sent = data.draw(st.sampled_from(declared()).flatmap(values))
    raw = encode(sent)
    got = decode(raw)
    assert got == sent
    assert type(got) is type(sent)
    assert raw == cbor2.dumps(cbor2.loads(raw), canonical=True)
    assert encode(got) == raw


@pytest.mark.parametrize("cls", declared(), ids=lambda cls: cls.__name__)
def test_no_field_takes_a_value_of_another_type(cls: type[Message]) -> None:
    items = cbor2.loads(encode(sample(cls)))
    unspoken: list[Any] = [1.5, {}, cbor2.CBORSimpleValue(3), cbor2.undefined, cbor2.CBORTag(1, 1)]
    for at in range(1, len(items)):
        for wrong in unspoken:
            with pytest.raises(MalformedFrameError):
                decode(cbor2.dumps([*items[:at], wrong, *items[at + 1 :]]))
    for short in ([*items, 0], *([] if cls.TRIMMED else [items[:-1]])):
        with pytest.raises(MalformedFrameError):
            decode(cbor2.dumps(short))


GOOD = Granted(lock="a", fence=1, session="s", owner="o", request=2)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff",
        b"\x00",
        b"\xf6",
        b"\x80",
        cbor2.dumps({"tag": 0x18}),
        cbor2.dumps(["\x18"]),
        cbor2.dumps([True, "a", 1, "s", "o", 2]),
        cbor2.dumps([0x7777]),
        cbor2.dumps([0x18, "a", "1", "s", "o", 2]),
        cbor2.dumps([0x18, "a", True, "s", "o", 2]),
        cbor2.dumps([0x18, "a", 1.0, "s", "o", 2]),
        cbor2.dumps([0x18, "a", None, "s", "o", 2]),
        cbor2.dumps([0x18, "a", 1 << 63, "s", "o", 2]),
        cbor2.dumps([0x18, "a", -(1 << 63), "s", "o", 2]),
        cbor2.dumps([0x18, "a", 1 << 70, "s", "o", 2]),
        cbor2.dumps([0x18, b"a", 1, "s", "o", 2]),
        cbor2.dumps([0x18, ["a"], 1, "s", "o", 2]),
        cbor2.dumps([0x1B, "a", 99, "d", "s", "o", 2]),
        cbor2.dumps([0x1B, "a", True, "d", "s", "o", 2]),
        encode(GOOD) + b"\x00",
        encode(GOOD)[:-1],
        encode(GOOD).replace(b"\x61a", b"\x61\xff"),
        b"\x9f" + encode(GOOD)[1:] + b"\xff",
        b"\x81" * 5000,
        b"\xc1" * 5000,
        b"\x00" * (FRAME_BYTES_MAX + 1),
    ],
    ids=lambda raw: raw[:12].hex() or "empty",
)
def test_what_is_no_message_is_refused(raw: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        decode(raw)


def test_an_error_names_message_field_and_value() -> None:
    with pytest.raises(MalformedFrameError, match=r"Granted\.fence.*'x' is no int"):
        decode(cbor2.dumps([0x18, "a", "x", "s", "o", 2, 1, 0, 0]))
    with pytest.raises(MalformedFrameError, match=r"Refused\.reason.*99 is no Reason"):
        decode(cbor2.dumps([0x1B, "a", 99, "d", "s", "o", 2]))
    with pytest.raises(MalformedFrameError, match="Granted has 8 fields, not 1"):
        decode(cbor2.dumps([0x18, "a"]))
    with pytest.raises(MalformedFrameError, match="0x7777"):
        decode(cbor2.dumps([0x7777]))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: Granted(lock="a", fence=cast("int", True)), r"Granted\.fence.*True is no int"),
        (lambda: Granted(lock="a", fence=1 << 63), r"Granted\.fence.*not within"),
        (lambda: Granted(lock=cast("str", None), fence=1), r"Granted\.lock.*None is no str"),
        (
            lambda: Refused(lock="a", reason=cast("Any", 1), detail=""),
            r"Refused\.reason.*1 is no Reason",
        ),
        (
            lambda: LockStatus(lock="a", holder=None, waiters=cast("Any", []), waits_for=()),
            r"LockStatus\.waiters.*no tuple",
        ),
    ],
)
def test_a_field_of_the_wrong_type_does_not_leave(wrong: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        encode(wrong())


def test_a_message_above_the_limit_does_not_leave() -> None:
    with pytest.raises(FrameTooLargeError, match=f"Granted takes .* at most {FRAME_BYTES_MAX}"):
        encode(Granted(lock="x" * FRAME_BYTES_MAX, fence=1))


class Corner(NamedTuple):
    x: float


@message(0xFF01)
class WithFloat(Message):
    x: float


@message(0xFF02)
class WithDict(Message):
    x: dict[str, int]


@message(0xFF03)
class WithTwo(Message):
    x: int | str


@message(0xFF04)
class WithPair(Message):
    x: tuple[int, str]


@message(0xFF05)
class WithCorner(Message):
    x: tuple[Corner | None, ...]


@message(0xFF06)
class WithItself(Message):
    x: WithItself | None


class Unregistered(Message):
    pass


@message(0xFF07)
class WithUnregistered(Message):
    x: Unregistered


@pytest.mark.parametrize(
    "unfit",
    [WithFloat, WithDict, WithTwo, WithPair, WithCorner, WithItself, WithUnregistered],
)
def test_a_class_with_an_unfit_field_is_refused_with_its_name(unfit: type[Message]) -> None:
    with pytest.raises(TypeError, match=rf"{unfit.__name__}"):
        schema_of(unfit)
    with pytest.raises(TypeError, match="Unregistered is not registered"):
        schema_of(Unregistered)


@message(0xFF10)
class Sheet(Message):
    colour: int


@message(0xFF11)
class Folder(Message):
    first: Sheet
    either: Sheet | Rejected | None
    more: tuple[Sheet, ...]


def test_messages_nest_as_arrays_with_their_tags() -> None:
    folder = Folder(first=Sheet(colour=1), either=None, more=(Sheet(colour=2),))
    assert cbor2.loads(encode(folder)) == [0xFF11, [0xFF10, 1], None, [[0xFF10, 2]]]
    assert decode(encode(folder)) == folder
    for wrong in ([0x18, "a", 1, "s", "o", 2], [0xFF10], [], [0xFF10, "x"], 1):
        with pytest.raises(MalformedFrameError, match=r"Folder\.either"):
            decode(cbor2.dumps([0xFF11, [0xFF10, 1], wrong, []]))


if __name__ == "__main__":
    if sys.argv[1:] != ["--rewrite"]:
        sys.exit(
            f"usage: PYTHONPATH=tests python {sys.argv[0]} --rewrite   (write {PINS.name} anew)"
        )
    PINS.write_text(pinned(), encoding="utf-8")
