"""Names of objects as people type and read them: ``orders/42``, ``semaphore:printers``.

A name without a kind is the name of a lock. The commands accept the names that they print.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fencelock.actors.api.lock_all import SEVERAL
from fencelock.actors.api.map import MAP
from fencelock.actors.api.message import LockStatus
from fencelock.actors.api.name import KIND_END, REDIS_KEY, kind_of, object_name, plain_name
from fencelock.actors.api.object_request import ObjectRequest, PermitRequest, UpdateRequest
from fencelock.cluster.log import printable

LOCK = "lock"
"""The kind of a lock. It is written only if the name alone would be that of another object."""

MARK = ":"
"""Separates the kind from the name."""


def object_kinds() -> tuple[str, ...]:
    """Return the kinds of objects other than locks, found by the classes of their requests."""
    return tuple(sorted(_kinds_of(ObjectRequest) - {SEVERAL}))


def unheld_kinds() -> frozenset[str]:
    """Return the kinds of objects that nobody can hold: all their requests are updates."""
    return frozenset(_kinds_of(UpdateRequest) - _kinds_of(PermitRequest) - {REDIS_KEY})


def plural(kind: str) -> str:
    """Return the name of several objects of a kind."""
    return f"{kind}es" if kind.endswith("ch") else f"{kind}s"


def counted_objects() -> str:
    """Return the kinds of objects that nobody can hold, other than maps: ``barriers, latches``."""
    return ", ".join(plural(kind) for kind in sorted(unheld_kinds() - {MAP}))


def _kinds_of(base: type[ObjectRequest]) -> set[str]:
    """Return the kinds of the subclasses of ``base``."""
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
    """Return the name of an object for a command line, in quotes if a shell needs them."""
    from shlex import quote  # noqa: PLC0415 (as below)

    return quote(object_shown(lock))


def elsewhere(lock: str, status_of: Callable[[str], LockStatus]) -> Iterator[str]:
    """Yield texts about objects that a person may have meant instead of a free one.

    Args:
        lock: the name of the free object.
        status_of: returns the status of another object.

    """
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
