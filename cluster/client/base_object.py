"""The common base class of objects that callers change or wait for, but do not hold themselves."""

from __future__ import annotations

from itertools import count
from typing import Any, TypeVar

from msgspec.structs import replace

from fencelock.actors.api.lock_all import SEVERAL
from fencelock.actors.api.lock_message import LockStatus
from fencelock.actors.api.name import check_new_lock_name, kind_of, object_name, plain_name, titled
from fencelock.actors.api.request import RepliedBy
from fencelock.actors.error import NotHeldError, RefusedError
from fencelock.cluster.client.connection import Connected, Connection
from fencelock.cluster.client.hold import HasHold
from fencelock.cluster.client.operation import Operation, operation
from fencelock.cluster.client.settings import Read, name_text_of
from fencelock.cluster.guarantee import Guarantee

A = TypeVar("A")

_numbers = count(1)
"""Numbers of owners, unique in this process."""


def updating(connection: Connection, update: RepliedBy[A]) -> Operation[A]:
    """Send a request as an owner that has no other in flight, and end with its reply.

    The table keeps the outcome of each owner's last request. To keep few of them, owners are used
    again, each only after the reply to its last request.
    """
    request: Any = update  # It is an `UpdateRequest`, too.
    owners = connection.owners[request.KIND]
    try:
        owner = owners.pop()
    except IndexError:
        owner = f"{request.KIND} {next(_numbers)}"
    try:
        reply: A = yield from connection.line.ask(replace(request, owner=owner))
    except RefusedError:
        owners.append(owner)
        raise
    owners.append(owner)
    return reply


class BaseObject(Connected):
    """One object of the cluster. Its methods do not wait: they return operations."""

    def __init__(self, connection: Connection, name: str, kind: str, guarantee: Guarantee) -> None:
        super().__init__(connection)
        connection.check()
        name = name_text_of(name, kind)
        check_new_lock_name(name, kind)
        connection.demand(guarantee)
        self.name = name
        """The name under which all clients know the object."""
        self._full_name = object_name(kind, name)

    def _updating(self, request: RepliedBy[A]) -> Operation[A]:
        return updating(self._connection, request)

    @operation
    def status(self, read: Read = "linearizable", max_age: float = 1.0) -> Operation[LockStatus]:
        """Return the holders and waiters, in order, or the count: ``left`` of ``permits``.

        The holder of an election is its leader. What is left of a barrier are parties that are
        missing, of a `Pool` free permits. Arguments and errors are those of `Client.status`.
        """
        return self._inspecting(read, max_age)

    def _inspecting(self, read: Read, max_age: float) -> Operation[LockStatus]:
        age_ms = self._connection.age_ms(read, max_age)
        return self._channel.inspecting(self._full_name, age_ms)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


def guard_of(fence: HasHold | None) -> tuple[str, int]:
    """Return the name of the object in the table and the fence; an empty name and 0 for None."""
    if fence is None:
        return "", 0
    if not isinstance(fence, HasHold):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"fence is {fence!r}, and must be a lock or a hold of one")
    name, number = fence.object_name, fence.fence
    if number is None:
        raise NotHeldError(f"{titled(name)} is not held by this object; nothing was changed")
    return (plain_name(name) if kind_of(name) == SEVERAL else name), number
