"""A node that is in no file joins: it learns the cluster from a running node, and writes a file.

`joined` asks the node at one address, as a client does, for the members and for the configuration
that all nodes share (the role `ConfigSource` replies). It chooses a name and an address, has the
node try that address, and writes ``NAME.toml`` into the data folder, beside the folder of the
journal. From then on that is an ordinary configuration, which later starts read.

Where keys are used, the new node must already have its key, which secures the link for all of
these requests. Its first frame may name the wrong cluster: the refusal comes in a frame that names
the right one.
"""

from __future__ import annotations

import re
import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

import pykka
from msgspec.structs import replace

from fencelock.actors.api.cluster_message import Describe, NodeStatus
from fencelock.actors.api.lock_message import Refused
from fencelock.actors.api.membership_message import (
    NODE_ID,
    PORT_MAX,
    MembersRead,
    NodeReport,
    NodeRole,
    ReadMembers,
    is_endpoint,
)
from fencelock.actors.api.request import Reply, Request
from fencelock.actors.api.role_request import AskRole, ReadConfig, RoleReply, SharedConfig
from fencelock.actors.config_source import ConfigSource, Dial, Dialled
from fencelock.actors.error import ConfigError, UnavailableError
from fencelock.actors.message import ANY_NODE, Event, address_of
from fencelock.actors.proxy.access import NODE
from fencelock.actors.role_message import LinkRefused
from fencelock.cluster.client.settings import DEFAULT_CLUSTER
from fencelock.cluster.client.waiting import UNANSWERED, why_unreached
from fencelock.cluster.guarantee import VOTING
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.keys import KeyFile, node_keys, read_key, write_private
from fencelock.cluster.node.config import Config, is_loopback, load, parse, shared_from, toml_of
from fencelock.transport.codec import decode, encode
from fencelock.transport.frame import Frame, check_cluster
from fencelock.transport.hub import SocketHub

R = TypeVar("R", bound=Reply)

SEED = "seed"
"""The name of the link to the node, whose own is not known before it replies."""

JOIN_FRAMES_MAX = 100

WAIT_S = 5.0
"""Time for all replies of the node (s)."""

LOOK_MS = 50
"""Longest sleep between two looks at the link (ms)."""

RESEND_S = 1.0
"""Interval at which a request is sent again (s): all of them only read."""

ACCEPT_S = 1.0
"""Time that a connection takes here at most after the other node has made it (s)."""

RUNS_MS = 3_000
"""A node that sent something within this time counts as running (ms)."""

PORTS_TRIED = 100
"""Ports from that of the other node on, of which the first free one is taken."""

MADE = "# Made by: fencelock serve --join"

GET_KEY = (
    'where the cluster\'s keys are, run "fencelock keys add {name} --role node", and give the list '
    "to all nodes (copy keys.toml, send SIGHUP); then copy keys.toml, _server.key and {name}.key "
    "into a folder here, and name it: --key FOLDER/{name}.key"
)


def give_config(node: str, text: str, dispatcher: Dispatcher) -> None:
    """Let ``node`` answer nodes that join, with the shared configuration in ``text``."""
    role = address_of(node, "config")

    def dial(event: Event) -> None:
        assert isinstance(event, Dial)
        Thread(target=tried, args=(event,), name=f"fencelock-{node}-dial", daemon=True).start()

    def tried(event: Dial) -> None:
        why = why_unreached(event.endpoint, reached="")
        with suppress(pykka.ActorDeadError):
            dispatcher.ref(role).tell(Dialled(number=event.number, unreached=why))

    dispatcher.listen("dialler", dial)
    dispatcher.add(ConfigSource(role, dispatcher, text=text))


class Joining(NamedTuple):
    """An operator's options for a node that joins; None for what it shall find out."""

    seed: str
    """The address of a node of the cluster."""
    data: Path
    """The folder for its file and its journal."""
    node: str | None = None
    address: str | None = None
    listen: str | None = None
    cluster: str | None = None
    key: Path | None = None


