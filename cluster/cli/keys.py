"""``fencelock keys``: who may connect to a cluster, and as what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fencelock.actors.proxy.access import CLIENT, NODE, ROLES, Rights
from fencelock.cluster.cli.saying import say
from fencelock.cluster.cli.screen import Column, Rows, View, json_view, present
from fencelock.cluster.cli.target import group

app = group("keys")

FolderOption = Annotated[
    Path,
    typer.Option("--keys", help="The folder of the keys, as security.keys in the configuration."),
]
KEYS = Path("keys")
NameArgument = Annotated[str, typer.Argument(help="The key's name.")]

RELOAD = "Copy keys.toml to the folder of each node, and send each node SIGHUP: it reads it again."


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
def init(
    config: Annotated[Path, typer.Option(help="The cluster's configuration.")] = Path(
        "cluster.toml"
    ),
    folder: FolderOption = KEYS,
) -> None:
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
    say(RELOAD)
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
    say(RELOAD)


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
