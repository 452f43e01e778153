"""The maps of a table, and their entries.

Every change of an entry, for whatever reason, is made by `Maps.change`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import TYPE_CHECKING
from zlib import crc32

from msgspec import Struct, field

from fencelock.actors.api.lock_message import Reason
from fencelock.actors.api.map import (
    ENTRY_VALUE_BYTES_MAX,
    KEY_BYTES_MAX,
    MAP,
    DeleteEntry,
    EntryChanged,
    EntryList,
    EntryRequest,
    EntrySeen,
    GetEntry,
    ListEntries,
    PutEntry,
)
from fencelock.actors.api.name import (
    SESSION_BYTES_MAX,
    check_lock_size,
    check_size,
    object_name,
    utf8_size,
    without_secret,
)
from fencelock.actors.api.refusal import Cause, Why
from fencelock.actors.table.account import ENTRIES_BYTES_MAX, ENTRIES_MAX, Account
from fencelock.actors.table.lock_rules import conclude, deny, holds_guard
from fencelock.actors.table.report import page_of
from fencelock.actors.table.session import OwnerState, Session
from fencelock.actors.table.wire import DUE_MS_MAX, EntryRecord, Result

if TYPE_CHECKING:
    from fencelock.actors.table.state import TableState

BLOCK_MAX = 512
"""Maximum number of keys of a block of `SortedKeys`, into which an insertion takes about 1 us."""


class Entry(Struct, eq=False):
    """An entry of a map. It is immutable: a put makes a new one.

    Attributes:
        name: the name of its map.
        version: the version of the put.
        account: the account that is charged for it.
        session: the session with which it ends, or None.
        ticket: its ticket, if it falls due or ends with a session; otherwise 0.
        due_ms: log time at which it expires, or None for never.
        mark: a checksum of the other fields.

    """

    name: str
    key: str
    value: bytes
    version: int
    account: Account
    session: Session | None = None
    ticket: int = 0
    due_ms: int | None = None
    mark: int = 0

    def __post_init__(self) -> None:
        number = 0 if self.session is None else self.session.number
        about = (
            f"{self.name}\n{self.key}\n{self.account.name}\n{number}\n{self.ticket}\n{self.due_ms}"
        ).encode()
        self.mark = (1 + crc32(self.value, crc32(about))) * self.version

    @property
    def size(self) -> int:
        """Its size, as counted for `ENTRIES_BYTES_MAX` (bytes)."""
        return utf8_size(self.name) + utf8_size(self.key) + len(self.value)

    def record(self) -> EntryRecord:
        number = 0 if self.session is None else self.session.number
        return EntryRecord(
            self.name,
            self.key,
            self.value,
            self.version,
            number,
            self.ticket,
            self.due_ms,
            self.account.name,
        )

    def fall_due(self, table: TableState, out: list[Result]) -> None:
        table.maps.change(table, self.name, self.key, None)

    def end_with_session(self, table: TableState, out: list[Result]) -> None:
        table.maps.change(table, self.name, self.key, None)


class SortedKeys:
    """A sorted set of texts, in which insertions and removals cost nearly the same at any size.

    The texts are in blocks of bounded length, which `blocks` has in order.
    """

    def __init__(self) -> None:
        self.blocks: list[list[str]] = []
        self._firsts: list[str] = []
        """The first text of each block."""

    def add(self, text: str) -> None:
        """Insert ``text``, which must not be in the set."""
        if not self.blocks:
            self.blocks, self._firsts = [[text]], [text]
            return
        place = self._place(text)
        block = self.blocks[place]
        insort(block, text)
        self._firsts[place] = block[0]
        if len(block) > BLOCK_MAX:
            half = len(block) // 2
            self._replace(place, 1, [block[:half], block[half:]])

    def remove(self, text: str) -> None:
        """Remove ``text``, which must be in the set."""
        place = self._place(text)
        block = self.blocks[place]
        at = bisect_left(block, text)
        assert block[at] == text
        del block[at]
        if not block:
            self._replace(place, 1, [])
            return
        self._firsts[place] = block[0]
        # Without this, there could be many small blocks.
        if len(block) < BLOCK_MAX // 4 and len(self.blocks) > 1:
            first = max(0, place - 1)
            left, right = self.blocks[first], self.blocks[first + 1]
            if len(left) + len(right) <= BLOCK_MAX // 2:
                self._replace(first, 2, [left + right])

    def after(self, text: str, *, also: bool = False) -> Iterator[str]:
        """Return the texts above ``text`` in order, and with ``also`` also ``text`` itself."""
        if not self.blocks:
            return
        place = self._place(text)
        block = self.blocks[place]
        at = bisect_left(block, text) if also else bisect_right(block, text)
        while True:
            yield from block[at:]
            place, at = place + 1, 0
            if place == len(self.blocks):
                return
            block = self.blocks[place]

    def within(self, prefix: str, after: str) -> Iterator[str]:
        """Return the texts above ``after`` that begin with ``prefix``, in order.

        The cost depends on the number of texts that are taken, not on the size of the set.
        """
        texts = self.after(max(prefix, after), also=prefix > after)
        return takewhile(lambda text: text.startswith(prefix), texts)

    def _place(self, text: str) -> int:
        return max(0, bisect_right(self._firsts, text) - 1)

    def _replace(self, place: int, count: int, blocks: list[list[str]]) -> None:
        self.blocks[place : place + count] = blocks
        self._firsts[place : place + count] = [block[0] for block in blocks]


class EntryMap(Struct, eq=False):
    """The entries of one map, which has at least one."""

    entries: dict[str, Entry] = field(default_factory=dict[str, Entry])
    keys: SortedKeys = field(default_factory=SortedKeys)
    bytes: int = 0
    """Size of its entries (bytes); see `Entry.size`."""

    def page(self, prefix: str, after: str) -> Iterator[Entry]:
        """Return the entries whose keys begin with ``prefix`` and are above ``after``, in order."""
        return map(self.entries.__getitem__, self.keys.within(prefix, after))


class Maps:
    """All maps of a table.

    Invariants:
        change-is-version   Each change of an entry, including its end, gets the next version of the
            table (versions-rise).
        counts-add-up   ``count`` is the number of all entries, and ``bytes`` is their size.
            ``names`` has the names of all maps.
        ends-are-watched    An entry that falls due is in `TableState.timeouts`, and an entry that
            ends with a session is in `Session.attached`. No other entry is there.

    """

    def __init__(self) -> None:
        self.by_name: dict[str, EntryMap] = {}
        self.names = SortedKeys()
        self.count = 0
        self.bytes = 0

    def find(self, name: str, key: str) -> Entry | None:
        known = self.by_name.get(name)
        return None if known is None else known.entries.get(key)

    def change(self, table: TableState, name: str, key: str, entry: Entry | None) -> int:
        """Replace the entry of ``key`` by ``entry``, or remove it for None; return the version.

        Every change of an entry is made here. The version is also that of ``entry``.
        """
        value, lock = None if entry is None else entry.value, object_name(MAP, name)
        table.changing = True
        version = table.histories.add(lock, key, value, 0, table.time_ms, table.fence)
        assert entry is None or entry.version == version
        before = self.find(name, key)
        if before is not None:
            self._drop(table, before)
        if entry is not None:
            self.add(table, entry)
        return version

    def add(self, table: TableState, entry: Entry) -> None:
        """Add an entry as it is. The map must have no entry of that key."""
        known = self.by_name.get(entry.name)
        if known is None:
            known = self.by_name[entry.name] = EntryMap()
            self.names.add(entry.name)
        known.entries[entry.key] = entry
        known.keys.add(entry.key)
        known.bytes += entry.size
        self.count += 1
        size, account = entry.size, entry.account
        self.bytes += size
        account.entries += 1  # charges-add-up
        account.bytes += size
        table.marked += entry.mark
        table.timeouts.add(entry)
        if entry.session is not None:
            entry.session.attached[entry.ticket] = entry

    def _drop(self, table: TableState, entry: Entry) -> None:
        known = self.by_name[entry.name]
        del known.entries[entry.key]
        known.keys.remove(entry.key)
        known.bytes -= entry.size
        if not known.entries:
            del self.by_name[entry.name]
            self.names.remove(entry.name)
        self.count -= 1
        size, account = entry.size, entry.account
        self.bytes -= size
        account.entries -= 1  # charges-add-up
        account.bytes -= size
        table.accounts.leave(account)
        table.marked -= entry.mark
        table.timeouts.drop(entry)
        session = entry.session
        if session is not None:
            session.attached.pop(entry.ticket, None)

    def why_full(self, name: str, key: str, value: bytes, account: Account) -> Why | None:
        """Return why there is no room for an entry of ``account``; None if there is room.

        An account that is over its quota, which an operator has lowered, may still make its own
        entries smaller.
        """
        before = self.find(name, key)
        size = utf8_size(name) + utf8_size(key) + len(value)
        kept = before if before is not None and before.account is account else None
        more = size - (0 if kept is None else kept.size)
        over = None if kept is not None else account.why_over("entries")
        over = over or (account.why_over("bytes", more) if more > 0 else None)
        if over is not None:
            return over
        if before is not None:
            size -= before.size
        elif self.count >= ENTRIES_MAX:
            return Why(Cause.ENTRIES, (self.count, ENTRIES_MAX))
        if size > 0 and self.bytes + size > ENTRIES_BYTES_MAX:
            return Why(Cause.MAP_BYTES, (self.bytes, ENTRIES_BYTES_MAX))
        return None

    def in_order(self) -> list[Entry]:
        found: list[Entry] = []
        for name in self.names.after("", also=True):
            entries = self.by_name[name].entries
            for block in self.by_name[name].keys.blocks:
                found += map(entries.__getitem__, block)
        return found


def fill_entry(table: TableState, record: EntryRecord, sessions: Mapping[int, Session]) -> None:
    """Add an entry of a snapshot; raise ValueError if it contradicts itself or the others."""
    name, key, value, version, number, ticket, due_ms, charged = record
    what = f"entry {key!a} of map {name!a}"
    if table.maps.find(name, key) is not None:
        raise ValueError(f"the snapshot has {what} twice")
    if number and number not in sessions:
        raise ValueError(f"the snapshot has no session {number}, with which {what} ends")
    if not 0 < version <= table.histories.version:
        raise ValueError(f"the snapshot has {what} of version {version}, which is not given yet")
    if number < 0 or bool(ticket) is not (number > 0 or due_ms is not None):
        raise ValueError(
            f"the snapshot has {what} with ticket {ticket}, session {number} and expiry at {due_ms}"
        )
    if not 0 <= (due_ms or 0) <= DUE_MS_MAX:
        raise ValueError(f"the snapshot has {what} that expires at {due_ms}")
    check_lock_size(name, MAP)
    check_size("key", key, KEY_BYTES_MAX)
    if len(value) > ENTRY_VALUE_BYTES_MAX:
        raise ValueError(f"the snapshot has {what} of {len(value)} bytes")
    check_size("key name", charged, SESSION_BYTES_MAX)
    session, account = sessions.get(number), table.accounts.of(charged)
    table.maps.add(table, Entry(name, key, value, version, account, session, ticket, due_ms))


MAP_PAGE_BYTES_MAX = 128 << 10
"""Maximum size of a page of entries (bytes, 128 KiB). A page with one entry may be larger."""

ENTRY_SEEN_BYTES = 64
"""Upper bound on the encoded size of an `EntrySeen` without its texts and its value (bytes)."""


def put_entry(
    table: TableState, owner_state: OwnerState, command: PutEntry, out: list[Result]
) -> None:
    if not _meets_conditions(table, owner_state, command, out):
        return
    maps = table.maps
    full = maps.why_full(command.map, command.entry_key, command.value, owner_state.session.account)
    if full is not None:
        deny(table, owner_state, Reason.OVERLOADED, full, out)
        return
    lasts = command.ttl_ms is None and not command.ephemeral
    entry = Entry(
        name=command.map,
        key=command.entry_key,
        value=command.value,
        version=table.histories.next_version(table.fence),
        account=owner_state.session.account,
        session=owner_state.session if command.ephemeral else None,
        ticket=0 if lasts else table.next_ticket(),
        due_ms=None if command.ttl_ms is None else table.time_ms + command.ttl_ms,
    )
    version = maps.change(table, command.map, command.entry_key, entry)
    _reply(table, owner_state, version, changed=True, out=out)


def delete_entry(
    table: TableState, owner_state: OwnerState, command: DeleteEntry, out: list[Result]
) -> None:
    if not _meets_conditions(table, owner_state, command, out):
        return
    name, key = command.map, command.entry_key
    if table.maps.find(name, key) is None:
        _reply(table, owner_state, 0, changed=False, out=out)
    else:
        version = table.maps.change(table, name, key, None)
        _reply(table, owner_state, version, changed=True, out=out)


def _meets_conditions(
    table: TableState, owner_state: OwnerState, command: EntryRequest, out: list[Result]
) -> bool:
    """Return whether the guard is held and the entry has its version; otherwise answer."""
    if not holds_guard(table, owner_state, command, out):
        return False
    if command.version is not None:
        entry = table.maps.find(command.map, command.entry_key)
        found = 0 if entry is None else entry.version
        if found != command.version:
            _reply(table, owner_state, found, changed=False, out=out)
            return False
    return True


def _reply(
    table: TableState, owner_state: OwnerState, version: int, *, changed: bool, out: list[Result]
) -> None:
    reply = EntryChanged(**owner_state.fields(), version=version, changed=changed)
    conclude(table, owner_state, reply, out)


def read_entry(table: TableState, query: GetEntry) -> EntryList:
    entry = table.maps.find(query.map, query.entry_key)
    found = () if entry is None else (_see(entry, table.time_ms),)
    return EntryList(entries=found, session=query.session, request=query.request)


def read_entries(table: TableState, query: ListEntries) -> EntryList:
    known = table.maps.by_name.get(query.map)
    entries = () if known is None else known.page(query.prefix, query.after)
    found, more = page_of(
        entries, MAP_PAGE_BYTES_MAX, lambda one: one.size + ENTRY_SEEN_BYTES, query.most
    )
    seen = tuple(_see(entry, table.time_ms) for entry in found)
    return EntryList(entries=seen, more=more, session=query.session, request=query.request)


def _see(entry: Entry, time_ms: int) -> EntrySeen:
    return EntrySeen(
        key=entry.key,
        value=entry.value,
        version=entry.version,
        left_ms=None if entry.due_ms is None else entry.due_ms - time_ms,
        session="" if entry.session is None else without_secret(entry.session.id),
    )
