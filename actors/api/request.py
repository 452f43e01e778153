"""Bases of the messages between clients and the proxy of a node.

A request is declared once: its fields, its limits and its key. Whatever serves requests (the
proxies, the replicated table, the codec) finds them by these bases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar, cast

from msgspec.structs import replace

from fencelock.actors.api.name import plain_name
from fencelock.actors.message import Message, declared

Key = tuple[str, str, str, int]
"""The identity of a request: session, owner, name and number. It makes a request take effect at
most once.

Its reply has the same key. The name belongs to the object that the request is about.
"""


R_co = TypeVar("R_co", covariant=True)


class RepliedBy(Protocol[R_co]):
    """To type checkers: a request whose reply is an ``R_co``, which `ask` returns."""

    @property
    def reply(self) -> R_co:
        """Of that type. No request has it when the program runs."""
        ...


class Request(Message):
    """A message of a client to a proxy.

    ``session`` names the client, and ``request`` rises with each new request of that session. A
    request that is sent again keeps its number.
    """

    OPERATOR: ClassVar[bool] = False
    """Whether it is for operators: where keys are used, a client's key is not enough."""

    if TYPE_CHECKING:  # Every subclass declares them as fields.
        session: str = declared()
        """The session of the client."""
        request: int = declared()
        """The number of the request in that session."""

    def needs_operator(self) -> bool:
        """Return whether it is for operators only."""
        return self.OPERATOR

    @property
    def reach(self) -> tuple[str, ...]:
        """The names that it is about, or the beginning of several."""
        name = plain_name(self.key[2])
        return (name,) if name else ()

    @property
    def key(self) -> Key:
        """The request's key. Here: the key of a request without an owner and an object."""
        return self.session, "", "", self.request

    def check(self) -> None:
        """Refuse fields that exceed their limits.

        Raises:
            InvalidRequestError: naming the field, the value and the limit.

        """

    def check_new(self) -> None:
        """Refuse the same requests as `check`, and those that only a proxy refuses.

        Raises:
            InvalidRequestError: naming the field, the value and the limit.

        """
        self.check()


class Query(Request):
    """A request that changes nothing. Callers inside the node's process need no session for it."""


class TableQuery(Query):
    """A query that each member can answer from its copy of the replicated table.

    If ``age_ms`` is None, the read is linearizable. Otherwise the node replies from its own state
    if that is at most ``age_ms`` old.
    """

    if TYPE_CHECKING:  # Every subclass declares it as a field.
        age_ms: int | None = declared()
        """The maximum age of the state (ms); None for a linearizable read."""

    @property
    def lock(self) -> str:
        """The name of the object in the table."""
        raise NotImplementedError

    @property
    def key(self) -> Key:
        """The request's key."""
        return self.session, "", self.lock, self.request


class Command(Request):
    """A request that changes the replicated table: the log applies it as it was sent.

    The table applies `check` again and answers INVALID, so these limits are part of the
    replicated state machine: members that run together must agree on them.
    """

    SINCE: ClassVar[int] = 1
    """The log version that added this command; see `fencelock.actors.table.wire.LOG_VERSION`."""


class Reply(Message):
    """A message of a proxy that answers a request."""

    REPLIES_TO: ClassVar[tuple[type[Request], ...]] = ()
    """The requests to which this is a reply."""

    if TYPE_CHECKING:  # Every subclass declares them as fields.
        session: str = declared()
        """The session of the request."""
        request: int = declared()
        """The number of the request."""


class TableReply(Reply):
    """A reply from a copy of the replicated table: the state after all slots before ``slot``.

    The state is at most ``age_ms`` old; None if its age is not known.
    """

    def at(self, slot: int, age_ms: int, quiet_ms: int) -> Self:
        """Return the reply for the state before ``slot``, ``quiet_ms`` of log time later."""
        dated: Self = replace(cast("Any", self), slot=slot, age_ms=age_ms)
        return dated


class Outcome(Reply):
    """A reply that the replicated table gives to a `Command`."""

    @property
    def key(self) -> Key:
        """The key of the command that it answers."""
        return self.session, "", "", self.request


class Notification(Message):
    """A message of a proxy to a client that answers no request."""
