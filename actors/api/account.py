"""Quotas by key, and the removal of what outlives its client. Tags 0x77 to 0x7a, 0xfc to 0xff.

The table charges everything that stays to an account: the key of the client that made it. See
`fencelock.actors.table.account`.
"""

from typing import NamedTuple

from fencelock.actors.api.map import KEY_BYTES_MAX, MAP
from fencelock.actors.api.name import (
    INT_MAX,
    LIST_PAGE_MAX,
    LOCK_NAME_BYTES_MAX,
    REDIS_KEY,
    SESSION_BYTES_MAX,
    account_of,
    check_number,
    check_size,
    check_text,
    is_kind,
)
from fencelock.actors.api.operator_message import OperatorCommand
from fencelock.actors.api.request import Outcome, PageQuery, TableQuery, TableReply
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import Int64

NO_KEY = ""
"""The account of all clients without a key, and of callers inside the nodes."""

EVERY_KEY = "*"
"""Stands for every key that has no quota of its own. No key has this name."""


QUOTA = "quota"
"""The kind by which the audit names a quota, before the name of its key."""


class Amounts(NamedTuple):
    """A number for each thing that is charged."""

    entries: Int64
    """Entries of maps."""
    bytes: Int64
    """Size of the names, keys and values of these entries (bytes)."""
    objects: Int64
    """Objects that nobody can hold, other than maps: latches and the like."""
    claims: Int64
    """Holds and waits."""
    sessions: Int64
    """Open sessions."""


class Quota(NamedTuple):
    """The limits that an operator has set; None where nothing is set. Fields as in `Amounts`."""

    entries: Int64 | None = None
    bytes: Int64 | None = None
    objects: Int64 | None = None
    claims: Int64 | None = None
    sessions: Int64 | None = None


class SetQuota(OperatorCommand, tag=0xFC):
    """Let ``quota`` be the whole quota of the key ``account``. Answered by `QuotaSet`.

    ``account`` may be `NO_KEY`, or `EVERY_KEY` for all keys without a quota of their own. What a
    key has beyond its new quota stays.
    """

    account: str
    quota: Quota

    def check(self) -> None:
        check_text("account", self.account, SESSION_BYTES_MAX)
        for name, most in self.quota._asdict().items():
            if most is not None:
                check_number(name, most, 0, INT_MAX)
        OperatorCommand.check(self)


class QuotaSet(Outcome, tag=0xFD):
    """The key ``account`` may have ``limits`` from now on."""

    account: str
    limits: Amounts

    REPLIES_TO = (SetQuota,)


class AccountUsage(NamedTuple):
    """The use and the limits of one key."""

    account: str
    """The name of the key, `NO_KEY`, or `EVERY_KEY`, which has nothing itself."""
    used: Amounts
    limits: Amounts
    quota: Quota
    """The part of ``limits`` that an operator has set."""


class ReadUsage(TableQuery, tag=0xFE):
    """Return what each key has and may have, one page. Answered by `UsageRead`.

    The names come after ``after``, or from the beginning if that is None. A page has at most
    ``most`` accounts (1 to 1,000).
    """

    after: str | None = None
    most: Int64 = 100

    OPERATOR = True

    def check(self) -> None:
        TableQuery.check(self)
        check_number("most", self.most, 1, LIST_PAGE_MAX)
        check_size("after", self.after or "", SESSION_BYTES_MAX)


class UsageRead(TableReply, tag=0xFF):
    """Accounts by name. If ``more`` is set, others follow after the last one."""

    accounts: tuple[AccountUsage, ...]
    more: bool

    REPLIES_TO = (ReadUsage,)


class ListedMap(NamedTuple):
    """A map in a list."""

    name: str
    entries: Int64
    bytes: Int64
    """Size of its name, for each entry, and of their keys and values (bytes)."""


class ListMaps(PageQuery, tag=0x77):
    """Return one page of the maps that have entries, by name. Answered by `MapList`."""


class MapList(TableReply, tag=0x78):
    """Maps by name. If ``more`` is set, others follow after the last one."""

    maps: tuple[ListedMap, ...]
    more: bool

    REPLIES_TO = (ListMaps,)


class Purge(OperatorCommand, tag=0x79):
    """One step of a removal: of entries of maps, other objects that nobody can hold, or holds.

    Answered by `Purged`. A step is small, so that other requests are served between two steps: it
    looks at a bounded number of entries, holds or objects. The reply says where the next step
    begins.

    The objects are of ``kind``, and their names begin with ``prefix``; with ``exact``, only the
    object of that very name is meant, and of a map only the entries whose keys begin with
    ``entry_prefix``. If ``account`` is not None, only what is charged to that key is removed. The
    step begins after ``after``, and in that map after ``after_key``.

    The kind `REDIS_KEY` is for the holds that belong to no client: those of Redis doors, and
    detached locks. The next claim in the queue of such a lock is granted it. The waits of Redis
    doors that are charged to ``account`` end first if ``prefix`` is empty: then all that the key
    has there is meant.

    A client may remove what its key allows it to name; the removal of what others made is audited.
    Holds and waits that are not charged to the client's own key are for operators.
    """

    kind: str
    prefix: str
    exact: bool = False
    entry_prefix: str = ""
    account: str | None = None
    after: str = ""
    after_key: str = ""

    OPERATOR = False

    def needs_operator(self) -> bool:
        return self.kind == REDIS_KEY and self.account != account_of(self.session)

    @property
    def reach(self) -> tuple[str, ...]:
        return (self.prefix,)

    def check(self) -> None:
        if not is_kind(self.kind):
            raise InvalidRequestError(f"kind is {self.kind[:40]!a}, and must be that of an object")
        if self.exact and not self.prefix:
            raise InvalidRequestError("the name is empty, and exact needs one")
        if self.entry_prefix and not (self.exact and self.kind == MAP):
            raise InvalidRequestError("entry_prefix is set, and is only for one map: set exact")
        for field, text, most in (
            ("prefix", self.prefix, LOCK_NAME_BYTES_MAX),
            ("after", self.after, LOCK_NAME_BYTES_MAX),
            ("entry_prefix", self.entry_prefix, KEY_BYTES_MAX),
            ("after_key", self.after_key, KEY_BYTES_MAX),
            ("account", self.account or "", SESSION_BYTES_MAX),
        ):
            check_text(field, text, most)
        OperatorCommand.check(self)


class Purged(Outcome, tag=0x7A):
    """``removed`` entries or objects were removed.

    If ``more`` is set, there may be others: the next step begins after ``after``, ``after_key``.
    """

    removed: Int64
    more: bool
    after: str = ""
    after_key: str = ""

    REPLIES_TO = (Purge,)
