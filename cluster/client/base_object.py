"""The common base class of objects that callers change or wait for, and that nobody holds."""

from __future__ import annotations

from itertools import count
from typing import Any

from msgspec.structs import replace

from fencelock.actors.api.message import LockStatus
from fencelock.actors.api.name import check_new_lock_name, object_name
from fencelock.actors.api.object_request import UpdateRequest
from fencelock.actors.error import RefusedError
from fencelock.cluster.client.connection import Connection
from fencelock.cluster.client.lock_options import check_name_type
from fencelock.cluster.client.operation import Operation
from fencelock.cluster.client.session_channel import SessionChannel
from fencelock.cluster.client.settings import Read
from fencelock.cluster.guarantee import Guarantee

_numbers = count(1)
"""Numbers of owners, unique in this process."""


def updating(connection: Connection, request: UpdateRequest) -> Operation[Any]:
    """Send a request as an owner that has no other in flight, and end with its reply.

    The table keeps the outcome of each owner's last request. To keep few of them, owners are used
    again, each only after the reply to its last request.
    """
    owners = connection.owners[request.KIND]
    try:
        owner = owners.pop()
    except IndexError:
        owner = f"{request.KIND} {next(_numbers)}"
    try:
        reply = yield from connection.line.ask(replace(request, owner=owner))
    except RefusedError:
        owners.append(owner)
        raise
    owners.append(owner)
    return reply


class BaseObject:
    """One object of the cluster. Its methods do not wait: they return operations.

    Args:
        connection: the connection of the client.
        name: the name of the object.
        kind: the kind of the object.
        guarantee: the guarantee that the protocol must give.

    """

    def __init__(self, connection: Connection, name: str, kind: str, guarantee: Guarantee) -> None:
        connection.check()
        check_name_type(name, kind)
        check_new_lock_name(name, kind)
        connection.demand(guarantee)
        self.name = name
        """The name under which all clients know the object."""
        self._given = connection
        self._full_name = object_name(kind, name)

    @property
    def _connection(self) -> Connection:
        return self._given.present()

    @property
    def _channel(self) -> SessionChannel:
        return self._given.present().line

    def _updating(self, request: UpdateRequest) -> Operation[Any]:
        """Send a request, and end with its reply."""
        return updating(self._connection, request)

    def _inspecting(self, read: Read, max_age: float) -> Operation[LockStatus]:
        age_ms = self._connection.age_ms(read, max_age)
        return self._channel.inspecting(self._full_name, age_ms)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"
