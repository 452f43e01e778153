"""``fencelock keys``: who may connect to a cluster, as what, and how much each key may have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fencelock.actors.api.account import EVERY_KEY, NO_KEY, AccountUsage, Amounts, Purge, Quota
from fencelock.actors.api.name import REDIS_KEY
from fencelock.actors.error import ConfigError
from fencelock.actors.proxy.access import CLIENT, NODE, ROLES, Rights
from fencelock.cluster.cli.exit_status import say
from fencelock.cluster.cli.formatting import counted_objects, unheld_kinds
from fencelock.cluster.cli.locks import listing
from fencelock.cluster.cli.objects import confirm_deletion
from fencelock.cluster.cli.screen import Column, Rows, View, json_view, present
from fencelock.cluster.cli.serve import CONFIG_PATH, ConfigOption
from fencelock.cluster.cli.target import (
    DO,
    FORCE,
    LOOK,
    DoOptions,
    ForceOptions,
    ListJsonOption,
    LookOptions,
    OperatorOption,
    WatchOption,
    group,
)
from fencelock.cluster.client.owner import operator_named

app = group("keys")

FolderOption = Annotated[
    Path,
    typer.Option("--keys", help="The folder of the keys, as security.keys in the configuration."),
]
KEYS = Path("keys")
NameArgument = Annotated[str, typer.Argument(help="The key's name.")]

RELOAD_ADVICE = (
    "Copy keys.toml to the folder of each node, and send each node SIGHUP: it reads it again."
)

DEFAULT = "default"
"""The value of an option that gives up a limit of one's own."""

UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(r"(\d{1,18}) ?(KiB|MiB|GiB)?")

_TITLES = {
    "entries": "map entries",
    "bytes": "map bytes",
    "objects": counted_objects(),
    "claims": "holds and waits",
    "sessions": "sessions",
}

LimitOption = str | None


@app.callback()
def keys() -> None:
    """Decide [bold]who may connect[/bold] to the cluster: nodes, clients and operators.

    What a key may have in the cluster is limited, too: see `usage` and `quota`.

    With keys every link is encrypted, and a key works only under its own name. A
    client may lock and read, perhaps only names that begin with its prefixes. An
    operator may also take locks by force, end sessions, change members, back up
    and read the audit.

    For example:

      [cyan]fencelock keys init[/cyan] (once; makes the keys of the nodes in ./cluster.toml)

      [cyan]fencelock keys add shop --role client --prefix orders/[/cyan]

      [cyan]fencelock keys add alice --role operator[/cyan]

      [cyan]fencelock locks --key keys/alice.key[/cyan]

    """


@app.command()
def init(config: ConfigOption = CONFIG_PATH, folder: FolderOption = KEYS) -> None:
    """Make the keys of a cluster: [bold]one for each node[/bold] of its configuration.

    Each node needs keys.toml, _server.key and the file of its own id. Give no node
    the file of another.

    For example:

      [cyan]fencelock keys init --config cluster.toml[/cyan]

    """
    from fencelock.cluster import keys as files  # noqa: PLC0415 (pydantic: not for --help)
    from fencelock.cluster.node.config import load  # noqa: PLC0415

    nodes = load(config).nodes
    files.make_folder(folder, nodes)
    say(f"Wrote {folder}: the keys of {', '.join(nodes)}. Now set in {config}, under [security]:")
    say(f'  keys = "{folder}"')
    say("On another machine, a node needs keys.toml, _server.key and ID.key of this folder.")
    say("Start all nodes anew. Then each client needs a key: fencelock keys add NAME")


@app.command()
def add(
    name: NameArgument,
    role: Annotated[
        str, typer.Option(help=f"What its owner may do: one of {', '.join(ROLES)}.")
    ] = CLIENT,
    prefix: Annotated[
        list[str] | None,
        typer.Option(
            help="Only names that begin with this, as orders/ for orders/1; without the / it is "
            "for ordersold, too. Give it once for each beginning. Only for clients."
        ),
    ] = None,
    folder: FolderOption = KEYS,
    out: Annotated[
        Path | None, typer.Option(help="The secret file to write. Default: NAME.key in the folder.")
    ] = None,
) -> None:
    """Make [bold]one more key[/bold], for a client, an operator or a new node.

    Its owner needs only the secret file that this writes: --key FILE,
    FENCELOCK_KEY, or key= in Python. Several processes may share it.

    For example:

      [cyan]fencelock keys add shop --prefix orders/ --prefix carts/[/cyan]

      [cyan]fencelock keys add n4 --role node[/cyan]

    """
    from fencelock.cluster import keys as files  # noqa: PLC0415 (pydantic: not for --help)

    path = files.add_key(folder, Rights(name, role, tuple(prefix or ())), out)
    say(f"Wrote {path}: the secret key of {name}, with the role {role}.")
    say(RELOAD_ADVICE)
    if role != NODE:
        say(f"It may have a quarter of what stays in the cluster: fencelock keys quota {name}")


