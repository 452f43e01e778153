"""The requests that read the state of the protocol and change nothing."""

from __future__ import annotations

from fencelock.actors.api.backup_message import ReadBackup
from fencelock.actors.api.changes import ReadChanges
from fencelock.actors.api.message import Inspect
from fencelock.actors.api.request import Request, TableQuery
from fencelock.actors.api.session_message import ListLocks, ListRecords

LockQuery = Inspect | ListLocks | ListRecords | ReadBackup | TableQuery
"""All queries. The quota `queries` limits those of a client that have no reply, without watches."""


def is_watch(request: Request) -> bool:
    """Return whether ``request`` waits for a change, so that its reply may come much later."""
    return isinstance(request, ReadChanges) and request.waits
