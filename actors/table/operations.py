"""The operations of the table, by command and by query, and the kinds of its objects.

A new command, query or kind is added here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fencelock.actors.api.account import ListMaps, Purge, ReadUsage, SetQuota
from fencelock.actors.api.barrier import AwaitBarrier
from fencelock.actors.api.election import Lead
from fencelock.actors.api.latch import AwaitLatch, CountDown
from fencelock.actors.api.lock_all import AcquireAll
from fencelock.actors.api.map import DeleteEntry, GetEntry, ListEntries, PutEntry
from fencelock.actors.api.message import Acquire, Cancel, KeepAlive, Release
from fencelock.actors.api.request import Command, TableQuery, TableReply
from fencelock.actors.api.rwlock import AcquireReadWrite, Downgrade
from fencelock.actors.api.semaphore import AcquirePermits, ReleasePermits
from fencelock.actors.api.session_message import CloseSession, End, Evict, Open, Renew
from fencelock.actors.table.account_operation import list_maps, purge, read_usage, set_quota
from fencelock.actors.table.barrier import Barrier, await_barrier
from fencelock.actors.table.holding import TableObject
from fencelock.actors.table.latch import Latch, await_latch, count_down
from fencelock.actors.table.map_operation import delete_entry, put_entry, read_entries, read_entry
from fencelock.actors.table.message import ExtendSessions, LogCommand
from fencelock.actors.table.operation import (
    Operation,
    acquire,
    acquire_all,
    acquire_permits,
    cancel,
    lead,
    release,
    renew,
    updating,
)
from fencelock.actors.table.session_operation import (
    close_session,
    end_session,
    evict,
    keep_session,
    open_session,
)
from fencelock.actors.table.table_state import TableState

OPERATIONS: dict[type[Command], Operation] = {
    Acquire: acquire,
    Release: release,
    AcquirePermits: acquire_permits,
    ReleasePermits: release,
    AcquireReadWrite: acquire_permits,
    Downgrade: release,
    AcquireAll: acquire_all,
    Cancel: cancel,
    KeepAlive: keep_session,
    Open: open_session,
    End: end_session,
    Evict: evict,
    CloseSession: close_session,
    CountDown: updating(count_down),
    AwaitLatch: updating(await_latch),
    Lead: lead,
    Renew: renew,
    PutEntry: updating(put_entry),
    DeleteEntry: updating(delete_entry),
    AwaitBarrier: updating(await_barrier),
    SetQuota: set_quota,
    Purge: purge,
}
"""The effect of each request on the table."""

QUERIES: dict[type[TableQuery], Callable[[TableState, Any], TableReply]] = {
    GetEntry: read_entry,
    ListEntries: read_entries,
    ListMaps: list_maps,
    ReadUsage: read_usage,
}
"""The reply to each query that a member answers from its table."""

OBJECTS: dict[str, type[TableObject]] = {"latches": Latch, "barriers": Barrier}
"""The objects that nobody can hold, by the field of `TablePart` that has their records."""

COMMANDS: tuple[type[LogCommand], ...] = (*OPERATIONS, ExtendSessions)
"""All commands of the log."""