@app.command()
def remove(name: NameArgument, folder: FolderOption = KEYS) -> None:
    """Remove a key from the list. [bold]Nodes that read it close its links[/bold].

    For example:

      [cyan]fencelock keys remove shop[/cyan]

    """
    from fencelock.cluster import keys as files  # noqa: PLC0415 (pydantic: not for --help)

    files.remove_key(folder, name)
    say(f"Removed {name} from {folder / files.LIST}.")
    say(RELOAD_ADVICE)


@app.command("list")
def list_keys(
    folder: FolderOption = KEYS,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON array, with an object for each key.")
    ] = False,
) -> None:
    """List the keys: name, role, prefixes, public key.

    For example:

      [cyan]fencelock keys list[/cyan]

    """
    from fencelock.cluster import keys as files  # noqa: PLC0415 (pydantic: not for --help)

    known = files.read_list(folder)
    columns = [Column(what) for what in ("name", "role", "names", "public key")]
    rows = [(name, one.role, one.prefixes or "all", one.public) for name, one in known.keys.items()]
    plain = [{"name": name, **one.model_dump()} for name, one in known.keys.items()]
    present(lambda: json_view(plain) if as_json else View([Rows(columns, rows)]), watch=False)


def _limit(help_text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(help=help_text, metavar="N|default")
    return option


@app.command()
def quota(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The key's name.", show_default=False)
    ] = None,
    every: Annotated[
        bool, typer.Option("--every", help="For every key that has no quota of its own.")
    ] = False,
    no_key: Annotated[
        bool, typer.Option("--no-key", help="For all clients without a key together.")
    ] = False,
    entries: Annotated[LimitOption, _limit("Entries of maps.")] = None,
    size: Annotated[
        LimitOption,
        typer.Option(
            "--bytes",
            help="Names, keys and values of these entries together, as in 64MiB.",
            metavar="SIZE|default",
        ),
    ] = None,
    objects: Annotated[LimitOption, _limit(f"{counted_objects().capitalize()}.")] = None,
    claims: Annotated[LimitOption, _limit("Holds and waits.")] = None,
    sessions: Annotated[LimitOption, _limit("Open sessions, one or more a client.")] = None,
    operator: OperatorOption = None,
    how: DoOptions = DO,
) -> None:
    """Set [bold]how much a key may have[/bold] in the cluster, or show it (only paxos).

    Entries of maps, latches and the like stay when their client is gone. They
    are charged to the key that put or made them last, until they end or are
    deleted. By default a key may have a quarter of what all may have together,
    and clients without keys may have all. Limits that are not given stay as
    they are; `default` takes one back. What a key has beyond its quota stays,
    and it gets no more.

    The quotas are in the cluster, not in keys.toml: they apply on all nodes at
    once. `fencelock audit` lists who set them.

    For example:

      [cyan]fencelock keys quota shop --entries 50000 --bytes 128MiB[/cyan]

      [cyan]fencelock keys quota --every --objects 1000 --key keys/alice.key[/cyan]

      [cyan]fencelock keys quota shop --entries default[/cyan]

      [cyan]fencelock keys usage[/cyan]

    """
    account = _account(name, every=every, no_key=no_key)
    wanted = {"entries": entries, "objects": objects, "claims": claims, "sessions": sessions}
    changes = {what: limit_of(what, text) for what, text in wanted.items() if text is not None}
    if size is not None:
        changes["bytes"] = limit_of("bytes", size, sizes=True)
    with how.connected() as asked:
        known = {one.account: one for one in asked.usage()}
        before = known[account].quota if account in known else Quota()
        every_key = known[EVERY_KEY].limits
        if changes:
            quotas = before._replace(**changes)
            limits = asked.set_quota(account, quotas, operator)
        else:
            quotas = before
            limits = known[account].limits if account in known else every_key
    verb = "now may have" if changes else "may have"
    parts = (f"{_TITLES[what]} {_shown(what, most)}" for what, most in limits._asdict().items())
    how.done(
        {"account": account, "limits": limits._asdict(), "quota": quotas._asdict()},
        f"{called(account)} {verb}: {'; '.join(parts)}.",
    )


