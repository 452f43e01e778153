"""The wire: pinned bytes, round trips of every message, and the tables of messages.

``PYTHONPATH=tests python tests/transport/test_wire.py --rewrite`` writes the pins anew, and the
fields in the tables of messages and structures in ``transport/README.md``, and the schema of the
same messages, ``transport/wire.cddl``. People write the last column of the tables, which says what
a message means.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from functools import partial
from types import NoneType
from typing import Annotated, Any, NamedTuple, cast, get_args, get_origin, get_type_hints

import cbor2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import NODEFAULT, inspect
from msgspec.structs import asdict, fields, replace
from support.paths import PINS, ROOT

import fencelock.actors
import fencelock.actors.api as api_package
from fencelock.actors.api.account import Purge
from fencelock.actors.api.changes import ReadChanges
from fencelock.actors.api.handover import Detach
from fencelock.actors.api.lock_message import Acquire, Granted, Renewed
from fencelock.actors.api.map import MAP
from fencelock.actors.api.membership_message import ChangeMembers
from fencelock.actors.api.name import INT_MAX, SESSION_TTL_MS_MAX, WAIT_MS_MAX, object_name
from fencelock.actors.api.redis import ChangeKeys
from fencelock.actors.api.request import Request
from fencelock.actors.api.session_message import Open, Opened
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import REGISTRY, Int64, Message
from fencelock.transport.cbor import FRAME_BYTES_MAX, FrameTooLargeError, MalformedFrameError, dump
from fencelock.transport.codec import check_types, decode, encode, lists_of, pack
from fencelock.transport.frame import Rejected

pycddl: Any = importlib.import_module("pycddl")  # It has no types.
Schema, ValidationError = pycddl.Schema, pycddl.ValidationError

_SAMPLES: dict[type, Any] = {int: 7, str: "word", bytes: b"\x00\xff", bool: True}
_VALUES: dict[type, st.SearchStrategy[Any]] = {
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
    hints = get_type_hints(cls, include_extras=True)
    names = cast("Any", cls)
    order = names._fields if hasattr(cls, "_fields") else names.__struct_fields__
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
    if get_origin(hint) is Annotated:
        kind, limits = get_args(hint)
        return st.integers(limits.ge, limits.le) if kind is int else values(kind)
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


def enums_in(kind: inspect.Type) -> Iterator[type[IntEnum]]:
    """Yield the enums whose numbers a declared type sends."""
    match kind:
        case inspect.EnumType(cls=cls) if issubclass(cls, IntEnum):
            yield cls
        case inspect.VarTupleType(item_type=item):
            yield from enums_in(item)
        case inspect.UnionType(types=kinds):
            yield from (cls for one in kinds for cls in enums_in(one))
        case inspect.NamedTupleType(fields=fields) | inspect.StructType(fields=fields):
            yield from (cls for field in fields for cls in enums_in(field.type))
        case _:
            pass


VALID: dict[type[Request], dict[str, Any]] = {
    ChangeKeys: {"receipt": ""},
    ChangeMembers: {"endpoint": "tcp://n1:4040", "replacement": ""},
    Detach: {"digest": bytes(32)},
    Open: {"ttl_ms": 5_000},
    Purge: {"entry_prefix": ""},
    ReadChanges: {"lock": object_name(MAP, "word")},
}
"""Fields whose samples are refused with those of the others."""

SIZED: dict[type, Callable[[int], Any]] = {
    int: int,
    str: "a".__mul__,
    bytes: bytes,
    tuple: lambda count: tuple(map(str, range(count))),
}
"""A value of each size: a number is its own."""

SIZE_MAX = 1 << 17
"""A text or a list without a lower limit than this has none of its own."""


def accepted(request: Request, name: str, value: Any) -> bool:
    try:
        replace(request, **{name: value}).check()
    except InvalidRequestError:
        return False
    return True


def limits_of(cls: type[Request]) -> Iterator[str]:
    """Yield the fewest and the most that each field may have if the others are as in the sample.

    Fields without limits of their own are left out, and so are those that have to fit others.
    """
    request = replace(sample(cls), **VALID.get(cls, {}))
    request.check()
    for name, value in asdict(request).items():
        make = next((make for kind, make in SIZED.items() if type(value) is kind), None)
        if make is None:
            continue
        size = value if make is int else len(value)
        above, below = (INT_MAX - size, INT_MAX) if make is int else (SIZE_MAX - size, size)

        def refused(by: int, name: str = name, make: Any = make, size: int = size) -> bool:
            return not accepted(request, name, make(size + by))

        up = bisect_left(range(1, above + 1), True, key=refused)
        down = bisect_left(range(1, below + 1), True, key=lambda by: refused(-by))
        if (up, down) not in {(above, below), (0, 0)}:
            yield f"{name}={size - down}..{size + up}"


def defaults_of(cls: type[Message]) -> Iterator[str]:
    """Yield what fields are if a sender leaves them out, but for zeros and empty values."""
    for field in fields(cls):
        if field.default is not NODEFAULT and field.default:
            yield f"{field.name}={field.default}"


def lines_of(of: Callable[[Any], Iterator[str]], classes: Iterable[type]) -> list[str]:
    found = ((cls.__name__, " ".join(of(cls))) for cls in classes)
    return [f"{name} {text}" for name, text in found if text]


def pinned() -> str:
    """Return the lines that ``wire_pins.txt`` should have."""
    enums = {cls for one in declared() for cls in enums_in(inspect.type_info(one))}
    messages = (f"{cls.TAG:#04x} {cls.__name__} {encode(sample(cls)).hex()}" for cls in declared())
    numbers = (
        f"{cls.__name__} {' '.join(f'{one.name}={one.value}' for one in cls)}"
        for cls in sorted(enums, key=lambda cls: cls.__name__)
    )
    limits = lines_of(limits_of, (cls for cls in declared() if issubclass(cls, Request)))
    defaults = lines_of(defaults_of, declared())
    return "\n".join([*messages, *numbers, "limits:", *limits, "defaults:", *defaults, ""])


def test_bytes_of_messages_numbers_of_enums_limits_and_defaults_are_pinned() -> None:
    """A change here is a change of the wire: on purpose, with ``--rewrite``, or a mistake.

    The table of each member has the limits of commands: one with others would diverge. A default
    stands for a field that an older sender does not know, so members must agree on it, too.
    """
    assert PINS.read_text(encoding="utf-8") == pinned(), "on purpose: run this file with --rewrite"


TAGS = re.compile(r"^\| (0x[0-9a-f, xto]+) \| `([\w/.]+)` \|$", re.MULTILINE)
"""A row of the table of tags: some tags and spans, and the module or folder that has them."""


def tags_of(words: str) -> Iterator[int]:
    """Yield the tags of ``0x1e, 0xa0 to 0xa3``."""
    for part in words.split(", "):
        first, _, last = part.partition(" to ")
        yield from range(int(first, 16), int(last or first, 16) + 1)


def test_each_tag_is_of_the_row_of_its_module() -> None:
    page = (ROOT / "actors" / "README.md").read_text(encoding="utf-8")
    rows = [(home, tag) for words, home in TAGS.findall(page) for tag in tags_of(words)]
    homes = {tag: home for home, tag in rows}
    assert len(rows) == len(homes), "the table of tags in actors/README.md gives a tag to two rows"
    wrong = set[str]()
    for cls in declared():
        module = cls.__module__.replace(".", "/").removeprefix("fencelock/").removeprefix("actors/")
        home = homes.get(cls.TAG, "no module")
        if not f"{module}.py".startswith(home):
            wrong.add(f"{cls.TAG:#x} of {cls.__name__} in {module}.py is in the row of {home}")
    assert wrong == set(), "the table of tags in actors/README.md disagrees"


@given(st.data())
@settings(max_examples=80, deadline=None)
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
    with pytest.raises(MalformedFrameError, match="fields, not"):
        decode(cbor2.dumps([*items, 0]))


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
        cbor2.dumps([True, "s", 2, "a", "o", 1]),
        cbor2.dumps([0x7777]),
        cbor2.dumps([0x18, "s", 2, "a", "o", "1"]),
        cbor2.dumps([0x18, "s", 2, "a", "o", True]),
        cbor2.dumps([0x18, "s", 2, "a", "o", 1.0]),
        cbor2.dumps([0x18, "s", 2, "a", "o", None]),
        cbor2.dumps([0x18, "s", 2, "a", "o", 1 << 63]),
        cbor2.dumps([0x18, "s", 2, "a", "o", -(1 << 63)]),
        cbor2.dumps([0x18, "s", 2, "a", "o", 1 << 70]),
        cbor2.dumps([0x18, "s", 2, b"a", "o", 1]),
        cbor2.dumps([0x18, "s", 2, ["a"], "o", 1]),
        cbor2.dumps([0x1B, "s", 2, "a", "o", 99, "d"]),
        cbor2.dumps([0x1B, "s", 2, "a", "o", True, "d"]),
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
def test_bytes_that_are_no_message_are_refused(raw: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        decode(raw)


def test_an_error_names_message_field_and_value() -> None:
    with pytest.raises(MalformedFrameError, match=r"Granted\.fence: 'x': expected `int`"):
        decode(cbor2.dumps([0x18, "s", 2, "a", "o", "x", 1, 0, 0]))
    with pytest.raises(MalformedFrameError, match=r"Granted\.fence: 9\d*: expected `int` <= 9"):
        decode(cbor2.dumps([0x18, "s", 2, "a", "o", 1 << 63]))
    with pytest.raises(MalformedFrameError, match=r"Granted\.fence: 0: expected `int` >= 1"):
        decode(cbor2.dumps([0x18, "s", 2, "a", "o", 0]))
    with pytest.raises(MalformedFrameError, match=r"Refused\.reason: 99: invalid enum value 99"):
        decode(cbor2.dumps([0x1B, "s", 2, "a", "o", 99, "d"]))
    with pytest.raises(MalformedFrameError, match="Granted: expected `array` of at least length 6"):
        decode(cbor2.dumps([0x18, "s", 2, "a", "o"]))
    with pytest.raises(MalformedFrameError, match="0x7777"):
        decode(cbor2.dumps([0x7777]))


@pytest.mark.parametrize(
    ("promise", "limits"),
    [
        (Opened(session="s", assigned="s", node="n", ttl_ms=0), {"ttl_ms": SESSION_TTL_MS_MAX}),
        (GOOD, {"hold_ms": WAIT_MS_MAX, "grace_ms": WAIT_MS_MAX}),
        (
            Renewed(lock="a", fence=1, hold_ms=0, grace_ms=0),
            {"hold_ms": WAIT_MS_MAX, "grace_ms": WAIT_MS_MAX},
        ),
    ],
    ids=lambda one: type(one).__name__,
)
def test_no_node_can_promise_more_time_than_a_client_may_have(
    promise: Message, limits: dict[str, int]
) -> None:
    for name, limit in limits.items():
        place = 1 + promise.__struct_fields__.index(name)
        items = cbor2.loads(encode(promise))
        decode(cbor2.dumps([*items[:place], limit, *items[place + 1 :]]))
        for wrong in (-1, limit + 1):
            with pytest.raises(MalformedFrameError, match=name):
                decode(cbor2.dumps([*items[:place], wrong, *items[place + 1 :]]))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (Granted(lock="a", fence=cast("int", True)), r"Granted\.fence: True: expected `int`"),
        (Granted(lock="a", fence=0), r"Granted\.fence: 0: expected `int` >= 1"),
        (Granted(lock="a", fence=1 << 63), r"Granted\.fence: .*: expected `int` <= "),
        (Granted(lock="a", fence=1 << 70), r"Granted\.fence: 1180591620717411303424: "),
        (Granted(lock=cast("str", None), fence=1), r"Granted\.lock: None: expected `str`"),
        (
            Granted(lock=cast("str", bytearray(b"a")), fence=1),
            r"Granted\.lock: b'a': expected `str`",
        ),
        (Acquire(lock="a", wait_ms=cast("int", 1.5)), r"Acquire\.wait_ms: 1\.5: expected `int"),
        (Acquire(lock=cast("str", object())), "unsupported"),
    ],
)
def test_a_field_of_the_wrong_type_does_not_leave(wrong: Message, words: str) -> None:
    for check in (check_types, encode):
        check(Granted(lock="a", fence=1))
        with pytest.raises(TypeError, match=words):
            check(wrong)


def test_a_text_with_a_surrogate_does_not_leave() -> None:
    for check in (check_types, encode, partial(encode, check=False)):
        with pytest.raises(
            InvalidRequestError, match=r"Granted: the text '\\udcff' has a surrogate"
        ):
            check(Granted(lock="\udcff", fence=1))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text() | st.binary(),
    lambda items: st.lists(items) | st.lists(items).map(tuple),
)


@example([b"\x01\x71\x12\x20" + bytes(32), "\xd8*"])  # A content id, for libipld.
@example(b"\x12\x20" + bytes(32))
@given(ANYTHING)
def test_what_leaves_is_encoded_as_cbor2_encodes_it(value: object) -> None:
    packed = pack(value)
    for size in (0, len(packed), FRAME_BYTES_MAX):
        assert dump(lists_of(packed), size) == cbor2.dumps(value)


def test_a_message_above_the_limit_does_not_leave() -> None:
    with pytest.raises(FrameTooLargeError, match=f"Granted takes .* at most {FRAME_BYTES_MAX}"):
        encode(Granted(lock="x" * FRAME_BYTES_MAX, fence=1))


def unfit_in(kind: inspect.Type) -> str:
    """Return what in a declared type cannot cross the wire, or nothing."""
    match kind:
        case inspect.IntType():
            return "" if kind.ge is not None and kind.le is not None else "int without limits"
        case inspect.StrType() | inspect.BytesType() | inspect.BoolType() | inspect.NoneType():
            return ""
        case inspect.EnumType(cls=cls):
            return "" if issubclass(cls, IntEnum) else cls.__name__
        case inspect.VarTupleType(item_type=item):
            return unfit_in(item)
        case inspect.UnionType(types=arms):
            return first_unfit(arms)
        case inspect.NamedTupleType(fields=fields):
            return first_unfit(field.type for field in fields)
        case inspect.StructType(cls=cls):
            return "" if REGISTRY.get(getattr(cls, "TAG", -1)) is cls else cls.__name__
        case _:
            return type(kind).__name__


def first_unfit(kinds: Iterable[inspect.Type]) -> str:
    return next((why for kind in kinds if (why := unfit_in(kind))), "")


def unfit(cls: type[Message]) -> dict[str, str]:
    """Return the fields of ``cls`` that cannot cross the wire, and why."""
    declaration = cast("inspect.StructType", inspect.type_info(cls))
    return {field.name: why for field in declaration.fields if (why := unfit_in(field.type))}


@pytest.mark.parametrize("cls", declared(), ids=lambda cls: cls.__name__)
def test_every_field_has_a_type_of_the_wire_and_fixed_limits(cls: type[Message]) -> None:
    assert not unfit(cls)
    check_types(sample(cls))
    names, defaults = reversed(cls.__struct_fields__), reversed(cls.__struct_defaults__)
    pairs = zip(names, defaults, strict=False)
    optional = {name: default for name, default in pairs if default is not NODEFAULT}
    check_types(replace(sample(cls), **optional))


class Corner(NamedTuple):
    x: float


class Unregistered(Message):
    pass


class Unfit(Message, tag=0xFF01):
    real: float
    table: dict[str, Int64]
    pair: tuple[Int64, str]
    corners: tuple[Corner | None, ...]
    nested: Unregistered
    unlimited: int
    fit: Int64 | None = None


def test_fields_of_other_types_are_found() -> None:
    assert unfit(Unfit) == {
        "real": "FloatType",
        "table": "DictType",
        "pair": "TupleType",
        "corners": "FloatType",
        "nested": "Unregistered",
        "unlimited": "int without limits",
    }


def test_a_tag_has_one_message() -> None:
    with pytest.raises(ValueError, match="tag 0xff01 is taken by Unfit"):

        class Second(Message, tag=0xFF01):  # pyright: ignore[reportUnusedClass]
            x: Int64


class Sheet(Message, tag=0xFF10):
    colour: Int64


class Folder(Message, tag=0xFF11):
    first: Sheet
    either: Sheet | Rejected | None
    more: tuple[Sheet, ...]


def test_messages_nest_as_arrays_with_their_tags() -> None:
    folder = Folder(first=Sheet(colour=1), either=None, more=(Sheet(colour=2),))
    assert cbor2.loads(encode(folder)) == [0xFF11, [0xFF10, 1], None, [[0xFF10, 2]]]
    assert decode(encode(folder)) == folder
    for wrong in ([0x18, "s", 2, "a", "o", 1], [0xFF10], [], [0xFF10, "x"], 1):
        with pytest.raises(MalformedFrameError, match=r"Folder\.either: "):
            decode(cbor2.dumps([0xFF11, [0xFF10, 1], wrong, []]))


PAGE = ROOT / "transport" / "README.md"
SCHEMA = ROOT / "transport" / "wire.cddl"
PLAIN: dict[type[inspect.Type], str] = {
    inspect.IntType: "int",
    inspect.EnumType: "int",
    inspect.StrType: "text",
    inspect.BytesType: "bytes",
    inspect.BoolType: "bool",
}


def messages() -> dict[int, type[Message]]:
    """Return the messages that clients send or receive, by tag: those of ``actors/api``."""
    for module in pkgutil.iter_modules(api_package.__path__):
        importlib.import_module(f"{api_package.__name__}.{module.name}")
    api = f"{api_package.__name__}."
    ours = {tag: cls for tag, cls in REGISTRY.items() if cls.__module__.startswith(api)}
    return {**ours, Rejected.TAG: Rejected}


def spelled(kind: inspect.Type) -> str:
    """Return a declared type as the page writes it."""
    match kind:
        case inspect.VarTupleType(item_type=item):
            return f"[{spelled(item)}]"
        case inspect.UnionType(types=arms):
            (some,) = (arm for arm in arms if not isinstance(arm, inspect.NoneType))
            return f"{spelled(some)}?"
        case inspect.NamedTupleType(cls=cls) | inspect.StructType(cls=cls):
            return cls.__name__
        case _:
            return PLAIN[type(kind)]


def columns_of(cls: Any) -> list[tuple[str, inspect.Type]]:
    """Return the names and types of the fields of a message or a structure."""
    declaration: Any = inspect.type_info(cls)
    return [(field.name, field.type) for field in declaration.fields]


def fields_in_words(cls: Any) -> str:
    return ", ".join(f"{name} {spelled(kind)}" for name, kind in columns_of(cls))


def structures_in(kind: inspect.Type) -> Iterator[Any]:
    """Yield the structures in a declared type, and those in them."""
    match kind:
        case inspect.VarTupleType(item_type=item):
            yield from structures_in(item)
        case inspect.UnionType(types=arms):
            for arm in arms:
                yield from structures_in(arm)
        case inspect.NamedTupleType(cls=cls):
            yield cls
            for _, inner in columns_of(cls):
                yield from structures_in(inner)
        case _:
            pass


def rewritten(page: str, declared: dict[int, type[Message]]) -> str:
    """Return ``page`` with the tables that ``declared`` makes."""
    meanings: dict[str, str] = dict(
        re.findall(r"^\| 0x[0-9A-F]+ \| (\w+) \| .*? \| (.*) \|$", page, re.MULTILINE)
    )
    rows = [
        f"| 0x{tag:02X} | {cls.__name__} | {fields_in_words(cls)} "
        f"| {meanings.get(cls.__name__, '?')} |"
        for tag, cls in sorted(declared.items())
    ]
    kinds = [kind for cls in declared.values() for _, kind in columns_of(cls)]
    structures = {one.__name__: one for kind in kinds for one in structures_in(kind)}
    parts = [f"| {name} | {fields_in_words(one)} |" for name, one in sorted(structures.items())]
    page = re.sub(r"(\| tag \| message \|.*\n\|[ -|]*\n)(\| .*\n)*", _table(rows), page)
    return re.sub(r"(\| structure \|.*\n\|[ -|]*\n)(\| .*\n)*", _table(parts), page)


def _table(rows: list[str]) -> Callable[[re.Match[str]], str]:
    def filled(found: re.Match[str]) -> str:
        return found[1] + "".join(f"{row}\n" for row in rows)

    return filled


def test_the_page_has_every_message_of_clients_with_its_fields() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == rewritten(page, messages()), "run this file with --rewrite"
    unexplained = re.findall(r"^\| 0x\w+ \| (\w+) \| .* \| \? \|$", page, re.MULTILINE)
    assert unexplained == [], "write in the last column, for '?', what these messages mean"


RULES = """\
; The frames of clients and nodes in CDDL (RFC 8610). README.md says what the fields mean, and
; limits frames further: definite lengths, depth, addresses. A newer node may send up to 16 fields
; more at the end of a message. `python tests/transport/test_wire.py --rewrite` writes this file.