def joined(joining: Joining) -> tuple[Config, str]:
    """Return the configuration and the name of a node that joins, or has joined before.

    An error leaves nothing written.
    """
    if joining.node is not None and NODE_ID.fullmatch(joining.node) is None:
        name = joining.node[:40]
        raise ConfigError(f"--id is {name!a}: 1 to 32 of a-z, 0-9 and - are wanted, like n4")
    known = _known(joining)
    if known is not None:
        return _again(joining, known)
    if not is_endpoint(joining.seed):
        raise ConfigError(
            f"--join is {joining.seed[:80]!a}: the address of a node of the cluster is wanted, "
            "like tcp://10.0.0.1:4040"
        )
    key = None if joining.key is None else _key(joining, joining.key)
    with _Seed(joining, key) as seed:
        status = seed.ask(Describe(), NodeStatus)
        if status.protocol not in VOTING:
            raise ConfigError(
                f"cluster {seed.cluster!r} runs {status.protocol}, whose nodes are those of its "
                "configuration: add this node there, and restart all nodes with that file"
            )
        try:
            others = seed.ask(ReadMembers(), MembersRead).nodes
        except UnavailableError:
            raise UnavailableError(
                f"{joining.seed} is {status.node}, which does not know its members: {status.detail}"
            ) from None
        node = key.name if key else joining.node or _free_name(others)
        address, listener = _bound(joining, others)
        with listener:
            _check_free(node, address, others)
            read = AskRole(role="config", body=encode(ReadConfig(endpoint=address)), wait_ms=5_000)
            shared = decode(seed.ask(read, RoleReply).body)
            assert isinstance(shared, SharedConfig)
            unreached = shared.unreached or _why_not_here(listener)
    if unreached:
        raise ConfigError(
            f"{status.node} cannot reach this node at {address}: {unreached}. Give an "
            "address at which the members reach it: --address tcp://HOST:PORT (and, in a container "
            "or behind NAT, --listen tcp://0.0.0.0:PORT)"
        )
    nodes = {
        one.node: {"address": one.endpoint or joining.seed}
        for one in others
        if one.role is not NodeRole.OBSERVER and (one.endpoint or one.node == status.node)
    }
    own = {"address": address} | ({"listen": joining.listen} if joining.listen else {})
    try:
        document: dict[str, Any] = {"data": ".", **shared_from(shared.text)}
    except ConfigError as error:
        raise ConfigError(f"{status.node} sent a wrong configuration: {error}") from error
    document["nodes"] = nodes | {node: own}
    if key is not None and joining.key is not None:
        document["security"] = {"keys": str(joining.key.resolve().parent)}
    text = f"{MADE} {joining.seed}\n\n{toml_of(document)}"
    parse(text, joining.data)  # Refuse now what loading would refuse.
    path = joining.data / f"{node}.toml"
    try:
        joining.data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--data: {path} cannot be written: {error.strerror}") from error
    write_private(path, text, replace=True)
    return load(path), node


def _known(joining: Joining) -> Path | None:
    name = joining.node or (joining.key.stem if joining.key else "")
    if name:
        path = joining.data / f"{name}.toml"
        return path if path.exists() else None
    files = filter(Path.is_file, sorted(joining.data.glob("*.toml")))
    found = [path for path in files if path.read_bytes().startswith(MADE.encode())]
    if len(found) > 1:
        names = ", ".join(path.stem for path in found)
        raise ConfigError(f"--id: missing, and {joining.data} has the files of {names}: name one")
    return found[0] if found else None


def _again(joining: Joining, path: Path) -> tuple[Config, str]:
    """Return the configuration in ``path``, unless other options are given than at first."""
    config, node = load(path), path.stem
    if node not in config.nodes:
        raise ConfigError(f"{path} has no node {node}: name another folder with --data")
    for option, given, used in (
        ("--cluster", joining.cluster, config.cluster),
        ("--address", joining.address, config.nodes[node]),
        ("--listen", joining.listen, config.listen_of(node)),
    ):
        if given is not None and given != used:
            raise ConfigError(
                f"{option} is {given}, but {node} has joined with {used}: leave the option out. "
                f"For another cluster, or address, use another --id ({path} is the node's file)"
            )
    return config, node


