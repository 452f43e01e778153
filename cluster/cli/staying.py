"""``fencelock map``, and the like for other kinds: list and delete what can outlive its client."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fencelock.actors.api.account import ListedMap, Purge
from fencelock.actors.api.barrier import BARRIER
from fencelock.actors.api.counter import COUNTER
from fencelock.actors.api.latch import LATCH
from fencelock.actors.api.map import MAP
from fencelock.actors.api.name import object_name
from fencelock.actors.api.pool import POOL
from fencelock.actors.api.session_message import ListedObject
from fencelock.actors.error import ConfigError, NotHeldError
from fencelock.cluster.cli.completion import named_argument
from fencelock.cluster.cli.formatting import duration, progress_of
from fencelock.cluster.cli.locks import listing
from fencelock.cluster.cli.naming import object_shown, plural
from fencelock.cluster.cli.saying import at_terminal, done, say
from fencelock.cluster.cli.screen import Column, Phrase, Rows, View, confirm, json_view, line
from fencelock.cluster.cli.target import (
    ASK,
    LOOK,
    AskOptions,
    DoneJsonOption,
    ListJsonOption,
    LookOptions,
    OperatorOption,
    YesOption,
    asks_cluster,
    group,
)
from fencelock.cluster.client.owner import operator_named

if TYPE_CHECKING:
    from fencelock.cluster.client.client import Client
    from fencelock.cluster.client.map import Entry


LimitOption = Annotated[
    int, typer.Option("--limit", min=1, help="List at most this many; a note says if more follow.")
]
LIMIT = 1_000

KeyNameOption = Annotated[
    str | None,
    typer.Option(
        "--charged-to", help="Only what is charged to the key of this name.", metavar="NAME"
    ),
]
MapArgument = Annotated[str, named_argument(MAP, "The map's name.")]

map_app = group("map")


@map_app.callback()
def maps() -> None:
    """List, read, put, watch and delete [bold]entries of maps[/bold], which outlive their clients.

    With keys, a client's key works for the names that it allows, and an operator's
    for all. `fencelock keys usage` shows which key has how many entries.

    For example:

      [cyan]fencelock map list[/cyan]

      [cyan]fencelock map list config --prefix workers/[/cyan]

      [cyan]fencelock map get config colour[/cyan]

      [cyan]fencelock map put config colour blue[/cyan]

      [cyan]fencelock map delete config --prefix workers/[/cyan]

    """


@map_app.command("list")
@asks_cluster
def list_map(
    name: Annotated[
        str | None,
        typer.Argument(metavar="MAP", help="The map's name. Default: list the maps themselves."),
    ] = None,
    prefix: Annotated[
        str, typer.Option("--prefix", help="Only keys, or names of maps, that begin with this.")
    ] = "",
    limit: LimitOption = LIMIT,
    given: LookOptions = LOOK,
    as_json: ListJsonOption = False,
) -> None:
    """List the [bold]maps[/bold] with the number of their entries, or the entries of one map.

    Entries are listed without their values: `fencelock map get` prints one.

    For example:

      [cyan]fencelock map list --prefix orders/[/cyan]

      [cyan]fencelock map list config --limit 20 --json[/cyan]

    """

    def view(asked: Client) -> View:
        if name is None:
            named = asked.maps(prefix)
            none = f"No map under {prefix!r} has entries." if prefix else "No map has entries."
            shown = listing(named[:limit], maps_table, none, as_json=as_json)
            more = len(named) > limit
        else:
            found = asked.map(name).items(prefix, limit=limit + 1)
            entries, more = found[:limit], len(found) > limit
            if as_json:
                return json_view([_plain(*one) for one in entries])
            none = f"Map {name} has no such entry." if prefix else f"Map {name} has no entries."
            shown = listing(entries, entries_table, none, as_json=False)
        note = [line(f"More follow: --limit {limit * 10} lists more of them.")] if more else []
        return shown if as_json else View([*shown.parts, *note])

    given.show(view)


def _plain(entry_key: str, one: Entry) -> dict[str, Any]:
    """Return an entry for JSON, without its value."""
    return {
        "key": entry_key,
        "bytes": len(one.value),
        "version": one.version,
        "left_ms": None if one.expires is None else round(1_000 * one.expires),
        "session": one.session,
    }


def maps_table(found: Sequence[ListedMap]) -> Rows:
    columns = [Column("map"), Column("entries", right=True), Column("bytes", right=True)]
    return Rows(columns, [(one.name, f"{one.entries:,}", f"{one.bytes:,}") for one in found])


def entries_table(found: Sequence[tuple[str, Entry]]) -> Rows:
    columns = [Column("key")]
    columns += [Column(name, right=True) for name in ("bytes", "version", "expires in")]
    columns += [Column("ends with session")]
    rows = [
        (
            entry_key,
            f"{len(one.value):,}",
            str(one.version),
            "" if one.expires is None else duration(round(1_000 * one.expires)),
            one.session,
        )
        for entry_key, one in found
    ]
    return Rows(columns, rows)


@map_app.command("get")
@asks_cluster
def get_entry(
    name: MapArgument,
    entry_key: Annotated[str, typer.Argument(metavar="KEY", help="The entry's key.")],
    given: AskOptions = ASK,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, with the value in Base64.")
    ] = False,
) -> None:
    """Print the [bold]value[/bold] of one entry, byte by byte as it is.

    Values come from clients: on a terminal, a pipe to `less` or `xxd` shows control
    characters harmlessly.

    For example:

      [cyan]fencelock map get config colour[/cyan]

      [cyan]fencelock map get config image > image.png[/cyan]

    """
    with given.connected() as asked:
        entry = asked.map(name).get(entry_key)
    if entry is None:
        raise NotHeldError(
            f"map {name!r} has no entry {entry_key!r}: `fencelock map list` lists them"
        )
    if as_json:
        plain = {**entry._asdict(), "value": base64.b64encode(entry.value).decode()}
        typer.echo(json.dumps({"map": name, "key": entry_key, **plain}, indent=2))
        return
    sys.stdout.buffer.write(entry.value)
    sys.stdout.flush()


@map_app.command("delete")
@asks_cluster
def delete_entries(
    name: MapArgument,
    entry_key: Annotated[
        str | None, typer.Argument(metavar="KEY", help="The key of one entry.", show_default=False)
    ] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", help="All entries whose keys begin with this.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All entries of the map.")] = False,
    maps_below: Annotated[
        bool,
        typer.Option("--maps", help="All entries of all maps whose names begin with MAP."),
    ] = False,
    charged_to: KeyNameOption = None,
    yes: YesOption = False,
    operator: OperatorOption = None,
    given: AskOptions = ASK,
    as_json: DoneJsonOption = False,
) -> None:
    """Delete [bold]one entry[/bold] of a map, or many of them in small steps.

    Others are served between the steps, and watches report each end. `fencelock
    audit` lists who deleted entries that were charged to another key.

    For example:

      [cyan]fencelock map delete config colour[/cyan]

      [cyan]fencelock map delete config --prefix workers/ --yes[/cyan]

      [cyan]fencelock map delete orders/ --maps --charged-to shop[/cyan]

    """
    if (entry_key is not None) + (prefix is not None) + every + maps_below != 1:
        raise ConfigError("give one KEY, or --prefix, or --all, or --maps")
    if entry_key is not None and charged_to is not None:
        raise ConfigError("--charged-to selects among several entries: leave it out with KEY")
    with given.connected() as asked:
        if entry_key is not None:
            count = int(asked.map(name).delete(entry_key))
        else:
            if not yes:
                _confirm_entries(asked, name, prefix, maps_below=maps_below, charged_to=charged_to)
            purge = Purge(
                kind=MAP,
                prefix=name,
                operator=operator_named(operator),
                exact=not maps_below,
                entry_prefix=prefix or "",
                account=charged_to,
            )
            count = asked.purge(purge)
    _report(count, f"map {name}" if not maps_below else f"maps under {name}", as_json=as_json)


def _confirm_entries(
    asked: Client, name: str, prefix: str | None, *, maps_below: bool, charged_to: str | None
) -> None:
    found = [one for one in asked.maps(name) if maps_below or one.name == name]
    count = sum(one.entries for one in found)
    of = f"map {name}, which has" if not maps_below else f"{len(found):,} maps under {name} with"
    what = f"entries of {of} {count:,}"
    if prefix:
        what = f"entries whose keys begin with {prefix!r}, of map {name}"
    confirm_deletion(what, charged_to)


def confirm_deletion(what: str, charged_to: str | None = None) -> None:
    """Print what will be deleted, and return if the user confirms it.

    Raises:
        ConfigError: nobody is at a terminal.
        typer.Exit: the user does not confirm.

    """
    if not at_terminal():
        raise ConfigError("nobody is here to confirm: look with `list`, then add --yes")
    only = "" if charged_to is None else f", only what is charged to key {charged_to}"
    say(f"This deletes {what}{only}. It cannot be undone.", err=True)
    confirm("Delete?", declined="Nothing was deleted.")


def _report(count: int, of: str, *, as_json: bool) -> None:
    done({"of": of, "deleted": count}, f"Deleted {count:,} of {of}.", as_json=as_json)


def _objects_app(kind: str) -> typer.Typer:
    """Return the commands about the objects of one kind."""
    app = group(
        kind, f"List and delete [bold]{plural(kind)}[/bold], which may outlive their clients."
    )

    @asks_cluster
    def list_objects(
        prefix: Annotated[
            str, typer.Option("--prefix", help="Only names that begin with this.")
        ] = "",
        given: LookOptions = LOOK,
        as_json: ListJsonOption = False,
    ) -> None:
        def view(asked: Client) -> View:
            found = tuple(asked.objects(object_name(kind, prefix)))
            return listing(found, objects_table, f"No {kind} is in use.", as_json=as_json)

        given.show(view)

    @asks_cluster
    def delete_objects(
        name: Annotated[
            str | None, typer.Argument(help="The name of one.", show_default=False)
        ] = None,
        prefix: Annotated[
            str | None, typer.Option("--prefix", help="All whose names begin with this.")
        ] = None,
        every: Annotated[bool, typer.Option("--all", help="All of the cluster.")] = False,
        charged_to: KeyNameOption = None,
        yes: YesOption = False,
        operator: OperatorOption = None,
        given: AskOptions = ASK,
        as_json: DoneJsonOption = False,
    ) -> None:
        if (name is not None) + (prefix is not None) + every != 1:
            raise ConfigError("give one NAME, or --prefix, or --all")
        with given.connected() as asked:
            within = name or prefix or ""
            if not yes:
                found = tuple(asked.objects(object_name(kind, within)))
                if name is not None:
                    found = tuple(one for one in found if one.lock == object_name(kind, name))
                waits = sum(one.waiting for one in found)
                confirm_deletion(
                    f"{len(found):,} of kind {kind}; {waits:,} clients wait", charged_to
                )
            purge = Purge(
                kind=kind,
                prefix=within,
                operator=operator_named(operator),
                exact=name is not None,
                account=charged_to,
            )
            count = asked.purge(purge)
        _report(count, f"{kind} {within}".rstrip(), as_json=as_json)

    app.command(
        "list",
        help="List by name, with the count of each.\n\nFor example:\n\n"
        f"  [cyan]fencelock {kind} list --prefix orders/[/cyan]",
    )(list_objects)
    app.command(
        "delete",
        help=f"Delete one {kind}, or many in small steps. Clients that wait for it get an error, "
        "and `fencelock audit` lists who did it.\n\nFor example:\n\n"
        f"  [cyan]fencelock {kind} delete orders/42[/cyan]\n\n"
        f"  [cyan]fencelock {kind} delete --prefix orders/ --charged-to shop --yes[/cyan]",
    )(delete_objects)
    return app


def objects_table(found: Sequence[ListedObject]) -> Rows:
    columns = [Column("name"), Column("count"), Column("waiting", right=True)]
    rows = [
        (object_shown(one.lock), Phrase(progress_of(one)), str(one.waiting or "")) for one in found
    ]
    return Rows(columns, rows)


barrier_app, counter_app = _objects_app(BARRIER), _objects_app(COUNTER)
latch_app, pool_app = _objects_app(LATCH), _objects_app(POOL)
