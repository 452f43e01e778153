"""Accounts of the table: which key is charged for what stays, and how much each may have.

Everything in the table that outlives a request is charged to one account. The account is the key
with which the session was opened. The session's id begins with the key's name, and a node accepts
no other id from a client with that key. So the log itself says who pays, and every member charges
alike, whatever its own list of keys is.

- A session, with its holds and waits, is charged to its own key.
- A hold or a wait through a Redis door is charged to the key with which its client authenticated
  there.
- An entry of a map is charged to the key that put it last, and another object that nobody can hold
  to the key that made it. They stay charged when that session ends. The charge ends with the thing.
- Clients without keys, and callers inside the nodes, are one account, `NO_KEY`: an id that nobody
  has proved cannot limit anybody.

Quotas are part of the table, too: an operator sets them through the log, so all members refuse the
same requests. Each key may have a quarter of the whole, unless an operator decides otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import nlargest
from typing import TYPE_CHECKING
from zlib import crc32

from fencelock.actors.api.account import EVERY_KEY, NO_KEY, Amounts, Quota
from fencelock.actors.api.refusal import Cause, Why

if TYPE_CHECKING:
    from fencelock.actors.table.resource import Wait

ENTRIES_MAX = 100_000
"""Maximum number of entries of all maps of a group. A put of one more is refused."""

ENTRIES_BYTES_MAX = 256 << 20
"""Maximum size of the names, keys and values of all entries (bytes, 256 MiB). Each member has all
entries in memory, and while it makes a snapshot also those that have been replaced since."""

OBJECTS_MAX = 100_000
"""Maximum number of objects of a group that nobody can hold, other than maps. A latch that was
counted down stays until its count is 0, so their number must have a limit."""

CLAIMS_MAX = 1_000_000
"""Maximum holds and waits of the whole table, which must fit a member's memory several times."""

SESSIONS_MAX = 100_000
"""Live sessions of a group; the next is refused."""

WHOLE = Amounts(ENTRIES_MAX, ENTRIES_BYTES_MAX, OBJECTS_MAX, CLAIMS_MAX, SESSIONS_MAX)
"""The limit of all accounts together, and by default of the account without a key."""

SHARES = 4
"""A key may have the whole divided by this by default, so that one key leaves room for others."""

KEY_SHARE = Amounts(*(most // SHARES for most in WHOLE))
"""The limits of a key by default."""


@dataclass(slots=True, eq=False)
class Account:
    """The use and the limits of one key in the table.

    Attributes:
        name: the name of the key, or `NO_KEY`.
        limits: what it may have.
        entries: number of entries of maps.
        bytes: the size of their names, keys and values (bytes).
        objects: number of objects that nobody can hold, other than maps.
        claims: number of holds and waits.
        sessions: number of sessions.
        owners: number of owner states of its sessions; see `OWNERS_MAX` of `session`.
        waits: the waits of Redis doors that are charged to it, by ticket.

    """

    name: str
    limits: Amounts
    entries: int = 0
    bytes: int = 0
    objects: int = 0
    claims: int = 0
    sessions: int = 0
    owners: int = 0
    waits: dict[int, Wait] = field(default_factory=dict[int, "Wait"])

    @property
    def used(self) -> Amounts:
        return Amounts(self.entries, self.bytes, self.objects, self.claims, self.sessions)

    @property
    def share(self) -> float:
        """The largest part of a quota that it uses; 1 for all of it."""
        return max(has / max(1, most) for has, most in zip(self.used, self.limits, strict=True))

    def why_over(self, what: str, more: int = 1) -> Why | None:
        """Return why it may not have ``more`` of a thing, a field of `Amounts`; None if it may."""
        has, most = getattr(self, what), getattr(self.limits, what)
        if has + more <= most:
            return None
        return Why(Cause.QUOTA, (has, most, more), (self.name, what))


class Accounts:
    """All accounts that have something, and the quotas that operators have set.

    Invariants:
        charges-add-up  The counts of an account are those of the sessions, claims, objects and
            entries in the table that are charged to it. An account that has nothing is not here.

    Attributes:
        by_name: the accounts that have something.
        quotas: the quotas that were set, by the name of the key, or by `EVERY_KEY`.
        marks: the sum of the marks of all quotas.

    """

    def __init__(self) -> None:
        self.by_name: dict[str, Account] = {}
        self.quotas: dict[str, Quota] = {}
        self.marks = 0

    def of(self, name: str) -> Account:
        """Return an account, which the caller charges."""
        known = self.by_name.get(name)
        if known is None:
            known = self.by_name[name] = Account(name, self.limits(name))
        return known

    def leave(self, account: Account) -> None:
        """Forget ``account`` if it has nothing. Its waits end before its sessions do."""
        if not (account.sessions or account.entries or account.objects or account.claims):
            assert account.bytes == 0  # charges-add-up
            del self.by_name[account.name]

    def limits(self, name: str) -> Amounts:
        """Return what the key ``name`` may have: by its own quota, else by that of every key."""
        shares = WHOLE if name == NO_KEY else KEY_SHARE
        own, every = self.quotas.get(name, Quota()), self.quotas.get(EVERY_KEY, Quota())
        if name == NO_KEY:
            every = Quota()
        return Amounts(
            *(
                next(most for most in found if most is not None)
                for found in zip(own, every, shares, strict=True)
            )
        )

    def why_over(self, name: str, what: str, more: int = 1) -> Why | None:
        return (self.by_name.get(name) or Account(name, self.limits(name))).why_over(what, more)

    def nearest(self, most: int) -> list[tuple[float, str]]:
        return nlargest(most, ((one.share, one.name) for one in self.by_name.values()))

    def set(self, name: str, quota: Quota) -> None:
        """Let ``quota`` be that of the key ``name``; one without any number is none."""
        before = self.quotas.pop(name, None)
        if before is not None:
            self.marks -= _mark(name, before)
        if quota != Quota():
            self.quotas[name] = quota
            self.marks += _mark(name, quota)
        changed = self.by_name.values() if name == EVERY_KEY else (self.by_name.get(name),)
        for account in changed:
            if account is not None:
                account.limits = self.limits(account.name)


def _mark(name: str, quota: Quota) -> int:
    return 1 + crc32(f"{name}\n{tuple(quota)}".encode())
