"""Link events of nodes: up when both ends live; down when one dies, if that is noticed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from fencelock.actors.message import NS_PER_MS
from fencelock.actors.role_message import LinkDown, LinkUp
from fencelock.verification.simulation.node import SimulatedNode

NOTICED_SHARE = 0.7
"""Share of ended links that the other side notices; a cut cable sends nothing."""

HEARD_MS_MAX = 50
"""Longest time until a node learns of a change of a link (ms)."""


class SimulatedLinks:
    """Sends roles `LinkUp` and `LinkDown`. Members and clients are linked with members."""

    def __init__(
        self, nodes: dict[str, SimulatedNode], random: Random, after: Callable[..., None]
    ) -> None:
        self._nodes = nodes
        self._random = random
        self._after = after
        self._down: dict[tuple[str, str], None] = {}
        """Node and peer of each link that the node knows to be down, in the order of the events."""

    def begin(self, node: SimulatedNode) -> None:
        """Notify a node that was switched on of the others, and the others of it."""
        for other in self._nodes.values():
            if other is node or not other.up:
                continue
            if other.member:
                self._later(self._tell_up, node, other)
            if node.member:
                self._later(self._tell_up, other, node)

    def end(self, node: SimulatedNode) -> None:
        """Notify the nodes that notice the death of ``node``."""
        for other in self._nodes.values():
            if other is not node and other.up and node.member:
                self._notice(other, node)

    def cut(self, links: list[tuple[str, str]]) -> None:
        """Notify the nodes that notice that nothing comes through ``links`` any more."""
        for source, to in links:
            if self._nodes[source].member:
                self._notice(self._nodes[to], self._nodes[source])

    def mend(self) -> None:
        """Notify the nodes that know of a link that is down that it is up again."""
        for name, peer in self._down:
            if self._nodes[peer].up:
                self._later(self._tell_up, self._nodes[name], self._nodes[peer])

    def _notice(self, node: SimulatedNode, peer: SimulatedNode) -> None:
        if self._random.random() < NOTICED_SHARE:
            self._later(self._tell_down, node, peer)

    def _later(self, tell: Callable[..., None], node: SimulatedNode, peer: SimulatedNode) -> None:
        wait = self._random.randrange(HEARD_MS_MAX * NS_PER_MS)
        self._after(wait, tell, node, node.boot, peer, peer.boot)

    def _tell_up(self, node: SimulatedNode, boot: int, peer: SimulatedNode, peer_boot: int) -> None:
        if node.up and peer.up and (node.boot, peer.boot) == (boot, peer_boot):
            self._down.pop((node.name, peer.name), None)
            node.notice(LinkUp(node=peer.name))

    def _tell_down(
        self, node: SimulatedNode, boot: int, peer: SimulatedNode, peer_boot: int
    ) -> None:
        if node.up and (node.boot, peer.boot) == (boot, peer_boot):
            self._down[node.name, peer.name] = None
            node.notice(LinkDown(node=peer.name))
