"""Held objects, their queues and forced releases; sessions of clients; what was done by force."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import RenderableType

from fencelock.actors.api.account import QUOTA
from fencelock.actors.api.election import ELECTION
from fencelock.actors.api.lock_message import Contender, LockStatus
from fencelock.actors.api.map import MAP
from fencelock.actors.api.name import NO_CLIENT, kind_of, plain_name
from fencelock.actors.api.operator_message import (
    ListedEviction,
    ListedLock,
    ListedObject,
    ListedSession,
)
from fencelock.actors.api.rwlock import RWLOCK
from fencelock.actors.error import ConfigError, LockTimeoutError, NotHeldError
from fencelock.cluster.cli.completion import ObjectArgument, complete_session, listed
from fencelock.cluster.cli.exit_status import say
from fencelock.cluster.cli.formatting import (
    address,
    argument,
    as_plain,
    duration,
    elsewhere,
    fences_of,
    how_many,
    in_full,
    object_named,
    object_shown,
    object_spelled,
    person,
    progress_of,
    retained,
    share_of,
    unheld_kinds,
)
from fencelock.cluster.cli.screen import Column, Phrase, Rows, View, confirm, json_view, line
from fencelock.cluster.cli.target import (
    FORCE,
    LOOK,
    ForceOptions,
    ListJsonOption,
    LookOptions,
    WatchOption,
    group,
)
from fencelock.cluster.log import printable

if TYPE_CHECKING:
    from fencelock.cluster.client.client import Client


T = TypeVar("T")

TWICE = 2

RECALL_S = 3.0
"""Time in which a client gives back what it retains and does not use (s); it takes far less."""

LOOKS_SHARE = 0.25
"""Part of ``--timeout`` in which the holders of listed objects are counted. Each object costs a
request; after this time the list is shown without the other counts."""


def locks(
    prefix: Annotated[
        str,
        typer.Option(
            "--prefix",
            help="List only objects whose names begin with this. With a kind, as in semaphore:, "
            "list only objects of that kind; lock: lists only locks.",
        ),
    ] = "",
    given: LookOptions = LOOK,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON array, with an object for each lock.")
    ] = False,
    watch: WatchOption = False,
) -> None:
    """List the [bold]locks that are held[/bold], by name. Free locks are not listed.

    Semaphores and other objects are listed too, with their kinds before their names;
    below them, what nobody can hold, such as counters.

    For example:

      [cyan]fencelock locks --prefix orders/[/cyan]

      [cyan]fencelock locks --prefix semaphore:[/cyan]

      [cyan]fencelock locks --connect tcp://127.0.0.1:4041 --json[/cyan]

    """

    def view(operator: Client) -> View:
        held = tuple(listed(operator, prefix))
        none = f"No lock under {prefix!r} is held." if prefix else "No lock is held."
        ends_at = time.monotonic() + given.timeout * LOOKS_SHARE
        if as_json:
            return json_view([as_plain(one) for one in held])
        objects = [one for one in held if isinstance(one, ListedObject)]
        locks = [one for one in held if isinstance(one, ListedLock)]
        shared = shared_in(operator, locks, ends_at)
        parts = [held_table(locks, shared)] if locks else []
        parts += [objects_table(objects)] if objects else []
        return View([*parts] or [line(none)])

    given.show(view, watch=watch)


def who(
    name: ObjectArgument,
    given: LookOptions = LOOK,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    watch: WatchOption = False,
) -> None:
    """Show [bold]who holds a lock[/bold] or another object, and who waits for it, in order.

    For example:

      [cyan]fencelock who orders/42[/cyan]

      [cyan]fencelock who semaphore:printers[/cyan]

    """

    def view(operator: Client) -> View:
        status = operator.status(object_named(name))
        if as_json:
            return json_view(as_plain(status))
        free = status.holder is None and not status.waiters and status.left is None
        meant = elsewhere(status.lock, operator.status) if free else ()
        return View([*described(status), *map(line, meant)])

    given.show(view, watch=watch)


def listing(
    found: Sequence[T], table: Callable[[Sequence[T]], Rows], none: str, *, as_json: bool
) -> View:
    """Return ``found`` as JSON, or as a ``table``; or the text ``none`` if it is empty."""
    if as_json:
        return json_view([as_plain(one) for one in found])
    return View([table(found) if found else line(none)])


def described(status: LockStatus) -> list[RenderableType]:
    """Return the holders and the queue of an object, and the nodes that the next grant needs."""
    parts: list[RenderableType] = [*map(line, holder_lines(status))]
    if kind_of(status.lock) == MAP:
        return parts
    if status.holders:
        parts.append(owners_table(status, status.holders))
    if status.waiters:
        parts.append(owners_table(status, status.waiters, wait=True))
    else:
        parts.append(line("Nobody waits for it."))
    for absence in status.waits_for:
        silent = duration(absence.silent_ms)
        text = f"The next grant needs {absence.node}, which has been silent for {silent}."
        parts.append(line(text))
    return parts


def holder_lines(status: LockStatus) -> Iterator[str]:
    """Yield lines about the holder of a lock, or about an object that nobody can hold."""
    name, holder = object_shown(status.lock), status.holder
    if status.left is not None:
        yield f"{name}: {progress_of(status)}."
        return
    if kind_of(status.lock) == MAP:
        yield f"{name}: nobody can hold a map."
        yield f"`fencelock map list {argument(plain_name(status.lock))}` lists its entries."
        return
    if kind_of(status.lock) in unheld_kinds():
        yield f"{name} is not in use."
        return
    if holder is None and status.age_ms == 0:
        yield f"{name} is free."
        return
    if holder is None:
        yield f"{name} is free, or this node knows of no holder."
        return
    if status.holders:
        yield f"{name} is held by {how_many(len(status.holders), 'owner')}."
        return
    times = "" if holder.times < TWICE else f", {holder.times} times at once"
    yield f"{name} is held by {in_full(holder)}"
    fence = "a fence only its holder knows" if holder.fence is None else f"fence {holder.fence}"
    if holder.span:
        fence = f"fences {fences_of(holder)}"
    yield f"for {duration(holder.since_ms)}{times}, under {fence}."
    if holder.span:
        yield "Its session retains it for its own owners, and gives it back when others wait."
    if status.left_ms is not None:
        saved = "renewed"
        if holder.session == NO_CLIENT:
            saved = "attached" if holder.label.endswith("detached") else "extended"
        yield f"It is taken away in {duration(status.left_ms)} unless it is {saved}."


def shared_in(operator: Client, held: Iterable[ListedLock], ends_at: float) -> dict[str, str]:
    """Return a text about the other holders of each object that several owners may hold.

    A list has only the first holder of each object. The others are counted until ``ends_at`` (s,
    of ``time.monotonic``).
    """
    shared: dict[str, str] = {}
    for one in held:
        if kind_of(one.lock) in ("", ELECTION):
            continue
        if time.monotonic() >= ends_at:
            shared[one.lock] = " and maybe more"
            continue
        holders = operator.status(one.lock).holders
        others = sum(other.fence != one.holder.fence for other in holders)
        shared[one.lock] = f" and {others} more" if others else ""
    return shared


def held_table(held: Iterable[ListedLock], shared: Mapping[str, str]) -> Rows:
    columns = [Column("lock"), Column("held by")]
    columns += [Column(name, right=True) for name in ("fence", "for", "waiting")]
    rows: list[tuple[str, ...]] = []
    for lock in held:
        holder = person(lock.holder) + retained(lock.holder) + shared.get(lock.lock, "")
        cells = holder, fences_of(lock.holder), duration(lock.holder.since_ms)
        rows.append((object_shown(lock.lock), *cells, str(lock.waiting) if lock.waiting else ""))
    return Rows(columns, rows)


def objects_table(found: Iterable[ListedObject]) -> Rows:
    columns = [Column("name"), Column("count"), Column("waiting", right=True)]
    rows = [
        (object_shown(one.lock), Phrase(progress_of(one)), str(one.waiting or "")) for one in found
    ]
    return Rows(columns, rows)


def owners_table(status: LockStatus, owners: Iterable[Contender], *, wait: bool = False) -> Rows:
    """Return a row for each holder of an object, or with ``wait`` for each waiter, in order."""
    acts = kind_of(status.lock) in (RWLOCK, ELECTION)  # It "reads"; a semaphore's "has 1 of 3".
    held = "held by", "does" if acts else "has", "fence"
    first, second, third = ("waits for it", "wants", "place") if wait else held
    columns = [Column(first), Column(second)]
    columns += [Column(third, right=True), Column("for", right=True), Column("known as")]
    rows: list[tuple[str, ...]] = []
    for place, one in enumerate(owners, 1):
        share = share_of(status, one, wants=wait).strip()
        rows.append(
            (
                person(one) + retained(one),
                Phrase(share) if acts and not wait else share,
                str(place) if wait else fences_of(one),
                duration(one.since_ms),
                address(one),
            )
        )
    return Rows(columns, rows)


CONSEQUENCES = """\
If you release it by force, the next waiter gets it at once, under a new fence. The former
holder is notified, but may go on writing: only storage that checks fences stops its writes.
"""


def release(
    name: ObjectArgument,
    fence: Annotated[
        int,
        typer.Option(
            "--fence",
            help="The fence of the hold, as `fencelock who NAME` shows it: a later hold "
            "has another fence and is not released.",
        ),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Take a retained lock without asking its client for it.")
    ] = False,
    how: ForceOptions = FORCE,
) -> None:
    """Take a lock [bold]by force[/bold] from its holder, and give it to the next waiter.

    For another object, this ends one hold with all its permits. A hold of several
    locks (lock_all) ends as a whole.

    Use it for a holder that is alive and does not release its lock. On paxos, the
    lock of a dead client is freed when the client's session ends, and the
    cluster's log records forced releases with the operator. On central, the lock
    of a dead client stays held until an operator releases it.

    A lock that its client retains (paxos) is not taken: the client is asked for
    it, and gives it back unless one of its own threads or tasks has it. --fence
    is the first of its fences. --force takes it at once.

    For example:

      [cyan]fencelock who orders/42[/cyan]

      [cyan]fencelock release orders/42 --fence 17 --operator alice[/cyan]

      [cyan]fencelock release semaphore:printers --fence 18[/cyan]

    """
    how.check_confirmable("fencelock who")
    with how.doing.connected() as asked:
        lock = object_named(name)
        status = None if how.yes and force else asked.status(lock)
        held = () if status is None else status.all_holders
        kept = next((one for one in held if one.fence == fence and one.span), None)
        if status is not None and kept is not None and not force:
            _recall(asked, status, kept)
            former, was = kept, "given back by"
        else:
            if not how.yes and status is not None:
                _confirm(asked, status, fence)
            former, was = _evicted(asked, lock, fence, how.operator), "taken from"
    how.doing.done(
        {"lock": object_spelled(lock), "fence": fence, "holder": as_plain(former)},
        f"{name} was {was} {in_full(former)}, who held it under fence {fence}.",
    )


def _evicted(asked: Client, lock: str, fence: int, operator: str | None) -> Contender:
    try:
        return asked.evict(lock, fence, operator)
    except NotHeldError as error:
        meant = " ".join(elsewhere(lock, asked.status))
        raise NotHeldError(f"{error}. {meant}" if meant else str(error)) from error


def _recall(asked: Client, status: LockStatus, kept: Contender) -> None:
    """Wait for an object that a session retains, so that the cluster asks the session for it."""
    name, permits = plain_name(status.lock), status.permits
    match kind_of(status.lock):
        case kind if kind == RWLOCK:
            hold = asked.rwlock(name).write().acquire(timeout=RECALL_S)
        case "":
            hold = asked.lock(name).acquire(timeout=RECALL_S)
        case _:
            hold = asked.semaphore(name, permits=permits).acquire(permits, timeout=RECALL_S)
    if hold is not None:
        hold.release()
    elif any(one.fence == kept.fence for one in asked.status(status.lock).all_holders):
        raise LockTimeoutError(
            f"{object_shown(status.lock)} is in use: {in_full(kept)} was asked for it, and has not "
            f"given it back within {RECALL_S:g} s. It does so when its own owner releases it. "
            "--force takes it at once"
        )


def _confirm(operator: Client, status: LockStatus, fence: int) -> None:
    """Print the action, and return if the user confirms it."""
    holders = status.all_holders
    name = object_shown(status.lock)
    if not holders:
        meant = " ".join(elsewhere(status.lock, operator.status))
        raise NotHeldError(f"{name} is not held: there is nothing to release. {meant}".rstrip())
    if all(one.fence != fence for one in holders):
        held = " and ".join(f"by {in_full(one)} under fence {one.fence}" for one in holders)
        raise NotHeldError(
            f"{name} is held {held}, not {fence}: nothing was released. "
            f"If you mean this holder, use --fence {holders[0].fence}"
        )
    for text in holder_lines(status):
        say(text, err=True)
    if status.holders:
        (chosen,) = (one for one in holders if one.fence == fence)
        has = f"{share_of(status, chosen, wants=False)} for {duration(chosen.since_ms)}"
        say(f"{in_full(chosen)}:{has}, under fence {fence}.", err=True)
    typer.echo(f"{len(status.waiters)} wait for it.\n\n{CONSEQUENCES}", err=True)
    confirm("Release it?", declined="Nothing was released.")


CLOSING = """\
If you close it by force, the next waiters get its locks at once, under new fences, and its own
waits end. Its client is notified, but may go on writing: only storage that checks fences stops
its writes.
"""

sessions_app = group("sessions", no_args_is_help=False)


@sessions_app.callback(invoke_without_command=True)
def sessions(
    ctx: typer.Context,
    given: LookOptions = LOOK,
    as_json: ListJsonOption = False,
    watch: WatchOption = False,
) -> None:
    """List the [bold]sessions of clients[/bold], the oldest first.

    A session ends, and its locks are free, when nothing comes from its client
    for the time in the column `ttl`. `close` ends one at once, by force.

    For example:

      [cyan]fencelock sessions[/cyan]

      [cyan]fencelock sessions close client-1f.17[/cyan]

    """
    if ctx.invoked_subcommand is not None:
        sources = (ctx.get_parameter_source(name) for name in ctx.params)
        if any(source is not None and source.name == "COMMANDLINE" for source in sources):
            raise ConfigError(f"write the options after `sessions {ctx.invoked_subcommand}`")
        return
    none = "No session is open."
    given.show(
        lambda asked: listing(asked.sessions(), sessions_table, none, as_json=as_json), watch=watch
    )


@sessions_app.command()
def close(
    handle: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The session, as `fencelock sessions` lists it.",
            autocompletion=complete_session,
        ),
    ],
    how: ForceOptions = FORCE,
) -> None:
    """End a session [bold]by force[/bold], with all its locks: the next waiters get them.

    Use it for a client that is alive, holds several locks and does not release
    them; `fencelock release` takes a single lock. The session of a dead client
    ends by itself. A client that goes on running opens a new session. Every node
    logs who did it, and `fencelock audit` lists it. Only paxos has sessions.

    For example:

      [cyan]fencelock sessions[/cyan]

      [cyan]fencelock sessions close client-1f.17 --operator alice[/cyan]

    """
    how.check_confirmable("fencelock sessions")
    with how.doing.connected() as asked:
        if not how.yes:
            _confirm_closing(asked.sessions(), handle)
        closed = asked.close_session(handle, how.operator)
    text = f"Session {handle} ({closed.label}) was closed. Its holds and waits: {closed.claims}."
    how.doing.done(as_plain(closed), text)


def _confirm_closing(found: tuple[ListedSession, ...], handle: str) -> None:
    session = next((one for one in found if one.id == handle), None)
    if session is None:
        raise NotHeldError(
            f"session {handle!r} is not open: `fencelock sessions` lists those that are"
        )
    say(f"Session {handle} ({session.label}). Its holds and waits: {session.claims}.", err=True)
    typer.echo(f"\n{CLOSING}", err=True)
    confirm("Close it?", declined="Nothing was closed.")


def audit(given: LookOptions = LOOK, as_json: ListJsonOption = False) -> None:
    """List the [bold]locks that were taken by force[/bold], the oldest first: from whom, by whom.

    A session that was closed by force is listed in place of its locks. Quotas that
    were set, and what was deleted of others, are listed too. The cluster keeps
    the last 1,000 entries.

    For example:

      [cyan]fencelock audit[/cyan]

    """
    none = "No lock was taken by force."
    given.show(lambda asked: listing(asked.evictions(), audit_table, none, as_json=as_json))


def _taken_from(one: ListedEviction) -> str:
    """Return who lost something; what was deleted or set belongs to nobody."""
    if one.holder.session or not one.lock:
        return person(one.holder)
    done = "set to" if kind_of(one.lock) == QUOTA else f"{one.holder.times:,} deleted,"
    return printable(f"{done} {one.holder.label}".rstrip(" ,"))


def sessions_table(found: Sequence[ListedSession]) -> Rows:
    columns = [Column("session"), Column("client")]
    names = ("holds and waits", "retained", "ends in", "ttl")
    columns += [Column(name, right=True) for name in names]
    rows = [
        (
            one.id,
            one.label,
            str(one.claims),
            str(one.retained or ""),
            duration(one.left_ms),
            duration(one.ttl_ms),
        )
        for one in found
    ]
    return Rows(columns, rows)


def audit_table(found: Sequence[ListedEviction]) -> Rows:
    columns = [Column("lock"), Column("fence", right=True)]
    columns += [Column("who / what"), Column("by"), Column("when", right=True)]
    rows = [
        (
            object_shown(one.lock) if one.lock else printable(f"session {one.holder.session}"),
            str(one.fence) if one.fence else "",
            _taken_from(one),
            one.operator,
            f"{duration(one.ago_ms)} ago",
        )
        for one in found
    ]
    return Rows(columns, rows)
