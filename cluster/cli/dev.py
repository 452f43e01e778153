"""``fencelock dev``: a cluster of one node on this machine, with a live view of its locks."""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from fencelock.actors.api.message import Describe, LockStatus, NodeStatus
from fencelock.actors.api.name import kind_of
from fencelock.actors.bootstrap_message import Founding
from fencelock.actors.error import ConfigError
from fencelock.cluster import log
from fencelock.cluster.cli.formatting import duration, person, progress_of, share_of
from fencelock.cluster.cli.naming import object_shown, unheld_kinds
from fencelock.cluster.cli.screen import line
from fencelock.cluster.cli.serve import spare_the_collector, start, stops_on_signals
from fencelock.cluster.cli.status import locks_seen, locks_table

if TYPE_CHECKING:
    from fencelock.cluster.node.config import Config
    from fencelock.cluster.node.node import Node

NODE = "dev"
DESCRIBE_S = 5
"""Time limit for a node's own status (s)."""

LOOK_S = 0.5
"""Pause between two looks at the node (s)."""

RATES = {"acquires": "proxy.granted", "releases": "proxy.released", "refusals": "proxy.refused"}
"""Rates that are shown, and their counters."""

HINT = """\
No lock is held. In another terminal:

  python -c "import fencelock
  with fencelock.connect() as client, client.lock('hello') as hold:
      input(f'held under fence {hold.fence}; Enter releases it')"

or: fencelock lock hello -- sleep 10"""


def dev(
    port: Annotated[int, typer.Option(help="The port, on 127.0.0.1.", min=1, max=65535)] = 4040,
    data: Annotated[
        Path | None,
        typer.Option(help="Keep the locks in this folder. Default: in memory, until it stops."),
    ] = None,
    log_level: Annotated[
        str, typer.Option("--log-level", help="Least level of lines of the log.")
    ] = "WARNING",
) -> None:
    """Run a cluster of one node [bold]for development[/bold], and show who holds what.

    `fencelock.connect()` and the other commands find it without any
    configuration. It stops with Ctrl-C.

    For example:

      [cyan]fencelock dev[/cyan]

      [cyan]fencelock dev --data ./locks[/cyan] (locks survive a restart)

    With --data, the first start begins a cluster in the folder, and later ones use it.

    """
    from fencelock.cluster.node.config import LOG_LEVELS  # noqa: PLC0415 (pydantic: not for --help)

    if log_level.upper() not in LOG_LEVELS:
        raise ConfigError(f"--log-level is {log_level}, and must be one of {', '.join(LOG_LEVELS)}")
    console = Console(highlight=False)
    log.set_up(log_level.upper(), stream=Above(console) if console.is_terminal else None)
    with stops_on_signals() as stops:
        config = replace(config_of(port, data), log_level=log_level.upper())
        node = start(config, NODE, founding_of(config), spins=False)
        spare_the_collector()
        try:
            check_cluster_of(node, data)
            for text in greeting(config):
                console.print(line(text), soft_wrap=not console.is_terminal)
            sys.stdout.flush()
            show = live if console.is_terminal else plain
            for _ in show(console, Looks(node), config.nodes[NODE]):
                try:
                    stops.get(timeout=LOOK_S)
                    break
                except queue.Empty:
                    continue
        finally:
            node.stop()


class Above(StringIO):
    """A stream whose lines are printed above the live view.

    Args:
        console: the console of the view.

    """

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def write(self, text: str) -> int:
        """Print a line of the log."""
        self._console.print(Text(text.rstrip("\n")), soft_wrap=not self._console.is_terminal)
        return len(text)


def config_of(port: int, data: Path | None) -> Config:
    """Return the configuration of a single node."""
    from fencelock.cluster.client.settings import DEFAULT_CLUSTER  # noqa: PLC0415 (as the last)
    from fencelock.cluster.node.config import Config  # noqa: PLC0415 (pydantic: not for --help)
    from fencelock.cluster.node.topology import ProtocolSettings  # noqa: PLC0415 (as the last)

    return Config(
        cluster=DEFAULT_CLUSTER,
        protocol="paxos",
        nodes={NODE: f"tcp://127.0.0.1:{port}"},
        settings=ProtocolSettings(paxos_memory=data is None),
        data=data,
    )


