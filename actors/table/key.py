"""Holds that belong to no client, and the session to which they belong instead.

They are held through Redis doors, or were detached by a client, under the digest of a secret. Such
a hold is the only one of an owner of its own. Nothing is kept of it when it ends. The requests
about it come in other sessions: those of doors (`redis.py`), or of the client that attaches it.

Invariants:
    nobody-between  From the hold of the client that detaches to that of the client that attaches,
        no claim in the queue is granted the lock. If nobody attaches it in time, the next one is.
    attached-once   A secret attaches one hold at most: `Attach` ends the detached hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zlib import crc32

from fencelock.actors.api.handover import Attach, Detach, digest_of
from fencelock.actors.api.lock_message import Reason
from fencelock.actors.api.name import NO_CLIENT
from fencelock.actors.api.redis import KeyOutcome, KeyState
from fencelock.actors.api.refusal import Cause, Why
from fencelock.actors.table.account import WHOLE, Account
from fencelock.actors.table.deadline import ROUNDING_MS, DatedHold
from fencelock.actors.table.lock_rules import (
    begin,
    begin_claim,
    deny,
    deny_release,
    has_room,
    lock_details,
)
from fencelock.actors.table.map import SortedKeys
from fencelock.actors.table.resource import ClaimDetails
from fencelock.actors.table.session import OwnerKey, OwnerState, Session
from fencelock.actors.table.wire import KeyRecord, Result

if TYPE_CHECKING:
    from fencelock.actors.table.state import TableState

PRINTABLE = range(0x20, 0x7F)

KEY_SHOWN_CHARS_MAX = 200
"""Characters of a value that people see, as the owner."""


@dataclass(slots=True, eq=False)
class KeySession(Session):
    """The session of all these holds. It never ends, and no session has its number.

    Each hold is charged to an account of its own, and this session to none.

    Attributes:
        names: the names of all keys that are held.

    """

    names: SortedKeys = field(default_factory=SortedKeys)

    def retire(self, key: OwnerKey, now_ms: int) -> None:
        del self.owner_states[key]
        self.account.owners -= 1
        self.losses.pop(key, None)
        self.names.remove(key[1])


def key_session() -> KeySession:
    return KeySession(
        number=-1,  # Others are numbered from 1, and a record with 0 has no session.
        id=NO_CLIENT,
        name=NO_CLIENT,
        label="",
        ttl_ms=0,
        deadline_ms=0,
        account=Account(NO_CLIENT, WHOLE),
    )


class KeyHold(DatedHold, eq=False, kw_only=True):
    """A hold that belongs to no client.

    Attributes:
        charged: the account that is charged for it.

    """

    charged: Account

    @property
    def key(self) -> KeyRecord:
        assert self.details.key is not None
        return self.details.key

    @property
    def holder(self) -> str:
        """The client that detached it, or its value, in hexadecimal unless printable ASCII."""
        value = self.key.value
        if self.key.detached_by is not None:
            return self.key.detached_by
        plain = all(byte in PRINTABLE for byte in value)
        text = value.decode("ascii") if plain else f"0x{value.hex()}"
        return text if len(text) <= KEY_SHOWN_CHARS_MAX else f"{text[:KEY_SHOWN_CHARS_MAX]}..."

    @property
    def account(self) -> Account:
        return self.charged

    def outcome(self, before: KeyState, *, changed: bool) -> KeyOutcome:
        """Return what has become of the key, which had the state ``before`` a request."""
        return KeyOutcome(before, changed, self.fence, self.left_ms(), self.count)

    def left_ms(self) -> int | None:
        table = self.table
        return None if table is None else max(0, self.deadline_ms - table.time_ms - ROUNDING_MS)

    def mark(self) -> int:
        """Return a checksum of what it has besides its fence and its deadline."""
        key = self.key
        about = f"{self.owner_state.lock}\n{key.account}\n{key.reserved}\n{self.count}"
        about += "" if key.detached_by is None else f"\n{key.detached_by}"
        return crc32(key.value, crc32(about.encode()))


def begin_key(table: TableState, owner_state: OwnerState, details: ClaimDetails) -> KeyHold:
    assert details.key is not None
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


def add_key(table: TableState, hold: KeyHold) -> None:
    """Count a hold, which may come from a snapshot."""
    table.key_session.names.add(hold.owner_state.lock)
    table.marked += hold.mark()


def end_key(table: TableState, hold: KeyHold) -> None:
    table.marked -= hold.mark()
    table.accounts.leave(hold.charged)


def detach(table: TableState, command: Detach, out: list[Result]) -> None:
    """Turn the hold of a client into one of no client. Owner and fence must both be right."""
    owner_state = begin(table, command, out)
    if owner_state is None:
        return
    owner_state.releasing = True
    hold, lock = owner_state.hold, command.lock
    if hold is None or hold.fence != command.fence:
        deny_release(table, owner_state, command, out)
    elif hold.count > 1:
        deny(table, owner_state, Reason.INVALID, Why(Cause.HELD_AGAIN, (hold.count,)), out)
    else:
        table.changing = True
        owner_state.outcome = released = owner_state.released(0)
        out.append(released)
        key = KeyRecord(command.digest, hold.account.name, False, None, hold.holder)
        with table.resources[lock].kept():
            table.end_hold(hold, out)
        details = ClaimDetails(", ".join(filter(None, (hold.label, "detached"))), key=key)
        table.grant_keys((lock,), details, table.time_ms + command.ttl_ms + ROUNDING_MS, out)


def attach(table: TableState, command: Attach, out: list[Result]) -> None:
    """Turn a detached hold into one of a client, if the secret is right."""
    details = lock_details(command)
    owner_state = begin_claim(table, command, out)
    if owner_state is None:
        return
    resource = table.resources.get(command.lock)
    hold = None if resource is None else next(iter(resource.holds), None)
    digest = digest_of(command.secret)
    key = hold.key if isinstance(hold, KeyHold) else None
    is_right = key is not None and key.detached_by is not None and key.value == digest
    if hold is None or not is_right:
        why = Why(Cause.NOT_DETACHED, obstacle=table.state_of(command.lock))
        deny(table, owner_state, Reason.NOT_HELD, why, out)
        return
    assert resource is not None
    hold.account.claims -= 1  # The new hold takes its room.
    table.claims -= 1
    has = has_room(table, owner_state, out, (command.lock,), waits=False)
    hold.account.claims += 1
    table.claims += 1
    if has:
        with resource.kept():
            table.end_hold(hold, out)
        table.grant(owner_state, details, 1, 1, 1, out)
