"""Messages about locks, between a client and the proxy of a node.

Tags 0x10 to 0x13, 0x18 to 0x1c, 0x64, 0x69 to 0x6b, 0xd0 and 0xd1.

Every request carries ``session`` (a client), ``owner`` (an owner within it) and ``request``, a
number that rises with each new request of that owner and stays the same when it is sent again.
A caller inside the node's process may leave out all three: its `ask` is then an owner of its
own, and the fence is its proof.
"""

from enum import IntEnum
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypedDict, cast

from msgspec.structs import replace

from fencelock.actors import error
from fencelock.actors.api.name import (
    INT_MAX,
    KIND_END,
    LABEL_BYTES_MAX,
    REQUEST_MAX,
    WAIT_MS_MAX,
    check_lock_name,
    check_new_lock_name,
    check_number,
    check_object_name,
    check_owner,
    check_request,
    check_text,
    check_wait,
    is_kind,
    is_plain,
    without_secret,
)
from fencelock.actors.api.refusal import Why
from fencelock.actors.api.request import (
    Command,
    Notification,
    Outcome,
    RepliedBy,
    Reply,
    Request,
    RequestKey,
    TableQuery,
    TableReply,
)
from fencelock.actors.error import FencelockError, RefusedError, UnavailableError
from fencelock.actors.message import Fence, Int64, Local, Message, Refusal, TermMs, declared


class Reason(IntEnum):
    """Reason of a refusal. Numbers are on the wire and never reused."""

    TIMED_OUT = 1
    """The wait timed out while another owner held the lock."""
    NOT_HELD = 2
    """Release of a lock that is not held under the fence shown."""
    ALREADY_HELD = 3
    """The owner already holds the lock, or waits for it."""
    CANCELLED = 4
    """The wait was cancelled."""
    INVALID = 5
    """A field exceeds its limits."""
    UNSUPPORTED = 6
    """The protocol does not support this."""
    OVERLOADED = 7
    """A queue is at its limit."""
    UNAVAILABLE = 8
    """The wait timed out while a node that is needed was silent."""
    WRONG_CLUSTER = 9
    """The endpoint belongs to another cluster or version; only the client's session sends this."""
    LIMIT_REACHED = 10
    """The owner holds the lock as often as it may."""
    OWNERSHIP_LOST = 11
    """The owner did hold the lock, until its session ended or an operator took it."""
    SESSION_EXPIRED = 12
    """The session does not exist, or no longer exists: open one. A user receives this only for an
    `UpdateRequest`; the text says whether the outcome of the request is known."""
    STALE = 13
    """The node's state is too old, see `Inspect`."""
    SUPERSEDED = 14
    """The owner has sent a later request about the lock; this one has no effect now. Only proxies
    receive this and the next, not clients."""
    FORGOTTEN = 15
    """The owner neither holds the lock nor waits for it, and this request will not change that.

    Its number is not above the numbers of an owner that was forgotten. An acquire, done or not,
    holds nothing: it may be sent anew, under a new number. A release has nothing left to release;
    it is only unknown whether this one did that.
    """
    MEMBERSHIP = 16
    """The members of the cluster cannot change in this way, or not now; the text says what to do
    instead."""
    FORBIDDEN = 17
    """The client's key does not allow this; the text names the key, and what is needed."""
    BROKEN = 18
    """Another party of the barrier stopped waiting for the others."""
    INTERNAL = 19
    """A bug in fencelock: serving the request raised an exception. Nothing was done."""
    GONE = 20
    """There is no such role, or its node cannot be reached; the text names those there are."""


