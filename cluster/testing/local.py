"""A cluster of one node in this process and in memory."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Self

from fencelock.actors.error import ConfigError
from fencelock.actors.role import Role
from fencelock.cluster.client.client import Client, Connecting, greeted
from fencelock.cluster.client.settings import DEFAULT_CLUSTER, Settings, Target
from fencelock.cluster.host.role_ref import RoleRef
from fencelock.cluster.node.config import Config
from fencelock.cluster.node.node import Node
from fencelock.cluster.node.topology import ProtocolSettings
from fencelock.cluster.testing.ports import free_ports

STARTS = 5
"""Attempts to start on a free port, which another process may take before it is bound."""


class LocalCluster:
    """One node of `paxos`, in memory. From `local`; stop it with `stop` or ``with``.

    It is a real node: clients connect to it over loopback, and its locks behave as those of a
    cluster. What it held is gone when it stops.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._clients: list[Client] = []

    @property
    def addresses(self) -> str:
        """The address for `fencelock.connect`."""
        return self._node.address

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which `fencelock.connect` finds the cluster without arguments."""
        return {
            "FENCELOCK_CONNECT": self.addresses,
            "FENCELOCK_CLUSTER": DEFAULT_CLUSTER,
            "FENCELOCK_KEY": "",
        }

    def connect(self, *, ttl: float = 15.0, label: str | None = None) -> Client:
        """Return a new client; `stop` closes it. See `fencelock.connect`."""
        client = Client(greeted(self._settings(ttl, label)))
        self._clients.append(client)
        return client

    def connect_aio(self, *, ttl: float = 15.0, label: str | None = None) -> Connecting:
        """Return a connection to be awaited or entered; see `fencelock.aio.connect`."""
        return Connecting(self._settings(ttl, label))

    def _settings(self, ttl: float, label: str | None) -> Settings:
        """Return the arguments of a client; it needs no key, also if the environment names one."""
        return Settings(Target(self.addresses, DEFAULT_CLUSTER, ""), ttl=ttl, label=label)

    def add_role(self, role: type[Role[Any]], /, name: str = "", **arguments: object) -> RoleRef:
        """Run a role of your own as ``local/<name>``; see `Node.add_role`."""
        return self._node.add_role(role, name, **arguments)

    def stop(self) -> None:
        """Close the clients of `connect` and stop the node."""
        for client in self._clients:
            client.close()
        self._node.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<LocalCluster at {self.addresses}>"


def local() -> LocalCluster:
    """Start a cluster of one node in this process and in memory, on a free port of loopback."""
    settings = ProtocolSettings(paxos_memory=True)
    for attempt in range(1, STARTS + 1):
        nodes = {"local": f"tcp://127.0.0.1:{free_ports(1)[0]}"}
        config = Config(cluster=DEFAULT_CLUSTER, protocol="paxos", nodes=nodes, settings=settings)
        with suppress(*(() if attempt == STARTS else (ConfigError,))):
            return LocalCluster(Node.start(config, "local", found=True))
    raise AssertionError("the last attempt returns or raises")
