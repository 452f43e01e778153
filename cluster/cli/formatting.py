"""The forms in which commands print what a cluster replies: JSON, durations, owners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from msgspec import Struct

from fencelock.actors.api.election import ELECTION
from fencelock.actors.api.message import Contender, LockStatus
from fencelock.actors.api.name import kind_of
from fencelock.actors.api.rwlock import RWLOCK
from fencelock.actors.api.session_message import ListedObject
from fencelock.cluster.cli.naming import object_spelled
from fencelock.cluster.log import printable

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))
_ENVELOPE = frozenset({"session", "request"})
"""Fields that only match a reply with its request; of no use to a reader."""


def as_plain(value: Any) -> Any:
    """Return a message, with all that is in it, as JSON values: fields become keys.

    The name of an object becomes the name that commands accept.
    """
    if isinstance(value, Struct):
        names = value.__struct_fields__
        return _keyed({name: getattr(value, name) for name in names if name not in _ENVELOPE})
    if hasattr(value, "_asdict"):
        return _keyed(value._asdict())
    if isinstance(value, tuple):
        return [as_plain(part) for part in cast("Sequence[object]", value)]
    return value


def _keyed(parts: dict[str, Any]) -> dict[str, Any]:
    return {
        name: object_spelled(part) if name == "lock" else as_plain(part)
        for name, part in parts.items()
    }


def duration(ms: int) -> str:
    """Return ``ms`` milliseconds in the two largest units that fit, like ``2h 5m``."""
    if ms < 1_000:  # noqa: PLR2004 (a second)
        return f"{ms}ms"
    parts: list[str] = []
    for unit, size in _UNITS:
        count, ms = divmod(ms, size)
        if count or parts:
            parts.append(f"{count}{unit}")
        if len(parts) == 2:  # noqa: PLR2004 (as the docstring says)
            break
    return " ".join(part for part in parts if part[0] != "0")


def address(contender: Contender) -> str:
    """Return the ids by which the cluster knows an owner: node, session and owner.

    The session of a client has the client's id, which stands for its node.
    """
    node = "" if contender.session.startswith(f"{contender.node}.") else contender.node
    parts = (node, contender.session, contender.owner)
    return printable("/".join(part for part in parts if part))


def person(contender: Contender) -> str:
    """Return an owner's label, or its ids if it has none."""
    return printable(contender.label) or address(contender)


def in_full(contender: Contender) -> str:
    """Return an owner's label, if it has one, and its ids."""
    if not contender.label:
        return address(contender)
    return f"{printable(contender.label)} ({address(contender)})"


def fences_of(one: Contender) -> str:
    """Return the fence of a holder, or all those of a hold that its session retains."""
    if one.fence is None:
        return ""
    return f"{one.fence}-{one.fence + one.span - 1}" if one.span else str(one.fence)


def retained(one: Contender) -> str:
    """Return a text about a holder that retains the object for its own owners, else nothing."""
    return " (retained)" if one.span else ""


def share_of(lock: LockStatus, one: Contender, *, wants: bool) -> str:
    """Return the share that a holder has of an object, or that a waiter ``wants``.

    It is empty for a lock.
    """
    match kind_of(lock.lock):
        case _ if not kind_of(lock.lock) or lock.left is not None:
            return ""
        case kind if kind == RWLOCK:
            verb = "write" if one.times == lock.permits else "read"
            return f" to {verb}" if wants else f" {verb}s"
        case kind if kind == ELECTION:
            return " to lead" if wants else " leads"
        case _:
            return f" {one.times} of {lock.permits}"


def progress_of(one: LockStatus | ListedObject) -> str:
    """Return the progress of an object that nobody can hold; empty for other objects."""
    if one.left is None:
        return ""
    return f"{one.left} of {one.permits} left" if one.permits else str(one.left)
