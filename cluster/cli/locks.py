"""``fencelock locks``, ``who`` and ``release``: held locks, their queues, taking one away."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, TypeVar

import typer
from rich.console import RenderableType

from fencelock.actors.api.message import Contender, LockStatus
from fencelock.actors.api.session_message import ListedLock
from fencelock.actors.error import ConfigError, NotHeldError
from fencelock.cluster.cli.asking import (
    NONE_GIVEN,
    DoneJsonOption,
    LockArgument,
    LookTimeoutOption,
    Operator,
    OperatorOption,
    TargetOptions,
    TimeoutOption,
    WatchOption,
    YesOption,
    address,
    as_plain,
    asking,
    asks_cluster,
    duration,
    in_full,
    object_shown,
    person,
    show,
)
from fencelock.cluster.cli.screen import Column, Rows, View, json_view, line, say

T = TypeVar("T")

TWICE = 2


@asks_cluster
def locks(
    prefix: Annotated[
        str, typer.Option("--prefix", help="Only locks whose names begin with this.")
    ] = "",
    given: TargetOptions = NONE_GIVEN,
    timeout: LookTimeoutOption = 5.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON array, with an object for each lock.")
    ] = False,
    watch: WatchOption = False,
) -> None:
    """List the [bold]locks that are held[/bold], by name. Free locks are not listed.

    For example:

      [cyan]fencelock locks --prefix orders/[/cyan]

      [cyan]fencelock locks --connect tcp://127.0.0.1:4041 --json[/cyan]

    """

    def view(operator: Operator) -> View:
        held = tuple(operator.locks(prefix))
        none = f"No lock under {prefix!r} is held." if prefix else "No lock is held."
        return listing(held, held_table, none, as_json=as_json)

    show(given.target(), timeout, view, watch=watch)


@asks_cluster
def who(
    name: LockArgument,
    given: TargetOptions = NONE_GIVEN,
    timeout: LookTimeoutOption = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    watch: WatchOption = False,
) -> None:
    """Show [bold]who holds one lock[/bold], and who waits for it, in order.

    For example:

      [cyan]fencelock who orders/42[/cyan]

    """

    def view(operator: Operator) -> View:
        status = operator.status(name)
        return json_view(as_plain(status)) if as_json else View(described(status))

    show(given.target(), timeout, view, watch=watch)


def listing(
    found: Sequence[T], table: Callable[[Sequence[T]], Rows], none: str, *, as_json: bool
) -> View:
    """Return ``found`` as JSON, or as a ``table``; or the text ``none`` if it is empty."""
    if as_json:
        return json_view([as_plain(one) for one in found])
    return View([table(found) if found else line(none)])


def described(status: LockStatus) -> list[RenderableType]:
    """Return the holder and the queue of a lock, and the nodes that the next grant waits for."""
    parts: list[RenderableType] = [*map(line, holder_lines(status))]
    if status.waiters:
        parts.append(queue_table(status.waiters))
    else:
        parts.append(line("Nobody waits for it."))
    for absence in status.waits_for:
        silent = duration(absence.silent_ms)
        text = f"The next grant needs {absence.node}, which has been silent for {silent}."
        parts.append(line(text))
    return parts


def holder_lines(status: LockStatus) -> Iterator[str]:
    """Yield lines about the holder of a lock: how often it holds it, how long, which fence."""
    name, holder = object_shown(status.lock), status.holder
    if holder is None and status.age_ms == 0:
        yield f"{name} is free."
        return
    if holder is None:
        yield f"{name} is free, or this node knows of no holder."
        return
    times = "" if holder.times < TWICE else f", {holder.times} times at once"
    yield f"{name} is held by {in_full(holder)}"
    fence = "a fence only its holder knows" if holder.fence is None else f"fence {holder.fence}"
    yield f"for {duration(holder.since_ms)}{times}, under {fence}."


def held_table(held: Iterable[ListedLock]) -> Rows:
    """Return a row for each of the ``held`` locks."""
    columns = [Column("lock"), Column("held by")]
    columns += [Column(name, right=True) for name in ("fence", "for", "waiting")]
    rows = [
        (
            object_shown(lock.lock),
            person(lock.holder),
            "" if lock.holder.fence is None else str(lock.holder.fence),
            duration(lock.holder.since_ms),
            str(lock.waiting) if lock.waiting else "",
        )
        for lock in held
    ]
    return Rows(columns, rows)


def queue_table(waiters: Iterable[Contender]) -> Rows:
    """Return a row for each waiter, in order."""
    columns = [Column("waits for it"), Column("place", right=True), Column("for", right=True)]
    rows = [
        (person(waiter), str(place), duration(waiter.since_ms), address(waiter))
        for place, waiter in enumerate(waiters, 1)
    ]
    return Rows([*columns, Column("known as")], rows)


EXIT_KEPT = 1
"""The operator did not confirm: the holder keeps the lock."""

CONSEQUENCES = """\
If you release it by force, the next waiter gets it at once, under a new fence. The former
holder is notified, but may go on writing: only storage that checks fences stops its writes.
"""


@asks_cluster
def release(
    name: LockArgument,
    fence: Annotated[
        int,
        typer.Option(
            "--fence",
            help="The fence of the hold, as `fencelock who NAME` shows it: a later hold "
            "has another fence and is not released.",
        ),
    ],
    operator: OperatorOption = None,
    yes: YesOption = False,
    given: TargetOptions = NONE_GIVEN,
    timeout: TimeoutOption = 5.0,
    as_json: DoneJsonOption = False,
) -> None:
    """Take a lock [bold]by force[/bold] from its holder, and give it to the next waiter.

    Use it for a holder that is alive and does not release its lock. On paxos, the
    lock of a dead client is freed when the client's session ends, and the
    cluster's log records forced releases with the operator. On central, the lock
    of a dead client stays held until an operator releases it.

    For example:

      [cyan]fencelock who orders/42[/cyan]

      [cyan]fencelock release orders/42 --fence 17 --operator alice[/cyan]

    """
    if not yes and not at_terminal():
        raise ConfigError("nobody is here to confirm: look with `fencelock who`, then add --yes")
    with asking(given.target(), timeout) as asked:
        if not yes:
            _confirm(asked.status(name), fence)
        former = asked.evict(name, fence, operator)
    if as_json:
        done = {"lock": name, "fence": fence, "holder": as_plain(former)}
        typer.echo(json.dumps(done, indent=2))
        return
    say(f"{name} was taken from {in_full(former)}, who held it under fence {fence}.")


def at_terminal() -> bool:
    """Return whether there is a user to ask."""
    return sys.stdin.isatty()


def _confirm(status: LockStatus, fence: int) -> None:
    """Print the action, and return if the user confirms it.

    Raises:
        NotHeldError: there is nothing to do: no client holds the lock under ``fence``.
        typer.Exit: the user does not confirm.

    """
    holder = status.holder
    if holder is None:
        raise NotHeldError(f"{status.lock} is not held: there is nothing to release")
    if holder.fence != fence:
        raise NotHeldError(
            f"{status.lock} is held by {in_full(holder)} under fence {holder.fence}, not {fence}: "
            f"nothing was released. If you mean this holder, say --fence {holder.fence}"
        )
    for text in holder_lines(status):
        say(text, err=True)
    typer.echo(f"{len(status.waiters)} wait for it.\n\n{CONSEQUENCES}", err=True)
    if not typer.confirm("Release it?", err=True):
        typer.echo("Nothing was released.", err=True)
        raise typer.Exit(EXIT_KEPT)
