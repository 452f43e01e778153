"""Holds that belong to no client, and the session to which they belong instead.

They are held through Redis doors, or were detached by a client (`handover.py`). Such a hold is the
only one of an owner of its own. Nothing is kept of it when it ends. The requests about it come in
other sessions: those of doors, or of the client that attaches it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from fencelock.actors.api.name import NO_CLIENT
from fencelock.actors.api.redis import KeyOutcome, KeyState
from fencelock.actors.table.account import WHOLE, Account
from fencelock.actors.table.deadline import ROUNDING_MS, DatedHold
from fencelock.actors.table.map import SortedKeys
from fencelock.actors.table.session import Key, OwnerState, Session
from fencelock.actors.table.wire import KeyRecord, LeaseRecord

PRINTABLE = range(0x20, 0x7F)
"""The printable characters of ASCII."""

SHOWN_MAX = 200
"""Characters of a value that people see, as the owner."""


@dataclass(slots=True, eq=False)
class KeySession(Session):
    """The session of all these holds. It never ends, and no session has its number.

    Each hold is charged to an account of its own, and this session to none.

    Attributes:
        names: the names of all keys that are held.

    """

    names: SortedKeys = field(default_factory=SortedKeys)

    def retire(self, key: Key, now_ms: int) -> None:
        """Forget the owner of ``key``, who holds no more."""
        del now_ms
        del self.owner_states[key]
        self.losses.pop(key, None)
        self.names.remove(key[1])


def key_session() -> KeySession:
    """Return the session of a new table."""
    return KeySession(
        number=-1,  # Others are numbered from 1, and a record with 0 has no session.
        id=NO_CLIENT,
        name=NO_CLIENT,
        label="",
        ttl_ms=0,
        deadline_ms=0,
        account=Account(NO_CLIENT, WHOLE),
    )


@dataclass(slots=True, eq=False)
class KeyHold(DatedHold):
    """A hold that belongs to no client.

    Attributes:
        charged: the account that is charged for it.

    """

    charged: Account = field(kw_only=True)

    @property
    def key(self) -> KeyRecord:
        """Its value, and what else it has of its request."""
        assert self.details.key is not None
        return self.details.key

    @property
    def holder(self) -> str:
        """Who detached it, or its value: as it is if it is printable ASCII, else hexadecimal."""
        value = self.key.value
        if self.key.detached_by:
            return self.key.detached_by
        plain = all(byte in PRINTABLE for byte in value)
        text = value.decode("ascii") if plain else f"0x{value.hex()}"
        return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."

    @property
    def account(self) -> Account:
        """The account that is charged for it."""
        return self.charged

    def outcome(self, before: KeyState, *, changed: bool) -> KeyOutcome:
        """Return what has become of the key, which had the state ``before`` a request."""
        return KeyOutcome(before, changed, self.fence, self.left_ms(), self.count)

    def left_ms(self) -> int | None:
        """Return the time until its deadline (ms), or None if it has none."""
        table = self.table
        return None if table is None else max(0, self.deadline_ms - table.time_ms - ROUNDING_MS)

    def mark(self) -> int:
        """Return a checksum of what it has besides its fence and its deadline."""
        key = self.key
        about = f"{self.owner_state.lock}\n{key.account}\n{key.reserved}\n{self.count}"
        about += key.detached_by
        return crc32(key.value, crc32(about.encode()))


def begin_key(table: Any, owner_state: OwnerState, details: Any) -> KeyHold:
    """Return a new hold under the table's last fence. It has no deadline yet."""
    hold = KeyHold(
        owner_state,
        details,
        table.fence,
        table.time_ms,
        0,
        charged=table.accounts.of(details.key.account),
    )
    add_key(table, hold)
    return hold


def restored_key(
    table: Any,
    fields: tuple[OwnerState, Any, int, int, int],
    charged: Account,
    lease: LeaseRecord | None,
) -> KeyHold:
    """Return the hold of a record with its first fields; ``table`` watches its deadline."""
    hold = KeyHold(*fields, charged=charged)
    hold.move(table, None if lease is None else lease.deadline_ms)
    return hold


def add_key(table: Any, hold: KeyHold) -> None:
    """Count a hold, which may come from a snapshot."""
    table.key_session.names.add(hold.owner_state.lock)
    table.marked += hold.mark()


def end_key(table: Any, hold: KeyHold) -> None:
    """Note that a hold has ended."""
    table.marked -= hold.mark()
    table.accounts.leave(hold.charged)
