"""Messages about sessions, and of operators, between a client and a proxy.

Tags 0x60 to 0x6f, 0xd0, 0xd1, and 0xf8 to 0xfb.

A client is named after its node: ``me``, or ``me~2`` after its first session was lost
or given up. Where the cluster keeps sessions, it assigns an id for all further requests,
which is never given again (``me~2.17``): messages under an ended session have no effect.
"""

from enum import IntEnum
from typing import NamedTuple, Self

from fencelock.actors.api.lock_message import Contender, LockReply, LockRequest, NodeAddress
from fencelock.actors.api.name import (
    HANDLE_BYTES_MAX,
    INT_MAX,
    LABEL_BYTES_MAX,
    LIST_PAGE_MAX,
    SESSION_BYTES_MAX,
    SESSION_TTL_MS_MAX,
    SESSION_TTL_MS_MIN,
    check_lock_name,
    check_number,
    check_object_name,
    check_owner,
    check_text,
    client_of,
    plain_name,
    quoted,
    utf8_size,
)
from fencelock.actors.api.refusal import Why
from fencelock.actors.api.request import (
    Command,
    Notification,
    Outcome,
    PageQuery,
    Request,
    TableQuery,
    TableReply,
)
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import Fence, Int64, TermMs, TtlMs


class CloseReason(IntEnum):
    """Reason why a session has ended. Numbers are on the wire and never reused."""

    GRACEFUL = 1
    """The client closes it."""
    EXPIRED = 2
    """Nothing was received from the client for the TTL of the session."""
    FORCED = 3
    """An operator ends the client's session."""


class Open(Command, tag=0x60):
    """Keep a session for me. Answered by `Opened`; a repetition finds the same session.

    ``session`` is the client's name for it, ``ttl_ms`` the time by which the session outlives
    its last message (ms), ``label`` a text for people (host and process).
    """

    ttl_ms: Int64
    label: str = ""

    def check(self) -> None:
        check_text("session", self.session, SESSION_BYTES_MAX)
        check_text("label", self.label, LABEL_BYTES_MAX)
        check_number("ttl_ms", self.ttl_ms, SESSION_TTL_MS_MIN, SESSION_TTL_MS_MAX)

    def check_new(self) -> None:
        """Refuse what `check` does, and a name that could be mistaken for a session's id.

        A node's own is ``n1/5f3a``; the proxy refuses the like to every client.
        """
        session = self.session
        if "." in session.rpartition("/")[2] or not client_of(session):
            raise InvalidRequestError(
                f"session {quoted(session[:80])}: a name like 'me' or 'me~2' is wanted, without '.'"
            )
        self.check()


class Opened(Outcome, tag=0x61):
    """Use ``assigned`` as session from now on.

    With ``ttl_ms`` 0 the cluster keeps no sessions: ``assigned`` is the client's id, and only the
    node that granted a hold knows it. ``node`` and the fields after ``request`` are as in `Alive`.
    """

    assigned: str
    ttl_ms: TtlMs
    node: str
    leader: str = ""
    view: Int64 = 0
    members: tuple[NodeAddress, ...] = ()

    REPLIES_TO = (Open,)


class End(Command, tag=0x62):
    """End the session ``session`` with all its holds and waits. Answered by `Ended`."""

    EASES = True


class Ended(Outcome, tag=0x63):
    """The session has ended, and holds nothing. Also sent without a request, when it expires.

    ``operator`` is who ended it, as `OperatorCommand.by`, if the reason is FORCED.
    """

    detail: str
    reason: CloseReason = CloseReason.GRACEFUL
    operator: str = ""

    REPLIES_TO = (End,)


def ended(session: str, reason: CloseReason, request: int = 0, operator: str = "") -> Ended:
    """Return the table's notice that ``session`` has ended; the proxy that sends it adds a text."""
    return Ended(session=session, detail="", request=request, reason=reason, operator=operator)


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


class ListLocks(PageQuery, tag=0x65):
    """Return one page of the held locks and other held objects, by name. Answered by `LockList`.

    A prefix with a kind selects objects of that kind. With ``unheld``, the page lists the objects
    that nobody can hold instead; with ``clientless``, the held locks that belong to no client.
    """

    unheld: bool = False
    clientless: bool = False

    @property
    def reach(self) -> tuple[str, ...]:
        return (plain_name(self.prefix),)


class ListedLock(NamedTuple):
    """One line of a list: a held lock, or another held object."""

    lock: str
    """Its full name; see `object_name`."""
    holder: Contender
    waiting: Int64
    """Number of waiters."""

    def later(self, ms: int) -> Self:
        return self._replace(holder=self.holder.later(ms))


class ListedObject(NamedTuple):
    """One object of a list, of a kind that nobody can hold, such as a latch."""

    lock: str
    """Its full name; see `object_name`."""
    waiting: Int64
    """Number of waiters."""
    left: Int64
    """See `LockStatus.left`."""
    permits: Int64
    """The whole of which ``left`` is left: the count with which a latch began, or the number of
    parties of a barrier. 0 if there is none."""