def founding_of(config: Config) -> Founding:
    """Return whether the node begins a cluster: it does in memory, and in an empty folder."""
    folder = config.folder_of(NODE)
    is_empty = folder is None or not folder.exists() or not any(folder.iterdir())
    return Founding.NEW if is_empty else Founding.NO


def check_cluster_of(node: Node, data: Path | None) -> None:
    """Check that the node has a cluster, of its folder or a new one.

    Raises:
        ConfigError: it has none.

    """
    status = node.proxy.ask(Describe(roles=True), timeout=DESCRIBE_S)
    assert isinstance(status, NodeStatus)
    facts = [fact for role in status.roles if role.name == "bootstrap" for fact in role.summary]
    if not any(fact.name == "group" and fact.value for fact in facts):
        raise ConfigError(
            f"--data: {data} is not empty, but has no cluster: its journal was lost, or the first "
            "start was cut short. Restore the journal; or, to begin anew without the locks that "
            "were there, delete the folder or name another one"
        )


def greeting(config: Config) -> Iterator[str]:
    """Yield lines about the node's address, how clients find it, and its data."""
    from fencelock.cluster.client.settings import CONFIG, DEFAULT_ADDRESS  # noqa: PLC0415 (as above)

    address = config.nodes[NODE]
    keeps = "in memory" if config.data is None else f"in {config.data}"
    how = "connect()" if address == DEFAULT_ADDRESS else f'connect("{address}")'
    if CONFIG.exists():
        how = f'connect("{address}"), since connect() reads ./{CONFIG} here'
    yield f"fencelock dev serves at {address}, locks are {keeps}. Your program: fencelock.{how}"
    yield "One node: for development only. Ctrl-C stops it."


class Looks:
    """Looks at a node again and again.

    Args:
        node: the node.

    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._before: tuple[float, dict[str, int]] | None = None

    def next(self) -> tuple[NodeStatus, dict[str, float], int]:
        """Return the status of the node, the rates since the last look, and the clients."""
        status = self._node.proxy.ask(Describe(roles=True), timeout=DESCRIBE_S)
        assert isinstance(status, NodeStatus)
        counters = {counted.name: counted.times for counted in status.counters}
        now = time.monotonic()
        since, before = self._before or (now - LOOK_S, counters)
        self._before = now, counters
        rates = {
            what: (counters.get(name, 0) - before.get(name, 0)) / max(now - since, 0.001)
            for what, name in RATES.items()
        }
        facts = {
            fact.name: fact.value
            for role in status.roles
            if role.name == "proxy"
            for fact in role.summary
        }
        return status, rates, int(facts.get("clients", "0"))


def live(console: Console, looks: Looks, address: str) -> Iterator[None]:
    """Show each look in place of the last one."""
    with Live(console=console, auto_refresh=False) as view:
        while True:
            view.update(drawn(*looks.next(), address), refresh=True)
            yield


def drawn(
    status: NodeStatus, rates: dict[str, float], clients: int, address: str
) -> RenderableType:
    """Return the view of one look."""
    seen = locks_seen([status])
    waiting = sum(len(lock.waiters) for _, lock in seen)
    counts = (
        f"{clients} client{'' if clients == 1 else 's'}, {len(seen)} held, {waiting} waiting; "
        f"{address} for {duration(status.uptime_ms)}"
    )
    speeds = ", ".join(f"{rate:,.0f} {what}/s" for what, rate in rates.items())
    parts: list[RenderableType] = [Text(), line(counts, "bold"), line(speeds)]
    parts.append(locks_table(seen) if seen else Text(f"\n{HINT}\n"))
    return Group(*parts)


def plain(console: Console, looks: Looks, address: str) -> Iterator[None]:
    """Print a line about each lock that changed since the last look."""
    del address
    before: dict[str, str] = {}
    while True:
        status, _, _ = looks.next()
        now = {lock.lock: in_words(lock) for _, lock in locks_seen([status])}
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                console.print(line(now.get(name) or _gone(name)), soft_wrap=True)
        before = now
        sys.stdout.flush()
        yield


def in_words(lock: LockStatus) -> str:
    """Return the holders of an object, or its progress, and the number of waiters."""
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
    """Return a text about an object that the node no longer reports."""
    unheld = kind_of(lock) in unheld_kinds()
    return f"{object_shown(lock)} is {'no longer in use' if unheld else 'free'}"
