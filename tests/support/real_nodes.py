"""Real nodes on loopback, in the process of the test or in their own, with keys or without."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import fencelock
from fencelock.actors.api.membership_message import ChangeMembers, MemberAction, MembersChanged
from fencelock.actors.bootstrap_message import Founding
from fencelock.actors.error import MembershipError, UnavailableError
from fencelock.actors.proxy.access import CLIENT, OPERATOR, Rights
from fencelock.cluster.client.client import Client, connect
from fencelock.cluster.keys import add_key, make_folder
from fencelock.cluster.node.config import Config, parse, starting_config
from fencelock.cluster.node.node import Node
from fencelock.cluster.testing.ports import free_ports
from fencelock.verification.bench.members import NodeProcesses
from support.expect import PATIENCE_S

NODES = ("n1", "n2", "n3")


def loopback_addresses(count: int = 3) -> dict[str, str]:
    """Return an address with a free port for each of the nodes ``n1`` to ``n<count>``."""
    return {f"n{n}": f"tcp://127.0.0.1:{port}" for n, port in enumerate(free_ports(count), 1)}


def config_in(folder: Path, protocol: str = "paxos", nodes: int = 3) -> Config:
    """Return the configuration of nodes with free ports, and with their data in ``folder``."""
    return parse(starting_config(loopback_addresses(nodes), protocol=protocol), folder)


def measured(config: Config, host: str = "127.0.0.1") -> Config:
    """Return ``config`` with metrics of all nodes, each at any port."""
    return replace(config, metrics=dict.fromkeys(config.nodes, f"{host}:0"))


@contextmanager
def running_nodes(
    folder: Path, protocol: str = "paxos", nodes: int = 3
) -> Generator[dict[str, Node], None, None]:
    """Run the nodes of `config_in`, as `running` does."""
    with running(config_in(folder, protocol, nodes)) as started_nodes:
        yield started_nodes


@contextmanager
def running(config: Config) -> Generator[dict[str, Node], None, None]:
    """Run all nodes of ``config``; stop them afterwards and check that none of them failed."""
    with ExitStack() as stack:
        nodes = {
            node: stack.enter_context(Node.begun(config, node, Founding.NEW))
            for node in config.nodes
        }
        yield nodes
        for node in nodes.values():
            assert node.stop(PATIENCE_S)
            if node.failure is not None:
                raise node.failure


def ask(node: Node, message: Any) -> Any:
    """Send a request as a caller inside the node's process; return the reply."""
    return node.proxy.ask(message, timeout=2 * PATIENCE_S)


class PaxosProcesses(NodeProcesses):
    """Three members of `paxos` with journals, which all run at the end, and are killed then."""

    cluster = "fencelock"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "paxos", len(NODES), durable=True)

    def __exit__(self, *error: object) -> None:
        ended = [node for node, process in self.processes.items() if process.poll() is not None]
        for node in self.processes:
            self.kill(node)
        assert error != (None, None, None) or not ended, [self.log_of(node) for node in ended]


CLUSTER = "test"


class Cluster:
    """Nodes in this process that can be stopped and started again."""

    def __init__(self, protocol: str, nodes: int, data: Path) -> None:
        addresses = loopback_addresses(nodes)
        self.config = Config(cluster=CLUSTER, protocol=protocol, nodes=addresses, data=data)
        self.running: dict[str, Node] = {}
        self.clients = ExitStack()

    def start(self, *nodes: str) -> None:
        for node in nodes:
            self.running[node] = Node.start(self.config, node, found=True)

    def stop(self, *nodes: str) -> None:
        for node in nodes:
            assert self.running.pop(node).stop(PATIENCE_S)

    def addresses(self, *nodes: str) -> str:
        return ",".join(self.config.nodes[node] for node in nodes)

    def connect(self, *nodes: str, ttl: float = 15.0) -> Client:
        addresses = self.addresses(*(nodes or self.config.nodes))
        return self.clients.enter_context(
            connect(addresses, cluster=CLUSTER, connect_timeout=PATIENCE_S, ttl=ttl)
        )

    def close(self) -> None:
        self.clients.close()
        self.stop(*self.running)


def started(cluster: Cluster) -> Iterator[Cluster]:
    """Start the nodes of ``cluster``; stop it afterwards, and check that no thread is left."""
    before = threads()
    try:
        cluster.start(*cluster.config.nodes)
        yield cluster
    finally:
        cluster.close()
    assert threads() == before


