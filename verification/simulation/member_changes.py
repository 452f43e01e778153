"""Changes of the members of a simulated group, asked for until they are done.

After such a change, founders may lose their disks, and an operator may act by mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from fencelock.actors.api.membership_message import ChangeMembers, MemberAction
from fencelock.actors.message import NS_PER_MS, Address, address_of
from fencelock.actors.proxy.event import Relay
from fencelock.verification.simulation.network import between
from fencelock.verification.simulation.world import World, about

ASK_MS = 50
"""Interval at which a change is asked for again (ms)."""

GIVEN_UP_MS = 2_500
"""Time after which another change is asked for instead (ms)."""

MEMBERS_MAX = 5
DEAD_SHARE = 0.5
"""Share of removed and replaced members that are dead."""

LOST_SHARE = 0.15
"""Share of choices in which a member loses its disk; the next change replaces it."""

RENEWED_SHARE = 0.5
"""Share of these members that are replaced by themselves, with their new journal."""

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
    """Asks any node for one change after another: at random until the faults end, then no more."""

    def __init__(
        self,
        world: World,
        decided: Decided,
        nodes: tuple[str, ...],
        every_ms: int,
        extra: tuple[MemberAction, ...] = (),
    ) -> None:
        self.world = world
        self.decided = decided
        self.extra = extra
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
        if self.every_ms:
            self._after(self.every_ms, self._next)
            self._after(ASK_MS, self._ask)

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.decided.voters)

    def pending(self) -> list[str]:
        return [] if self.done() else [str(self.wanted)]

    def _after(self, mean_ms: int, action: Callable[[], None]) -> None:
        self.world.after(about(self.random, mean_ms), action)

    def _next(self) -> None:
        if self.world.calm:
            return
        if self.members and (self.done() or self.world.time >= self.until):
            if self._is_replaced():
                self.lost = ""
                self.given_up = self.given_up or not self.done()
                self._choose()
            elif self.done():
                self._replace_lost()
        self._after(self.every_ms, self._next)

    def _is_replaced(self) -> bool:
        """Return whether there is no member that lost its disk."""
        journal = self.world.nodes[self.lost].disk.journal_id if self.lost else 0
        voters = self.decided.voters
        return all(name != self.lost or voter == journal for name, voter in voters)

    def _choose(self) -> None:
        """Draw a change that is possible, as far as the members decided last; or lose a disk."""
        members, random = self.members, self.random
        victim = random.choice(members)
        if random.random() < LOST_SHARE and self._may_be_lost(victim):
            self._lose_disk(victim)
            return
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
        self._want(action, node, random.choice(spares) if action is MemberAction.REPLACE else "")

    def _may_be_lost(self, node: str) -> bool:
        """Return whether the group survives the loss of the disk of ``node``."""
        enough = len(self.members) >= 3 + self.given_up
        has_one = self.world.nodes[node].disk.journal_id != 0
        return self.decided.may_lose_disk and enough and has_one

    def _replace_lost(self) -> None:
        spares = [node for node in self.nodes if node not in self.members]
        renewed = not spares or self.random.random() < RENEWED_SHARE
        self._want(MemberAction.REPLACE, self.lost, self.lost if renewed else spares[0])

    def _want(self, action: MemberAction, node: str, replacement: str) -> None:
        """Ask for a change from now on, instead of the last."""
        random = self.random
        self.until = self.world.time + GIVEN_UP_MS * NS_PER_MS
        if action in (MemberAction.REMOVE, MemberAction.REPLACE) and random.random() < DEAD_SHARE:
            self.world.lose(node, self._down())
        self.world.fault_counts[f"asked to {action.name.lower()}"] += 1
        self.world.mishap("-", f"the members shall change: {action.name} {node} {replacement}")
        self.wanted = ChangeMembers(action=action, node=node, replacement=replacement)
        self.done = self._goal(action, node, replacement)

    def _goal(self, action: MemberAction, node: str, new: str) -> Callable[[], bool]:
        """Return whether the change is decided; for a transfer, nobody knows that."""
        disk = self.world.nodes[node].disk
        match action:
            case MemberAction.TRANSFER | MemberAction.FOUND:
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
        self.lost, self.wanted, self.done = node, None, lambda: True
        self.world.crash(node)
        self.world.nodes[node].disk.lose()
        self.world.disk_replaced(node)
        self.world.fault_counts["lost a disk"] += 1
        self.world.mishap(node, "loses its disk")
        self.world.after(self._down(), self.world.power_on, node)

    def _down(self) -> int:
        """Return for how long the next dead member is dead (ns)."""
        return self.random.randrange(DEAD_MS * NS_PER_MS)

    def _ask(self) -> None:
        """Ask some node for the change, as the proxy of the node does for an operator."""
        if self.wanted is not None:
            name = self.random.choice(self.nodes)
            node = self.world.nodes[name]
            wanted = self.wanted
            if wanted.action is MemberAction.REMOVE and self.world.nodes[wanted.node].up:
                wanted = replace(wanted, action=MemberAction.LEAVE)  # It runs: it is not removed.
            request = Relay(client=Address("operator/o"), request=wanted)
            if node.up and not node.paused and address_of(name, "members") in node.scheduler.roles:
                node.tell(address_of(name, "members"), request)
        self._after(ASK_MS, self._ask)


LOOK_MS = 50
"""Interval at which the members are looked at, until one joined that is no founder (ms)."""

AFTER_MS = 1_500
"""Time in which founders may found a second group after the faults have ended (ms)."""

LOSE_FOUNDERS_SHARE = 0.2
"""Share of runs with changes of members in which founders lose their disks."""

DOWN_MS = 300
CUT_MS = 3_000


class FounderLoss:
    """Takes the disks of founders once a later member belongs to the group.

    In half of the runs all founders lose their disks, so that nothing that they have shows that
    there is a group; in the others at least one keeps its disk, and an operator wants to found a
    group on all of them. In half, founders are cut off from all other members meanwhile. The group
    may lose its majority for good, so a run with this fault judges safety only.
    """

    def __init__(self, world: World, decided: Decided, founders: tuple[str, ...]) -> None:
        self.world = world
        self.decided = decided
        self.founders = founders
        self._random = world.streams.fork("founders")
        self._left = set(founders)
        """The founders that never lost their disks, which show that there is a group."""
        self._began = False
        world.disk_watchers.append(self._disk_replaced)

    def begin(self) -> None:
        self.world.after(LOOK_MS * NS_PER_MS, self._look)

    def _look(self) -> None:
        if self.world.calm:
            return
        members = {name for name, _ in self.decided.voters}
        if members <= set(self.founders) or self._random.random() < 1 / 2:
            self.begin()
            return
        cut, whole = self._random.random() < 1 / 2, self._random.random() < 1 / 2
        most = len(self.founders) - 1
        lost = self.founders
        if not whole:
            lost = tuple(
                self._random.sample(self.founders, self._random.randint(min(1, most), most))
            )
        if cut:
            self._cut()
        kind = "all founders" if whole else "some founders"
        self.world.fault_counts[f"{kind} lost their disks{', cut off' if cut else ''}"] += 1
        self.world.mishap("-", f"{', '.join(lost)} lose their disks")
        for name in self.founders:
            self.world.crash(name)
            if name in lost:
                self.world.nodes[name].disk.lose()
                self.world.disk_replaced(name)
        self._began = True
        self.world.may_found = bool(self._left)
        for name in self.founders:
            down = self._random.randrange(DOWN_MS * NS_PER_MS)
            self.world.after(down, self.world.power_on, name)

    def _disk_replaced(self, node: str) -> None:
        """Stop the operator from founding once every founder has lost its disk, by any fault."""
        self._left.discard(node)
        if self._began:
            self.world.may_found = bool(self._left)

    def _cut(self) -> None:
        ends = self.world.time + CUT_MS * NS_PER_MS
        others = [name for name in self.world.members if name not in self.founders]
        self.world.cut(between(self.founders, others), ends, holds=False)