def _key(joining: Joining, path: Path) -> KeyFile:
    """Return the key of the node; the files beside it must be those of a node, too."""
    key = read_key(path)
    wanted = joining.node or key.name
    if key.role != NODE:
        advice = GET_KEY.format(name=joining.node or "NAME")
        raise ConfigError(f"{path} is the key of a {key.role}, and no node's: {advice}")
    if not key.name == wanted == path.stem:
        raise ConfigError(
            f"{path} is the key of {key.name}: the file must be {key.name}.key, and --id "
            f"{key.name} or left out"
        )
    try:
        node_keys(path.parent, key.name)
    except ConfigError as error:
        raise ConfigError(
            f"{error}. keys.toml and _server.key are the same on every node: copy them beside "
            f"{path} from one that runs"
        ) from error
    return key


def _free_name(others: tuple[NodeReport, ...]) -> str:
    host = re.sub("[^a-z0-9]+", "-", socket.gethostname().partition(".")[0].lower()).strip("-")
    name = host[:28] if NODE_ID.fullmatch(host[:28]) else "node"
    taken = {one.node for one in others}
    numbered = (f"{name}-{number}" for number in range(2, len(taken) + 3))
    return name if name not in taken else next(one for one in numbered if one not in taken)


def _check_free(node: str, address: str, others: tuple[NodeReport, ...]) -> None:
    """Refuse a name or an address that another node has.

    A node that lost its folder may come back under its name.
    """
    for one in others:
        runs = one.last_message_ms is not None and one.last_message_ms < RUNS_MS
        if one.node == node and runs:
            raise ConfigError(
                f"--id: {node} is the name of a node of this cluster that runs, at "
                f"{one.endpoint or 'an unknown address'}: choose another name"
            )
        if one.node == node and one.role is not NodeRole.OBSERVER and one.endpoint != address:
            raise ConfigError(
                f"--id: {node} is a member at {one.endpoint or 'an unknown address'}: give that "
                "with --address if it lost its folder; or choose another name, and then run: "
                f"fencelock replace {node} NAME"
            )
        if one.node != node and one.endpoint == address:
            raise ConfigError(f"--address: {address} is the address of {one.node}: choose another")
    remote = [one.node for one in others if one.endpoint and not is_loopback(one.endpoint)]
    if is_loopback(address) and remote:
        raise ConfigError(
            f"--address: only this machine reaches {address}, and {remote[0]} is on another one: "
            "give an address that all members reach"
        )


def _bound(joining: Joining, others: tuple[NodeReport, ...]) -> tuple[str, socket.socket]:
    """Return the address of this node, and a socket that listens there while it is tried."""
    if joining.address is not None and not is_endpoint(joining.address):
        raise ConfigError(
            f"--address is {joining.address[:80]!a}: one that the members can reach is wanted, "
            "like tcp://10.0.0.4:4040"
        )
    host, port = _parted(joining.seed)
    at = joining.listen or joining.address
    if at is not None:
        bind, own_port = _parted(at)
        address = joining.address or f"tcp://{_local_host(host, port)}:{own_port}"
        try:
            return address, _listening(bind, own_port)
        except OSError as error:
            option = "--listen" if joining.listen else "--address"
            raise ConfigError(
                f"{option}: cannot listen on {at}: {error.strerror}. In a container or behind NAT, "
                "keep the address that others use, and add --listen tcp://0.0.0.0:PORT"
            ) from error
    bind = _local_host(host, port)
    taken = {one.endpoint for one in others}
    for number in range(port, min(port + PORTS_TRIED, PORT_MAX + 1)):
        with suppress(OSError):
            if (address := f"tcp://{bind}:{number}") not in taken:
                return address, _listening(bind.strip("[]"), number)
    raise ConfigError(f"no port of {bind} from {port} on is free: give one with --address")