def threads() -> list[str]:
    """Return the names of the threads of nodes and clients."""
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("fencelock"))


KEYS_LINE = 'keys = "./keys"'


class KeyedNodes:
    """Running nodes with the folder of their keys: ``alice`` is an operator, ``shop`` a client.

    Attributes:
        nodes: the nodes by id.
        keys: the folder of the keys.

    """

    def __init__(self, nodes: dict[str, Node], keys: Path) -> None:
        self.nodes = nodes
        self.keys = keys

    @property
    def addresses(self) -> list[str]:
        return [node.address for node in self.nodes.values()]

    def connect(self, key: str | None, *, only: str = "", **options: Any) -> fencelock.Client:
        """Return a client with the key of that name, or with none; ``only`` for one node."""
        path = None if key is None else self.keys / f"{key}.key"
        options = {"connect_timeout": PATIENCE_S, "stay": bool(only), **options}
        addresses = [self.nodes[only].address] if only else self.addresses
        return fencelock.connect(addresses, key=path, **options)

    def count(self, counter: str) -> int:
        """Return how often the nodes together counted something."""
        with self.connect("alice") as operator:
            statuses = operator.survey().statuses
        return sum(
            one.times for status in statuses for one in status.counters if one.name == counter
        )

    def reload(self) -> None:
        for node in self.nodes.values():
            node.reload_keys()


def make_keys(folder: Path, nodes: tuple[str, ...] = NODES) -> None:
    """Make the keys of nodes, of the operator ``alice`` and of the client ``shop``."""
    make_folder(folder, nodes)
    add_key(folder, Rights("alice", OPERATOR))
    add_key(folder, Rights("shop", CLIENT, ("orders/",)))


@contextmanager
def keyed_nodes(
    folder: Path, protocol: str = "paxos", count: int = 3, more: str = ""
) -> Generator[KeyedNodes, None, None]:
    """Run nodes with keys; stop them afterwards and check that none of them failed.

    ``more`` is added to the configuration.
    """
    addresses = loopback_addresses(count)
    make_keys(folder / "keys", tuple(addresses))
    text = starting_config(addresses, protocol=protocol).replace(f"# {KEYS_LINE}", KEYS_LINE)
    config = parse(text + more, folder)
    assert config.keys is not None
    with running(config) as nodes:
        yield KeyedNodes(nodes, config.keys)


class KeyedProcesses(NodeProcesses):
    """Processes of nodes with keys, see `make_keys`."""

    def __init__(self, folder: Path, protocol: str, nodes: int, *, durable: bool) -> None:
        super().__init__(folder, protocol, nodes, durable=durable)
        make_keys(folder / "keys", self.names)
        with (folder / "cluster.toml").open("a", encoding="utf-8") as file:
            file.write(f"[security]\n{KEYS_LINE}\n")

    def client(self, key: str) -> fencelock.Client:
        """Return a client with the key of that name."""
        path = self.folder / "keys" / f"{key}.key"
        return fencelock.connect(
            self.connect, cluster=self.cluster, key=path, connect_timeout=PATIENCE_S
        )

    def connected(self, ttl: float) -> fencelock.Client:
        """Connect as an operator."""
        return self.client("alice")


def change_members(
    client: Client, action: MemberAction, node: str, replacement: str = ""
) -> tuple[str, ...]:
    """Ask for a change of the members until it is done; return the members then."""
    wanted = ChangeMembers(action=action, node=node, replacement=replacement)
    answers: list[MembersChanged] = []
    refusals: list[Exception] = []

    def is_done() -> bool:
        try:
            answers.append(client.change_members(wanted))
        except (UnavailableError, MembershipError) as refusal:
            refusals.append(refusal)  # A node starts, or this machine has much else to do.
            return False
        return answers[-1].done

    until(is_done, f"{action.name} {node} {replacement}", answers, refusals)
    return answers[-1].members


PAUSE_S = 0.01


def until(done: Callable[[], object], *seen: object) -> None:
    """Look every `PAUSE_S` whether ``done``; fail with what was ``seen`` after `PATIENCE_S`."""
    ends = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < ends, seen
        time.sleep(PAUSE_S)
