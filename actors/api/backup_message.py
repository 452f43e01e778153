"""Messages by which an operator reads a backup of the replicated table. Tags 0xe0 and 0xe1.

The client asks for one part after the other, so it sets the pace. Where keys are used, the request
needs an operator's.
"""

from fencelock.actors.api.name import INT_MAX, check_number, check_owner
from fencelock.actors.api.request import Query, Reply, TableQuery
from fencelock.actors.message import Int64


class ReadBackup(Query, tag=0xE0):
    """Send part ``chunk`` of the snapshot of ``slot``. Answered by `BackupPart`.

    With ``slot`` 0 the node begins a snapshot of its table, and the reply names its slot. Only
    ``node`` has the parts of its snapshot; an empty name means any node.
    """

    node: str = ""
    slot: Int64 = 0
    chunk: Int64 = 0

    OPERATOR = True

    def check(self) -> None:
        check_owner(self.session)
        check_owner(self.node)
        check_number("slot", self.slot, 0, INT_MAX)
        check_number("chunk", self.chunk, 0, INT_MAX)


class BackupPart(Reply, tag=0xE1):
    """Part ``chunk`` of ``count`` of the table after all slots before ``slot``.

    With ``count`` 0 the node is still making that snapshot: ask again. ``time_ms`` is the log time
    of the snapshot.
    """

    node: str
    slot: Int64
    time_ms: Int64
    chunk: Int64
    count: Int64
    content: bytes

    REPLIES_TO = (ReadBackup,)


LockQuery = TableQuery | ReadBackup
"""The requests that read the table and change nothing. The quota `queries` limits those of a client
that have no reply, without watches."""
