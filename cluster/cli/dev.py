"""``fencelock dev``: a cluster in one process on this machine, with a live view of its locks."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer
from pykka import ActorDeadError, Timeout
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from fencelock.actors.api.cluster_message import Describe, NodeStatus
from fencelock.actors.api.lock_message import LockStatus
from fencelock.actors.api.membership_message import PORT_MAX
from fencelock.actors.api.name import kind_of
from fencelock.actors.api.role_request import LOG_LEVELS
from fencelock.actors.bootstrap_message import Founding
from fencelock.actors.error import ConfigError, OverloadedError
from fencelock.cluster import log
from fencelock.cluster.cli.exit_status import ExitStatus
from fencelock.cluster.cli.formatting import (
    duration,
    how_many,
    object_shown,
    person,
    progress_of,
    share_of,
    unheld_kinds,
)
from fencelock.cluster.cli.screen import line
from fencelock.cluster.cli.serve import (
    ServeError,
    print_fatal,
    spare_the_collector,
    start,
    stops_on_signals,
)
from fencelock.cluster.cli.status import locks_seen, locks_table
from fencelock.cluster.guarantee import PROMISES, VOTING

if TYPE_CHECKING:
    from fencelock.cluster.client.client import Client
    from fencelock.cluster.node.config import Config
    from fencelock.cluster.node.node import Node

SINGLE_NODE = "dev"
"""The id of a single node. Several are n1, n2 and so on."""
PAXOS, BAKERY = "paxos", "bakery"
"""Protocols; the first unless the user says another."""

DEV_NODES_MAX = 9
DEV_NODES = 3
"""The number of nodes of protocols that need several, unless the user says another."""
DESCRIBE_S = 5
"""Time limit for a node's own status (s)."""

NODE_LOOK_S = 0.5
"""Pause between two looks at the node (s)."""

RATES = {"acquires": "proxy.granted", "releases": "proxy.released", "refusals": "proxy.refused"}

SILENT = "No node answers: it is too busy, or has stopped. Locks are shown again once one answers."

HINT = """\
No lock is held. In another terminal:

  python -c "import fencelock
  with fencelock.connect() as client, client.lock('hello') as hold:
      input(f'held under fence {hold.fence}; Enter releases it')"

or: fencelock lock hello -- sleep 10"""


def dev(
    port: Annotated[
        int, typer.Option(help="The port of the first node, on 127.0.0.1.", min=1, max=PORT_MAX)
    ] = 4040,
    nodes: Annotated[
        int | None,
        typer.Option(
            help="The number of nodes, at ports in a row. Default: 1, or 3 if the protocol is not "
            "paxos.",
            min=1,
            max=DEV_NODES_MAX,
        ),
    ] = None,
    protocol: Annotated[
        str, typer.Option(help=f"The protocol: {', '.join(sorted(PROMISES))}.")
    ] = PAXOS,
    data: Annotated[
        Path | None,
        typer.Option(help="Keep the locks in this folder. Default: in memory, until it stops."),
    ] = None,
    redis: Annotated[
        bool, typer.Option("--redis", help="Let clients of Redis hold locks: docs/redis.md.")
    ] = False,
    redis_port: Annotated[
        int, typer.Option(help="The port for them at the first node.", min=1, max=PORT_MAX)
    ] = 6379,
    prompt: Annotated[
        bool | None,
        typer.Option(
            help="Read commands: lock, release, kill, cut, heal, trace; help lists them. Default: "
            "on a terminal, with several nodes."
        ),
    ] = None,
    log_level: Annotated[
        str, typer.Option("--log-level", help="Least level of lines of the log.")
    ] = "WARNING",
) -> None:
    """Run a cluster [bold]for development[/bold] in one process, and show who holds what.

    `fencelock.connect()` and the other commands find it without any
    configuration. It stops with Ctrl-C.

    For example:

      [cyan]fencelock dev[/cyan]

      [cyan]fencelock dev --data ./locks[/cyan] (locks survive a restart)

      [cyan]fencelock dev --nodes 3[/cyan] (at ports 4040 to 4042)

      [cyan]fencelock dev --redis[/cyan] (also for clients of Redis, at port 6379)

      [cyan]fencelock dev --protocol lamport[/cyan] (three processes of Lamport's algorithm)

    On a terminal, several nodes have a prompt: lock a n1, release a, kill n1, cut n1
    n2, heal, trace process.

    With --data, the first start begins a cluster in the folder, and later ones use it.

    """
    if log_level.upper() not in LOG_LEVELS:
        raise ConfigError(f"--log-level is {log_level}, and must be one of {', '.join(LOG_LEVELS)}")
    if protocol not in PROMISES:
        raise ConfigError(f"--protocol is {protocol}, and must be one of {', '.join(PROMISES)}")
    count = nodes or (1 if protocol == PAXOS else DEV_NODES)
    check_ports("--port", port, count)
    check_ports("--redis-port", redis_port if redis else 1, count)
    console = Console(highlight=False)
    log.set_up(log_level.upper(), stream=Above(console) if console.is_terminal else None)
    with stops_on_signals() as stops:
        config = replace(config_of(port, data, count, protocol), log_level=log_level.upper())
        if redis:
            doors = {
                name: f"tcp://127.0.0.1:{redis_port + at}" for at, name in enumerate(config.nodes)
            }
            config = replace(config, redis=doors)
        with ExitStack() as stack:
            if protocol == BAKERY and data is None:  # It always has a journal, without the locks.
                folder = stack.enter_context(TemporaryDirectory(prefix="fencelock-dev-"))
                config = replace(config, data=Path(folder))
            running: dict[str, Node] = {}
            stack.callback(lambda: [node.stop() for node in running.values()])
            founding = founding_of(config)
            for name in config.nodes:
                running[name] = begin(config, name, founding)
            if count > 1:
                stack.callback(log.silence)  # Each node would report that the others stop.
            spare_the_collector()
            if protocol in VOTING and founding is Founding.NO:
                check_cluster_of(next(iter(running.values())), data)
            for text in greeting(config, data):
                console.print(line(text), soft_wrap=not console.is_terminal)
            sys.stdout.flush()
            prompts = console.is_terminal and count > 1 if prompt is None else prompt
            if prompts:
                begin_prompt(stack, config, running, console, lambda: stops.put("quit"))
            show = live if console.is_terminal and not prompts else plain
            for _ in show(console, Looks(running), next(iter(config.nodes.values()))):
                try:
                    stops.get(timeout=NODE_LOOK_S)
                    break
                except queue.Empty:
                    check_running([*running.values()])


