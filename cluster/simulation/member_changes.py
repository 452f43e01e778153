"""Changes of the members of a simulated group, asked for until they are done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fencelock.actors.api.membership_message import ChangeMembers, MemberAction
from fencelock.actors.message import NS_PER_MS, Address, address_of
from fencelock.actors.proxy.message import Relay
from fencelock.cluster.simulation.world import World

ASK_MS = 50
"""Interval at which a change is asked for again (ms)."""

GIVEN_UP_MS = 2_500
"""Time after which another change is asked for instead (ms)."""

MEMBERS_MAX = 5
DEAD_SHARE = 0.5
"""Share of removed and replaced members that are dead."""

LOST_SHARE = 0.4
"""Share of replacements for which a member loses its disk."""

DEAD_MS = 700
"""Longest time for which a member is dead that is to be removed or replaced (ms)."""


class Decided(Protocol):
    """The members, as a judge sees that they are decided."""

    @property
    def voters(self) -> tuple[tuple[str, int], ...]:
        """The names and journals of those that are decided last; empty before the founding."""
        ...

    @property
    def may_lose_disk(self) -> bool:
        """Whether a member may lose its disk now: no change is in flight, as far as is known."""
        ...


class MemberChanges:
    """Asks any node for one change after another: at random until the faults end, then no more.

    Args:
        world: the world of the nodes.
        decided: the members, as they are decided.
        founders: the nodes that found the group. One that did so alone must keep its disk: without
            it, it would found another group.
        nodes: all nodes that can be members.
        every_ms: mean pause between two changes (ms).
        extra: further actions to draw from.

    """

    def __init__(
        self,
        world: World,
        decided: Decided,
        founders: tuple[str, ...],
        nodes: tuple[str, ...],
        every_ms: int,
        extra: tuple[MemberAction, ...] = (),
    ) -> None:
        self.world = world
        self.decided = decided
        self.extra = extra
        self.alone = founders[0] if len(founders) == 1 else ""
        self.nodes = nodes
        self.every_ms = every_ms
        self.random = world.streams.fork("members")
        self.wanted: ChangeMembers | None = None
        self.done: Callable[[], bool] = lambda: True
        self.until = 0
        self.lost = ""
        """The member whose disk was lost, until it is replaced."""
        self.given_up = False
        """Whether a change was not done in time. It may still be in flight, so that the loss of a
        disk could leave less than a majority of three members."""

    def begin(self) -> None:
        """Ask for the first change after a pause."""
        if self.every_ms:
            self._after(self.every_ms, self._next)
            self._after(ASK_MS, self._ask)

    @property
    def members(self) -> tuple[str, ...]:
        """The members that are decided last."""
        return tuple(name for name, _ in self.decided.voters)

    def pending(self) -> list[str]:
        """Return the change that is not done, if there is one."""
        return [] if self.done() else [str(self.wanted)]

    def _after(self, mean_ms: int, action: Callable[[], None]) -> None:
        self.world.after(1 + int(self.random.expovariate(1.0) * mean_ms * NS_PER_MS), action)

    def _next(self) -> None:
        if self.world.calm:
            return
        if self.members and (self.done() or self.world.time >= self.until) and not self.lost:
            self.given_up = self.given_up or not self.done()
            self._choose()
            self.until = self.world.time + GIVEN_UP_MS * NS_PER_MS
        if self.lost and self.done():
            self.lost = ""
        self._after(self.every_ms, self._next)

    def _choose(self) -> None:
        """Draw a change that is possible, as far as the members decided last."""
        members, random = self.members, self.random
        spares = [node for node in self.nodes if node not in members]
        actions = [*self.extra]
        if spares and len(members) < MEMBERS_MAX:
            actions += [MemberAction.JOIN] * 3
        if len(members) > 1:
            actions += [MemberAction.LEAVE, MemberAction.REMOVE]
        if spares:
            actions += [MemberAction.REPLACE] * 2
        action = random.choice(actions)
        node = random.choice(spares if action is MemberAction.JOIN else members)
        replacement = ""
        if action is MemberAction.REPLACE:
            replacement = random.choice(spares)
            lost = random.random() < LOST_SHARE and node != self.alone
            if lost and self.decided.may_lose_disk and len(members) >= 3 + self.given_up:
                replacement = node
                self._lose_disk(node)
        if action in (MemberAction.REMOVE, MemberAction.REPLACE) and random.random() < DEAD_SHARE:
            self._kill(node)
        self.world.faults[f"asked to {action.name.lower()}"] += 1
        self.world.mishap("-", f"the members shall change: {action.name} {node} {replacement}")
        self.wanted = ChangeMembers(action=action, node=node, replacement=replacement)
        self.done = self._goal(action, node, replacement)

    def _goal(self, action: MemberAction, node: str, new: str) -> Callable[[], bool]:
        """Return whether the change is decided; nobody knows that of a transfer."""
        disk = self.world.nodes[node].disk
        match action:
            case MemberAction.TRANSFER:
                return lambda: True
            case MemberAction.JOIN:
                return lambda: node in self.members
            case MemberAction.LEAVE | MemberAction.REMOVE:
                return lambda: node not in self.members or self.members == (node,)
            case MemberAction.REPLACE if node == new:
                return lambda: (node, disk.journal_id) in self.decided.voters
            case MemberAction.REPLACE:
                return lambda: new in self.members and node not in self.members

    def _lose_disk(self, node: str) -> None:
        if not self.decided.voters or self.world.nodes[node].disk.journal_id == 0:
            return
        self.lost = node
        self.world.crash(node)
        self.world.nodes[node].disk.lose()
        self.world.faults["lost a disk"] += 1
        self.world.mishap(node, "loses its disk")
        self._power_on(node)

    def _kill(self, node: str) -> None:
        self.world.crash(node)
        self._power_on(node)

    def _power_on(self, node: str) -> None:
        down = self.random.randrange(DEAD_MS * NS_PER_MS)
        self.world.after(down, self.world.power_on, node)

    def _ask(self) -> None:
        """Ask some node for the change, as the proxy of the node does for an operator."""
        if self.wanted is not None:
            name = self.random.choice(self.nodes)
            node = self.world.nodes[name]
            request = Relay(client=Address("operator/o"), request=self.wanted)
            if node.up and not node.paused and address_of(name, "members") in node.scheduler.roles:
                node.tell(address_of(name, "members"), request)
        self._after(ASK_MS, self._ask)
