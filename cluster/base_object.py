"""The common base of objects that callers change or await, and that nobody holds."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

from fencelock.actors.api.message import LockStatus
from fencelock.actors.api.name import check_new_lock_name
from fencelock.actors.api.object_request import UpdateRequest
from fencelock.actors.error import RefusedError
from fencelock.cluster.connection import Connection
from fencelock.cluster.guarantee import Guarantee, demand
from fencelock.cluster.lock_options import check_name_type
from fencelock.cluster.operation import Operation
from fencelock.cluster.settings import Read
from fencelock.transport.codec import pack

_numbers = count(1)
"""Numbers of owners, which are different in one process."""


class BaseObject:
    """One object of the cluster. Nothing in it waits.

    Args:
        connection: the connection of the client.
        name: the name of the object.
        guarantee: the guarantee that the protocol must give.
        request: a request about the object; its number does not matter.

    """

    def __init__(
        self, connection: Connection, name: str, guarantee: Guarantee, request: UpdateRequest
    ) -> None:
        connection.line.check()
        check_name_type(name)
        check_new_lock_name(name)
        demand(connection.protocol, guarantee)
        pack(request)  # It checks the types.
        request.check()
        self.name = name
        """The name under which all clients know it."""
        self._connection = connection
        self._full_name = request.lock
        self._owners: list[str] = []
        """Owners of requests that have the outcome of their last one."""

    def _updating(self, request: UpdateRequest) -> Operation[Any]:
        """Send a request, and end with its reply.

        The table keeps the last outcome of each owner. So owners are used again, but an owner only
        makes a request once it has the outcome of the last.
        """
        try:
            owner = self._owners.pop()
        except IndexError:
            owner = f"{request.KIND} {next(_numbers)}"
        asked: Any = request
        try:
            reply = yield from self._connection.line.ask(replace(asked, owner=owner))
        except RefusedError:
            self._owners.append(owner)
            raise
        self._owners.append(owner)
        return reply

    def _inspecting(self, read: Read, max_age: float) -> Operation[LockStatus]:
        age_ms = self._connection.age_ms(read, max_age)
        return self._connection.line.inspecting(self._full_name, age_ms)
