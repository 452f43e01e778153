"""The words between a client and the proxy of a node. Tags 0x10 to 0x1f.

Every request carries ``session`` (one client), ``owner`` (who in that client) and ``request``, a
number that rises with each new request of that owner and stays the same when it is sent again.
A caller inside the node's process may leave all three out: its `ask` is then an owner of its
own, and the fence is its proof.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from fencelock.actors.error import (
    AlreadyHeldError,
    CancelledError,
    InvalidRequestError,
    LimitReachedError,
    LockOwnershipLostError,
    LockTimeoutError,
    NotHeldError,
    OverloadedError,
    RefusedError,
    SessionExpiredError,
    StaleError,
    UnavailableError,
    UnsupportedError,
    WrongClusterError,
)
from fencelock.actors.lock.self_report import Counted, Elected
from fencelock.actors.message import Local, Message, Refusal, local, message
from fencelock.actors.role_message import RoleDescription


class Reason(IntEnum):
    """Why a request was refused. Numbers are on the wire and never reused."""

    TIMED_OUT = 1
    """The wait ended while somebody else held the lock."""
    NOT_HELD = 2
    """Release of a lock that is not held under the fence shown."""
    ALREADY_HELD = 3
    """The owner holds the lock, or waits for it, already."""
    CANCELLED = 4
    """The wait was withdrawn."""
    INVALID = 5
    """A field is out of its limits."""
    UNSUPPORTED = 6
    """The protocol does not promise this."""
    OVERLOADED = 7
    """A queue is at its limit."""
    UNAVAILABLE = 8
    """The wait ended while a node that is needed was silent."""
    WRONG_CLUSTER = 9
    """Whoever answers belongs to another cluster or version; the session says so, no proxy."""
    LIMIT_REACHED = 10
    """The owner holds the lock as often as it may."""
    OWNERSHIP_LOST = 11
    """The owner did hold the lock, until its session ended or an operator took it."""
    SESSION_EXPIRED = 12
    """There is no such session (any more): open one. A client's session hears it, no user."""
    STALE = 13
    """The node has not heard for too long how things stand, see `Inspect`."""


ERRORS: dict[Reason, type[RefusedError] | type[UnavailableError]] = {
    Reason.TIMED_OUT: LockTimeoutError,
    Reason.NOT_HELD: NotHeldError,
    Reason.ALREADY_HELD: AlreadyHeldError,
    Reason.CANCELLED: CancelledError,
    Reason.INVALID: InvalidRequestError,
    Reason.UNSUPPORTED: UnsupportedError,
    Reason.OVERLOADED: OverloadedError,
    Reason.UNAVAILABLE: UnavailableError,
    Reason.WRONG_CLUSTER: WrongClusterError,
    Reason.LIMIT_REACHED: LimitReachedError,
    Reason.OWNERSHIP_LOST: LockOwnershipLostError,
    Reason.SESSION_EXPIRED: SessionExpiredError,
    Reason.STALE: StaleError,
}
"""What each reason becomes at the border to a user's program."""


@message(0x10)
class Acquire(Message):
    """Let me hold ``lock``. Answered by `Granted` or `Refused`, possibly much later.

    ``wait_ms`` is how long to wait, 0 for not at all, None for without limit. ``limit``
    is how often the owner may hold the lock at once: 1 for not reentrant, 0 for without
    limit. ``label`` is for people. Where holds have deadlines: for how long, and how much
    longer until it is taken away; 0 for the cluster's default.
    """

    lock: str
    session: str = ""
    owner: str = ""
    request: int = 0
    wait_ms: int | None = None
    limit: int = 1
    label: str = ""
    hold_ms: int = 0
    grace_ms: int = 0


@message(0x11)
class Release(Message):
    """I am done with ``lock``, which I hold under ``fence``. `Released` or `Refused`."""

    lock: str
    fence: int
    session: str = ""
    owner: str = ""
    request: int = 0


@message(0x12)
class Cancel(Message):
    """Forget my `Acquire` numbered ``request``; if it was granted, take the lock back.

    Answered by `Cancelled`, always, so that it can be repeated until heard.
    """

    lock: str
    session: str
    owner: str
    request: int


