"""Objects from a shell: some are held while a command runs, others are read, changed or watched.

A command that changes or waits for something prints what came of it. ``--json`` prints one JSON
object, and a watch prints one for each change, a line each. What can outlive its client is listed
and deleted here, too.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fencelock.actors.api.account import ListedMap, Purge
from fencelock.actors.api.barrier import BARRIER
from fencelock.actors.api.counter import COUNTER
from fencelock.actors.api.election import ELECTION
from fencelock.actors.api.latch import LATCH
from fencelock.actors.api.map import ENTRY_TTL_MS_MAX, MAP
from fencelock.actors.api.name import INT_MAX, REDIS_KEY, object_name, plain_name
from fencelock.actors.api.operator_message import ListedLock, ListedObject
from fencelock.actors.api.pool import POOL
from fencelock.actors.api.rwlock import RWLOCK
from fencelock.actors.api.semaphore import SEMAPHORE
from fencelock.actors.error import ConfigError, NotHeldError
from fencelock.cluster.cli.completion import named_argument
from fencelock.cluster.cli.exit_status import ExitStatus, at_terminal, say
from fencelock.cluster.cli.formatting import argument, duration, plural
from fencelock.cluster.cli.lock import (
    AS_USUAL,
    CommandArgument,
    HoldOptions,
    WaitOption,
    hold_while,
)
from fencelock.cluster.cli.locks import held_table, listing, objects_table
from fencelock.cluster.cli.screen import Column, Rows, View, confirm, json_view, line
from fencelock.cluster.cli.target import (
    ASK,
    DO,
    FORCE,
    LOOK,
    NONE_GIVEN,
    AskOptions,
    DoOptions,
    ForceOptions,
    ListJsonOption,
    LookOptions,
    TargetOptions,
    connected_to,
    group,
)
from fencelock.cluster.client.owner import operator_named

if TYPE_CHECKING:
    from fencelock.cluster.client.client import Client
    from fencelock.cluster.client.election import Leader
    from fencelock.cluster.client.map import Entry, MapChange, MapListing

STDIN = "-"

CountOption = Annotated[
    int, typer.Option("--count", min=1, help="The count with which the latch begins.")
]
LineJsonOption = Annotated[bool, typer.Option("--json", help="Print a JSON object for each.")]
ElectionArgument = Annotated[str, named_argument(ELECTION, "The election.")]
LatchArgument = Annotated[str, named_argument(LATCH, "The latch.")]
CounterArgument = Annotated[str, named_argument(COUNTER, "The counter.")]
EntryKeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The entry's key.")]

LIMIT = 1_000

KeyNameOption = Annotated[
    str | None,
    typer.Option(
        "--charged-to", help="Only what is charged to the key of this name.", metavar="NAME"
    ),
]
MapArgument = Annotated[str, named_argument(MAP, "The map's name.")]


semaphore_app = group("semaphore")
rw_app = group("rw", "Hold a [bold]read/write lock[/bold] while a command runs.")
election_app = group(
    "election", "[bold]Lead[/bold] while a command runs, print the leader, or watch for it."
)
map_app = group("map")


@semaphore_app.callback()
def semaphores() -> None:
    """Hold permits of a [bold]semaphore[/bold] while a command runs.

    `fencelock who semaphore:NAME` shows who holds them.
    """


@semaphore_app.command("run")
def run_with_permits(
    name: Annotated[str, named_argument(SEMAPHORE, "The semaphore.")],
    command: CommandArgument,
    permits: Annotated[
        int, typer.Option("--permits", min=1, help="How many are held at most at a time.")
    ],
    how: HoldOptions = AS_USUAL,
) -> None:
    """Hold [bold]one permit[/bold] while a command runs.

    Environment and exit statuses are those of `fencelock lock`.

    For example:

      [cyan]fencelock semaphore run encoder --permits 4 -- ffmpeg -i in.mov out.mp4[/cyan]

    """
    hold_while(
        command,
        name,
        lambda client: client.semaphore(name, permits=permits),
        name,
        how,
        taken=f"all {permits} permits are taken",
    )


def _side(write: bool) -> Callable[..., None]:
    def run_on_side(
        name: Annotated[str, named_argument(RWLOCK, "The read/write lock.")],
        command: CommandArgument,
        how: HoldOptions = AS_USUAL,
    ) -> None:
        hold_while(
            command,
            name,
            lambda client: client.rwlock(name).write() if write else client.rwlock(name).read(),
            object_name(RWLOCK, name),
            how,
        )

    return run_on_side


for _verb, _with in (("read", "while other readers may run, too"), ("write", "alone")):
    rw_app.command(
        _verb,
        help=f"Run a command that may [bold]{_verb}[/bold], {_with}.\n\n"
        "Environment and exit statuses are those of `fencelock lock`.\n\nFor example:\n\n"
        f"  [cyan]fencelock rw {_verb} catalogue -- ./{_verb}.sh[/cyan]",
    )(_side(_verb == "write"))


@election_app.command("lead")
def lead(
    name: ElectionArgument,
    command: CommandArgument,
    value: Annotated[
        str | None,
        typer.Option("--value", help="What others see, such as an address. Default: this host."),
    ] = None,
    how: HoldOptions = AS_USUAL,
) -> None:
    """Campaign, run a command [bold]while leading[/bold], and step down when it ends.

    Environment and exit statuses are those of `fencelock lock`: the fence is that of
    the term.

    For example:

      [cyan]fencelock election lead scheduler --value 10.0.0.7:80 -- ./scheduler[/cyan]

    """
    seen = socket.gethostname() if value is None else value
    hold_while(
        command,
        name,
        lambda client: client.election(name).lead(seen),
        object_name(ELECTION, name),
        how,
    )


@election_app.command("leader")
def leader(name: ElectionArgument, how: DoOptions = DO) -> None:
    """Print the [bold]value[/bold] of the present leader. Exits with 1 if nobody leads.

    For example:

      [cyan]curl http://$(fencelock election leader scheduler)/jobs[/cyan]

    """
    with how.connected() as asked:
        found = asked.election(name).leader()
    value = None if found is None else found.value
    how.done(_led(name, found), value, failed=f"nobody leads {name}")


@election_app.command("watch")
def watch_election(
    name: ElectionArgument, given: AskOptions = ASK, as_json: LineJsonOption = False
) -> None:
    """Print [bold]each leader[/bold], beginning with the present one, until Ctrl-C.

    For example:

      [cyan]fencelock election watch scheduler[/cyan]

    """
    with given.connected() as asked, asked.election(name).watch() as terms:
        for found in terms:
            text = "nobody leads" if found is None else f"{found.value}, fence {found.fence}"
            _line(_led(name, found) if as_json else text)


def _led(name: str, found: Leader | None) -> dict[str, Any]:
    term = {"value": None, "fence": None} if found is None else found._asdict()
    return {"election": name, **term}


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
def list_map(
    name: Annotated[
        str | None,
        typer.Argument(metavar="MAP", help="The map's name. Default: list the maps themselves."),
    ] = None,
    prefix: Annotated[
        str, typer.Option("--prefix", help="Only keys, or names of maps, that begin with this.")
    ] = "",
    limit: Annotated[
        int,
        typer.Option("--limit", min=1, help="List at most this many; a note says if more follow."),
    ] = LIMIT,
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
def get_entry(
    name: MapArgument,
    entry_key: EntryKeyArgument,
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
            f"map {name!r} has no entry {entry_key!r}: `fencelock map list {argument(name)}` lists "
            "those it has"
        )
    if as_json:
        plain = {**entry._asdict(), "value": base64.b64encode(entry.value).decode()}
        typer.echo(json.dumps({"map": name, "key": entry_key, **plain}, indent=2))
        return
    sys.stdout.buffer.write(entry.value)
    sys.stdout.flush()


@map_app.command("delete")
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
        bool, typer.Option("--maps", help="All entries of all maps whose names begin with MAP.")
    ] = False,
    charged_to: KeyNameOption = None,
    how: ForceOptions = FORCE,
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
    with how.doing.connected() as asked:
        if entry_key is not None:
            count = int(asked.map(name).delete(entry_key))
        else:
            if not how.yes:
                _confirm_entries(asked, name, prefix, maps_below=maps_below, charged_to=charged_to)
            purge = Purge(
                kind=MAP,
                prefix=name,
                operator=operator_named(how.operator),
                exact=not maps_below,
                entry_prefix=prefix or "",
                account=charged_to,
            )
            count = asked.purge(purge)
    _report(count, f"map {name}" if not maps_below else f"maps under {name}", how.doing)


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
    if not at_terminal():
        raise ConfigError("nobody is here to confirm: look with `list`, then add --yes")
    only = "" if charged_to is None else f", only what is charged to key {charged_to}"
    say(f"This deletes {what}{only}. It cannot be undone.", err=True)
    confirm("Delete?", declined="Nothing was deleted.")


def _report(count: int, of: str, doing: DoOptions) -> None:
    doing.done({"of": of, "deleted": count}, f"Deleted {count:,} of {of}.")


def _staying_app(
    kind: str,
    text: str = "",
    *,
    command: str = "",
    noun: str = "",
    find: Callable[[Client, str], Sequence[ListedLock | ListedObject]] | None = None,
    table: Callable[[Sequence[Any]], Rows] = objects_table,
    about: str = "with the count of each",
    end: str = "Clients that wait for it get an error",
) -> typer.Typer:
    """Return a group of commands that list and delete what outlives its clients.

    ``noun`` are the words for one of them. ``find`` returns those whose names begin with a text;
    by default, the objects of the kind. The list says ``about`` of each, and `delete` means the
    ``end`` for those that wait.
    """
    stay = f"List and delete [bold]{plural(kind)}[/bold], which may outlive their clients."
    command, noun = command or kind, noun or kind
    app = group(command, text or stay)

    def named(asked: Client, prefix: str) -> Sequence[ListedLock | ListedObject]:
        return find(asked, prefix) if find else asked.objects(object_name(kind, prefix))

    def list_objects(
        prefix: Annotated[
            str, typer.Option("--prefix", help="Only names that begin with this.")
        ] = "",
        given: LookOptions = LOOK,
        as_json: ListJsonOption = False,
    ) -> None:
        none = f"No {noun} is in use."
        given.show(lambda asked: listing(named(asked, prefix), table, none, as_json=as_json))

    def delete_objects(
        name: Annotated[
            str | None, typer.Argument(help="The name of one.", show_default=False)
        ] = None,
        prefix: Annotated[
            str | None, typer.Option("--prefix", help="All whose names begin with this.")
        ] = None,
        every: Annotated[bool, typer.Option("--all", help="All of the cluster.")] = False,
        charged_to: KeyNameOption = None,
        how: ForceOptions = FORCE,
    ) -> None:
        if (name is not None) + (prefix is not None) + every != 1:
            raise ConfigError("give one NAME, or --prefix, or --all")
        with how.doing.connected() as asked:
            within = name or prefix or ""
            if not how.yes:
                found = named(asked, within)
                if name is not None:
                    found = tuple(one for one in found if plain_name(one.lock) == name)
                waits = sum(one.waiting for one in found)
                confirm_deletion(
                    f"{len(found):,} {plural(noun)}; {waits:,} clients wait", charged_to
                )
            purge = Purge(
                kind=kind,
                prefix=within,
                operator=operator_named(how.operator),
                exact=name is not None,
                account=charged_to,
            )
            count = asked.purge(purge)
        _report(count, f"{noun} {within}".rstrip(), how.doing)

    app.command(
        "list",
        help=f"List by name, {about}.\n\nFor example:\n\n"
        f"  [cyan]fencelock {command} list --prefix orders/[/cyan]",
    )(list_objects)
    app.command(
        "delete",
        help=f"Delete one {noun}, or many in small steps. {end}, and `fencelock audit` "
        "lists who did it.\n\nFor example:\n\n"
        f"  [cyan]fencelock {command} delete orders/42[/cyan]\n\n"
        f"  [cyan]fencelock {command} delete --prefix orders/ --charged-to shop --yes[/cyan]",
    )(delete_objects)
    return app


barrier_app, pool_app = _staying_app(BARRIER), _staying_app(POOL)
latch_app = _staying_app(LATCH, "Count down, wait for, list and delete [bold]latches[/bold].")
counter_app = _staying_app(COUNTER, "Read, change, list and delete [bold]counters[/bold].")
holds_app = _staying_app(
    REDIS_KEY,
    "List and delete [bold]holds that belong to no client[/bold]: those of Redis clients, and "
    "detached locks.\n\n"
    "They outlive the clients that made them (only paxos). With keys, `delete` is for operators, "
    "or for a key that deletes what is charged to itself. `fencelock release` takes one lock under "
    "its fence, and `fencelock keys purge` deletes all that one key has.",
    command="holds",
    noun="clientless hold",
    find=lambda asked, prefix: asked.clientless_holds(prefix),
    table=partial(held_table, shared={}),
    about="with the label of each, its fence, and who waits",
    end="The next client in the queue gets the lock",
)


@latch_app.command("down")
def count_down(
    name: LatchArgument,
    count: CountOption,
    by: Annotated[int, typer.Option("--by", min=1, help="By how much to lower the count.")] = 1,
    how: DoOptions = DO,
) -> None:
    """[bold]Lower the count[/bold] of a latch, and print what is left.

    The first command about a latch creates it. Others must name the same --count.

    For example:

      [cyan]fencelock latch down migrated/7 --count 3[/cyan]

    """
    with how.connected() as asked:
        left = asked.latch(name, count).count_down(by)
    text = f"{left} of {count} left" if left else "open"
    how.done({"latch": name, "left": left, "of": count}, text)


@latch_app.command("wait")
def wait_for_latch(
    name: LatchArgument,
    count: CountOption,
    timeout: WaitOption = None,
    given: TargetOptions = NONE_GIVEN,
    connect_timeout: Annotated[
        float, typer.Option("--connect-timeout", help="How long to wait for the first reply (s).")
    ] = 5.0,
) -> None:
    """[bold]Wait[/bold] until the count of a latch is 0. Exits with 1 if --timeout ends first.

    For example:

      [cyan]fencelock latch wait migrated/7 --count 3 --timeout 600 && ./serve[/cyan]

    """
    with connected_to(given.target(), connect_timeout) as asked:
        latch = asked.latch(name, count)
        if latch.wait(timeout):
            return
        left = latch.count()
    say(f"{name} is not open after {timeout:g} s: {left} of {count} left", err=True)
    raise typer.Exit(ExitStatus.FAILED)


@counter_app.command("get")
def get_counter(name: CounterArgument, how: DoOptions = DO) -> None:
    """Print the [bold]value[/bold] of a counter: 0 if nobody has used it.

    For example:

      [cyan]fencelock counter get invoices[/cyan]

    """
    with how.connected() as asked:
        value = asked.counter(name).get()
    how.done({"counter": name, "value": value}, str(value))


@counter_app.command("add")
def add_to_counter(
    name: CounterArgument,
    by: Annotated[int, typer.Option("--by", help="What to add; it may be negative.")] = 1,
    how: DoOptions = DO,
) -> None:
    """[bold]Add[/bold] to a counter, and print the new value.

    For example:

      [cyan]number=$(fencelock counter add invoices)[/cyan]

    """
    with how.connected() as asked:
        value = asked.counter(name).add(by)
    how.done({"counter": name, "value": value}, str(value))


@counter_app.command("set", context_settings={"ignore_unknown_options": True})
def set_counter(
    name: CounterArgument,
    value: Annotated[int, typer.Argument(help="The new value.", show_default=False)],
    expected: Annotated[
        int | None, typer.Option("--if", help="Only if this is the present value.")
    ] = None,
    how: DoOptions = DO,
) -> None:
    """[bold]Set[/bold] a counter, and print the new value. Exits with 1 if --if is not met.

    For example:

      [cyan]fencelock counter set invoices 1000 --if 0[/cyan]

    """
    with how.connected() as asked:
        counter = asked.counter(name)
        if expected is None:
            counter.set(value)
        elif not counter.compare_and_set(expected, value):
            say(f"{name} is not {expected}: nothing was changed", err=True)
            raise typer.Exit(ExitStatus.FAILED)
    how.done({"counter": name, "value": value}, str(value))


@map_app.command("put")
def put_entry(
    name: MapArgument,
    entry_key: EntryKeyArgument,
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="The value as text, or - for standard input.")
    ],
    ttl: Annotated[
        float | None,
        typer.Option(
            "--ttl",
            min=0.001,
            max=ENTRY_TTL_MS_MAX / 1000,
            help="How long the entry lives (s). Default: forever.",
        ),
    ] = None,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="Only if there is no such entry.")
    ] = False,
    version: Annotated[
        int | None,
        typer.Option("--version", min=1, max=INT_MAX, help="Only if the entry has this version."),
    ] = None,
    how: DoOptions = DO,
) -> None:
    """[bold]Put[/bold] a value under a key, and print the new version.

    Exits with 1 if --if-absent finds an entry, and with 2 if it has not --version.

    For example:

      [cyan]fencelock map put config colour blue[/cyan]

      [cyan]fencelock map put config image - < image.png[/cyan]

      [cyan]fencelock map put config colour red --version 17[/cyan]

    """
    if if_absent and version is not None:
        raise ConfigError("--if-absent and --version exclude each other: leave one out")
    data = sys.stdin.buffer.read() if value == STDIN else os.fsencode(value)
    with how.connected() as asked:
        entries = asked.map(name)
        if if_absent:
            new = entries.put_if_absent(entry_key, data, ttl=ttl)
        elif version is not None:
            new = entries.replace(entry_key, data, version=version, ttl=ttl)
        else:
            new = entries.put(entry_key, data, ttl=ttl)
    how.done(
        {"map": name, "key": entry_key, "version": new},
        None if new is None else str(new),
        failed=f"map {name} has an entry {entry_key!r}: nothing was changed",
    )


@map_app.command("watch")
def watch_map(
    name: MapArgument,
    prefix: Annotated[str, typer.Option("--prefix", help="Only keys that begin with this.")] = "",
    given: AskOptions = ASK,
    as_json: LineJsonOption = False,
) -> None:
    """Print [bold]each change[/bold] of a map, after its present entries, until Ctrl-C.

    With --json, values are in Base64, and null where an entry has ended.

    For example:

      [cyan]fencelock map watch config --prefix workers/[/cyan]

    """
    with given.connected() as asked, asked.map(name).watch(prefix) as items:
        for item in items:
            for change in _changes_in(item):
                _line(_changed(name, change) if as_json else _change_text(change))


def _changes_in(item: MapChange | MapListing) -> tuple[MapChange, ...]:
    from fencelock.cluster.client.map import MapListing  # noqa: PLC0415 (sockets: not for --help)

    return item.entries if isinstance(item, MapListing) else (item,)


def _changed(name: str, change: MapChange) -> dict[str, Any]:
    value = None if change.value is None else base64.b64encode(change.value).decode()
    return {"map": name, "key": change.key, "value": value, "version": change.version}


def _change_text(change: MapChange) -> str:
    what = "ended" if change.value is None else f"{len(change.value):,} bytes"
    return f"{change.key}: {what}, version {change.version}"


def _line(found: str | dict[str, Any]) -> None:
    """Print one item of a watch at once, also into a pipe."""
    if isinstance(found, str):
        say(found)
    else:
        typer.echo(json.dumps(found))
    sys.stdout.flush()
