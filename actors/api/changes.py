"""The request for the changes of an object, and its reply. Tags 0x9e and 0x9f.

The table keeps the last changes of each object that can be watched. Each change has a version.
Versions rise with every change in the table, and are the same at all members. To watch an object, a
client requests the changes after the version of the last reply, again and again. It may send each
request to another node: no change is missing, and none comes twice.
"""

from typing import NamedTuple

from fencelock.actors.api.election import ELECTION
from fencelock.actors.api.map import KEY_BYTES_MAX, MAP
from fencelock.actors.api.name import (
    INT_MAX,
    check_number,
    check_object_name,
    check_size,
    kind_of,
    titled,
)
from fencelock.actors.api.request import RepliedBy, TableQuery, TableReply
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import Int64

WATCHED_KINDS = frozenset({ELECTION, MAP})
"""The kinds of objects that can be watched."""

CHANGES_WATCH_MS = 30_000
"""Time after which a node replies without a change (ms), so that it can forget dead clients."""

WATCH_AGE_MS = 5_000
"""Maximum age of the state of a node at which clients wait for changes (ms).

A node with an older state refuses them, since other nodes may already know the next change.
"""

CHANGES_BYTES_MAX = 256 << 10
"""Maximum size of the changes in one reply (bytes), a quarter of a frame. More replies follow."""


class Change(NamedTuple):
    """One change of an object."""

    version: Int64
    key: str
    """The key of an entry of a map; empty for an election."""
    value: bytes | None
    """The new value; None if the entry, or the term of the leader, has ended."""
    fence: Int64
    """The fence of the leader whose term begins or ends; 0 for a map."""

    @property
    def size(self) -> int:
        """An upper bound on its size in a message (bytes)."""
        return 64 + len(self.key.encode()) + len(self.value or b"")


class ReadChanges(TableQuery, RepliedBy["ChangesRead"], tag=0x9E):
    """Send the changes of ``lock`` after version ``after``. Answered by `ChangesRead`.

    ``lock`` is the name of the object in the table, see `fencelock.actors.api.name.object_name`.
    If there are no such changes yet, the node replies at the next one, or after `CHANGES_WATCH_MS`.
    It refuses with `Reason.STALE` when its state may be older than `WATCH_AGE_MS`.

    If ``after`` is None, the node replies at once with the present state of the object. Only then
    ``age_ms`` is used, as in `Inspect`. For a map, only entries whose keys begin with ``prefix``
    are included.
    """

    lock: str
    after: Int64 | None = None
    prefix: str = ""

    @property
    def waits(self) -> bool:
        return self.after is not None

    def check(self) -> None:
        TableQuery.check(self)
        check_object_name(self.lock)
        if self.after is not None:
            check_number("after", self.after, 0, INT_MAX)
        check_size("prefix", self.prefix, KEY_BYTES_MAX)
        if kind_of(self.lock) not in WATCHED_KINDS:
            kinds = ", ".join(sorted(WATCHED_KINDS))
            raise InvalidRequestError(
                f"{titled(self.lock)} cannot be watched; kinds that can be: {kinds}"
            )


class ChangesRead(TableReply, tag=0x9F):
    """The changes of ``lock`` after the requested version and up to ``version``, in order.

    If ``resync`` is set, the node has dropped some of these changes, or the request named no
    version. Then ``changes`` list the whole object as of ``version`` instead. If ``more`` is set
    too, they are only the first entries of a large map by key, with the versions of their last
    changes.
    """

    lock: str
    version: Int64
    changes: tuple[Change, ...]
    resync: bool = False
    more: bool = False

    REPLIES_TO = (ReadChanges,)
