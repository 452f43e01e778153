"""The deaths of a leader, and nodes whose links can be cut silently."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Self

from fencelock.actors.timing import ROUND_TRIP_MS
from fencelock.verification.bench.members import NodeProcesses, configuration
from fencelock.verification.bench.relays import RelayedLink, Relays

CLIENTS = "clients"
"""The source of all links that clients use."""

POWER_S = 0.05
"""Time from cutting the links to killing the process, so that nothing reports its end (s)."""


class LeaderDeath(StrEnum):
    """A way in which the leader fails."""

    KILL = "kill"
    """SIGKILL: the system closes its connections, and all peers notice."""
    SIGSTOP = "sigstop"
    """The process stops, and its connections stay open."""
    POWER_LOSS = "power-loss"
    """All its links are cut silently, then it is killed."""
    CUT_OFF = "cut-off"
    """All its links are cut silently, those to clients as well; it runs on."""
    CUT_OFF_FROM_FOLLOWERS = "cut-off-from-followers"
    """Its links to the other nodes are cut silently; clients still reach it."""


class RelayedMembers(NodeProcesses):
    """Nodes that reach each other, and that clients reach, through relays that can fall silent.

    Args:
        folder: for configurations, journals and logs.
        protocol: the protocol of the nodes.
        nodes: their number, 1 or more: n1, n2 and so on.
        one_way_ms: time that each message takes over any of these links (ms). The nodes are
            configured for such round trips.
        redis: whether each node serves clients of Redis, which reach it without a relay.

    """

    def __init__(
        self,
        folder: Path,
        protocol: str,
        nodes: int,
        *,
        one_way_ms: int = 0,
        redis: bool = False,
    ) -> None:
        super().__init__(folder, protocol, nodes, durable=True, redis=redis)
        ports = {node: int(address.rpartition(":")[2]) for node, address in self.addresses.items()}
        self.links = tuple(
            RelayedLink(source, target)
            for source in (*self.names, CLIENTS)
            for target in self.names
            if source != target
        )
        self.relays = Relays(
            {link: ports[link.target] for link in self.links},
            dict.fromkeys(self.links, one_way_ms),
        )
        for node in self.names:
            seen = {
                other: self.addresses[node] if other == node else self._relayed(node, other)
                for other in self.names
            }
            text = configuration(
                self.cluster,
                protocol,
                seen,
                durable=True,
                round_trip_ms=max(ROUND_TRIP_MS, 2 * one_way_ms),
                doors=self.doors,
            )
            self.configuration_of(node).write_text(text, encoding="utf-8")

    @property
    def connect(self) -> str:
        """The relays of all nodes, as an address list for clients."""
        return ",".join(self._relayed(CLIENTS, node) for node in self.names)

    def __enter__(self) -> Self:
        self.relays.__enter__()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
        super().__exit__(*error)
        self.relays.__exit__(*error)

    def configuration_of(self, node: str) -> Path:
        return self.folder / f"{node}.toml"

    def strike(self, node: str, death: LeaderDeath) -> tuple[float, Callable[[], None]]:
        """Let ``node`` fail; return the monotonic time of it (s), and a function that undoes it."""
        match death:
            case LeaderDeath.KILL:
                return self.kill(node), lambda: self.start(node)
            case LeaderDeath.SIGSTOP:
                process = self.processes[node]
                at = time.monotonic()
                os.kill(process.pid, signal.SIGSTOP)
                return at, lambda: process.send_signal(signal.SIGCONT)
            case LeaderDeath.POWER_LOSS:
                links = self.links_of(node, clients=True)
                at = self._cut(links)
                time.sleep(POWER_S)
                self.kill(node)
                return at, lambda: self._restart(node, links)
            case LeaderDeath.CUT_OFF | LeaderDeath.CUT_OFF_FROM_FOLLOWERS:
                links = self.links_of(node, clients=death is LeaderDeath.CUT_OFF)
                return self._cut(links), lambda: self.relays.heal(links)

    def _cut(self, links: tuple[RelayedLink, ...]) -> float:
        at = time.monotonic()
        self.relays.silence(links)
        return at

    def _restart(self, node: str, links: tuple[RelayedLink, ...]) -> None:
        self.relays.drop(links)
        self.relays.heal(links)
        self.start(node)

    def links_of(self, node: str, *, clients: bool) -> tuple[RelayedLink, ...]:
        return tuple(
            link for link in self.links if node in link and (clients or link.source != CLIENTS)
        )

    def _relayed(self, source: str, target: str) -> str:
        return f"tcp://127.0.0.1:{self.relays.ports[RelayedLink(source, target)]}"
