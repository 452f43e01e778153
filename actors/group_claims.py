"""Groups that other nodes name to a node that knows none, and which of them it believes. Pure.

A node never leaves the group that it has taken. If it takes a wrong one, what it has written down
makes it useless until an operator empties its folder. One node may be a rogue that invents groups,
with members, journals and dates of its choice. So what one node sends is not enough.

What moves. Each node names the id of its group, or 0 if it knows none (`Join`), and one that knows
a group sends it (`GroupConfig`). All nodes of a group send the same, however far they lag behind:
the group as it was founded. They differ only in whether the receiver was removed since then, which
some learn later. Nothing is believed for good: a node that starts empty takes back what it sent.
The node that waits asks again all the time, so a claim that is not believed yet is made again.

What must hold (`two-witnesses`). The node takes a group once two nodes have sent the same one.

Why two. With keys, each name stands for another key. One rogue is assumed at most, so one of the
two is honest, and what it sends is its group. Two nodes suffice whatever a third one sends, so a
rogue keeps nobody out. And two are not a majority: most members of a large group may be down. Any
node counts: also an observer, or a member that the configuration does not name.

What if two nodes send different groups, and no other confirms either? Then nothing shows which is
invented. The node logs both with their senders at ERROR, takes neither, and waits for a third.

When one is enough. Two groups have nodes that nobody else could confirm:

*   that of the only other node in the configuration. The operator has named it, and no other.
*   one that is being founded: the first member is the only one that knows it. Its followers take it
    if it registers their own journals and that of the founder which they follow, and if all other
    configured nodes have replied that they know no group. A node that is down might know one.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from fencelock.actors.api.membership_message import NODE_ID
from fencelock.actors.bootstrap_message import BOOT_NUMBER_MAX, GroupConfig, journals_of
from fencelock.actors.membership import MEMBERS_MAX

WITNESSES = 2
"""Nodes that must send the same group before an empty node takes it: one of them may be a rogue."""

FOUNDED_MS_MAX = 4_000_000_000_000
"""A group is founded before this date (ms since 1970), in the year 2096."""


class GroupClaims:
    """The groups that other nodes have named to a node that knows none.

    Invariants:
        two-witnesses: a node takes a group that two nodes have sent; or that the only other
          configured node has sent; or that the first member founds, which it follows, while all
          other configured nodes name none. Only in the first two cases does it believe that it
          was removed.

    """

    def __init__(self, node: str, members: tuple[str, ...]) -> None:
        self.node = node
        self.others = tuple(member for member in members if member != node)
        self.named: dict[str, int] = {}
        """The id of the group that each node named last, 0 for none."""
        self.sent: dict[str, GroupConfig] = {}
        """The group that each node sent last."""
        self.removers: dict[str, None] = {}
        """The nodes that reported that this node was removed from the group it has taken."""

    @property
    def knowing(self) -> list[str]:
        """The nodes that belong to a group."""
        return [node for node, group in self.named.items() if group]

    def name(self, node: str, group: int) -> None:
        """Note that ``node`` belongs to ``group``, or to none if that is 0."""
        self.named[node] = group
        if node in self.sent and self.sent[node].group != group:
            del self.sent[node]

    def add(self, node: str, config: GroupConfig) -> list[str]:
        """Note that ``node`` has sent a group; return all nodes that have sent the same one."""
        self.named[node] = config.group
        self.sent[node] = config
        return [one for one, sent in self.sent.items() if is_same(sent, config)]

    def suffice(self, witnesses: Collection[str]) -> bool:
        """Return whether what these nodes have sent is believed (two-witnesses)."""
        return len(witnesses) >= WITNESSES or tuple(witnesses) == self.others != ()

    def none_beside(self, node: str) -> bool:
        """Return whether all configured nodes but ``node`` have replied that they know no group."""
        return all(self.named.get(other) == 0 for other in self.others if other != node)

    def take(self, witnesses: Collection[str]) -> bool:
        """Forget all claims but the reports of a removal; return whether those are believed."""
        self.removers = {one: None for one in witnesses if self.sent[one].removed}
        self.named.clear()
        self.sent.clear()
        return self.suffice(self.removers)

    def conflict(self, node: str) -> str:
        """Return what ``node`` and others have sent, if these are different groups, else ""."""
        own = self.sent[node]
        others = [one for one, sent in self.sent.items() if not is_same(sent, own)]
        if not others:
            return ""
        return (
            f"{text_of(own)}, but {', '.join(others)} sent {text_of(self.sent[others[0]])}: a "
            "cluster has one group, and one of the two is forged or of another cluster"
        )

    def what_is_awaited(self) -> str:
        configs = list(self.sent.values())
        if not configs:
            return f"{', '.join(self.knowing)} belongs to this cluster: waiting for its reply"
        sent = ", ".join(f"{one} sent group {config.group:x}" for one, config in self.sent.items())
        if not all(is_same(config, configs[0]) for config in configs):
            return (
                f"{sent}: a cluster has one group, so one of them is forged or of another "
                f"cluster. Stop that node, and start {self.node} again"
            )
        return (
            f"{sent}, and no other node has confirmed it: start or connect another node that "
            f"knows it; or list {self.node} and {next(iter(self.sent))} only in the configuration "
            f"of {self.node}"
        )


def is_sound(config: GroupConfig) -> bool:
    """Return whether nodes can have founded this group."""
    names = [member for member, _ in config.voters]
    return (
        0 < config.group < BOOT_NUMBER_MAX
        and 0 < config.founded_ms < FOUNDED_MS_MAX
        and 1 <= len(names) <= MEMBERS_MAX
        and names == sorted(set(names))
        and all(NODE_ID.fullmatch(name[:33]) for name in names)
        and all(0 < journal < BOOT_NUMBER_MAX for _, journal in config.voters)
    )


def is_same(config: GroupConfig, other: GroupConfig) -> bool:
    """Return whether both are one group. Some of its nodes may not know yet who was removed."""
    return replace(config, to=0, removed=False) == replace(other, to=0, removed=False)


def text_of(config: GroupConfig) -> str:
    return f"group {config.group:x} of {', '.join(journals_of(config))}"