def check_ports(option: str, first: int, count: int) -> None:
    if first + count - 1 > PORT_MAX:
        raise ConfigError(
            f"{option} is {first}, and {count} nodes need ports up to {first + count - 1}: the "
            f"last one can be {PORT_MAX}"
        )


def begin(config: Config, name: str, founding: Founding) -> Node:
    """Start a node; the text of an error is for somebody without a configuration."""
    try:
        return start(config, name, founding, spins=False)
    except ServeError as error:
        raise ServeError(
            f"{error.__cause__}. Does `fencelock dev` run already? `fencelock status` shows it. "
            "--port takes another port"
        ) from error


def check_running(nodes: Iterable[Node]) -> None:
    for node in nodes:
        if node.failure is not None:
            print_fatal(node.id, node.failure)
            raise typer.Exit(ExitStatus.BUG)


def begin_prompt(
    stack: ExitStack,
    config: Config,
    running: dict[str, Node],
    console: Console,
    stop: Callable[[], None],
) -> None:
    """Read lines from standard input on a thread; its clients are closed with ``stack``."""
    from fencelock.cluster.cli.playground import Playground, read_lines  # noqa: PLC0415 (sockets)
    from fencelock.cluster.client.client import connect_to  # noqa: PLC0415 (as above)
    from fencelock.cluster.client.settings import CONNECT_S, Target  # noqa: PLC0415 (as above)

    def connect(nodes: Iterable[str], stay: bool) -> Client:
        where = Target(",".join(config.nodes[node] for node in nodes), config.cluster, "")
        return connect_to(where, timeout=CONNECT_S, stay=stay)

    playground = Playground(
        running,
        lambda name: start(config, name, Founding.NO, spins=False),
        connect,
        lambda text: console.print(line(text), soft_wrap=True),
        config.log_level,
    )
    stack.callback(playground.close)
    threading.Thread(target=read_lines, args=(playground, stop), name="prompt", daemon=True).start()
    if console.is_terminal:
        console.print("help shows what can be done here.")


