"""A running node: its config, sockets, journal and roles, put together and taken apart."""

from __future__ import annotations

import atexit
import os
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Self

import pykka

from fencelock import __version__
from fencelock.actors.bootstrap_message import Founding, GroupConfig
from fencelock.actors.clock import STAMP_MAX
from fencelock.actors.effect import Spawn
from fencelock.actors.error import ConfigError, FencelockError
from fencelock.actors.message import ADDRESS_PART_BYTES_MAX, Message, address_of, is_part
from fencelock.actors.proxy.access import RightsChanged
from fencelock.actors.role import Role
from fencelock.actors.session.event import Close
from fencelock.actors.trace import LogBook
from fencelock.cluster.client.connection import close_all
from fencelock.cluster.guarantee import VOTING
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.gateway import Links
from fencelock.cluster.host.role_ref import RoleRef
from fencelock.cluster.keys import NodeKeys, node_keys, read_list
from fencelock.cluster.node.config import Config, is_loopback, load
from fencelock.cluster.node.event_log import EventLog
from fencelock.cluster.node.joining import give_config
from fencelock.cluster.node.journal_rules import check_possible
from fencelock.cluster.node.redis_door import RedisDoorServer
from fencelock.cluster.node.storage.journal import (
    SEGMENT_BYTES_MAX,
    STREAM,
    Journal,
    JournalId,
    claim,
)
from fencelock.cluster.node.topology import NODE_CLOSE_MS, NodeContext, keeps_journal, make_roles_of
from fencelock.transport.codec import decode
from fencelock.transport.descriptors import connections_max, raise_limit
from fencelock.transport.hub import SocketHub
from fencelock.transport.log import note
from fencelock.transport.posix import A_NODE, posix

if TYPE_CHECKING:
    from fencelock.cluster.host.scheduler import Scheduler
    from fencelock.cluster.node.metrics import MetricsServer

KEYS_S = 10.0
"""Timeout for using keys that were read again (s)."""


class AssertionsOffError(ConfigError):
    """Python runs with ``-O``: our invariants would not be checked, so no node starts."""


def check_assertions() -> None:
    if not __debug__:
        raise AssertionsOffError(
            "python -O turns off the checks that a node relies on: start without -O, and without "
            "PYTHONOPTIMIZE"
        )


