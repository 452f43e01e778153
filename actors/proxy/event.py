"""Messages between a node's proxy and other roles of the node. They never leave it.

The `LockManager` exchanges most of them with the role that grants locks in `lamport` and `central`.
A *ticket* numbers one acquisition through this node, from the proxy's counter. `ReleaseHold`,
`EndHolds` and their replies are of a protocol that keeps holds by session.
"""

from __future__ import annotations

from enum import IntEnum

from fencelock.actors.api.lock_message import Absence, Contender, Reason
from fencelock.actors.api.name import quoted, titled
from fencelock.actors.api.request import Reply, Request
from fencelock.actors.api.role_request import Counted, RoleDescription
from fencelock.actors.api.session_message import NodeAddress
from fencelock.actors.message import Address, Local
from fencelock.actors.role_message import Level, RoleNotice

WAITERS_SHOWN_MAX = 100
"""Maximum waiters shown of one lock: 64 KiB with the longest names."""


class AcquireLock(Local):
    """Get ``lock`` for ``ticket``, which belongs to the client ``session``."""

    lock: str
    ticket: int
    session: str
    owner: str


class ReleaseLock(Local):
    """``ticket`` no longer wants ``lock``: cancel its wait, or release its hold."""

    lock: str
    ticket: int


class LockGranted(Local):
    """``ticket`` holds ``lock`` under ``fence``. Sent once for a ticket."""

    lock: str
    ticket: int
    fence: int


class QueueFull(Local):
    """``ticket`` cannot be queued for ``lock``; ``detail`` names the limit that is reached."""

    lock: str
    ticket: int
    detail: str


class LockRevoked(Local):
    """``ticket`` no longer holds ``lock``: the protocol took it away; no `ReleaseLock` follows."""

    lock: str
    ticket: int
    detail: str = "the protocol took it away"


class ReleaseOutcome(IntEnum):
    """The outcome of a release. Numbers are on the wire and never reused."""

    FREED = 1
    """The hold has ended at its session's request, now or before."""
    NOT_HELD = 2
    """There is no such hold."""
    TAKEN = 3
    """An operator ended the hold, now or before."""


class ReleaseHold(Local):
    """End the hold of ``lock`` under ``fence``, which belongs to no ticket of this node.

    Args:
        session: the session that releases it; empty for an operator, who may end any hold.
        operator: that operator, for the log.

    """

    lock: str
    fence: int
    session: str
    operator: str = ""


class HoldReleased(Local):
    """A `ReleaseLock` of a hold of ``session``, or a `ReleaseHold`, is confirmed.

    An operator took the lock from ``holder``.
    """

    lock: str
    fence: int
    session: str
    outcome: ReleaseOutcome
    holder: Contender | None = None


class EndHolds(Local):
    """End all holds of ``session``, through any node. Answered by `HoldsEnded`."""

    session: str


class HoldsEnded(Local):
    """``session`` holds nothing any more."""

    session: str


class HoldInDoubt(Local):
    """Ask the client ``session`` whether it holds ``lock`` under ``fence``."""

    lock: str
    fence: int
    session: str


class QueryLock(Local):
    """Describe ``lock`` as the protocol knows it. Answered by `LockDescription`."""

    lock: str
    query: int
    proven: bool = False
    """Whether "no holder" may be answered only if nobody held the lock at some instant since."""
    waiters: bool = False
    """Whether to describe the waiters, too: `WAITERS_SHOWN_MAX` of them at most."""


class LockDescription(Local):
    """The answer to the `QueryLock` numbered ``query``: the holder, and the first waiters in order.

    A contender of this node carries its ticket's session and owner, as given in `AcquireLock`.
    """

    lock: str
    query: int
    holder: Contender | None
    waiters: tuple[Contender, ...]
    waits_for: tuple[Absence, ...]
    unknown: str = ""
    """Reason why the holder is not known; empty if it is known."""


class Ready(Local):
    """Whether the protocol can serve now; if not, a text names the missing condition."""

    ready: bool
    detail: str


STARTING = Ready(ready=False, detail="starting")
"""Before the protocol has reported."""


class MembersKnown(Local):
    """To the proxy: the ``members`` from now on, by name, after ``view`` changes."""

    view: int
    members: tuple[NodeAddress, ...]


class TimesUnfit(Local):
    """To the proxy: this node's times do not fit those of the leader, or the network.

    ``why`` says what is wrong; it is empty once nothing is.
    """

    why: str


class Relay(Local):
    """Answer ``request`` of ``client`` by a `Relayed`: another role than the proxy decides."""

    client: Address
    request: Request


class Relayed(Local):
    """The answer to a `Relay`, for its ``client``."""

    client: Address
    reply: Reply


class PassAsk(Local):
    """To the host, at ``node/node``: give the request in ``body`` to ``role``.

    Answered by an `AskReplied` with that ``number``, unless it is 0.
    """

    number: int
    role: str
    body: bytes


class DropAsk(Local):
    """To the host: nobody waits for the reply to that `PassAsk` any more."""

    number: int


class AskReplied(Local):
    """From the host: the role's reply, in CBOR; or the ``reason`` why there is none, in words."""

    number: int
    body: bytes = b""
    reason: Reason | None = None
    detail: str = ""


class Report(Local):
    """To the host, at ``node/node``: report the uptime and the counters."""

    roles: bool = False
    """Whether to report the roles, too."""


class Reported(Local):
    """From the host: the answer to `Report`."""

    uptime_ms: int
    counters: tuple[Counted, ...]
    roles: tuple[RoleDescription, ...] = ()
    """At most `fencelock.actors.role_message.ROLES_MAX`; none if they were not wanted."""


def eviction_notice(lock: str, fence: int, holder: Contender, operator: str) -> RoleNotice:
    """Return the line of the log about a lock that ``operator`` took from ``holder`` by force."""
    fields = (
        ("event", "eviction"),
        ("lock", lock),
        ("fence", str(fence)),
        ("session", holder.session),
        ("operator", operator),
    )
    who = holder.label or holder.session
    text = f"{titled(lock)} was taken by force from {who}, by {quoted(operator)}"
    return RoleNotice(level=Level.WARNING, text=text, fields=fields)


def ready_notice(node: str, ready: Ready) -> RoleNotice:
    """Return the line of the log about a node that is ready, or waits to be."""
    if ready.ready:
        event, text = "ready", f"{node} is ready: it can grant locks"
    else:
        event, text = "waits", f"{node} is not ready yet: {ready.detail}"
    return RoleNotice(level=Level.INFO, text=text, fields=(("event", event),))
