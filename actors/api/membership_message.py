"""Messages by which operators read and change the members of a cluster. Tags 0xbb to 0xbe.

A change is asked for again and again until it is done: its request names the members that are
wanted, so a repetition has no further effect.
"""

import re
from enum import IntEnum
from typing import NamedTuple

from fencelock.actors.api.name import INT_MAX, check_number
from fencelock.actors.api.request import Query, RepliedBy, Reply, Request
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import Int64

NODE_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
ENDPOINT = re.compile(
    r"tcp://(?P<host>[A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]):(?P<port>[1-9][0-9]{0,4})"
)
ENDPOINT_CHARS_MAX = 280
"""Maximum length of an endpoint: room for the longest name of a host, which has 253 characters."""
PORT_MAX = 65_535
ANYWHERE = frozenset({"0.0.0.0", "[::]"})
"""Hosts that a node can listen on, but not be reached at."""


class MemberAction(IntEnum):
    """A change of the members. Numbers are on the wire and never reused."""

    JOIN = 1
    """``node``, a learner, becomes a member."""
    LEAVE = 2
    """``node``, which runs, is a member no longer; if it leads, another node takes over first."""
    REMOVE = 3
    """``node``, which may be gone forever, is a member no longer."""
    REPLACE = 4
    """``replacement`` becomes a member in place of ``node``; it may be the same node with an
    empty journal."""
    TRANSFER = 5
    """``node``, a member, leads from now on. The members stay the same."""
    FOUND = 6
    """The configured nodes, which know no group, found one. ``node`` is any of them."""


class NodeRole(IntEnum):
    """A node's part in its cluster. Numbers are on the wire and never reused."""

    LEADER = 1
    """A member that leads. `bakery` has three."""
    MEMBER = 2
    """A member that votes."""
    OBSERVER = 3
    """A node that is no member: it learns, serves clients and does not vote."""
    NON_VOTING = 4
    """A member that does not vote: its journal is not the registered one."""
    DOWN = 5
    """A member that was silent for so long that the node that answers calls it down."""


def is_endpoint(text: str) -> bool:
    """Return whether other nodes can reach ``text``, such as ``tcp://10.0.0.1:4040``."""
    match = ENDPOINT.fullmatch(text[: ENDPOINT_CHARS_MAX + 1])
    return (
        match is not None
        and len(text) <= ENDPOINT_CHARS_MAX
        and match["host"] not in ANYWHERE
        and int(match["port"]) <= PORT_MAX
    )


class ChangeMembers(Request, RepliedBy["MembersChanged"], tag=0xBB):
    """Change the members of the cluster. Answered by `MembersChanged` or `Refused`, soon.

    ``endpoint`` and ``journal`` belong to the node that becomes a member; they are empty and 0 if
    the sender does not know them. ``replacement`` is for `MemberAction.REPLACE` only. If it is
    ``node`` itself, name its new journal, as `MembersRead` reports it. Without it, the change
    counts as done while the node still seems to vote.
    """

    action: MemberAction
    node: str
    endpoint: str = ""
    journal: Int64 = 0
    replacement: str = ""

    OPERATOR = True

    def check(self) -> None:
        _check_node("node", self.node)
        if self.action is MemberAction.REPLACE:
            _check_node("replacement", self.replacement)
        elif self.replacement:
            raise InvalidRequestError(f"replacement is given, but {self.action.name} needs none")
        if self.endpoint and not is_endpoint(self.endpoint):
            raise InvalidRequestError(
                f"endpoint is {self.endpoint[:80]!a}: an address that other nodes can reach is "
                "wanted, like tcp://10.0.0.1:4040"
            )
        check_number("journal", self.journal, 0, INT_MAX)


class MembersChanged(Reply, tag=0xBC):
    """Whether a change is done, with the members in force at the node that answers.

    While the change is not done, ``detail`` names the condition that it waits for, and the sender
    asks again. While a node learns before it joins, ``slots_left`` and ``bytes_left`` estimate how
    far it is behind; otherwise they are 0.
    """

    done: bool
    detail: str
    view: Int64
    """Number of changes that led to ``members``."""
    members: tuple[str, ...]
    """Sorted."""
    slots_left: Int64 = 0
    bytes_left: Int64 = 0

    REPLIES_TO = (ChangeMembers,)


class ReadMembers(Query, RepliedBy["MembersRead"], tag=0xBD):
    """Report the nodes of the cluster. Answered by `MembersRead`."""


class NodeReport(NamedTuple):
    """A node of the cluster, as far as the answering node knows it."""

    node: str
    endpoint: str
    """Empty if it is not known."""
    role: NodeRole
    view: Int64
    """The number of its membership; ``applied`` tells how current that is."""
    applied: Int64
    """The last slot that it applied."""
    lag: Int64 | None
    """Slots that it is behind the leader, or None if that is not known."""
    last_message_ms: Int64 | None
    """Time since its last message (ms): 0 for the node that replies, None if it never sent one."""
    version: str
    """The version of its software, empty if it is not known."""
    journal: Int64 = 0
    """The id of its journal, or 0 if it is not known."""


class MembersRead(Reply, tag=0xBE):
    """The nodes that the answering ``node`` knows: the members and the observers, by name."""

    node: str
    view: Int64
    """The number of the membership in force there."""
    nodes: tuple[NodeReport, ...]

    REPLIES_TO = (ReadMembers,)


def _check_node(field: str, node: str) -> None:
    if NODE_ID.fullmatch(node[:33]) is None:
        raise InvalidRequestError(
            f"{field} is {node[:40]!a}: an id of 1 to 32 of a-z, 0-9 and - is wanted, which begins "
            "with a letter or digit"
        )
