"""A leader's knowledge of the other nodes, as far as changes of the members depend on it."""

from __future__ import annotations

from collections.abc import Sequence

from fencelock.actors.paxos.member_event import NodeFacts
from fencelock.actors.paxos.message import UNWILLING, Locate
from fencelock.actors.timing import TIMING

HEARD_MS = 3 * TIMING.lease_ms
"""A node that was silent for this long does not count as reachable (ms)."""


CLOSE_SLOTS = 1_000
"""Slots that a node may lack when it is chosen (about a second of load). It becomes a member once
it lacks no more than for a join."""


class Facts:
    """The leader's knowledge of other nodes, as far as changes depend on it.

    Args:
        node: the leader.
        nodes: the facts of other nodes.

    """

    def __init__(self, node: str, nodes: tuple[NodeFacts, ...]) -> None:
        self.node = node
        self.members = {one.node: one for one in nodes if one.learner is None}
        self.learners = {one.node: one for one in nodes if one.learner is not None}

    def votes(self, member: str) -> bool:
        """Return whether ``member`` voted recently, under its registered journal."""
        facts = self.members.get(member)
        return member == self.node or (facts is not None and facts.last_message_ms <= HEARD_MS)

    def silent_ms(self, member: str, led_ms: int) -> int:
        """Return the time for which ``member`` has not answered a leader of ``led_ms`` (ms)."""
        facts = self.members.get(member)
        return led_ms if facts is None else min(led_ms, facts.last_message_ms)

    def heard_ms(self, node: str, led_ms: int) -> int:
        """Return the time for which ``node`` has sent a leader of ``led_ms`` nothing (ms).

        A member without its journal sends what a learner does.
        """
        learner = self.learners.get(node)
        silent_ms = self.silent_ms(node, led_ms)
        return silent_ms if learner is None else min(silent_ms, learner.last_message_ms)

    def willing(self, gone: str, members: Sequence[str]) -> tuple[str, int] | None:
        """Return the node that should become a member, with its journal; see `GroupFacts`.

        The smallest of priority, random number, address and name comes first.
        """
        willing = [
            (node == gone, report.priority, report.life, report.endpoint, node, report.journal)
            for node, known in self.learners.items()
            if (report := self.learner(node)) is not None
            and report.ready
            and report.endpoint
            and report.priority < UNWILLING
            and known.lag <= CLOSE_SLOTS
            and (node == gone or node not in members)
        ]
        return min(willing)[-2:] if willing else None

    def learner(self, node: str) -> Locate | None:
        """Return the last report of ``node`` as a learner, if it is recent."""
        facts = self.learners.get(node)
        return None if facts is None or facts.last_message_ms > HEARD_MS else facts.learner
