"""``fencelock init`` and ``serve``: a first configuration, and one node, until it is stopped."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from fencelock.actors.bootstrap_message import Founding
from fencelock.actors.error import ConfigError, FencelockError
from fencelock.cluster import log
from fencelock.cluster.cli.exit_status import ExitStatus, say
from fencelock.cluster.cli.formatting import how_many
from fencelock.cluster.cli.screen import confirm
from fencelock.cluster.guarantee import PROMISES, VOTING
from fencelock.transport.log import note

if TYPE_CHECKING:
    from fencelock.cluster.node.config import Config
    from fencelock.cluster.node.node import Node

GC_THRESHOLDS = (20_000, 50, 100)
"""Thresholds of Python's cycle collector: new objects, then young and middle collections."""

CONFIG_PATH = Path("cluster.toml")
ConfigOption = Annotated[Path, typer.Option(help="The cluster's configuration.")]

RELOAD_SIGNAL = signal.SIGHUP.name
"""The signal on which a node reads its list of keys again."""

Stops = SimpleQueue[str]
"""Reasons to stop; a queue, since a signal may come while anything is locked."""


class ServeError(FencelockError):
    """The node cannot serve here; the text says what to do."""


def _complete_id(ctx: typer.Context, incomplete: str) -> list[str]:
    from fencelock.cluster.node.config import load  # noqa: PLC0415 (pydantic: not for --help)

    try:
        nodes = load(Path(ctx.params.get("config") or CONFIG_PATH)).nodes
    except ConfigError:
        return []
    return [node for node in nodes if node.startswith(incomplete)]


NodeIdOption = Annotated[
    str,
    typer.Option("--id", help="The node's id in the configuration.", autocompletion=_complete_id),
]


class JoinOptions(NamedTuple):
    """The options of a node that joins; see `fencelock.cluster.node.joining.Joining`."""

    join: Annotated[
        str | None,
        typer.Option(
            "--join",
            metavar="ADDRESS",
            help="Start a node that is in no file: learn the cluster from the node at this "
            "address, and write a configuration into --data.",
        ),
    ] = None
    data: Annotated[
        Path | None,
        typer.Option("--data", help="`--join`: folder for configuration and journal. [./data]"),
    ] = None
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="ADDRESS",
            help="`--join`: where the members reach this node. Default: the address of this "
            "machine towards them, and the first free port from theirs on.",
        ),
    ] = None
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="ADDRESS",
            help="`--join`: where it binds, if not at --address: tcp://0.0.0.0:4040.",
        ),
    ] = None
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="`--join`: join no cluster of another name.")
    ] = None
    key: Annotated[
        Path | None,
        typer.Option(
            "--key",
            metavar="FILE",
            help="`--join`: the key of this node, if the cluster uses keys. keys.toml and "
            "_server.key must lie beside it.",
        ),
    ] = None


NOT_JOINING = JoinOptions()

LOSS = (
    'This gives up the cluster "{cluster}": {node} and the other nodes of the configuration begin '
    "a new one under its name. All locks, queues, sessions and values of the former one are "
    "forgotten. "
    "Its clients may believe that they hold locks for up to their time to live (15 s, or what they "
    "asked for), and for their whole duration if they named one: stop them first. Members of the "
    "former cluster that still run do not belong to the new one: stop them, and empty their "
    "folders. "
    "Fences of paxos continue above the former ones; those of bakery begin again. If a majority of "
    "the former members can be started, or there is a backup, use that instead"
)

SPIN = (
    "While busy, poll for 0.3 ms before sleeping: replies are faster and cost more processor "
    "time. Use `--no-spin` where processor time is limited."
)