def _why_not_here(listener: socket.socket) -> str:
    """Return "" if a connection has come to ``listener``, else what is wrong with its address."""
    listener.settimeout(ACCEPT_S)
    try:
        listener.accept()[0].close()
    except OSError:
        return "it leads to another program"
    return ""


def _parted(endpoint: str) -> tuple[str, int]:
    try:
        host, port = urlsplit(endpoint).hostname, urlsplit(endpoint).port
    except ValueError:
        host = port = None
    if not port:
        raise ConfigError(f"{endpoint[:80]!a} is no address like tcp://0.0.0.0:4040")
    return "" if host in ("*", None) else host, port


def _listening(host: str, port: int) -> socket.socket:
    return socket.create_server(
        (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
    )


def _local_host(host: str, port: int) -> str:
    """Return the address of this machine from which it reaches ``host``."""
    with socket.create_connection((host, port), WAIT_S) as link:
        found = str(link.getsockname()[0])
    return f"[{found}]" if ":" in found else found


class _Seed:
    """The node at the given address, asked as by a client.

    Attributes:
        cluster: its cluster, as soon as it has answered.

    """

    def __init__(self, joining: Joining, key: KeyFile | None) -> None:
        self.cluster = joining.cluster or DEFAULT_CLUSTER
        try:
            check_cluster(self.cluster)
        except ValueError as error:
            raise ConfigError(f"--cluster: {error}") from None
        self._joining = joining
        self._key = key
        self._name = key.name if key else f"join-{secrets.token_hex(8)}"
        self._number = 0
        self._hub = self._connected()

    def _connected(self) -> SocketHub:
        return SocketHub(
            node=self._name,
            boot=secrets.randbits(63),
            cluster=self.cluster,
            listen=None,
            peers={SEED: self._joining.seed},
            client=True,
            key=None if self._key is None else self._key.link,
            count=lambda name, times: None,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._hub.close()

    def ask(self, request: Request, kind: type[R]) -> R:
        self._number += 1
        numbered: Any = request
        numbered = replace(numbered, session=self._name, request=self._number)
        to, sender = address_of(ANY_NODE, "proxy"), address_of(self._name, "join")
        ends, due = time.monotonic() + WAIT_S, 0.0
        while (now := time.monotonic()) < ends:
            if now >= due:
                self._hub.send(SEED, Frame(self.cluster, 0, 0, ((to, sender, numbered),)))
                due = now + RESEND_S
            self._hub.poll(LOOK_MS)
            for event in self._hub.events():
                if isinstance(event, LinkRefused):
                    self._on_refused(event)
                due = 0.0
            for _, frame in self._hub.receive_members(JOIN_FRAMES_MAX):
                for _, _, message in frame.envelopes:
                    if getattr(message, "request", None) != self._number:
                        continue
                    if isinstance(message, Refused):
                        raise message.error()
                    if isinstance(message, kind):
                        return message
        why = why_unreached(self._joining.seed)
        if why == UNANSWERED and self._key is not None:
            why += ": is the key one of this cluster?"
        raise UnavailableError(
            f"no node answered at {self._joining.seed} within {WAIT_S:g} s: {why}. Name the "
            "address of a node that runs: --join tcp://HOST:PORT"
        )

    def _on_refused(self, event: LinkRefused) -> None:
        """Take the name of the node's cluster, unless another was asked for; else raise."""
        seed, wanted = self._joining.seed, self._joining.cluster
        text = f"the node at {seed} refuses this one: {event.detail.removeprefix(f'{seed}: ')}"
        if event.by_key:
            name = self._joining.node or "NAME" if self._key is None else self._name
            keyless = "" if self._key is None else ". If its cluster uses no keys, leave --key out"
            raise ConfigError(f"{text}. {GET_KEY.format(name=name)}{keyless}")
        if event.cluster in ("", self.cluster):
            raise ConfigError(text)
        if wanted is not None:
            raise ConfigError(
                f"--cluster is {wanted}, but the node at {seed} belongs to the cluster "
                f"{event.cluster}: name that, or the address of another node"
            )
        self.cluster = event.cluster
        self._hub.close()
        self._hub = self._connected()
