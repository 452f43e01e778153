"""Effects: a role's requests to its host. A role returns effects; it never performs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from fencelock.actors.message import Address, Local, Message, Timer

if TYPE_CHECKING:
    from fencelock.actors.role import Role


class Send(Struct, frozen=True):
    """Deliver ``message`` to ``to``.

    Between nodes: at most once, in no promised order. Between roles of one node:
    exactly once, in the order of sending. A `Local` never leaves its node.
    """

    to: Address
    message: Message | Local


class Wake(Struct, frozen=True):
    """Deliver ``timer`` back to this role after at least ``after_ms`` milliseconds."""

    after_ms: int
    timer: Timer


class Persist(Struct, frozen=True):
    """Make ``record`` durable before any later effect of the same role begins."""

    record: Message


class Checkpoint(Struct, frozen=True):
    """Replace everything this role persisted before by ``records``.

    Durable before any later effect of the same role begins, as with `Persist`, and all or
    nothing: a crash leaves the former records, or ``records``. Other roles keep theirs.
    """

    records: tuple[Message, ...]


class CheckpointPart(Struct, frozen=True):
    """Write ``records``, a part of a checkpoint that is too large for one write.

    Later effects do not wait for it. Until the checkpoint ends, a restart finds the parts behind
    the earlier records of the role, and perhaps only some of them, which the role must notice. With
    ``first`` a checkpoint begins, and the parts of an unfinished one count as earlier records.
    """

    records: tuple[Message, ...]
    first: bool = False


class CheckpointEnd(Struct, frozen=True):
    """Forget everything this role persisted before the first part of the checkpoint.

    All parts and the end are durable before any later effect of the same role begins. What the role
    persisted together with the first part, or after it, stays.
    """


class Spawn(Struct, frozen=True):
    """Start a role of class ``role`` at ``address`` of this node; its `begin` runs next.

    ``arguments`` are the keyword arguments of its constructor after address and host.
    """

    address: Address
    role: type[Role[Any]]
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Retire(Struct, frozen=True):
    """End the role at ``address`` of this node. Messages to it are dropped from then on."""

    address: Address


class Connect(Struct, frozen=True):
    """Keep a link to the member ``node`` at ``endpoint``, and take its frames as a member's.

    A link to another endpoint of the same node is replaced.
    """

    node: str
    endpoint: str


class Disconnect(Struct, frozen=True):
    """Close the link to ``node``. From now on its frames count as frames of a client."""

    node: str


class JoinGroup(Struct, frozen=True):
    """Send frames as a node of ``group`` from now on, and refuse those of another group.

    ``group`` is 1 or more, and never changes in the life of a node.
    """

    group: int


class Observe(Struct, frozen=True):
    """Count ``name`` (``folder.what_happened``): a metric in production, a mark in tests."""

    name: str
    count: int = 1


class Fault(Struct, frozen=True):
    """Log ``error``, which a bug of ours raised while the role only read its state; count it.

    The role has refused what it was ``doing``, and goes on; see `fencelock.actors.fault`.
    """

    doing: str
    error: Exception


Effect = (
    Send
    | Wake
    | Persist
    | Checkpoint
    | CheckpointPart
    | CheckpointEnd
    | Spawn
    | Retire
    | Connect
    | Disconnect
    | JoinGroup
    | Observe
    | Fault
)
Effects = Sequence[Effect]
