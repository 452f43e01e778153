"""The request for the changes of an object, and its reply. Tags 0x9e and 0x9f.

The table keeps the last changes of the objects that can be watched. Each has a version, which
rises with each change in the table and is the same at every member. A client watches an object by
asking again after each reply, for the changes after the version of that reply. Any node can answer:
no change is missing and none comes twice, whichever node it asks next.
"""

from __future__ import annotations

from typing import NamedTuple

from fencelock.actors.api.election import ELECTION
from fencelock.actors.api.map import KEY_BYTES_MAX, MAP
from fencelock.actors.api.name import (
    INT_MAX,
    check_age,
    check_number,
    check_object_name,
    check_owner,
    check_size,
    kind_of,
    titled,
)
from fencelock.actors.api.request import TableQuery, TableReply
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import message

WATCHED_KINDS = frozenset({ELECTION, MAP})
"""The kinds of objects that have changes."""

WATCH_MS = 30_000
"""Time after which a node replies without a change (ms): then it can forget clients that died."""

WATCH_AGE_MS = 5_000
"""A node whose state may be older than this (ms) lets no client wait: another may know more."""

CHANGES_BYTES_MAX = 256 << 10
"""Limit of the changes in one reply (bytes), a quarter of a frame; the rest come with the next."""


class Change(NamedTuple):
    """One change of an object."""

    version: int
    key: str
    """The key of a map's entry; empty for an election."""
    value: bytes | None
    """The new value; None if there is none any more."""
    fence: int
    """The fence of the leader that begins or ends; 0 for a map."""

    @property
    def size(self) -> int:
        """A bound on its size in a message (bytes)."""
        return 64 + len(self.key.encode()) + len(self.value or b"")


@message(0x9F)
class ChangesRead(TableReply):
    """The changes of ``lock`` up to ``version``, in order, after the version that was named.

    With ``resync`` they are not: the node has forgotten some of them, or the request named no
    version. Then ``changes`` are the whole object as of ``version``, or with ``more`` the beginning
    of a large map: its first entries by key, with the versions of their last changes.
    """

    lock: str
    version: int
    changes: tuple[Change, ...]
    resync: bool = False
    session: str = ""
    request: int = 0
    slot: int = 0
    age_ms: int | None = None
    more: bool = False


@message(0x9E)
class ReadChanges(TableQuery):
    """Send the changes of ``watched`` after version ``after``. Answered by `ChangesRead`.

    ``watched`` is the name of the object in the table, see `fencelock.actors.api.name.object_name`.
    If there are none, the node replies when there are some, or after `WATCH_MS` without any. It
    refuses with `Reason.STALE` when its state may be older than `WATCH_AGE_MS`.

    With ``after`` None it replies at once with the object as it is. ``age_ms`` is as in `Inspect`;
    it is unused otherwise. Of a map, only entries count whose keys begin with ``prefix``.
    """

    watched: str
    after: int | None = None
    session: str = ""
    request: int = 0
    age_ms: int | None = None
    prefix: str = ""

    REPLY = ChangesRead

    @property
    def lock(self) -> str:
        """The name of the object in the table."""
        return self.watched

    @property
    def waits(self) -> bool:
        """Whether the reply may come much later."""
        return self.after is not None

    def check(self) -> None:
        """Refuse fields that exceed their limits."""
        check_age(self.age_ms)
        check_owner(self.session)
        check_object_name(self.watched)
        if self.after is not None:
            check_number("after", self.after, 0, INT_MAX)
        check_size("prefix", self.prefix, KEY_BYTES_MAX)
        if kind_of(self.watched) not in WATCHED_KINDS:
            kinds = ", ".join(sorted(WATCHED_KINDS))
            raise InvalidRequestError(
                f"{titled(self.watched)} has no changes to watch; {kinds} have"
            )
