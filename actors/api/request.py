"""Bases of the messages between clients and the proxy of a node.

A request is declared once: its fields, its limits and its key. Whatever serves requests (the
proxies, the replicated table, the codec) finds them by these bases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from msgspec.structs import replace

from fencelock.actors.api.name import (
    LIST_PAGE_MAX,
    LOCK_NAME_BYTES_MAX,
    check_age,
    check_number,
    check_owner,
    check_size,
    plain_name,
)
from fencelock.actors.message import Int64, Message, declared

RequestKey = tuple[str, str, str, int]
"""The identity of a request: session, owner, name and number. It makes a request take effect at
most once.

Its reply has the same key. The name belongs to the object that the request is about.
"""


R_co = TypeVar("R_co", covariant=True)


class RepliedBy(Generic[R_co]):
    """A base of requests whose reply is an ``R_co``: `ask` returns that, to type checkers."""

    __slots__ = ()


class Request(Message):
    """A message of a client to a proxy.

    ``session`` names the client, and ``request`` rises with each new request of that session. A
    request that is sent again keeps its number.
    """

    session: str = ""
    request: Int64 = 0

    OPERATOR: ClassVar[bool] = False
    """Whether it is for operators: where keys are used, a client's key is not enough."""

    CANCELLABLE: ClassVar[bool] = False
    """Whether a `Cancel` with its number ends it."""

    WAITS: ClassVar[bool] = False
    """Whether it can wait for an object. If so, it has ``wait_ms`` and ``label``."""

    if TYPE_CHECKING:
        lock: str = declared()
        """The name in the table of the object that it is about; empty for no object."""
    else:
        lock = ""

    def needs_operator(self) -> bool:
        return self.OPERATOR

    @property
    def reach(self) -> tuple[str, ...]:
        """The names that it is about, or the beginning of several."""
        name = plain_name(self.key[2])
        return (name,) if name else ()

    @property
    def key(self) -> RequestKey:
        """The request's key. Here: the key of a request without an owner."""
        return self.session, "", self.lock, self.request

    def check(self) -> None:
        """Refuse fields that exceed their limits."""

    def check_new(self) -> None:
        """Refuse the same requests as `check`, and those that only a proxy refuses."""
        self.check()


class Query(Request):
    """A request that changes nothing. Callers inside the node's process need no session for it."""


class TableQuery(Query):
    """A query that each member can answer from its copy of the replicated table.

    If ``age_ms`` is None, the read is linearizable. Otherwise the node replies from its own state
    if that is at most ``age_ms`` old.
    """

    age_ms: Int64 | None = None

    @property
    def waits(self) -> bool:
        """Whether it waits for a change, so that its reply may come much later."""
        return False

    def check(self) -> None:
        check_age(self.age_ms)
        check_owner(self.session)


class PageQuery(TableQuery):
    """A query for a page of names, sorted: at most ``most`` of them (1 to 1,000).

    They begin with ``prefix`` and come after ``after``.
    """

    prefix: str = ""
    after: str = ""
    most: Int64 = 100

    @property
    def reach(self) -> tuple[str, ...]:
        return (self.prefix,)

    def check(self) -> None:
        TableQuery.check(self)
        check_number("most", self.most, 1, LIST_PAGE_MAX)
        check_size("prefix", self.prefix, LOCK_NAME_BYTES_MAX)
        check_size("after", self.after, LOCK_NAME_BYTES_MAX)


def is_watch(request: Request) -> bool:
    return isinstance(request, TableQuery) and request.waits


class Command(Request):
    """A request that changes the replicated table: the log applies it as it was sent.

    The table applies `check` again and answers INVALID, so these limits are part of the
    replicated state machine: members that run together must agree on them.
    """

    SINCE: ClassVar[int] = 1
    """The log version that added this command; see `fencelock.actors.table.wire.LOG_VERSION`."""


class Reply(Message):
    """A message of a proxy that answers a request, and has its session and number."""

    session: str = ""
    request: Int64 = 0

    REPLIES_TO: ClassVar[tuple[type[Request], ...]] = ()
    """The requests to which this is a reply."""


class TableReply(Reply):
    """A reply from a copy of the replicated table: the state after all slots before ``slot``.

    The state was at most ``age_ms`` old at the reply: 0 if linearizable, None if its age is not
    known. It may be older on arrival.
    """

    slot: Int64 = 0  # 0 where there is no log.
    age_ms: Int64 | None = None

    AGING: ClassVar[tuple[str, ...]] = ()
    """The fields whose items have durations: their ``later(ms)`` returns them some time later."""

    def at(self, slot: int, age_ms: int, quiet_ms: int) -> Self:
        """Return the reply for the state before ``slot``, ``quiet_ms`` of log time later."""
        reply: Any = self
        later = {
            field: tuple([one.later(quiet_ms) for one in getattr(reply, field)])
            for field in self.AGING
        }
        dated: Self = replace(reply, slot=slot, age_ms=age_ms, **later)
        return dated


class Outcome(Reply):
    """A reply that the replicated table gives to a `Command`."""

    if TYPE_CHECKING:
        lock: str = declared()
    else:
        lock = ""

    @property
    def key(self) -> RequestKey:
        """The key of the command that it answers."""
        return self.session, "", self.lock, self.request


class Notification(Message):
    """A message of a proxy to a client that answers no request: about a hold under ``fence``."""

    session: str
    lock: str
    fence: Int64