class Node:
    """One node of a cluster, inside this process.

    Use `Node.start`; then ``node.proxy.ask(Acquire(lock="orders/42"))`` from any thread. It leaves
    nothing running after `stop`, which ``with`` and the end of the process call. After a fork only
    the parent may use it.

    Attributes:
        id: its name in the config.
        address: where others reach it (``tcp://host:port``).
        links: its sockets, which belong to its own thread.
        proxy: the reference of the role that serves callers inside this process: the node's own
            client session. ``ref("proxy")`` is the `Proxy` itself, which serves the clients.

    """

    def __init__(
        self,
        node_id: str,
        address: str,
        dispatcher: Dispatcher,
        links: Links,
        *,
        closing_s: float = 0.0,
    ) -> None:
        self.id = node_id
        self.address = address
        self.links = links
        self._closing_s = closing_s
        self.proxy: RoleRef = dispatcher.ref(address_of(node_id, "session"))
        self._dispatcher = dispatcher
        self._metrics: MetricsServer | None = None
        self._redis: RedisDoorServer | None = None
        self._keys: tuple[Path, SocketHub] | None = None
        """The folder of the keys, and what checks them, where keys are used."""
        _running.add(self)

    @classmethod
    def start(
        cls,
        config: Config | str | os.PathLike[str],
        node_id: str,
        *,
        spins: bool = False,
        found: bool = False,
    ) -> Self:
        """Bind the sockets of ``node_id``, read its journal, and begin to serve.

        ``config`` is the configuration, or its file: ``Node.start("cluster.toml", "n1")``. The
        process's limit of open files is raised as far as the system allows.

        ``spins`` is for a process with no other work; see `fencelock.transport.polling.Poller`.

        ``found`` begins a new cluster with the other configured nodes, if this node has an empty
        journal and none of them knows the cluster (`paxos`, `bakery`). Give it at the first start
        of a cluster, and at no later one. The nodes first listen for a second or two whether a
        member of the cluster is left.

        Raises:
            ConfigError: the config has no such node, or lacks something that the node needs, or
                the node's address cannot be bound (then from a ``zmq.ZMQError``).
            AssertionsOffError: Python runs with ``-O``.
            UnsupportedError: the system is not POSIX, as Windows.
            fencelock.cluster.node.storage.directory.JournalDamagedError: the journal is not
                readable.
            fencelock.cluster.node.storage.directory.JournalForeignError: the journal belongs to
                another node, cluster or set of members.

        """
        if not isinstance(config, Config):
            config = load(config)
        return cls.begun(config, node_id, Founding.ONCE if found else Founding.NO, spins=spins)

    @classmethod
    def begun(
        cls, config: Config, node_id: str, founding: Founding, *, spins: bool = False
    ) -> Self:
        """Start a node, as `start` does, with any kind of ``founding``."""
        check_assertions()
        posix("fcntl", A_NODE)
        if node_id not in config.nodes:
            known = ", ".join(config.nodes)
            raise ConfigError(f"nodes: there is no node {node_id!r}; the config has {known}")
        if config.keys is None:
            check_bound_privately(config, node_id)
        counters: Counter[str] = Counter()
        with ExitStack() as undo:
            journal = _open_journal(config, node_id)
            if journal is not None:
                undo.callback(journal.close)
            keys = None if config.keys is None else node_keys(config.keys, node_id)
            context = _context_of(config, node_id, founding, journal, keys)
            role_set = make_roles_of(config.protocol)(context)
            logging = {"level": config.log_level, "roles": config.traced_roles}
            book = Spawn(address_of(node_id, "log"), LogBook, logging)
            role_set = replace(role_set, roles=(*role_set.roles, book))
            hub = SocketHub(
                node=node_id,
                boot=context.boot,
                cluster=config.cluster,
                listen=config.listen_of(node_id),
                peers={node: at for node, at in config.nodes.items() if node != node_id},
                spins=spins,
                connections_max=connections_max(raise_limit()),
                key=None if keys is None else keys.link,
                listed=None if keys is None else keys.listed,
                quotas=config.settings.quotas,
                count=lambda name, times: counters.update({name: times}),
            )
            undo.callback(hub.close)
            _log_start(config, context, journal)
            dispatcher = Dispatcher(
                node_id,
                hub,
                members=frozenset(config.nodes) - {node_id},
                journal=journal,
                counters=counters,
                watch=EventLog(node_id).watch,
                unheard=hub.unheard if config.protocol in VOTING else list[str],
            )
            metrics = None
            if node_id in config.metrics:  # Before the node begins: its port may be taken.
                from fencelock.cluster.node.metrics import MetricsServer  # noqa: PLC0415 (if wanted)

                metrics = MetricsServer(config.metrics[node_id], dispatcher, config.cluster)
                undo.callback(metrics.close)
            dispatcher.start(role_set)
            give_config(node_id, config.shared, dispatcher)
            undo.pop_all()
        address = config.nodes[node_id] if node_id in config.listens else hub.endpoint
        node = cls(node_id, address, dispatcher, hub, closing_s=role_set.closing_s)
        node._keys = None if config.keys is None else (config.keys, hub)
        node._metrics = metrics
        if node_id in config.redis:
            try:
                node._redis = RedisDoorServer(node_id, config, dispatcher, hub)
            except BaseException:
                node.stop()
                raise
        return node

    def reload_keys(self) -> None:
        """Read the list of keys again: those that are added are known, those that are gone closed.

        This node's own keys change when it starts.

        Raises:
            ConfigError: no keys are used, or the list is not usable; the former one stays in force.

        """
        if self._keys is None:
            raise ConfigError("security.keys: missing in the configuration; no key can be read")
        folder, hub = self._keys
        known = read_list(folder)

        def use(scheduler: Scheduler) -> None:
            proxy = scheduler.roles[address_of(self.id, "proxy")]
            scheduler.post(proxy, scheduler.here, RightsChanged(rights=known.rights))
            if self._redis is not None:
                self._redis.replace_keys(scheduler, known)
            # Only now: the proxy must know a key before its requests.
            hub.replace_keys(known.bound)

        self._dispatcher.read(use, KEYS_S)
        text = f"{self.id} read its keys: {', '.join(known.keys)}"
        note(self.id, "INFO", text, event="keys_read", keys=len(known.keys))

    @property
    def metrics(self) -> str:
        """The address at which this node serves metrics (``host:port``), or empty."""
        return "" if self._metrics is None else self._metrics.address

    @property
    def redis(self) -> str:
        """The address of this node for clients of Redis (``tcp://host:port``), or empty."""
        return "" if self._redis is None else self._redis.address

    @property
    def failure(self) -> BaseException | None:
        """The exception that stopped the node, if it did not stop in order."""
        return self._dispatcher.failure

    def ref(self, role: str) -> RoleRef:
        """Return the reference of the role named ``role``, such as ``"clock"``.

        Raises:
            pykka.ActorDeadError: the node has no such role, or has stopped.
            ClosedError: this process is a fork of the node's.

        """
        return self._dispatcher.ref(address_of(self.id, role))

    def add_role(self, role: type[Role[Any]], /, name: str = "", **arguments: object) -> RoleRef:
        """Run a role of your own on this node, as ``<node>/<name>``, and return its reference.

        It runs on the node's own thread, so its handlers must not block. Roles of other nodes send
        it messages; callers inside the process, and clients (`Client.ref`), send it requests that
        derive from `RoleRequest`. All processes must import the modules that declare these
        messages. It may not persist. If it raises an exception, it stops alone, and the log has the
        traceback. ``docs/own-roles.md`` has an example.

        Args:
            role: its class, which is called with the address and the host, and ``arguments``.
            name: 1 to 128 bytes, without ``/``; by default that of the class, in lower case.
            arguments: further arguments of the class, by name.

        Raises:
            ValueError: ``name`` is out of its limits, or a role of the node has it.
            pykka.ActorDeadError: the node has stopped.
            ClosedError: this process is a fork of the node's.

        """
        name = name or role.__name__.lower()
        if not is_part(name):
            raise ValueError(
                f"name is {name!a}, and must have 1 to {ADDRESS_PART_BYTES_MAX} bytes, without '/'"
            )
        address = address_of(self.id, name)
        return self._dispatcher.add(role(address, self._dispatcher, **arguments))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the node has stopped (s; None: without limit); return whether it has.

        Raises:
            ClosedError: this process is a fork of the node's.

        """
        self._dispatcher.check()
        return self._dispatcher.stopped.wait(timeout)

    def stop(self, timeout: float | None = 10.0, *, at_once: bool = False) -> bool:
        """Stop in order; return whether everything has stopped within ``timeout`` (s).

        The node first gives back what callers inside this process hold; on `paxos` a leader then
        lets another node lead. That may take `NODE_CLOSE_MS` and `RESIGN_MS` longer (see
        ``cluster/node/topology.py``). `pykka.ActorRegistry.stop_all` does the same. With
        ``at_once`` the node does none of that, as if it had crashed.
        """
        _running.discard(self)
        limit = None if timeout is None else timeout + self._closing_s
        stopped = self._dispatcher.stop(limit, at_once=at_once)
        metrics, self._metrics = self._metrics, None
        if metrics is not None:
            metrics.close()
        return stopped

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


_running: set[Node] = set()
"""The nodes that were not stopped."""


@atexit.register
def _stop_all() -> None:
    """Stop the nodes that nobody has stopped, once all threads of the program have ended.

    Clients of this process are closed before, and all sessions end before any node stops: what
    they hold can only be given back while a majority runs.
    """
    close_all()
    nodes = [*_running]
    closing = [node.proxy.ask(Close(), block=False) for node in nodes]
    for closed in closing:
        with suppress(pykka.Timeout, pykka.ActorDeadError, FencelockError):
            closed.get(timeout=NODE_CLOSE_MS / 1000)
    for node in nodes:
        node.stop()


def check_bound_privately(config: Config, node_id: str) -> None:
    """Refuse to serve without keys on an address that is not loopback; warn if that is wanted."""
    bound = {f"nodes.{node_id}": config.listen_of(node_id), "redis": config.redis.get(node_id)}
    for key, at in bound.items():
        if at is None or is_loopback(at):
            continue
        if not config.insecure:
            raise ConfigError(
                f"{key}: without keys a node serves on loopback only, and {at} is not: whoever "
                'reaches it could take every lock. Run "fencelock keys init" and set keys in '
                "[security], or insecure = true there if only you reach that network"
            )
        text = (
            f"{node_id} serves {at} without keys, as insecure = true asks: whoever reaches it can "
            'read, take and release every lock. "fencelock keys init" makes keys'
        )
        note(node_id, "WARNING", text, event="insecure")


def _context_of(
    config: Config,
    node_id: str,
    founding: Founding,
    journal: Journal | None,
    keys: NodeKeys | None,
) -> NodeContext:
    records, identity = dict[str, tuple[Message, ...]](), JournalId(0, 0)
    if journal is not None:
        records, identity = records_of(journal, config, node_id)
        everything = [*chain.from_iterable(records.values())]
        check_possible(config.protocol, journal.folder, node_id, everything)
    boot = secrets.randbits(63)
    return NodeContext(
        node=node_id,
        nodes=tuple(sorted(config.nodes)),
        endpoints=config.nodes,
        version=__version__,
        boot=boot,
        random=Random(boot),
        first_stamp=_first_stamp(),
        settings=replace(config.settings_of(node_id), bakery_pid=os.getpid()),
        journal=records,
        rights=None if keys is None else keys.rights,
        journal_id=identity.id,
        journal_secret=identity.secret,
        founding=founding,
    )


def _log_start(config: Config, context: NodeContext, journal: Journal | None) -> None:
    node_id, count = context.node, len(context.records)
    if journal is None:
        state = "it keeps nothing on disk"
    elif not count:
        state = f"its journal is empty ({journal.folder})"
    else:
        state = (
            f"recovered {count} records from {journal.disk_bytes:,} bytes of journal "
            f"({journal.folder})"
        )
    text = (
        f"{node_id} starts, fencelock {__version__}, at {config.nodes[node_id]}, cluster "
        f'"{config.cluster}", protocol {config.protocol}, nodes {", ".join(config.nodes)}; {state}'
    )
    if config.overrides:
        text += f"; set by the environment: {', '.join(config.overrides)}"
    fields: dict[str, object] = {
        "event": "starts",
        "version": __version__,
        "cluster": config.cluster,
        "protocol": config.protocol,
        "pid": os.getpid(),
    }
    if context.journal_id:
        fields["journal"] = f"{context.journal_id:x}"
    note(node_id, "INFO", text, **fields)


def _first_stamp() -> int:
    """Return the first stamp of the logical clock: the date, in microseconds.

    It is only a floor: dates are never compared. It keeps fences rising when every node of
    a cluster that keeps nothing on disk is restarted at once.
    """
    return min(time.time_ns() // 1_000, STAMP_MAX // 2)


def _open_journal(config: Config, node_id: str) -> Journal | None:
    if not keeps_journal(config.protocol, config.settings, node_id, tuple(config.nodes)):
        return None
    folder = config.folder_of(node_id)
    if folder is None:
        raise ConfigError("data: missing; a folder is needed where the journal is kept")
    if config.protocol != "paxos":
        return Journal.open(folder)
    segment = min(SEGMENT_BYTES_MAX, config.settings.paxos_journal_bytes)
    return Journal.open(folder, segment_bytes_max=segment)


def identity_of(config: Config, node_id: str, *, founded: bool = False) -> dict[str, str]:
    """Return the identity of the journal of ``node_id``, in words.

    The members of a group that is ``founded`` are in its log, or in its seatings.
    """
    identity = {"cluster": config.cluster, "node": node_id, "protocol": config.protocol}
    if config.protocol in VOTING and not founded:
        identity["members"] = ", ".join(sorted(config.nodes))
    return identity


def _is_founded(config: Config, found: Mapping[str, Sequence[bytes]]) -> bool:
    """Return whether the journal belongs to a group that decides its own members."""
    records = map(decode, found.get("bootstrap", ()))
    return config.protocol in VOTING and any(isinstance(one, GroupConfig) for one in records)


def records_of(
    journal: Journal, config: Config, node_id: str
) -> tuple[dict[str, tuple[Message, ...]], JournalId]:
    """Return the records of ``journal`` by role, and its id, if it belongs to this node."""
    found = journal.take_records()
    owner = identity_of(config, node_id, founded=_is_founded(config, found))
    identity = claim(journal, found, owner)
    return {role: tuple(_decoded(of)) for role, of in found.items() if role != STREAM}, identity


def _decoded(records: list[bytes]) -> Iterator[Message]:
    """Decode ``records``, and drop each at once: they may be as large as all values of maps."""
    records.reverse()
    while records:
        yield decode(records.pop())