ERRORS: dict[Reason, type[RefusedError] | type[UnavailableError]] = {
    Reason.TIMED_OUT: error.LockTimeoutError,
    Reason.NOT_HELD: error.NotHeldError,
    Reason.ALREADY_HELD: error.AlreadyHeldError,
    Reason.CANCELLED: error.AcquireCancelledError,
    Reason.INVALID: error.InvalidRequestError,
    Reason.UNSUPPORTED: error.UnsupportedError,
    Reason.OVERLOADED: error.OverloadedError,
    Reason.UNAVAILABLE: UnavailableError,
    Reason.WRONG_CLUSTER: error.WrongClusterError,
    Reason.LIMIT_REACHED: error.LimitReachedError,
    Reason.OWNERSHIP_LOST: error.LockOwnershipLostError,
    Reason.SESSION_EXPIRED: error.SessionExpiredError,
    Reason.STALE: error.StaleError,
    Reason.SUPERSEDED: error.AcquireCancelledError,
    Reason.FORGOTTEN: error.AcquireCancelledError,
    Reason.MEMBERSHIP: error.MembershipError,
    Reason.FORBIDDEN: error.ForbiddenError,
    Reason.BROKEN: error.BrokenBarrierError,
    Reason.INTERNAL: error.InternalError,
    Reason.GONE: error.UnavailableError,  # A client that asks roles: `session/asker.py`.
}
"""The error that a user's program gets for each reason."""


ERROR_REASONS: dict[type[FencelockError], Reason] = {
    error: reason for reason, error in reversed(ERRORS.items())
}
"""The reason of a refusal, by the error that a handler raised."""


class OwnerFields(TypedDict):
    """The fields that every message between an owner and the proxy has."""

    lock: str
    session: str
    owner: str
    request: int


class OwnerMessage(Message):
    """A message between an owner and the proxy about a lock, or about another object of the table.

    ``lock`` is the name of the lock, or the `fencelock.actors.api.name.object_name` of the other
    object.
    """

    if TYPE_CHECKING:  # Requests and replies have them as fields.
        lock: str = declared()
        session: str = ""
        owner: str = ""
        request: int = 0

    @property
    def key(self) -> RequestKey:
        """The key of the request; its reply has the same."""
        return self.session, self.owner, self.lock, self.request

    def fields(self) -> OwnerFields:
        """Return the fields that a request and its reply share."""
        lock, session, owner, request = self.lock, self.session, self.owner, self.request
        return OwnerFields(lock=lock, session=session, owner=owner, request=request)


class LockRequest(OwnerMessage, Request):
    """A request of an owner. A `Release` ends a hold of any object."""

    owner: str = ""

    KIND: ClassVar[str] = ""
    """The kind of the object, and the field that has its name; empty for a lock."""

    if TYPE_CHECKING:  # See below.
        name: str = declared()
        """The name of the lock or of another object, without its kind."""

    def __init_subclass__(cls) -> None:
        """Make ``name`` an alias of the field that has the name, and as fast as that."""
        super().__init_subclass__()
        field = vars(cls).get(cls.KIND or "lock")
        if isinstance(field, MemberDescriptorType) and "name" not in vars(cls):
            cls.name = cast("Any", field)

    def check(self) -> None:
        kind, end, name = self.lock.rpartition(KIND_END)
        texts = name + self.owner
        if not (
            is_plain(name, texts) and 1 <= self.request <= INT_MAX and (not end or is_kind(kind))
        ):
            check_object_name(self.lock)
            check_owner(self.owner)
            check_number("request", self.request, 1, INT_MAX)


class CancellableRequest(LockRequest, Command):
    """A request that a `Cancel` with the same number ends. Its outcome may come after a wait."""

    CANCELLABLE = True
    WAITS = True

    if TYPE_CHECKING:  # Every subclass that waits declares them as fields.
        wait_ms: int | None = declared()
        """The timeout (ms): 0 for no wait, None for no limit."""
        label: str = declared()
        """A text for people who look at the object."""

    def check(self) -> None:
        LockRequest.check(self)
        if self.WAITS:
            if self.label:
                check_text("label", self.label, LABEL_BYTES_MAX)
            check_wait(self.wait_ms)

    def check_new(self) -> None:
        """Refuse what `check` does, names without a visible character, and too high a number."""
        name = self.name
        if name[:1] <= " " or not name.isascii():
            check_new_lock_name(name, self.KIND or "lock")
        if self.request > REQUEST_MAX:
            check_request(self.request)
        self.check()


