"""The rules of requests about maps, and the replies to queries."""

from __future__ import annotations

from fencelock.actors.api.map import (
    DeleteEntry,
    EntryChanged,
    EntryList,
    EntryRequest,
    EntrySeen,
    GetEntry,
    ListEntries,
    PutEntry,
)
from fencelock.actors.api.message import Reason
from fencelock.actors.api.name import without_secret
from fencelock.actors.table.map import Entry
from fencelock.actors.table.requests import conclude, deny, holds_guard
from fencelock.actors.table.session import OwnerState
from fencelock.actors.table.state import TableState
from fencelock.actors.table.wire import Result

PAGE_BYTES_MAX = 128 << 10
"""Maximum size of a page of entries (bytes, 128 KiB). A page with one entry may be larger."""

ENTRY_BYTES = 64
"""Upper bound on the encoded size of an `EntrySeen` without its texts and its value (bytes)."""


def put_entry(
    table: TableState, owner_state: OwnerState, command: PutEntry, out: list[Result]
) -> None:
    """Put an entry, if the conditions of the request are met."""
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
    """Delete an entry, if the conditions of the request are met."""
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
    """Return the entry of that key, if there is one."""
    entry = table.maps.find(query.map, query.entry_key)
    found = () if entry is None else (_see(entry, table.time_ms),)
    return EntryList(entries=found, session=query.session, request=query.request)


def read_entries(table: TableState, query: ListEntries) -> EntryList:
    """Return a page with as many entries as fit."""
    known = table.maps.by_name.get(query.map)
    found: list[EntrySeen] = []
    size, more = 0, False
    for entry in () if known is None else known.page(query.prefix, query.after):
        size += entry.size + ENTRY_BYTES
        if len(found) == query.most or (found and size > PAGE_BYTES_MAX):
            more = True
            break
        found.append(_see(entry, table.time_ms))
    return EntryList(entries=tuple(found), more=more, session=query.session, request=query.request)


def _see(entry: Entry, time_ms: int) -> EntrySeen:
    return EntrySeen(
        key=entry.key,
        value=entry.value,
        version=entry.version,
        left_ms=None if entry.due_ms is None else entry.due_ms - time_ms,
        session="" if entry.session is None else without_secret(entry.session.id),
    )
