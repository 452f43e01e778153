"""The base of messages, which are declared once: objects in a process, CBOR on the wire."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NewType,
    TypeVar,
    dataclass_transform,
    get_type_hints,
)

from msgspec import NODEFAULT, Meta, Struct, StructMeta

from fencelock.actors.api.name import INT_MAX, SESSION_TTL_MS_MAX, WAIT_MS_MAX, is_allowed

Int64 = Annotated[int, Meta(ge=-INT_MAX, le=INT_MAX)]
"""An integer on the wire: signed 64 bits, which every language has. Each can be negated: the
refusal of a `Cancel` has its number with the other sign."""

Natural = Annotated[int, Meta(ge=0, le=INT_MAX)]
"""An integer of the wire that is not negative."""

Fence = Annotated[int, Meta(ge=1, le=INT_MAX)]
"""The fence of a grant. Fences begin with 1."""

TtlMs = Annotated[int, Meta(ge=0, le=SESSION_TTL_MS_MAX)]
"""The TTL of a session that a node keeps (ms), 0 if it keeps none. A client trusts its session for
that time, so a node that promises more than there is may not be believed."""

TermMs = Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)]
"""The duration of a hold that was granted, or its grace (ms); 0 for none. See `TtlMs`."""

Address = NewType("Address", str)
"""The address of a role, as ``node/role``; unique in a cluster for all time."""

Instant = NewType("Instant", int)
"""Nanoseconds on the host's monotonic clock. Only differences mean anything."""

NS_PER_MS = 1_000_000
NS_PER_US = 1_000
MS_PER_S = 1_000
"""Instants are in nanoseconds, durations on the wire in milliseconds."""


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


def later(now: Instant, after_ms: int) -> Instant:
    """Return the instant ``after_ms`` milliseconds after ``now``."""
    return Instant(now + after_ms * NS_PER_MS)


def ms_between(earlier: Instant, later: Instant) -> int:
    """Return the whole milliseconds from ``earlier`` to ``later``, never below 0."""
    return max(0, (later - earlier) // NS_PER_MS)


ADDRESS_PART_BYTES_MAX = 128
"""Maximum length of the id of a node, the name of a role, and the id of a cluster (bytes). With
``#`` and a boot id, that of a node must fit a ZeroMQ routing id of 255 bytes."""

ANY_NODE = "*"
"""Stands for the node that reads the frame; no node has this id."""


def is_address(address: str) -> bool:
    """Return whether ``address`` is ``node/role``, and can be sent in a frame."""
    node, slash, role = address.partition("/")
    return bool(slash) and is_node(node) and is_part(role)


def is_node(node: str) -> bool:
    """Return whether ``node`` can be the id of a node or of a client."""
    return is_part(node) and node != ANY_NODE and "#" not in node


def is_part(part: str) -> bool:
    """Return whether ``part`` can be the node or the role of an address."""
    size = len(part.encode(errors="replace"))
    return 1 <= size <= ADDRESS_PART_BYTES_MAX and "/" not in part and is_allowed(part)


REGISTRY: dict[int, type[Message]] = {}
"""Wire tag to class. Tags are never reused; a retired tag stays as a comment."""


OWN_TAGS = range(0x1000, 0xE000)
"""Tags that fencelock never uses: for messages that a service declares."""

C = TypeVar("C", bound="EventType")


class EventType(StructMeta):
    """The type of all classes of events. It registers those that have a wire tag.

    Raises:
        ValueError: the tag already belongs to another message.
        TypeError: a field with a default comes before one without, or the types of the fields of a
            service's message cannot be found. Every frame is checked against all messages, so each
            frame would be dropped.

    """

    def __new__(mcls: type[C], name: str, bases: tuple[type, ...], body: Any, **options: Any) -> C:
        """Make the class, and register it if it has a tag (an int)."""
        made = StructMeta.__new__(mcls, name, bases, body, kw_only=True, **options)
        message: Any = made
        _check_order(message)
        tag = message.__struct_config__.tag
        if tag is not None:
            if tag in REGISTRY:
                raise ValueError(f"tag {tag:#x} is taken by {REGISTRY[tag].__name__}")
            if tag in OWN_TAGS:
                _check_fields_known(made)
            message.TAG = tag
            message.ITEMS = 1 + len(message.__struct_fields__)
            REGISTRY[tag] = message
        return made


def _check_order(message: Any) -> None:
    """Check that the optional ones of a class's own fields are at the end, where it may gain some.

    A base may have optional fields, and they come first.
    """
    inherited = {
        name for base in message.__bases__ for name in getattr(base, "__struct_fields__", ())
    }
    names, defaults = message.__struct_fields__, message.__struct_defaults__
    default_of = dict(zip(reversed(names), reversed(defaults), strict=False))
    own = [name for name in names if name not in inherited]
    optional = [default_of.get(name, NODEFAULT) is not NODEFAULT for name in own]
    if optional != sorted(optional):
        required = own[optional.index(False, optional.index(True))]
        raise TypeError(f"Required field '{required}' cannot follow optional fields")


def _check_fields_known(message: type) -> None:
    try:
        get_type_hints(message)
    except NameError as error:
        raise TypeError(
            f"message {message.__name__}: {error}; declare it after the types of its fields, at "
            "the top level of a module"
        ) from None


def declared(*, init: Literal[False] = False) -> Any:
    """Declare, to type checkers, a field that every subclass declares again."""
    raise NotImplementedError


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(declared,))
class Event(Struct, metaclass=EventType, frozen=True, array_like=True):
    """An input of a role: a message from another role, or an event of its own node.

    A value: frozen, and compared and hashed by its fields. It is made by keywords.
    """

    EASES: ClassVar[bool] = False
    """Whether it frees or keeps something, such as a hold. Where others are refused because too
    much waits, it is still accepted, since otherwise no waiter could ever be served."""


E = TypeVar("E", bound=Event)


def with_derived(kinds: tuple[type[E], ...]) -> frozenset[type[E]]:
    """Return ``kinds`` and the messages that derive from them, as far as they are declared yet."""
    return _with_derived(kinds, len(REGISTRY))


@cache
def _with_derived(kinds: tuple[type[Any], ...], count: int) -> frozenset[type[Any]]:
    """Cache the result for as long as ``count`` messages are declared, and no more."""
    return frozenset(kinds).union(one for one in REGISTRY.values() if issubclass(one, kinds))


class Message(Event):
    """An event that may cross the wire: ``class Prepare(Message, tag=0x20)``.

    On the wire it is ``[tag, field, ...]``, with the fields as they are declared, those of its
    bases first. Its tag is 0x10 to 0xffff; ``actors/README.md`` says who owns which. A field is an
    `Int64`, ``str``, ``bytes``, ``bool``, an ``IntEnum``, a ``NewType`` or ``NamedTuple`` of those,
    a ``tuple[X, ...]``, a message with a tag or a union of them, or any of these ``| None``.

    The last fields are optional on the wire if they have a default. A message may gain such fields
    at its end, since a peer of an older version does not send them (``transport/README.md``,
    *Versions*). A base of messages gains none.
    """

    TAG: ClassVar[int]
    ITEMS: ClassVar[int]
    """Items of its array: the tag and every field."""


class Refusal(Message):
    """A message that becomes an exception at the border to a user's program."""

    def error(self) -> Exception:
        """Return the exception that corresponds to this message."""
        raise NotImplementedError


class Local(Event):
    """An event between roles of one node. It has no tag, so no peer can forge one."""


class Timer(Event):
    """An event that a role sends itself, later. It has no tag, so no peer can forge one."""