class AcquireRequest(CancellableRequest, RepliedBy["Granted"]):
    """A request that is answered by `Granted`, perhaps after a wait, or by `Refused`.

    A `Cancel` with its number undoes it.
    """

    amount = 1
    """The number of permits to acquire. A lock is the case of one permit."""
    granted_count = 1
    """The count in the `Granted` of a new hold."""

    if TYPE_CHECKING:  # Every subclass has them, as fields or for all objects of the kind.
        limit: int = declared()
        """The number of times that the owner may hold it at once, or 0 for no limit."""
        permits: int = declared()
        """The number of permits of each object."""

    def check(self) -> None:
        name, wait_ms, limit = self.name, self.wait_ms, self.limit
        texts = name + self.owner + self.label
        if not (
            is_plain(name, texts)
            and 1 <= self.request <= INT_MAX
            and 0 <= limit <= INT_MAX
            and (wait_ms is None or 0 <= wait_ms <= WAIT_MS_MAX)
        ):
            self._check_each()

    def _check_each(self) -> None:
        check_lock_name(self.name, self.KIND or "lock")
        check_owner(self.owner)
        check_number("request", self.request, 1, INT_MAX)
        check_text("label", self.label, LABEL_BYTES_MAX)
        check_wait(self.wait_ms)
        check_number("limit", self.limit, 0, INT_MAX)


class ReleaseRequest(LockRequest, Command, RepliedBy["Released"]):
    """Give back the hold under ``fence``, or part of it. Answered by `Released` or `Refused`."""

    fence: Int64

    EASES = True
    PARTIAL: ClassVar[bool] = False
    """Whether it is a `PartRequest`, which may release a part of a hold."""
    REFUSABLE: ClassVar[bool] = False
    """Whether it ends when it is refused as INVALID or UNSUPPORTED: the hold stays as it was. Any
    other release goes on until it is done."""


class LockReply(OwnerMessage, Reply):
    """A reply to an owner."""

    lock: str
    owner: str = ""


class Acquire(AcquireRequest, tag=0x10):
    """Acquire ``lock``. Answered by `Granted` or `Refused`, possibly much later.

    ``wait_ms`` is the timeout (ms): 0 for no wait, None for no limit. ``limit`` is the number
    of times the owner may hold the lock at once: 1 for a lock that is not reentrant, 0 for no
    limit. ``label`` is a text for people who look at the lock. ``hold_ms`` and ``grace_ms`` are the
    duration and the grace of the hold (ms); 0 for the cluster's default, which is no deadline on
    `paxos`.
    """

    lock: str
    wait_ms: Int64 | None = None
    limit: Int64 = 1
    label: str = ""
    hold_ms: Int64 = 0
    grace_ms: Int64 = 0

    permits = 1


class Release(ReleaseRequest, tag=0x11):
    """Release one hold of ``lock`` under ``fence``. Answered by `Released` or `Refused`."""

    lock: str
    fence: Int64
    session: str = ""
    owner: str = ""
    request: Int64 = 0

    check_new = ReleaseRequest.check  # Without the call of `check` in between.


class Cancel(LockRequest, Command, RepliedBy["Cancelled"], tag=0x12):
    """Cancel my `Acquire` numbered ``request``; if it was granted, end the hold.

    Always answered by `Cancelled`, so it can be repeated until that arrives. If it arrives before
    its `Acquire`, that is refused. Its key has the number negated, since the `Acquire` has the
    same.
    """

    lock: str

    EASES = True

    @property
    def key(self) -> RequestKey:
        return self.session, self.owner, self.lock, -self.request

    def check_new(self) -> None:
        check_request(self.request)
        self.check()