@message(0x13)
class Inspect(Message):
    """Tell me about ``lock``: answered by `LockStatus`.

    With ``age_ms`` None it is a linearizable read, if there are such; else the node answers
    from what it knows, if that is no older.
    """

    lock: str
    session: str = ""
    request: int = 0
    age_ms: int | None = None


@message(0x14)
class Describe(Message):
    """Describe the node, and with ``roles`` each of its roles. Answered by `NodeStatus`."""

    session: str = ""
    request: int = 0
    roles: bool = False


@message(0x15)
class KeepAlive(Message):
    """The client ``session`` is there. Answered by `Alive`."""

    session: str
    request: int = 0


@message(0x16)
class Alive(Message):
    """The node is there and serves ``session``.

    Where the cluster keeps sessions, this one lives for its TTL from when it was kept.
    ``master`` is the node that answers soonest, if known.
    """

    session: str
    node: str
    request: int = 0
    master: str = ""


@message(0x18)
class Granted(Message):
    """``owner`` holds ``lock`` under ``fence``, which is above every earlier one of the lock.

    It does so for the ``count``-th time at once; to enter again does not change the fence.
    """

    lock: str
    fence: int
    session: str = ""
    owner: str = ""
    request: int = 0
    count: int = 1
    hold_ms: int = 0  # 0 for no deadline.
    grace_ms: int = 0


@message(0x19)
class Released(Message):
    """``owner`` gave back one hold of ``lock``, and has ``count`` left."""

    lock: str
    session: str = ""
    owner: str = ""
    request: int = 0
    count: int = 0


@message(0x1A)
class Cancelled(Message):
    """The `Acquire` numbered ``request`` neither waits nor holds any more."""

    lock: str
    session: str
    owner: str
    request: int


@message(0x1B)
class Refused(Refusal):
    """No, for ``reason``; ``detail`` says it in words a user can act on."""

    lock: str
    reason: Reason
    detail: str
    session: str = ""
    owner: str = ""
    request: int = 0

    def error(self) -> RefusedError | UnavailableError:
        """Return the typed error for ``reason``, with ``detail`` as its text."""
        return ERRORS[self.reason](self.detail)


class Contender(NamedTuple):
    """Somebody who holds a lock or waits for it, as far as the answering node knows."""

    node: str
    session: str
    owner: str
    fence: int | None
    """The fence of a holder, if known; None while waiting."""
    since_ms: int
    """How long it has held or waited, as seen by the answering node (ms)."""
    label: str = ""
    """What its client says of itself: host, process, and a word of the application's."""
    times: int = 1
    """How often a holder holds it at once."""


class Absence(NamedTuple):
    """A node whose word is needed before the next grant, and how long it has been silent."""

    node: str
    silent_ms: int


@message(0x1C)
class LockStatus(Message):
    """What the answering node knows of ``lock``: true when it was said, stale on arrival."""

    lock: str
    holder: Contender | None
    waiters: tuple[Contender, ...]
    """In the order in which they will be served, if there is one."""
    waits_for: tuple[Absence, ...]
    """Nodes that must be heard before anybody else can be granted the lock here."""
    session: str = ""
    request: int = 0
    slot: int = 0  # Where there is a log: the state after all slots before this one.
    age_ms: int | None = None
    """How old it may have been when said (ms): 0 if linearizable, None if nothing is known."""


@message(0x1D)
class NodeStatus(Message):
    """What a node says of itself, and of every lock that is held or waited for through it."""

    node: str
    protocol: str
    nodes: tuple[str, ...]
    ready: bool
    """Whether a request made now can be granted once its turn comes; ``detail`` says why not."""
    detail: str
    uptime_ms: int
    counters: tuple[Counted, ...]
    locks: tuple[LockStatus, ...]
    session: str = ""
    request: int = 0
    master: str = ""
    """The node that leads, where one does and it is known."""
    elected: Elected | None = None
    """Where several lead, elected for an epoch."""
    roles: tuple[RoleDescription, ...] = ()
    """If they were asked for, those that started first; at most
    `fencelock.actors.role_message.ROLES_MAX`."""


Request = Acquire | Release | Cancel | Inspect | Describe | KeepAlive
"""What a client may say to a proxy."""

Answer = Granted | Released | Cancelled | Refused | LockStatus | NodeStatus | Alive
"""What a proxy may say to a client."""


@local
class Abandon(Local):
    """From the host: the `ask` behind the sender's address gave up waiting for its answer."""
