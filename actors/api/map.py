"""Requests about maps, and their replies. Tags 0x71 to 0x76.

A map has entries by key. Every change of an entry gets the next version. All maps of a group share
one counter, so versions rise over all maps. An entry exists until it is deleted, until it expires
by log time, or until the session that put it ends. A map need not be created, and a map without
entries leaves no state.

A change may require that the entry has a certain version, and that a certain hold exists. If either
is not the case, nothing is changed.
"""

from typing import TYPE_CHECKING, NamedTuple, Self

from fencelock.actors.api.name import (
    INT_MAX,
    LIST_PAGE_MAX,
    check_age,
    check_lock_name,
    check_number,
    check_size,
    check_text,
    is_plain,
    object_name,
)
from fencelock.actors.api.object_request import GuardedRequest, UpdateReply
from fencelock.actors.api.request import RepliedBy, TableQuery, TableReply
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import Int64

MAP = "map"

KEY_BYTES_MAX = 256
"""Maximum length of a key (bytes of UTF-8), as for names."""

ONCE = "once"
"""The map with an entry for each job that has run in its period: of `fencelock lock --once`, and of
``fencelock.contrib.celery.once_a_period``."""

PERIOD_PERCENT = 95
"""The lifetime of such an entry (percent of the period): schedules begin seconds early or late."""

ENTRY_VALUE_BYTES_MAX = 64 << 10
"""Maximum length of a value (bytes, 64 KiB): a map is for configuration, not for documents."""

ENTRY_TTL_MS_MAX = 366 * 24 * 3_600_000
"""Maximum time to live (ms): a year. An entry that must last longer should have None: no end."""


def check_key(key: str) -> None:
    """Refuse a key that is empty, too long, or has a forbidden character."""
    if not key:
        raise InvalidRequestError(f"the key is empty, 1 to {KEY_BYTES_MAX} bytes are allowed")
    check_text("key", key, KEY_BYTES_MAX)


class EntryRequest(GuardedRequest, RepliedBy["EntryChanged"]):
    """A request to change one entry. Answered by `EntryChanged`."""

    KIND = MAP

    map: str
    entry_key: str
    version: Int64 | None = None
    """The version that the entry must have: 0 if there must be no entry, None for any version. If
    the entry has another version, nothing changes, and the reply has that version."""

    def check(self) -> None:
        GuardedRequest.check(self)
        check_key(self.entry_key)
        if self.version is not None:
            check_number("version", self.version, 0, INT_MAX)


class PutEntry(EntryRequest, tag=0x71):
    """Put ``value`` into ``map`` under ``entry_key``.

    The entry expires after ``ttl_ms`` (ms of log time); None means never. If ``ephemeral`` is set,
    it also ends with the session. Both apply until the next put of that key, which sets its own.
    """

    value: bytes
    ttl_ms: Int64 | None = None
    ephemeral: bool = False

    @property
    def needs_session(self) -> bool:
        return self.ephemeral

    def check(self) -> None:
        EntryRequest.check(self)
        if len(self.value) > ENTRY_VALUE_BYTES_MAX:
            raise InvalidRequestError(
                f"value of {len(self.value)} bytes, at most {ENTRY_VALUE_BYTES_MAX} are allowed"
            )
        if self.ttl_ms is not None:
            check_number("ttl_ms", self.ttl_ms, 1, ENTRY_TTL_MS_MAX)


class DeleteEntry(EntryRequest, tag=0x72):
    """Delete the entry of ``map`` under ``entry_key``, if there is one."""


class EntryChanged(UpdateReply, tag=0x73):
    """The entry was changed, and the change has ``version``.

    If ``changed`` is false, nothing was changed. Then ``version`` is the version of the entry, or 0
    if there is none.
    """

    version: Int64 = 0
    changed: bool = True

    REPLIES_TO = (PutEntry, DeleteEntry)


class EntrySeen(NamedTuple):
    """An entry of a map, as a node reports it."""

    key: str
    value: bytes
    version: Int64
    left_ms: Int64 | None
    """Log time until it expires (ms), or None for never."""
    session: str
    """The handle of the session with which it ends; empty if it does not end with one."""

    def later(self, ms: int) -> Self:
        return self._replace(left_ms=None if self.left_ms is None else max(0, self.left_ms - ms))


class MapQuery(TableQuery, RepliedBy["EntryList"]):
    """A query about a map."""

    map: str

    if not TYPE_CHECKING:  # To type checkers this is a field that other requests have.

        @property
        def lock(self) -> str:
            """The name of the map in the table."""
            return object_name(MAP, self.map)

    def check(self) -> None:
        TableQuery.check(self)
        check_lock_name(self.map, MAP)


class EntryList(TableReply, tag=0x74):
    """Entries of a map, by key. If ``more`` is set, others follow after the last one."""

    entries: tuple[EntrySeen, ...]
    more: bool = False

    REPLIES_TO = (MapQuery,)
    AGING = ("entries",)


class GetEntry(MapQuery, tag=0x75):
    """Return the entry of ``map`` under ``entry_key``. Answered by `EntryList`."""

    entry_key: str

    def check(self) -> None:
        if self.entry_key and is_plain(self.map, self.map + self.entry_key + self.session):
            check_age(self.age_ms)
            return
        MapQuery.check(self)
        check_key(self.entry_key)


class ListEntries(MapQuery, tag=0x76):
    """Return one page of the entries of ``map``, by key. Answered by `EntryList`.

    The keys begin with ``prefix`` and come after ``after``. A page has at most ``most`` entries (1
    to 1,000), and fewer if they are large.
    """

    prefix: str = ""
    after: str = ""
    most: Int64 = 100

    def check(self) -> None:
        MapQuery.check(self)
        check_number("most", self.most, 1, LIST_PAGE_MAX)
        check_size("prefix", self.prefix, KEY_BYTES_MAX)
        check_size("after", self.after, KEY_BYTES_MAX)
