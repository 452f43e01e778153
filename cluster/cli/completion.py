"""Completion of names in a shell, by asking the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

from fencelock.actors.api.map import MAP
from fencelock.actors.api.name import KIND_END, kind_of, plain_name
from fencelock.actors.error import FencelockError
from fencelock.cluster.cli.naming import LOCK, MARK, object_kinds, object_named, object_shown
from fencelock.cluster.cli.options import Argument, argument
from fencelock.cluster.cli.saying import Unanswered
from fencelock.cluster.cli.target import TargetOptions, looking

if TYPE_CHECKING:
    from fencelock.actors.api.session_message import ListedLock, ListedObject
    from fencelock.cluster.client.client import Client

COMPLETE_S = 1.0
"""Time limit for the completion of a name in a shell (s)."""


def _completed(ctx: Any, incomplete: str, names_of: Callable[[Client], Iterable[str]]) -> list[str]:
    """Return the names that begin with ``incomplete``; none if the cluster does not answer.

    Names that a terminal cannot show are left out: the shell would print them as they are.
    """
    try:
        given = TargetOptions(*map(ctx.params.get, TargetOptions._fields))
        with looking(given.target(), COMPLETE_S) as operator:
            names = sorted(set(names_of(operator)))
    except (FencelockError, Unanswered):
        return []
    return [name for name in names if name.startswith(incomplete) and name.isprintable()]


def complete_lock(ctx: Any, incomplete: str) -> list[str]:
    """Return the names of held locks, for a shell."""
    return _completed(
        ctx,
        incomplete,
        lambda operator: (
            one.lock for one in operator.locks(incomplete) if KIND_END not in one.lock
        ),
    )


def complete_object(ctx: Any, incomplete: str) -> list[str]:
    """Return the names of held locks and of other objects, for a shell."""
    kinds = [kind for kind in object_kinds() if incomplete and kind.startswith(incomplete)]
    prefixes = [incomplete, *(f"{kind}{MARK}" for kind in kinds)]
    return _completed(
        ctx,
        incomplete,
        lambda operator: (
            object_shown(one.lock)
            for prefix in prefixes
            for one in listed(operator, prefix)
            if plain_name(one.lock).isprintable()  # Other names are shown with escapes.
        ),
    )


def listed(operator: Client, prefix: str) -> Iterator[ListedLock | ListedObject]:
    """Yield the held locks, then the other objects, whose names begin with ``prefix``.

    Args:
        operator: the connection.
        prefix: the beginning of the names as a person types it, perhaps with a kind.

    """
    within = object_named(prefix)
    if not prefix.startswith(f"{LOCK}{MARK}"):
        yield from operator.locks(within)
        yield from operator.objects(within)
        return
    yield from (one for one in operator.locks(within) if not kind_of(one.lock))


def named_argument(kind: str, text: str) -> Argument:
    """Return the argument for the name of an object of ``kind``, which a shell completes."""

    def complete(ctx: Any, incomplete: str) -> list[str]:
        return _completed(
            ctx,
            incomplete,
            lambda operator: (
                (one.name for one in operator.maps(incomplete))
                if kind == MAP
                else (
                    plain_name(one.lock)
                    for one in listed(operator, f"{kind}{MARK}{incomplete}")
                    if kind_of(one.lock) == kind
                )
            ),
        )

    return argument(metavar=kind.upper(), help=text, show_default=False, autocompletion=complete)


def complete_node(ctx: Any, incomplete: str) -> list[str]:
    """Return the ids of nodes, for a shell."""
    return _completed(
        ctx,
        incomplete,
        lambda operator: (name for node in operator.survey().statuses for name in node.nodes),
    )


def complete_role(ctx: Any, incomplete: str) -> list[str]:
    """Return the roles of nodes, as ``node/role``, for a shell."""
    return _completed(
        ctx,
        incomplete,
        lambda operator: (
            f"{status.node}/{role.name}"
            for status in operator.describe(roles=True)
            for role in status.roles
        ),
    )


def complete_session(ctx: Any, incomplete: str) -> list[str]:
    """Return the handles of sessions, for a shell."""
    return _completed(ctx, incomplete, lambda operator: (one.id for one in operator.sessions()))


ObjectArgument = Annotated[
    str,
    argument(
        help="The name of a lock, or the kind and name of another object: semaphore:printers.",
        autocompletion=complete_object,
    ),
]
