"""Effects: a role's requests to its host. A role returns effects; it never performs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

from fencelock.actors.message import Address, Local, Message, Timer

if TYPE_CHECKING:
    from fencelock.actors.role import Role


T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def effect(cls: type[T]) -> type[T]:
    """Make the decorated effect a value, frozen for type checkers as messages are."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


@effect
class Send:
    """Deliver ``message`` to ``to``.

    Between nodes: at most once, in no promised order. Between roles of one node:
    exactly once, in the order of sending. A `Local` never leaves its node.
    """

    to: Address
    message: Message | Local


@effect
class Wake:
    """Deliver ``timer`` back to this role after at least ``after_ms`` milliseconds."""

    after_ms: int
    timer: Timer


@effect
class Persist:
    """Make ``record`` durable before any later effect of the same role begins."""

    record: Message


@effect
class Checkpoint:
    """Replace everything this role persisted before by ``records``.

    Durable before any later effect of the same role begins, as with `Persist`, and all or
    nothing: a crash leaves the former records, or ``records``. Other roles keep theirs.
    """

    records: tuple[Message, ...]


@effect
class Spawn:
    """Start a role of class ``role`` at ``address`` of this node; its `begin` runs next.

    ``arguments`` are the keyword arguments of its constructor after address and host.
    """

    address: Address
    role: type[Role[Any]]
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


@effect
class Retire:
    """End the role at ``address`` of this node. Messages to it are dropped from then on."""

    address: Address


@effect
class Connect:
    """Keep a link to the member ``node`` at ``endpoint``, and take its frames as a member's.

    A link to another endpoint of the same node is replaced.
    """

    node: str
    endpoint: str


@effect
class Disconnect:
    """Close the link to ``node``. From now on its frames count as frames of a client."""

    node: str


@effect
class Observe:
    """Count ``name`` (``folder.what_happened``): a metric in production, a mark in tests."""

    name: str
    count: int = 1


Effect = Send | Wake | Persist | Checkpoint | Spawn | Retire | Connect | Disconnect | Observe
Effects = Sequence[Effect]