HOLDER_UNKNOWN = "it is not known who holds it: "
"""Precedes the reason in the refusal of an `Inspect`."""


class Inspect(TableQuery, RepliedBy["LockStatus"], tag=0x13):
    """Report the state of ``lock``. Answered by `LockStatus`.

    With ``age_ms`` None it is a linearizable read, if the protocol has them.
    """

    lock: str

    def check(self) -> None:
        TableQuery.check(self)
        check_object_name(self.lock)


class Granted(LockReply, Outcome, tag=0x18):
    """``owner`` holds ``lock`` under ``fence``, which is above every earlier fence of the lock.

    It holds it ``count`` times at once; acquiring again does not change the fence.
    """

    fence: Fence
    count: Int64 = 1
    hold_ms: TermMs = 0  # 0 for no deadline.
    grace_ms: TermMs = 0

    REPLIES_TO = (AcquireRequest,)


class Released(LockReply, Outcome, tag=0x19):
    """``owner`` released one hold of ``lock``, and has ``count`` left."""

    count: Int64 = 0

    REPLIES_TO = (ReleaseRequest,)


class Cancelled(LockReply, Outcome, tag=0x1A):
    """The `Acquire` numbered ``request`` neither waits nor holds, and never will."""

    REPLIES_TO = (Cancel,)

    @property
    def key(self) -> RequestKey:
        return self.session, self.owner, self.lock, -self.request


class Refused(LockReply, Outcome, Refusal, tag=0x1B):
    """The request is refused for ``reason``; ``detail`` is a text that a user can act on.

    The table gives ``why`` in place of ``detail``: the proxy that answers writes the text.
    """

    reason: Reason
    detail: str
    why: Why | None = None

    REPLIES_TO = (Command,)

    def error(self) -> RefusedError | UnavailableError:
        """Return the typed error for ``reason``, with ``detail`` as its text."""
        return ERRORS[self.reason](self.detail)


def refused(request: Request, reason: Reason, detail: str = "", why: Why | None = None) -> Refused:
    """Return the refusal of ``request``, which has its key."""
    session, owner, lock, number = request.key
    return Refused(
        lock=lock,
        reason=reason,
        detail=detail,
        session=session,
        owner=owner,
        request=number,
        why=why,
    )


def refused_by(request: Request, error: FencelockError) -> Refused:
    """Return the refusal of ``request`` from which a client makes that error again."""
    return refused(request, ERROR_REASONS[type(error)], str(error))


class Contender(NamedTuple):
    """An owner that holds a lock or waits for it, as far as the answering node knows."""

    node: str
    session: str
    owner: str
    fence: Int64 | None
    """The fence of a holder, if known; None while waiting."""
    since_ms: Int64
    """Duration of the hold or wait so far, as seen by the answering node (ms)."""
    label: str = ""
    """The client's label: host, process, and a text of the application's."""
    times: Int64 = 1
    """Number of times that a holder holds it at once, or of its permits."""
    span: Int64 = 0
    """The number of fences, from ``fence`` on, of a hold that a session retains: it gives them to
    its own owners, and the lock back when others wait. 0 for any other hold, and for a waiter."""

    def shown(self) -> Self:
        """Return it as others may see it: with the handle of its session in place of the id."""
        return self._replace(session=without_secret(self.session))

    def later(self, ms: int) -> Self:
        """Return it as it is ``ms`` milliseconds later."""
        return self._replace(since_ms=self.since_ms + ms)


class Absence(NamedTuple):
    """A node whose message is needed before the next grant, and the duration of its silence."""

    node: str
    silent_ms: Int64