class LockList(TableReply, tag=0x66):
    """Held locks, or objects, sorted by name. If ``more`` is set, others follow after the last."""

    lines: tuple[ListedLock, ...]
    more: bool
    objects: tuple[ListedObject, ...] = ()

    REPLIES_TO = (ListLocks,)
    AGING = ("lines",)


SKIP_MAX = 1_000_000
"""Maximum number of records before a page: more than a group ever has."""


class Records(IntEnum):
    """Kinds of records that the table keeps for operators. Numbers are on the wire."""

    SESSIONS = 1
    EVICTIONS = 2
    """The audit: the last 1,000 forced releases."""


class ListRecords(TableQuery, tag=0xF8):
    """List sessions or evictions, the oldest first, one page. Answered by `RecordList`.

    The page begins after the first ``skip``, and has at most ``most`` (1 to 1,000).
    """

    kind: Records = Records.SESSIONS
    skip: Int64 = 0
    most: Int64 = 100

    OPERATOR = True

    def check(self) -> None:
        TableQuery.check(self)
        check_number("skip", self.skip, 0, SKIP_MAX)
        check_number("most", self.most, 1, LIST_PAGE_MAX)


class ListedSession(NamedTuple):
    """A session in a list."""

    id: str
    label: str
    ttl_ms: Int64
    left_ms: Int64
    """The time until it ends if its client sends nothing (ms)."""
    claims: Int64
    """Number of its holds and waits."""
    retained: Int64 = 0
    """Number of holds among them that it retains; see `Contender.span`."""

    def later(self, ms: int) -> Self:
        return self._replace(left_ms=max(0, self.left_ms - ms))


class ListedEviction(NamedTuple):
    """A forced release in a list, or a session that was closed by force; see `Evicted`."""

    lock: str
    fence: Int64
    holder: Contender
    operator: str
    ago_ms: Int64

    def later(self, ms: int) -> Self:
        return self._replace(ago_ms=self.ago_ms + ms)


class RecordList(TableReply, tag=0xF9):
    """Sessions or evictions, as requested; ``more`` follow after the last."""

    sessions: tuple[ListedSession, ...]
    evictions: tuple[ListedEviction, ...]
    more: bool

    REPLIES_TO = (ListRecords,)
    AGING = ("sessions", "evictions")


class OperatorCommand(Command):
    """A command of an operator, which is kept in the audit with the operator's name."""

    OPERATOR = True

    operator: str
    """The name of the person who sends it."""

    @property
    def by(self) -> str:
        """The operator as the log keeps it: unique with the request, and readable.

        It has the client's id and not its session: a command that is sent again after the
        session was lost is the same one.
        """
        return f"{self.operator} ({client_of(self.session)})"

    def check(self) -> None:
        if (size := utf8_size(self.by)) > LABEL_BYTES_MAX:
            raise InvalidRequestError(
                f"operator and client together have {size} bytes, at most {LABEL_BYTES_MAX} "
                "are allowed"
            )
        check_text("operator", self.by, LABEL_BYTES_MAX)
        check_number("request", self.request, 1, INT_MAX)


class Evict(OperatorCommand, tag=0x67):
    """An operator ends the hold of ``lock`` under ``fence``. Answered by `Evicted`.

    The fence makes a repetition harmless: it cannot hit the next holder. The eviction is in
    the log with the name of the operator, and the next waiter holds under a new fence.
    """

    lock: str
    fence: Int64

    def check(self) -> None:
        check_object_name(self.lock)
        OperatorCommand.check(self)


class Evicted(Outcome, tag=0x68):
    """``holder`` no longer holds ``lock``, and is notified.

    For the audit, ``operator`` is `OperatorCommand.by`, and ``time_ms`` the log time of the
    eviction. The audit also keeps one for each session that was closed by force. It has no ``lock``
    and no ``fence``; its ``holder`` is the session, and ``times`` counts its holds and waits.
    """

    lock: str
    fence: Int64
    holder: Contender
    operator: str = ""
    time_ms: Int64 = 0
    why: Why | None = None
    """In the audit, what a command did that took no hold: its cause is QUOTA_SET or PURGED."""

    REPLIES_TO = (Evict,)


class CloseSession(OperatorCommand, tag=0xFA):
    """An operator ends the session with that ``handle``. Answered by `SessionClosed`.

    Listings show the handle; `without_secret` describes it. The number in it makes a repetition
    harmless: no other session gets the same one. The session ends as after an `End`.
    """

    handle: str

    def check(self) -> None:
        check_text("handle", self.handle, HANDLE_BYTES_MAX)
        OperatorCommand.check(self)


class SessionClosed(Outcome, tag=0xFB):
    """The session with that ``handle`` has ended, and its client is notified.

    It had ``claims`` holds and waits. ``label`` is its client's.
    """

    handle: str
    label: str
    claims: Int64

    REPLIES_TO = (CloseSession,)


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
