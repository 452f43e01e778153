"""The forms in which commands print what a cluster replies: JSON, durations, owners, names.

Names of objects are as people type and read them: ``orders/42``, ``semaphore:printers``. A name
without a kind is the name of a lock. The commands accept the names that they print.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from msgspec import Struct

from fencelock.actors.api.election import ELECTION
from fencelock.actors.api.lock_all import SEVERAL
from fencelock.actors.api.lock_message import Contender, LockStatus
from fencelock.actors.api.map import MAP
from fencelock.actors.api.name import KIND_END, REDIS_KEY, kind_of, object_name, plain_name
from fencelock.actors.api.object_request import ObjectRequest, PermitRequest, UpdateRequest
from fencelock.actors.api.operator_message import ListedObject
from fencelock.actors.api.rwlock import RWLOCK
from fencelock.cluster.log import printable

LOCK = "lock"
"""The kind of a lock. It is written only if the name alone would be that of another object."""

MARK = ":"
"""Separates the kind from the name."""

MAJORITY_LOST = (
    'If too many of them are lost for good, see "Loss of a majority" in docs/operations.md: take a '
    "backup of what is left before anything else. `fencelock replace` needs a majority, too. "
    "Without a backup, only `fencelock serve --found-again CLUSTER` is left, on all nodes with "
    "empty folders: it forgets every lock, session and value"
)
"""What remains if a majority of the members does not come back."""

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
    return printable(contender.label) or address(contender)


def in_full(contender: Contender) -> str:
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


def object_kinds() -> tuple[str, ...]:
    """Return the kinds of objects other than locks, found by the classes of their requests."""
    return tuple(sorted(_kinds_of(ObjectRequest) - {SEVERAL}))


def unheld_kinds() -> frozenset[str]:
    """Return the kinds of objects that nobody can hold: all their requests are updates."""
    return frozenset(_kinds_of(UpdateRequest) - _kinds_of(PermitRequest) - {REDIS_KEY})


def plural(kind: str) -> str:
    return f"{kind}es" if kind.endswith("ch") else f"{kind}s"


def how_many(count: int, noun: str) -> str:
    """Return a number of things: ``1 node``, ``3 nodes``."""
    return f"{count} {noun if count == 1 else plural(noun)}"


def counted_objects() -> str:
    """Return the kinds of objects that nobody can hold, other than maps: ``barriers, latches``."""
    return ", ".join(plural(kind) for kind in sorted(unheld_kinds() - {MAP}))


def _kinds_of(base: type[ObjectRequest]) -> set[str]:
    classes, kinds = [base], set[str]()
    while classes:
        below = classes.pop().__subclasses__()
        classes += below
        kinds |= {one.KIND for one in below if "KIND" in vars(one)}
    return kinds


def object_named(text: str) -> str:
    """Return the name by which the cluster knows the object that a person calls ``text``.

    It also accepts the names of the table, as JSON output has them.
    """
    kind, mark, name = text.partition(MARK)
    if mark and kind == LOCK:
        return name
    return object_name(kind, name) if mark and kind in object_kinds() else text


def object_spelled(lock: str) -> str:
    """Return the name of an object for JSON, with all its characters; `object_named` accepts it."""
    kind, name = kind_of(lock), plain_name(lock)
    if not kind and object_named(name) != name:
        kind = LOCK
    return f"{kind}{MARK}{name}" if kind else name


def object_shown(lock: str) -> str:
    """Return the name of an object for a terminal, with escapes for invisible characters."""
    return printable(object_spelled(lock))


def typed(lock: str) -> str:
    return argument(object_shown(lock))


def argument(text: str) -> str:
    """Return a text as a person types it in a shell."""
    from shlex import quote  # noqa: PLC0415 (as below)

    return quote(printable(text))


def elsewhere(lock: str, status_of: Callable[[str], LockStatus]) -> Iterator[str]:
    """Yield texts about objects that a person may have meant instead of a free one."""
    kinds, name = object_kinds(), plain_name(lock)
    literal = object_shown(lock) if kind_of(lock) else name
    candidates = [name, *(object_name(kind, name) for kind in kinds), literal]
    for other in dict.fromkeys(candidates):
        if other == lock:
            continue
        status = status_of(other)
        if status.holder is not None or status.waiters or status.left is not None:
            yield f"{object_shown(other)} is in use: did you mean `fencelock who {typed(other)}`?"
    kind, mark, _ = lock.partition(MARK)
    if mark and KIND_END not in lock:
        from difflib import get_close_matches  # noqa: PLC0415 (only after a mistake)

        for near in get_close_matches(kind, (LOCK, *kinds), n=1):
            yield f"{kind!r} is not a kind of object: did you mean {near!r}?"
