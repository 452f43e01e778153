"""``fencelock sessions`` and ``audit``: the clients of a cluster, and who took locks by force."""

from __future__ import annotations

from typing import Annotated

import typer

from fencelock.actors.api.session_message import ListedEviction, ListedSession
from fencelock.cluster.cli.asking import (
    ClusterOption,
    ConnectOption,
    KeyOption,
    LookTimeoutOption,
    WatchOption,
    as_plain,
    duration,
    looking,
    object_shown,
    person,
    target,
)
from fencelock.cluster.cli.screen import Column, Rows, View, json_view, line, present

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON array.")]


def sessions(
    connect: ConnectOption = None,
    cluster: ClusterOption = None,
    key: KeyOption = None,
    timeout: LookTimeoutOption = 5.0,
    as_json: JsonOption = False,
    watch: WatchOption = False,
) -> None:
    """List the [bold]sessions of clients[/bold], the oldest first.

    A session ends, and its locks are free, when nothing comes from its client
    for the time in the column `ttl`.

    For example:

      [cyan]fencelock sessions[/cyan]

    """
    where = target(connect, cluster, key)

    def look() -> View:
        with looking(where, timeout) as operator:
            found = operator.sessions()
        if as_json:
            return json_view([as_plain(session) for session in found])
        return View([sessions_table(found) if found else line("No session is open.")])

    raise typer.Exit(present(look, watch=watch))


def audit(
    connect: ConnectOption = None,
    cluster: ClusterOption = None,
    key: KeyOption = None,
    timeout: LookTimeoutOption = 5.0,
    as_json: JsonOption = False,
) -> None:
    """List the [bold]locks that were taken by force[/bold], the oldest first: from whom, by whom.

    The cluster keeps the last 1,000.

    For example:

      [cyan]fencelock audit[/cyan]

    """
    where = target(connect, cluster, key)

    def look() -> View:
        with looking(where, timeout) as operator:
            found = operator.evictions()
        if as_json:
            return json_view([as_plain(eviction) for eviction in found])
        return View([audit_table(found) if found else line("No lock was taken by force.")])

    raise typer.Exit(present(look, watch=False))


def sessions_table(found: tuple[ListedSession, ...]) -> Rows:
    """Return a row for each session."""
    columns = [Column("session"), Column("client")]
    columns += [Column(name, right=True) for name in ("holds and waits", "ends in", "ttl")]
    rows = [
        (one.id, one.label, str(one.claims), duration(one.left_ms), duration(one.ttl_ms))
        for one in found
    ]
    return Rows(columns, rows)


def audit_table(found: tuple[ListedEviction, ...]) -> Rows:
    """Return a row for each eviction."""
    columns = [Column("lock"), Column("fence", right=True), Column("taken from")]
    columns += [Column("by"), Column("when", right=True)]
    rows = [
        (
            object_shown(one.lock),
            str(one.fence),
            person(one.holder),
            one.operator,
            f"{duration(one.ago_ms)} ago",
        )
        for one in found
    ]
    return Rows(columns, rows)
