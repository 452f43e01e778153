"""Messages of operators: lists of held locks and of sessions, forced ends, and their audit.

Tags 0x65 to 0x68, and 0xf8 to 0xfb.
"""

from enum import IntEnum
from typing import NamedTuple, Self

from fencelock.actors.api.lock_message import Contender
from fencelock.actors.api.name import (
    HANDLE_BYTES_MAX,
    INT_MAX,
    LABEL_BYTES_MAX,
    LIST_PAGE_MAX,
    check_number,
    check_object_name,
    check_text,
    client_of,
    plain_name,
    utf8_size,
)
from fencelock.actors.api.refusal import Why
from fencelock.actors.api.request import Command, Outcome, PageQuery, TableQuery, TableReply
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import Int64


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
