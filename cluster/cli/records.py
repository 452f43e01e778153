"""``fencelock sessions``, ``sessions close`` and ``audit``: clients, and what was done by force."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from fencelock.actors.api.account import QUOTA
from fencelock.actors.api.name import kind_of
from fencelock.actors.api.session_message import ListedEviction, ListedSession
from fencelock.actors.error import ConfigError, NotHeldError
from fencelock.cluster.cli.completion import complete_session
from fencelock.cluster.cli.formatting import as_plain, duration, person
from fencelock.cluster.cli.locks import listing
from fencelock.cluster.cli.naming import object_shown
from fencelock.cluster.cli.saying import at_terminal, done, say
from fencelock.cluster.cli.screen import Column, Rows, View, confirm
from fencelock.cluster.cli.target import (
    ASK,
    LOOK,
    AskOptions,
    DoneJsonOption,
    ListJsonOption,
    LookOptions,
    OperatorOption,
    WatchOption,
    YesOption,
    asks_cluster,
)
from fencelock.cluster.log import printable

if TYPE_CHECKING:
    from fencelock.cluster.client.client import Client


CLOSING = """\
If you close it by force, the next waiters get its locks at once, under new fences, and its own
waits end. Its client is notified, but may go on writing: only storage that checks fences stops
its writes.
"""

app = typer.Typer(
    name="sessions",
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
@asks_cluster
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

    def view(operator: Client) -> View:
        found = operator.sessions()
        return listing(found, sessions_table, "No session is open.", as_json=as_json)

    given.show(view, watch=watch)


@app.command()
@asks_cluster
def close(
    handle: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The session, as `fencelock sessions` lists it.",
            autocompletion=complete_session,
        ),
    ],
    yes: YesOption = False,
    operator: OperatorOption = None,
    given: AskOptions = ASK,
    as_json: DoneJsonOption = False,
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
    if not yes and not at_terminal():
        raise ConfigError("nobody is here to confirm: look with `fencelock sessions`, add --yes")
    with given.connected() as asked:
        if not yes:
            _confirm(asked.sessions(), handle)
        closed = asked.close_session(handle, operator)
    text = f"Session {handle} ({closed.label}) was closed. Its holds and waits: {closed.claims}."
    done(as_plain(closed), text, as_json=as_json)


def _confirm(found: tuple[ListedSession, ...], handle: str) -> None:
    """Print the action, and return if the user confirms it.

    Raises:
        NotHeldError: no session with that ``handle`` is open.
        typer.Exit: the user does not confirm.

    """
    session = next((one for one in found if one.id == handle), None)
    if session is None:
        raise NotHeldError(
            f"session {handle!r} is not open: `fencelock sessions` lists those that are"
        )
    say(f"Session {handle} ({session.label}). Its holds and waits: {session.claims}.", err=True)
    typer.echo(f"\n{CLOSING}", err=True)
    confirm("Close it?", declined="Nothing was closed.")


@asks_cluster
def audit(
    given: LookOptions = LOOK,
    as_json: ListJsonOption = False,
) -> None:
    """List the [bold]locks that were taken by force[/bold], the oldest first: from whom, by whom.

    A session that was closed by force is listed in place of its locks. Quotas that
    were set, and what was deleted of others, are listed too. The cluster keeps
    the last 1,000 entries.

    For example:

      [cyan]fencelock audit[/cyan]

    """

    def view(operator: Client) -> View:
        found = operator.evictions()
        return listing(found, audit_table, "No lock was taken by force.", as_json=as_json)

    given.show(view)


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
    columns = [Column("lock"), Column("fence", right=True), Column("taken from")]
    columns += [Column("by"), Column("when", right=True)]
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