def serve(
    node_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            help="The node's id in the configuration. With `--join` a new one; default: the name "
            "of its key, else of this machine.",
            autocompletion=_complete_id,
        ),
    ] = None,
    config: ConfigOption = CONFIG_PATH,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Log one JSON object per line.")
    ] = False,
    found: Annotated[
        bool,
        typer.Option(
            "--found",
            help="Begin a new cluster (see `fencelock found`). Never in a unit file, or a script "
            "that starts a node again.",
        ),
    ] = False,
    found_again: Annotated[
        str | None,
        typer.Option(
            "--found-again",
            metavar="CLUSTER",
            help="Give up the cluster of that name, and begin a new one under it.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask (`--found-again`).")] = False,
    spin: Annotated[bool, typer.Option(help=SPIN)] = True,
    joins: JoinOptions = NOT_JOINING,
) -> None:
    """Run [bold]one node[/bold] until SIGTERM or Ctrl-C. On SIGHUP it reads its keys again.

    Exits with 0 when stopped, 2 when it cannot start as configured, and 70 after a fatal error,
    such as of its disk.

    Variables of the environment override the file: FENCELOCK_PAXOS__HEARTBEAT_MS=100 sets
    paxos.heartbeat_ms, and FENCELOCK_NODES__N1__LISTEN sets nodes.n1.listen.

    For example:

      [cyan]fencelock init --nodes 3[/cyan]

      [cyan]fencelock serve --config cluster.toml --id n1[/cyan]

    The nodes of a new cluster wait until `fencelock found`, or until each was
    started with `--found`.

    One more node needs no file, only the address of a node that runs; with keys, also a key of its
    own (`fencelock keys add n4 --role node`). `fencelock join n4` then makes it a member:

      [cyan]fencelock serve --join tcp://10.0.0.1:4040 --id n4[/cyan]

    """
    if joins.join and (found or found_again is not None):
        raise ConfigError("--join: a node that joins begins no cluster: leave --found out")
    settings, node_id = _settings_of(config, node_id, joins)
    founding = _founding(settings, node_id, found=found, again=found_again, yes=yes)
    file = settings.log_file_of(node_id)
    log.set_up(settings.log_level, as_json=log_json, file=file)
    reloads = () if settings.keys is None else (signal.SIGHUP,)
    with stops_on_signals(*reloads) as stops:
        node = start(settings, node_id, founding, spins=spin, as_json=log_json)
        watcher = threading.Thread(target=_watch, args=(node, stops), name="watch-node")
        watcher.start()
        try:
            spare_the_collector()
            _greet(settings, node, as_json=log_json)
            while (why := stops.get()) == RELOAD_SIGNAL:
                _reload(node)
            note(node_id, "INFO", f"{node_id} stops: {why}", event="stops")
        finally:  # The watcher waits for it, and the process for the watcher.
            stopped = node.stop()
        watcher.join()
    if node.failure is not None:
        print_fatal(node_id, node.failure, as_json=log_json)
        raise typer.Exit(ExitStatus.BUG)
    if not stopped:
        raise ServeError(f"{node_id} did not stop in time")
    text = f"{node_id} stopped"
    _print(log.json_object(text, node=node_id, event="stopped") if log_json else text)


def _settings_of(file: Path, node_id: str | None, joins: JoinOptions) -> tuple[Config, str]:
    """Return the configuration in ``file``, or of a node that joins, and the node's id."""
    from fencelock.cluster.node.config import load  # noqa: PLC0415 (pydantic: not for --help)

    if joins.join is not None:
        from fencelock.cluster.node.joining import Joining, joined  # noqa: PLC0415 (sockets)

        return joined(
            Joining(
                seed=joins.join,
                data=joins.data or Path("data"),
                node=node_id,
                address=joins.address,
                listen=joins.listen,
                cluster=joins.cluster,
                key=joins.key,
            )
        )
    given = [f"--{name}" for name, value in joins._asdict().items() if value is not None]
    if given:
        raise ConfigError(f"{given[0]} is for a node that joins: add --join tcp://HOST:PORT")
    settings = load(file)
    if node_id not in settings.nodes:
        known = ", ".join(settings.nodes)
        if node_id is None:
            raise ConfigError(f"--id: missing; {file} knows {known}")
        raise ConfigError(f'--id: "{node_id}" is no node of {file}, which knows {known}')
    return settings, node_id


