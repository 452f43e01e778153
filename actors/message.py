"""Declare a message once: in process it is the object itself, on the wire it is CBOR."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, NewType, TypeVar, cast, dataclass_transform

Address = NewType("Address", str)
"""The address of a role, as ``node/role``; unique in a cluster for all time."""

Instant = NewType("Instant", int)
"""Nanoseconds on the host's monotonic clock. Only differences mean anything."""

NS_PER_MS = 1_000_000
NS_PER_US = 1_000
"""Nanoseconds in a millisecond: instants use the former, durations on the wire the latter."""


def address_of(node: str, role: str) -> Address:
    """Return the address of ``role`` on ``node``."""
    return Address(f"{node}/{role}")


def on_each(role: str) -> Callable[[str], Address]:
    """Return a function that returns the address of ``role`` on a node."""
    return lambda node: Address(f"{node}/{role}")


def node_of(address: Address) -> str:
    """Return the node on which ``address`` lives."""
    return address.partition("/")[0]


def role_of(address: Address) -> str:
    """Return the name of the role at ``address``, without its node."""
    return address.partition("/")[2]


def ms_between(earlier: Instant, later: Instant) -> int:
    """Return the whole milliseconds from ``earlier`` to ``later``, never below 0."""
    return max(0, (later - earlier) // NS_PER_MS)


class Event:
    """An input of a role: a message from another role, or an event of its own node."""

    __slots__ = ()


class Message(Event):
    """An event that may cross the wire: immutable, comparable, known by one tag.

    ``encoded`` is a cache for its bytes (``transport/codec.py``), so that a message for two peers
    and a journal is encoded once. It is not a field: it is neither compared nor shown, and may be
    unset, although testing for that takes longer than testing for None.
    """

    __slots__ = ("encoded",)
    TAG: ClassVar[int]
    TRIMMED: ClassVar[bool] = False
    """Whether it is written without its last fields at their defaults, except by itself in a frame.
    So a message in a message, or a record, may get new fields: a reader of an earlier version
    still reads those that do not use them."""
    encoded: bytes | None


class Refusal(Message):
    """A message that becomes an exception at the border to a user's program."""

    __slots__ = ()

    def error(self) -> Exception:
        """Return the exception that corresponds to this message."""
        raise NotImplementedError


class Local(Event):
    """An event between roles of one node. It has no tag, so no peer can forge one."""

    __slots__ = ()


class Timer(Event):
    """An event that a role sends itself, later. It has no tag, so no peer can forge one."""

    __slots__ = ()


REGISTRY: dict[int, type[Message]] = {}
"""Wire tag to class. Tags are never reused; a retired tag stays as a comment."""

M = TypeVar("M", bound=Message)
L = TypeVar("L", bound=Local)
T = TypeVar("T", bound=Timer)
V = TypeVar("V", bound=Event)


def _value(cls: type[V]) -> type[V]:
    """Make ``cls`` a value: compared and hashed by its fields, made by keywords.

    Both type checkers reject code that changes one. At run time nothing does, since
    that would double the cost of every message (safety gave way to speed here, where
    a check before running is as good).
    """
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(cls)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def message(tag: int) -> Callable[[type[M]], type[M]]:
    """Register the decorated class under ``tag`` and make it a value.

    Fields with a default are optional on the wire, so they come last: a peer of an older version
    does not send those that were added later (``transport/README.md``, *Versions*).

    Args:
        tag: the wire tag, 0x10 to 0xffff; see ``actors/README.md`` for who owns which.

    Raises:
        TypeError: a field without a default follows one that has a default, or a default is
            made by a factory.
        ValueError: ``tag`` already belongs to another message.

    """

    def declare(cls: type[M]) -> type[M]:
        declared = _value(cls)
        _check_optional_fields(declared)
        if tag in REGISTRY:
            raise ValueError(f"tag {tag:#x} is taken by {REGISTRY[tag].__name__}")
        declared.TAG = tag
        REGISTRY[tag] = declared
        return declared

    return declare


def _check_optional_fields(cls: type[Message]) -> None:
    """Refuse a message whose optional fields are not its last ones, or have no fixed default."""
    optional = ""
    for field in fields(cast("Any", cls)):
        name = f"{cls.__name__}.{field.name}"
        if field.default_factory is not MISSING:
            raise TypeError(f"{name}: the default of a message's field is a value, not a factory")
        if field.default is not MISSING:
            optional = field.name
        elif optional:
            raise TypeError(
                f"{name} has no default but follows {optional}, which has one: "
                "optional fields come last"
            )


@dataclass_transform(frozen_default=True, kw_only_default=True)
def local(cls: type[L]) -> type[L]:
    """Make the decorated event between roles of one node a value."""
    return _value(cls)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def timer(cls: type[T]) -> type[T]:
    """Make the decorated timer a value."""
    return _value(cls)


C = TypeVar("C")


def copier(cls: type[M], *changed: str) -> Callable[..., M]:
    """Return a function that copies a ``cls`` with new values for the fields ``changed``.

    The copy is filled without its constructor, so a class may have no ``__post_init__``.
    """
    names = [field.name for field in fields(cast("Any", cls))]
    assert set(changed) <= set(names)
    assert not hasattr(cls, "__post_init__")
    lines = [
        f"def copy(message, {', '.join(changed)}):",
        "    made = new(cls)",
        "    made.encoded = None",
        *(f"    made.{name} = {name if name in changed else f'message.{name}'}" for name in names),
        "    return made",
    ]
    scope: dict[str, Any] = {"cls": cls, "new": object.__new__}
    exec("\n".join(lines), scope)  # As dataclasses do; see above.
    copy: Callable[..., M] = scope["copy"]
    return copy


def maker(cls: type[C]) -> type[C]:
    """Return a function that makes instances of a dataclass with slots, four times as fast.

    It has the class's parameters, by keyword only, and can only be called; type checkers take it
    for the class. Calling a class whose ``__init__`` is written in Python makes the interpreter
    pack the keywords into a dict and unpack them again, which is the largest part of the cost.
    """
    assert not hasattr(cls, "__post_init__")
    names: dict[str, Any] = {"new": object.__new__, "cls": cls}
    parameters: list[str] = []
    for field in fields(cast("Any", cls)):
        assert field.init
        assert field.default_factory is MISSING
        if field.default is MISSING:
            parameters.append(field.name)
        else:
            names[f"default_{field.name}"] = field.default
            parameters.append(f"{field.name}=default_{field.name}")
    lines = [
        f"def make(*, {', '.join(parameters)}):",
        "    made = new(cls)",
        *(["    made.encoded = None"] if issubclass(cls, Message) else []),
        *(f"    made.{field.name} = {field.name}" for field in fields(cast("Any", cls))),
        "    return made",
    ]
    exec("\n".join(lines), names)  # As dataclasses do: from field names, nothing else.
    return cast("type[C]", names["make"])