class Above(StringIO):
    """A stream whose lines are printed above the live view."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def write(self, text: str) -> int:
        self._console.print(Text(text.rstrip("\n")), soft_wrap=not self._console.is_terminal)
        return len(text)


def config_of(port: int, data: Path | None, count: int = 1, protocol: str = PAXOS) -> Config:
    from fencelock.cluster.client.settings import DEFAULT_CLUSTER  # noqa: PLC0415 (as the last)
    from fencelock.cluster.node.config import Config  # noqa: PLC0415 (pydantic: not for --help)
    from fencelock.cluster.node.topology import ProtocolSettings  # noqa: PLC0415 (as the last)

    names = [SINGLE_NODE] if count == 1 else [f"n{number}" for number in range(1, count + 1)]
    return Config(
        cluster=DEFAULT_CLUSTER,
        protocol=protocol,
        nodes={name: f"tcp://127.0.0.1:{port + at}" for at, name in enumerate(names)},
        settings=ProtocolSettings(
            paxos_memory=data is None, central_journal=protocol == "central" and data is not None
        ),
        data=data,
    )


def founding_of(config: Config) -> Founding:
    """Return whether the nodes begin a cluster: they do in memory, and in empty folders."""
    folders = [config.folder_of(node) for node in config.nodes]
    used = [one for one in folders if one is not None and one.exists() and any(one.iterdir())]
    return Founding.NO if used else Founding.NEW


def check_cluster_of(node: Node, data: Path | None) -> None:
    status = node.proxy.ask(Describe(roles=True), timeout=DESCRIBE_S)
    assert isinstance(status, NodeStatus)
    if not facts_of(status, "bootstrap").get("group"):
        raise ConfigError(
            f"--data: {data} is not empty, but has no cluster: its journal was lost, or the first "
            "start was cut short. Restore the journal; or, to begin anew without the locks that "
            "were there, delete the folder or name another one"
        )


def facts_of(status: NodeStatus, role: str) -> dict[str, str]:
    summaries = (one.summary for one in status.roles if one.name == role)
    return {fact.name: fact.value for summary in summaries for fact in summary}


def greeting(config: Config, data: Path | None) -> Iterator[str]:
    from fencelock.cluster.client.settings import CONFIG_FILE, DEFAULT_ADDRESS  # noqa: PLC0415 (as above)

    address = next(iter(config.nodes.values()))
    keeps = "in memory" if data is None else f"in {data}"
    how = "connect()" if address == DEFAULT_ADDRESS else f'connect("{address}")'
    if Path(CONFIG_FILE).exists():
        how = f'connect("{address}"), since connect() reads ./{CONFIG_FILE} here'
    where = " to ".join([*config.nodes.values()][:: max(1, len(config.nodes) - 1)])
    yield f"fencelock dev serves at {where}, locks are {keeps}. Your program: fencelock.{how}"
    if config.redis:
        first = next(iter(config.redis.values())).removeprefix("tcp://")
        yield f"Clients of Redis: redis://{first}"
    count = len(config.nodes)
    what = "One node" if count == 1 else f"{count} nodes of {config.protocol} in one process"
    yield f"{what}: for development only. Ctrl-C stops it."


class Looks:
    """Looks again and again at the first of the nodes that run, which may change."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._before: tuple[float, dict[str, int]] | None = None

    def next(self) -> tuple[NodeStatus, dict[str, float], int] | None:
        """Return the status of the node, the rates since the last look, and the clients.

        None if there is none, or it refused to answer, or did not in time.
        """
        node = next(iter(self._nodes.values()), None)
        if node is None:
            return None
        try:
            status = node.proxy.ask(Describe(roles=True), timeout=DESCRIBE_S)
        except (OverloadedError, Timeout, ActorDeadError):
            return None
        assert isinstance(status, NodeStatus)
        counters = {counted.name: counted.times for counted in status.counters}
        now = time.monotonic()
        since, before = self._before or (now - NODE_LOOK_S, counters)
        self._before = now, counters
        rates = {
            what: (counters.get(name, 0) - before.get(name, 0)) / max(now - since, 0.001)
            for what, name in RATES.items()
        }
        return status, rates, int(facts_of(status, "proxy").get("clients", "0"))


def live(console: Console, looks: Looks, address: str) -> Iterator[None]:
    with Live(console=console, auto_refresh=False) as view:
        while True:
            look = looks.next()
            view.update(drawn(*look, address) if look else line(SILENT, "bold"), refresh=True)
            yield


def drawn(
    status: NodeStatus, rates: dict[str, float], clients: int, address: str
) -> RenderableType:
    seen = locks_seen([status])
    waiting = sum(len(lock.waiters) for _, lock in seen)
    counts = (
        f"{how_many(clients, 'client')}, {len(seen)} held, {waiting} waiting; "
        f"{address} for {duration(status.uptime_ms)}"
    )
    speeds = ", ".join(f"{rate:,.0f} {what}/s" for what, rate in rates.items())
    parts: list[RenderableType] = [Text(), line(counts, "bold"), line(speeds)]
    parts.append(locks_table(seen) if seen else Text(f"\n{HINT}\n"))
    return Group(*parts)


def plain(console: Console, looks: Looks, address: str) -> Iterator[None]:
    """Print a line about each lock that changed since the last look."""
    before: dict[str, str] = {}
    while True:
        look = looks.next()
        if look is None:
            console.print(line(SILENT), soft_wrap=True)
        else:
            now = {lock.lock: in_words(lock) for _, lock in locks_seen([look[0]])}
            for name in sorted(before.keys() | now.keys()):
                if before.get(name) != now.get(name):
                    console.print(line(now.get(name) or _gone(name)), soft_wrap=True)
            before = now
        sys.stdout.flush()
        yield


def in_words(lock: LockStatus) -> str:
    name = object_shown(lock.lock)
    wait = f", {len(lock.waiters)} wait" if lock.waiters else ""
    if lock.left is not None:
        return f"{name}: {progress_of(lock)}{wait}"
    if lock.holder is None:
        return f"{name} is free{wait}"
    holders: list[str] = []
    for one in lock.holders or (lock.holder,):
        share = share_of(lock, one, wants=False).strip()
        has = f" ({share})" if share else ""
        holders.append(f"{person(one)}{has} under fence {one.fence}")
    return f"{name} is held by {' and '.join(holders)}{wait}"


def _gone(lock: str) -> str:
    unheld = kind_of(lock) in unheld_kinds()
    return f"{object_shown(lock)} is {'no longer in use' if unheld else 'free'}"
