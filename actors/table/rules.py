"""The rule for each command and each query; and the rules about sessions and forced ends.

A new command, query or kind is added here. A rule raises InvalidRequestError before it has done
anything if a field exceeds its limits, as the ``check`` of the command does.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from msgspec.structs import replace

from fencelock.actors.api.account import ListMaps, Purge, ReadUsage, SetQuota
from fencelock.actors.api.barrier import AwaitBarrier
from fencelock.actors.api.changes import ReadChanges
from fencelock.actors.api.counter import AddToCounter, SetCounter
from fencelock.actors.api.election import Lead
from fencelock.actors.api.handover import Attach, Detach
from fencelock.actors.api.latch import AwaitLatch, CountDown
from fencelock.actors.api.lock_all import AcquireAll
from fencelock.actors.api.lock_message import (
    Acquire,
    Cancel,
    Contender,
    Inspect,
    Reason,
    Release,
    Renew,
    refused,
)
from fencelock.actors.api.map import DeleteEntry, GetEntry, ListEntries, PutEntry
from fencelock.actors.api.name import account_of, client_of, without_secret
from fencelock.actors.api.operator_message import (
    CloseSession,
    Evict,
    Evicted,
    ListedEviction,
    ListedSession,
    ListLocks,
    ListRecords,
    RecordList,
    Records,
    SessionClosed,
)
from fencelock.actors.api.pool import GivePermits, ResizePool, TakePermits
from fencelock.actors.api.redis import AwaitKey, ChangeKeys, ListKeys, ReadKeys
from fencelock.actors.api.refusal import Cause, Why
from fencelock.actors.api.request import Command, TableReply
from fencelock.actors.api.retained import AcquireRetained
from fencelock.actors.api.rwlock import AcquireReadWrite, Downgrade
from fencelock.actors.api.semaphore import AcquirePermits, ReleasePermits, ResizeSemaphore
from fencelock.actors.api.session_message import (
    Alive,
    CloseReason,
    End,
    KeepAlive,
    Open,
    Opened,
    ended,
)
from fencelock.actors.message import Event
from fencelock.actors.table.account import SESSIONS_MAX
from fencelock.actors.table.account_rules import act, list_maps, purge, read_usage, set_quota
from fencelock.actors.table.barrier import Barrier, await_barrier
from fencelock.actors.table.counter import Counter, add_to_counter, set_counter
from fencelock.actors.table.key import attach, detach
from fencelock.actors.table.latch import Latch, await_latch, count_down
from fencelock.actors.table.lock_rules import (
    Rule,
    all_details,
    cancel,
    claiming,
    keep,
    leader_details,
    lock_details,
    permit_details,
    record,
    release,
    renew,
    resize_semaphore,
    retained_details,
    session_expired,
    updating,
    wrong_fence,
)
from fencelock.actors.table.map import delete_entry, put_entry, read_entries, read_entry
from fencelock.actors.table.pool import Pool, give_permits, resize_pool, take_permits
from fencelock.actors.table.redis import await_key, change_keys, list_keys, read_keys
from fencelock.actors.table.report import (
    LIST_PAGE_BYTES_MAX,
    DescribeLocks,
    LocksDescribed,
    describe_locks,
    list_locks,
    page_of,
    read_changes,
    read_lock,
    size_of,
)
from fencelock.actors.table.resource import TableHold, TableObject
from fencelock.actors.table.retained import recall_again
from fencelock.actors.table.state import TableState
from fencelock.actors.table.wire import ExtendSessions, LogCommand, Result


def evict(table: TableState, command: Evict, out: list[Result]) -> None:
    """End the hold of a lock under the fence that the operator saw.

    Then a repetition of the acquire of that hold is not answered with `Granted` any more: the one
    exception to ``one-outcome``.
    """
    command.check()
    before = table.audit.get((command.by, command.request))
    hold = table.find_hold(command.lock, command.fence)
    if before is not None and (before.lock, before.fence) == (command.lock, command.fence):
        out.append(replace(before, session=command.session))
    elif hold is None:
        out.append(refused(command, Reason.NOT_HELD, why=wrong_fence(table, command)))
    else:
        _take(table, hold, command, out)


def close_session(table: TableState, command: CloseSession, out: list[Result]) -> None:
    """End a session by force, as an operator asks, and note it for the audit."""
    command.check()
    handle, before = command.handle, table.audit.get((command.by, command.request))
    session = table.sessions.find(handle)
    if before is not None and (without_secret(before.holder.session), before.lock) == (handle, ""):
        out.append(_closed(command, before.holder))
    elif session is None:
        why = Why(Cause.NO_SESSION, texts=(handle,))
        out.append(refused(command, Reason.NOT_HELD, why=why))
    else:
        victim = Contender(
            node=client_of(session.id),
            session=session.id,
            owner="",
            fence=None,
            since_ms=0,
            label=session.label,
            times=session.claims,
        )
        record(table, command, command.by, "", 0, victim)
        out.append(_closed(command, victim))
        table.close(session, CloseReason.FORCED, 0, out, command.by)


def open_session(table: TableState, command: Open, out: list[Result]) -> None:
    command.check()
    sessions, now_ms = table.sessions, table.time_ms
    session = sessions.by_name.get(command.session)
    if session is not None:
        keep(table, session)
    elif over := table.accounts.why_over(account_of(command.session), "sessions"):
        out.append(refused(command, Reason.OVERLOADED, why=over))
        return
    elif len(sessions.by_id) >= SESSIONS_MAX:
        why = Why(Cause.SESSIONS, (SESSIONS_MAX,))
        out.append(refused(command, Reason.OVERLOADED, why=why))
        return
    else:
        table.changing = True
        session = sessions.open(command.session, command.label, command.ttl_ms, now_ms)
    opened = Opened(
        session=command.session,
        assigned=session.id,
        ttl_ms=session.ttl_ms,
        node="",
        request=command.request,
    )
    out.append(opened)


def keep_session(table: TableState, command: KeepAlive, out: list[Result]) -> None:
    session = table.sessions.by_id.get(command.session)
    if session is None:
        out.append(session_expired(command))
        return
    keep(table, session)
    out.append(Alive(session=session.id, node="", request=command.request))
    if session.awaited:
        recall_again(table, session, out)
    for fence, key in sorted((fence, key) for key, fence in session.losses.items()):
        # The first notice may have been lost.
        out.append(session.loss(key, fence, Why(Cause.LOST, obstacle=table.state_of(key[1]))))


def end_session(table: TableState, command: End, out: list[Result]) -> None:
    """End a session; a repetition, or one that comes after the session expired, changes nothing."""
    session = table.sessions.by_id.get(command.session)
    if session is None:
        out.append(ended(command.session, CloseReason.GRACEFUL, command.request))
    else:
        table.close(session, CloseReason.GRACEFUL, command.request, out)


def _take(table: TableState, hold: TableHold, command: Evict, out: list[Result]) -> None:
    holder = hold.seen(command.fence, table.time_ms)
    out.append(record(table, command, command.by, command.lock, command.fence, holder))
    table.take(hold, Why(Cause.TAKEN, texts=(command.by,)), out)


def _closed(command: CloseSession, victim: Contender) -> SessionClosed:
    return SessionClosed(
        handle=command.handle,
        label=victim.label,
        claims=victim.times,
        session=command.session,
        request=command.request,
    )


def list_records(table: TableState, query: ListRecords) -> RecordList:
    """Return a page of sessions or evictions, the oldest first; it is for people."""
    skip, now_ms = query.skip, table.time_ms
    if query.kind is Records.SESSIONS:
        known = table.sessions
        sessions, more = page_of(
            (
                ListedSession(
                    without_secret(one.id),
                    one.label,
                    one.ttl_ms,
                    max(0, known.deadline(one) - now_ms),
                    one.claims,
                    one.retained,
                )
                for one in islice(known.by_id.values(), skip, None)
            ),
            LIST_PAGE_BYTES_MAX,
            lambda one: len(one.id.encode()) + len(one.label.encode()) + 48,
            query.most,
        )
        return RecordList(sessions=sessions, evictions=(), more=more)
    evictions, more = page_of(
        (
            ListedEviction(
                one.lock,
                one.fence,
                _victim(one),
                one.operator,
                now_ms - one.time_ms,
            )
            for one in islice(table.audit.values(), skip, None)
        ),
        LIST_PAGE_BYTES_MAX,
        lambda one: size_of(one.holder) + len(one.lock.encode()) + len(one.operator.encode()) + 32,
        query.most,
    )
    return RecordList(sessions=(), evictions=evictions, more=more)


def _victim(entry: Evicted) -> Contender:
    holder = entry.holder.shown()
    return holder if entry.why is None else holder._replace(label=act(entry.why))


RULES: dict[type[Command], Rule] = {
    Acquire: claiming(lock_details),
    Release: release,
    AcquirePermits: claiming(permit_details),
    ReleasePermits: release,
    ResizeSemaphore: updating(resize_semaphore),
    AcquireReadWrite: claiming(permit_details),
    Downgrade: release,
    AcquireAll: claiming(all_details),
    AcquireRetained: claiming(retained_details),
    Detach: detach,
    Attach: attach,
    Cancel: cancel,
    KeepAlive: keep_session,
    Open: open_session,
    End: end_session,
    Evict: evict,
    CloseSession: close_session,
    CountDown: updating(count_down),
    AwaitLatch: updating(await_latch),
    Lead: claiming(leader_details),
    Renew: renew,
    PutEntry: updating(put_entry),
    DeleteEntry: updating(delete_entry),
    AwaitBarrier: updating(await_barrier),
    AddToCounter: updating(add_to_counter),
    SetCounter: updating(set_counter),
    TakePermits: updating(take_permits),
    GivePermits: updating(give_permits),
    ResizePool: updating(resize_pool),
    ChangeKeys: updating(change_keys),
    AwaitKey: updating(await_key),
    SetQuota: set_quota,
    Purge: purge,
}
"""The rule of each command: it applies the command to the table, and appends the outcomes."""

TABLE_QUERIES: dict[type[Event], Callable[[TableState, Any], TableReply | LocksDescribed]] = {
    Inspect: read_lock,
    ListLocks: list_locks,
    ListRecords: list_records,
    ReadChanges: read_changes,
    DescribeLocks: describe_locks,
    GetEntry: read_entry,
    ListEntries: read_entries,
    ListMaps: list_maps,
    ReadUsage: read_usage,
    ReadKeys: read_keys,
    ListKeys: list_keys,
}
"""The reply to each query that a member answers from its table. The proxy adds the session and the
number of a client's request, and the age of the state."""

OBJECT_RECORDS: dict[str, type[TableObject]] = {
    "latches": Latch,
    "barriers": Barrier,
    "counters": Counter,
    "pools": Pool,
}
"""The objects that nobody can hold, by the field of `TablePart` that has their records."""

LOG_COMMANDS: tuple[type[LogCommand], ...] = (*RULES, ExtendSessions)