frame = [version: 1, cluster: tstr, group: int64, stamp: int64, envelopes: [* envelope]]
envelope = [to: tstr, from: tstr, messages: [+ message]]
int64 = int  ; -(2^63 - 1) to 2^63 - 1
"""
CDDL = {"int": "int64", "text": "tstr", "bytes": "bstr", "bool": "bool"}


def schema(declared: dict[int, type[Message]]) -> str:
    """Return ``declared`` in CDDL."""
    kinds = [kind for cls in declared.values() for _, kind in columns_of(cls)]
    structures = {one.__name__: one for kind in kinds for one in structures_in(kind)}
    names = [cls.__name__ for _, cls in sorted(declared.items())]
    rules = ["message = " + " /\n          ".join(names)]
    rules += [f"{c.__name__} = [tag: {tag}{_typed(c)}]" for tag, c in sorted(declared.items())]
    rules += [f"{name} = [{_typed(one)[2:]}]" for name, one in sorted(structures.items())]
    used = sorted(set(re.findall(r"([\w-]+)-or-null", " ".join(rules))))
    some = {name: f"[* {name[:-6]}]" if name.endswith("-array") else name for name in used}
    rules += [f"{name}-or-null = {kind} / null" for name, kind in some.items()]
    return "\n".join([RULES, *rules, ""])


def _typed(cls: Any) -> str:
    return "".join(f", {name}: {_in_cddl(spelled(kind))}" for name, kind in columns_of(cls))


def _in_cddl(spelling: str) -> str:
    if spelling.endswith("?"):
        some = spelling[:-1]
        array = some.startswith("[")
        return f"{_in_cddl(some[1:-1]) + '-array' if array else _in_cddl(some)}-or-null"
    if spelling.startswith("["):
        return f"[* {_in_cddl(spelling[1:-1])}]"
    return CDDL.get(spelling, spelling)


def test_the_schema_has_every_message_of_clients() -> None:
    written = SCHEMA.read_text(encoding="utf-8")
    assert written == schema(messages()), "run this file with --rewrite"
    assert Schema(written)


@pytest.mark.parametrize("cls", messages().values(), ids=lambda cls: cls.__name__)
def test_the_schema_accepts_what_the_codec_writes_and_nothing_else(cls: type[Message]) -> None:
    inner = [one for one in messages().values() if one.__name__ in fields_in_words(cls)]
    small = schema({one.TAG: one for one in (cls, *inner)})  # The whole one takes half a second.
    own = Schema(small)

    def check(message: list[Any], version: int = 1) -> None:
        frame = [version, "fencelock", 0, 0, [["*/proxy", "me/me", [message]]]]
        own.validate_cbor(cbor2.dumps(frame))

    items = cbor2.loads(encode(sample(cls)))
    check(items)
    for wrong in ([*items, 1], [0xFFF0, *items[1:]], [1.5, *items[1:]], [*items[:-1], 1.5]):
        with pytest.raises(ValidationError):
            check(wrong)
    with pytest.raises(ValidationError):
        check(items, version=2)


class Added(Message, tag=0xFF30):
    number: Int64 | None
    names: tuple[str, ...] = ()


def test_a_message_that_the_page_lacks_is_found() -> None:
    page = PAGE.read_text(encoding="utf-8")
    grown = rewritten(page, {**messages(), Added.TAG: Added})
    assert "| 0xFF30 | Added | number int?, names [text] | ? |\n" in grown
    assert grown != page


if __name__ == "__main__":
    if sys.argv[1:] != ["--rewrite"]:
        sys.exit(f"usage: PYTHONPATH=tests python {sys.argv[0]} --rewrite   (pins and tables)")
    PINS.write_text(pinned(), encoding="utf-8")
    SCHEMA.write_text(schema(messages()), encoding="utf-8")
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8"), messages()), encoding="utf-8")