def limit_of(what: str, text: str, *, sizes: bool = False) -> int | None:
    if text == DEFAULT:
        return None
    found = _SIZE.fullmatch(text)
    if found is None or (found[2] and not sizes):
        form = "a number of bytes, a size as 64MiB" if sizes else "a number"
        raise ConfigError(f"--{what} is {text!r}, and must be {form}, or {DEFAULT}")
    return int(found[1]) * UNITS[found[2] or ""]


def _account(name: str | None, *, every: bool, no_key: bool) -> str:
    if (name is not None) + every + no_key != 1:
        raise ConfigError("give the name of one key, or --every, or --no-key")
    if name in ("", EVERY_KEY):
        raise ConfigError(f"{name!r} is no key's name: use --no-key or --every")
    if name is not None:
        return name
    return EVERY_KEY if every else NO_KEY


def called(account: str) -> str:
    names = {NO_KEY: "(without a key)", EVERY_KEY: "(every other key)"}
    return names.get(account, account)


def _shown(what: str, value: int) -> str:
    if what == "bytes":
        for unit in ("GiB", "MiB", "KiB"):
            if value >= UNITS[unit]:
                return f"{value / UNITS[unit]:.1f} {unit}".replace(".0 ", " ")
    return f"{value:,}"


@app.command()
def usage(
    given: LookOptions = LOOK, as_json: ListJsonOption = False, watch: WatchOption = False
) -> None:
    """List [bold]what each key has[/bold] in the cluster, and what it may have (only paxos).

    Clients without keys are one line, and so are all keys that have nothing and no
    quota of their own.

    For example:

      [cyan]fencelock keys usage --key keys/alice.key[/cyan]

      [cyan]fencelock keys quota shop --entries 50000[/cyan]

    """
    none = "No key has anything."
    given.show(
        lambda asked: listing(asked.usage(), usage_table, none, as_json=as_json), watch=watch
    )


def usage_table(found: Sequence[AccountUsage]) -> Rows:
    columns = [Column("key"), *(Column(title, right=True) for title in _TITLES.values())]
    rows = [(called(one.account), *_cells(one.account, one.used, one.limits)) for one in found]
    return Rows(columns, rows)


def _cells(account: str, used: Amounts, limits: Amounts) -> list[str]:
    """Return what it has of what it may have; every other key has no number of its own."""
    return [
        f"{'' if account == EVERY_KEY else _shown(what, has) + ' '}of {_shown(what, most)}"
        for (what, has), most in zip(used._asdict().items(), limits, strict=True)
    ]


@app.command()
def purge(name: NameArgument, how: ForceOptions = FORCE) -> None:
    """Delete [bold]what outlived a key's clients[/bold]: map entries, latches and the like.

    Only what is charged to this key is deleted, as `fencelock keys usage` shows
    it. Clients that wait for such an object get an error. What the key holds
    through Redis doors, or detached, is released, and what waits there gets an
    error.
    Sessions and their locks stay: `fencelock keys remove` and `fencelock
    sessions close` end those. It works in small steps, between which others
    are served.

    For example:

      [cyan]fencelock keys remove shop[/cyan] (so that nothing is added meanwhile)

      [cyan]fencelock keys purge shop --key keys/alice.key[/cyan]

    """
    with how.doing.connected() as asked:
        if not how.yes:
            has = next((one.used for one in asked.usage() if one.account == name), None)
            entries, objects = (has.entries, has.objects) if has else (0, 0)
            what = f"{entries:,} map entries, {objects:,} of {counted_objects()} of key {name}"
            what += ", and all that it has detached, or holds or waits for through Redis doors"
            confirm_deletion(what)
        who = operator_named(how.operator)
        deleted = {
            kind: asked.purge(Purge(kind=kind, prefix="", operator=who, account=name))
            for kind in (*sorted(unheld_kinds()), REDIS_KEY)
        }
    parts = (f"{kind}: {count:,}" for kind, count in deleted.items() if kind != REDIS_KEY)
    how.doing.done(
        {"key": name, "deleted": deleted},
        f"Deleted what key {name} had. {', '.join(parts)}. Detached holds, and holds and waits "
        f"through Redis doors: {deleted[REDIS_KEY]:,}.",
    )