def _founding(
    config: Config, node_id: str, *, found: bool, again: str | None, yes: bool
) -> Founding:
    """Return whether the node shall begin a new cluster; ask before another one is given up."""
    if again is None:
        return Founding.ONCE if found else Founding.NO
    if again != config.cluster:
        raise ConfigError(
            f'--found-again: "{again}" is not the cluster of the configuration, which is '
            f'"{config.cluster}". Name the cluster that is to be given up'
        )
    say(LOSS.format(cluster=again, node=node_id), err=True)
    if not yes:
        confirm("Give it up?", declined=f"{node_id} was not started.")
    return Founding.AGAIN


def print_fatal(node_id: str, failure: BaseException | None, *, as_json: bool = False) -> None:
    why = str(failure) if isinstance(failure, FencelockError) else repr(failure)
    text = f"{node_id} stopped after a fatal error: {why}"
    text_line = log.json_object(text, level="CRITICAL", node=node_id, event="failed")
    typer.echo(text_line if as_json else text, err=True)


def start(
    config: Config, node_id: str, founding: Founding, *, spins: bool, as_json: bool = False
) -> Node:
    """Start a node; exit if it, or its disk, fails at once."""
    import pykka  # noqa: PLC0415 (as the next)
    import zmq  # noqa: PLC0415 (sockets: not for --help)

    from fencelock.cluster.host.scheduler import RoleFailedError  # noqa: PLC0415
    from fencelock.cluster.node.node import Node  # noqa: PLC0415
    from fencelock.cluster.node.storage.directory import JournalFailedError  # noqa: PLC0415

    try:
        return Node.begun(config, node_id, founding, spins=spins)
    except (RoleFailedError, JournalFailedError) as error:  # Its log has the rest.
        print_fatal(node_id, error, as_json=as_json)
        raise typer.Exit(ExitStatus.BUG) from error
    except pykka.ActorDeadError as error:  # It failed before this thread could wait for it.
        print_fatal(node_id, error.__cause__, as_json=as_json)
        raise typer.Exit(ExitStatus.BUG) from error
    except ConfigError as error:
        if not isinstance(error.__cause__, zmq.ZMQError):
            raise
        if error.__cause__.errno == errno.EADDRINUSE:
            advice = "another program listens there: stop it, or change the port in the file"
        else:
            advice = (
                "the host in the file must be this machine's own. In a container or behind NAT, "
                'keep the address that others use, and set listen = "tcp://0.0.0.0:PORT" beside it'
            )
        key = "listen" if node_id in config.listens else "address"
        raise ServeError(f"nodes.{node_id}.{key}: {error}; {advice}") from error