class LockStatus(TableReply, tag=0x1C):
    """State of ``lock`` as the answering node knew it when it replied; it may be old on arrival."""

    lock: str
    holder: Contender | None
    waiters: tuple[Contender, ...]
    """The waiters in the order in which they will be served, if there is one."""
    waits_for: tuple[Absence, ...]
    """Nodes that must reply before another owner can be granted the lock here."""
    permits: Int64 = 1
    """The number of permits of an object. `Contender.times` is the number that a waiter asks for,
    and that a holder has; of a reader, it is how often it holds the object."""
    holders: tuple[Contender, ...] = ()
    """The holders in the order of their grants, where there can be several. ``holder`` is the first
    of them."""
    left_ms: Int64 | None = None
    """Time until the lock is taken from its holder unless it is renewed (ms). None if its hold has
    no deadline, or if the answering node does not know it."""
    left: Int64 | None = None
    """For an object that nobody can hold, such as a latch: its count, which is what is left of its
    ``permits``, or 0 ``permits`` if it counts without a whole. None if it does not exist, and for
    other objects."""
    free: Int64 | None = None
    """For an object with permits that is held or awaited: the permits that nobody holds. None for
    other objects, and where the protocol has none."""

    REPLIES_TO = (Inspect,)
    AGING = ("holders", "waiters")

    @property
    def all_holders(self) -> tuple[Contender, ...]:
        """The holders, also where there can be only one."""
        return self.holders or ((self.holder,) if self.holder else ())

    def at(self, slot: int, age_ms: int, quiet_ms: int) -> Self:
        return replace(
            super().at(slot, age_ms, quiet_ms),
            holder=None if self.holder is None else self.holder.later(quiet_ms),
            left_ms=None if self.left_ms is None else max(0, self.left_ms - quiet_ms),
        )


class HoldLost(Notification, tag=0x64):
    """Notification: the hold of ``owner`` under ``fence`` is lost; ``detail`` says why.

    On `paxos` it is repeated with each `Alive` until the owner sends another request about the
    lock. A client that knows of the loss already sends a `Release`.

    If ``decided`` is set, the cluster has agreed that the hold has ended. Otherwise one node has
    found that the hold's deadline has passed by its own clock, which may be fast.
    """

    owner: str
    detail: str
    decided: bool = False
    why: Why | None = None
    """As in `Refused`."""


HAVE_DEADLINES = "every hold on bakery has one, and on paxos every hold with a duration"
"""Ends the refusal to renew a hold that has no deadline."""


class Renew(LockRequest, Command, tag=0x69):
    """Begin the duration of my hold anew, when this is handled. Answered by `Renewed`.

    Only where holds have deadlines. ``hold_ms`` is the new duration (ms), 0 for the same as before.
    """

    EASES = True

    lock: str
    fence: Int64
    hold_ms: Int64 = 0


class Renewed(LockReply, Outcome, tag=0x6A):
    """The hold lasts ``hold_ms + grace_ms`` from some instant after the `Renew` was sent."""

    fence: Fence
    hold_ms: TermMs
    grace_ms: TermMs

    REPLIES_TO = (Renew,)


class Unlocking(Notification, tag=0x6B):
    """Notification: the duration of the hold is over; after ``grace_ms`` it is taken away.

    The owner must release or renew it.
    """

    grace_ms: Int64
    owner: str = ""


class ConfirmHold(Notification, tag=0xD0):
    """Notification: reply if ``session`` does not hold ``lock`` under ``fence``.

    A node sends it that has restarted, or whose grant may not have arrived. A client that holds
    the lock does not reply; one that does not sends `DisownHold`.
    """


class DisownHold(Request, tag=0xD1):
    """I do not hold ``lock`` under ``fence``, and accept no grant of it from now on."""

    lock: str
    fence: Int64

    EASES = True

    @property
    def reach(self) -> tuple[str, ...]:
        """No name: any client may say what it does not hold."""
        return ()

    def check(self) -> None:
        check_owner(self.session)
        check_lock_name(self.lock)


class Abandon(Local):
    """From the host: the `ask` behind the sender's address has stopped waiting for its reply."""
