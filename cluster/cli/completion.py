"""Completion of names in a shell, by asking the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

from fencelock.actors.api.map import MAP
from fencelock.actors.api.name import KIND_END, kind_of, plain_name
from fencelock.actors.error import FencelockError
from fencelock.cluster.cli.exit_status import Unanswered
from fencelock.cluster.cli.formatting import LOCK, MARK, object_kinds, object_named, object_shown
from fencelock.cluster.cli.options import Argument, argument
from fencelock.cluster.cli.target import TargetOptions, looking

if TYPE_CHECKING:
    from fencelock.actors.api.operator_message import ListedLock, ListedObject
    from fencelock.cluster.client.client import Client

COMPLETE_S = 1.0
"""Time limit for the completion of a name in a shell (s)."""


Complete = Callable[[Any, str], list[str]]
"""Returns the names that begin with the text, for a shell."""


def _completing(names_of: Callable[[Client, str], Iterable[str]]) -> Complete:
    """Return a function that completes names; it returns none if the cluster does not answer.

    Names that a terminal cannot show are left out: the shell would print them as they are.
    """

    def complete(ctx: Any, incomplete: str) -> list[str]:
        try:
            given = TargetOptions(*map(ctx.params.get, TargetOptions._fields))
            with looking(given.target(), COMPLETE_S) as operator:
                names = sorted(set(names_of(operator, incomplete)))
        except (FencelockError, Unanswered):
            return []
        return [name for name in names if name.startswith(incomplete) and name.isprintable()]

    return complete


def _objects(operator: Client, start: str) -> Iterator[str]:
    kinds = [kind for kind in object_kinds() if start and kind.startswith(start)]
    for prefix in (start, *(f"{kind}{MARK}" for kind in kinds)):
        for one in listed(operator, prefix):
            if plain_name(one.lock).isprintable():  # Other names are shown with escapes.
                yield object_shown(one.lock)


complete_lock = _completing(
    lambda operator, start: (one.lock for one in operator.locks(start) if KIND_END not in one.lock)
)
complete_object = _completing(_objects)
complete_node = _completing(
    lambda operator, _: (name for node in operator.survey().statuses for name in node.nodes)
)
complete_role = _completing(
    lambda operator, _: (
        f"{status.node}/{role.name}"
        for status in operator.describe(roles=True)
        for role in status.roles
    )
)
complete_session = _completing(lambda operator, _: (one.id for one in operator.sessions()))


def listed(operator: Client, prefix: str) -> Iterator[ListedLock | ListedObject]:
    """Yield the held locks, then the other objects, whose names begin with ``prefix``, as typed."""
    within = object_named(prefix)
    if not prefix.startswith(f"{LOCK}{MARK}"):
        yield from operator.locks(within)
        yield from operator.objects(within)
        return
    yield from (one for one in operator.locks(within) if not kind_of(one.lock))


def named_argument(kind: str, text: str) -> Argument:
    """Return the argument for the name of an object of ``kind``, which a shell completes."""

    def names(operator: Client, start: str) -> Iterable[str]:
        if kind == MAP:
            return (one.name for one in operator.maps(start))
        found = listed(operator, f"{kind}{MARK}{start}")
        return (plain_name(one.lock) for one in found if kind_of(one.lock) == kind)

    complete = _completing(names)
    return argument(metavar=kind.upper(), help=text, show_default=False, autocompletion=complete)


ObjectArgument = Annotated[
    str,
    argument(
        help="The name of a lock, or the kind and name of another object: semaphore:printers.",
        autocompletion=complete_object,
    ),
]