def spare_the_collector() -> None:
    """Keep Python's cyclic collector away from objects that live as long as the node.

    Objects of a request are freed by reference counts; the few cycles can wait. With 100,000
    held locks a full collection stops the node for 0.3 s.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _greet(config: Config, node: Node, *, as_json: bool) -> None:
    text = (
        f'{node.id} listens at {node.address}: cluster "{config.cluster}", protocol '
        f"{config.protocol}. Mind: {PROMISES[config.protocol].does_not_survive}"
    )
    text_line = log.json_object(text, node=node.id, event="listens", address=node.address)
    _print(text_line if as_json else text)


def _print(text: str) -> None:
    """Print a line at once, for a program that started us. A node serves on if nobody reads."""
    try:
        typer.echo(text)  # It flushes.
    except OSError:
        with Path(os.devnull).open("wb") as nothing:  # It takes what is buffered.
            os.dup2(nothing.fileno(), sys.stdout.fileno())


def _reload(node: Node) -> None:
    try:
        node.reload_keys()
    except Exception as error:  # noqa: BLE001 (whatever is in the list, the node serves on)
        note(node.id, "ERROR", f"{RELOAD_SIGNAL}: nothing changes: {error}", event="keys_unread")


def _watch(node: Node, stops: Stops) -> None:
    node.wait(None)
    stops.put("the node has stopped")


@contextmanager
def stops_on_signals(*others: signal.Signals) -> Generator[Stops]:
    """Yield a queue that gets the names of signals to stop, and of ``others``."""
    signals = signal.SIGTERM, signal.SIGINT, *others
    stops = Stops()

    def on_signal(number: int, frame: object) -> None:
        stops.put(signal.Signals(number).name)

    before = {each: signal.signal(each, on_signal) for each in signals}
    try:
        yield stops
    finally:
        for each, former in before.items():
            signal.signal(each, former)


PROTOCOL_NAMES = " or ".join(PROMISES)

SAFE_FROM = 3
"""The fewest members of which one may die."""


def init(
    nodes: Annotated[
        int,
        typer.Option(
            help="Number of nodes, named n1, n2, ...; 3 survive the loss of one, 5 of two.", min=1
        ),
    ] = 3,
    protocol: Annotated[str, typer.Option(help=f"The protocol: {PROTOCOL_NAMES}.")] = "paxos",
    cluster: Annotated[
        str,
        typer.Option(help="The cluster's name. Nodes and clients of other clusters are refused."),
    ] = "fencelock",
    config: Annotated[Path, typer.Option(help="The file to write.")] = CONFIG_PATH,
    port: Annotated[
        int, typer.Option(help="n1 listens on the port after this one, n2 on the next, and so on.")
    ] = 4040,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a first [bold]configuration[/bold], with comments.

    For example:

      [cyan]fencelock init[/cyan]

      [cyan]fencelock init --nodes 5 --protocol central --cluster orders --config orders.toml[/cyan]

    """
    # Imported late: the file's checks import pydantic, which no other command's help needs.
    from fencelock.actors.api.membership_message import PORT_MAX  # noqa: PLC0415
    from fencelock.cluster.node.config import NODES_MAX, loopback, starting_config  # noqa: PLC0415

    if nodes > NODES_MAX:
        raise ConfigError(f"--nodes is {nodes}, 1 to {NODES_MAX} are allowed")
    if not 0 <= port <= PORT_MAX - nodes:
        raise ConfigError(
            f"--port is {port}, 0 to {PORT_MAX - nodes} are allowed: the {nodes} nodes listen at "
            "the ports after it"
        )
    addresses = loopback(nodes, port)
    text = starting_config(addresses, cluster=cluster, protocol=protocol)
    mode = "w" if force else "x"
    try:
        with open(config, mode, encoding="utf-8", opener=_private) as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{config} exists already: --force overwrites it") from error
    except OSError as error:
        raise ConfigError(f"{config} cannot be written: {error.strerror}") from error
    typer.echo(f"Wrote {config}: {how_many(nodes, 'node')} of {protocol} on this machine.")
    if protocol in VOTING:
        typer.echo(_survives(protocol, nodes))
    typer.echo("Change the addresses for other machines. Then, each in a terminal of its own:\n")
    first = " --found" if protocol in VOTING else ""
    found = config == CONFIG_PATH  # The commands find it in this folder.
    for node in addresses:
        typer.echo(f"  fencelock serve {'' if found else f'--config {config} '}--id {node}{first}")
    if first:
        typer.echo(
            "\n--found begins the new cluster: leave it out whenever you start a node again."
        )
    connect = f" --connect {','.join(addresses.values())} --cluster {cluster}"
    typer.echo("\nand, to see who leads and who holds what:\n")
    typer.echo(f"  fencelock status{'' if found else connect}")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _survives(protocol: str, nodes: int) -> str:
    """Return how many nodes of a protocol whose members vote may die."""
    if nodes < SAFE_FROM:
        return f"Mind: all must be up; with {SAFE_FROM} nodes one may die."
    if protocol == "bakery":
        return (
            "Three of them lead; one leader may die at a time. After two at once locks are granted "
            "again when every duration and grace is over (10 s, unless somebody asked for more)."
        )
    spare = (nodes - 1) // 2
    more = "" if nodes % 2 else f", as with {nodes - 1}: the last one adds nothing"
    down = "one of them is" if spare == 1 else f"{spare} of them are"
    return f"Locks are granted while at most {down} down{more}."
