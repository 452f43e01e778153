"""The table of locks as immutable messages, and back.

A snapshot is a sequence of parts, each small enough for a frame and a journal record. Their
order is canonical (sessions by number, then their owner states that hold or wait by name,
then the others from the longest idle on), so that equal tables have equal snapshots, whatever
their histories.

`fill` checks a snapshot before any of it counts: it may come from another member, or from a file.
What no table can have raises a `ValueError` that names it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.json import Encoder
from msgspec.structs import replace

from fencelock.actors.api.account import Quota
from fencelock.actors.api.lock_all import SEVERAL
from fencelock.actors.api.lock_message import Refused, Released
from fencelock.actors.api.name import (
    OWNER_BYTES_MAX,
    REDIS_KEY,
    SESSION_TTL_MS_MAX,
    account_of,
    check_lock_size,
    check_size,
    kind_of,
    plain_name,
    titled,
    utf8_size,
)
from fencelock.actors.api.redis import KEY_TTL_MS_MAX
from fencelock.actors.api.retained import SPAN_MAX
from fencelock.actors.api.semaphore import PERMITS_MAX, SEMAPHORE
from fencelock.actors.table.account import Account
from fencelock.actors.table.account_rules import is_act
from fencelock.actors.table.deadline import DURATION_MS_MAX, NO_DURATIONS, DatedHold, LeasedHold
from fencelock.actors.table.history import records_of
from fencelock.actors.table.key import KeyHold, add_key
from fencelock.actors.table.map import Entry, fill_entry
from fencelock.actors.table.resource import (
    CAPACITIES,
    PLAIN,
    Claim,
    ClaimDetails,
    Durations,
    Resource,
    TableHold,
    Wait,
)
from fencelock.actors.table.retained import add_span, note_awaited
from fencelock.actors.table.rules import OBJECT_RECORDS
from fencelock.actors.table.sentences import is_sound
from fencelock.actors.table.session import DEPARTED, Kept, OwnerState, Session
from fencelock.actors.table.wire import (
    DUE_MS_MAX,
    LOG_TIME_MS_MAX,
    ClaimantRecord,
    EntryRecord,
    HistoryRecord,
    HoldRecord,
    KeptReply,
    LeaseRecord,
    QuotaRecord,
    Record,
    SessionRecord,
    TableHead,
    TablePart,
    TableSnapshot,
    WaitRecord,
)

if TYPE_CHECKING:
    from fencelock.actors.table.state import TableState

SNAPSHOT_PART_BYTES_MAX = 128 * 1024
"""Size at which a part ends (bytes). To encode one takes two milliseconds, for which requests wait;
with the last record and its frame it is below 256 KiB."""

STEP_RECORDS = 250
"""Records that `freeze` measures per step: half a millisecond, for the same reason."""

SORTED_RECORDS = 2_000
"""Records that it sorts per step; the sorted runs are merged as they are needed."""

SNAPSHOT_NUMBER_MAX = 3 << 61
"""The highest fence, version, ticket and number of a session in a snapshot. No member gets there,
even if a leader raises the fences to `FENCE_FLOOR_MAX`; above it they could soon be used up."""

RECORD_EXTRA_BYTES = 80
"""Size that counts for each record besides its own (bytes): many small ones take longer to encode
than few large ones."""

ENTRY_RECORD_BYTES = 64
"""Bound on the encoded size of an `EntryRecord` without its texts and its value (bytes)."""

HISTORY_BYTES = 64
"""The same for a `HistoryRecord` without its name and its changes (bytes)."""

RECORDS: dict[str, Any] = {
    field: get_args(kind)[0]
    for field, kind in get_type_hints(TablePart).items()
    if get_origin(kind) is tuple
}
"""The types of the records in a `TablePart`, by field."""

Note = tuple[
    OwnerState,
    int,
    bool,
    Kept | None,
    int,
    int,
    int,
    Wait | None,
    TableHold | None,
    ClaimDetails,
    int,
    int,
    int,
    int,
    LeaseRecord | None,
]
"""An owner state and its mutable fields: the others in order, the hold, and those of the hold."""

Notes = tuple[SessionRecord, list[Note], list[Note]]
"""A session, its owner states that hold or wait, and the others from the longest idle on."""


def take(table: TableState) -> TableSnapshot:
    return tuple(part.thaw() for part in freeze(table) if part is not None)


class FrozenPart(Struct, frozen=True):
    """A part of a snapshot, as the records that it will have. Values are shared with the table."""

    index: int
    count: int
    head: TableHead
    records: Sequence[Record]

    def thaw(self) -> TablePart:
        fields: dict[str, Any] = {
            field: tuple(one for one in self.records if isinstance(one, kind))
            for field, kind in RECORDS.items()
        }
        return TablePart(index=self.index, count=self.count, head=self.head, **fields)


def freeze(table: TableState) -> Iterator[FrozenPart | None]:
    """Copy the mutable fields of ``table`` now, and return its snapshot part by part.

    A part stays as it is, however the table changes. Before the first one comes None for each
    bounded step of the work of dividing the records into parts.
    """
    return _develop(_head(table), _all_records(table))


def _develop(head: TableHead, records: Iterator[Record | None]) -> Iterator[FrozenPart | None]:
    cuts: list[list[Record]] = [[]]
    size = 0
    for number, record in enumerate(records, 1):
        if record is None or number % STEP_RECORDS == 0:
            yield None
        if record is None:
            continue
        size += bytes_of(record)
        cuts[-1].append(record)
        if size > SNAPSHOT_PART_BYTES_MAX:
            cuts.append([])
            size = 0
    for index, cut in enumerate(cuts):
        yield FrozenPart(index, len(cuts), head, cut)


def bytes_of(record: Record) -> int:
    """Return an upper bound on the encoded size of ``record`` (bytes). It copies no value."""
    if isinstance(record, EntryRecord):
        texts = utf8_size(record.map) + utf8_size(record.key)
        return ENTRY_RECORD_BYTES + texts + len(record.value)
    if isinstance(record, HistoryRecord):
        size = sum(change.size for change in record.changes)
        return size + len(record.lock.encode()) + HISTORY_BYTES
    return len(canonical_json(record)) + RECORD_EXTRA_BYTES


canonical_json = Encoder().encode
"""Returns the canonical encoding of a record. It is never shorter than the CBOR of the same record,
so that it bounds that too. ``repr`` would not do: its escapes differ between versions of Python."""


def digest_of(table: TableState) -> bytes:
    """Return the hash of the records that `take` would return, however they are divided."""
    digest = hashlib.blake2b(canonical_json(_head(table)), digest_size=32)
    for record in filter(None, _all_records(table)):
        digest.update(canonical_json(record))
    return digest.digest()


def fill(table: TableState, parts: Sequence[TablePart]) -> None:
    """Put a snapshot into ``table``, which must be new.

    Raises:
        ValueError: see `LockTable.restore`.

    """
    _check_whole(parts)
    head = parts[0].head
    _check_head(head)
    records: dict[str, Any] = {
        field: tuple(chain.from_iterable(getattr(part, field) for part in parts))
        for field in RECORDS
    }
    whole = TablePart(index=0, count=1, head=head, **records)
    table.time_ms, table.fence, table.tickets = head.time_ms, head.fence, head.tickets
    sessions = table.sessions
    sessions.opened, sessions.extended_ms = head.opened, head.extended_ms
    histories = table.histories
    histories.version, histories.forgotten = head.version, head.forgotten
    histories.origin = head.origin
    numbered: dict[int, Session] = {}
    for account, quota in whole.quotas:
        if quota == Quota() or account in table.accounts.quotas:
            raise ValueError(f"the snapshot has a wrong quota of {account!a}")
        table.accounts.set(account, quota)
    for seen in whole.sessions:
        numbered[seen.number] = _fill_session(table, seen, numbered)
    for forced in whole.audit:
        if forced.why is not None and not is_act(forced.why):
            raise ValueError(f"the snapshot has a wrong audit of {titled(forced.lock)}")
        table.note_forced(forced)
    _fill_objects(table, whole)
    waits: list[tuple[Wait, int]] = []
    for known in whole.owner_states:
        if known.session not in numbered:
            raise ValueError(f"the snapshot has no session {known.session}")
        _fill_claimant(table, _owner_state(numbered[known.session], known), known, waits)
    by_id = {session.id: session for session in numbered.values()}
    for reply in whole.replies:
        _fill_reply(by_id.get(reply.session), reply)
    _check_fences(numbered.values())
    _check_tickets(table, waits, whole)
    _fill_queues(table, waits)
    for one in table.objects.values():
        one.check_restored(table)
    _check_resources(table)
    table.held_names.settle()
    for record in whole.histories:
        histories.restore(record)
    for entry in whole.entries:
        fill_entry(table, entry, numbered)
    _fill_attached(table, numbered.values())


def _fill_attached(table: TableState, sessions: Iterable[Session]) -> None:
    """Order what ends with each session by ticket, and let the rest of ended sessions end."""
    for session in sessions:
        session.attached = dict(sorted(session.attached.items()))
        if session.deadline_ms == DEPARTED:
            if session.waits:
                raise ValueError(f"the snapshot has a wait of session {session.id!a}, which ended")
            table.depart(session)


def _owner_state(session: Session, known: ClaimantRecord) -> OwnerState:
    key = known.owner, known.lock
    if key in session.owner_states:
        raise ValueError(f"the snapshot has claimant {known.owner!a} of {known.lock!a} twice")
    # The table checks an owner's names when it enters. A member whose Python knows other characters
    # must still start from its journal, so only the limits of size are checked here.
    check_size("owner", known.owner, OWNER_BYTES_MAX)
    check_lock_size(plain_name(known.lock))
    owner_state = session.enter(key)
    owner_state.request, owner_state.releasing = known.request, known.releasing
    if known.freed is not None:
        owner_state.outcome = owner_state.released(known.freed)
    elif known.denial is not None:
        if known.why is None or not is_sound(known.why):
            raise ValueError(f"the snapshot has a wrong refusal of {titled(known.lock)}")
        owner_state.outcome = owner_state.denied(known.denial, known.why)
    return owner_state


def _fill_claimant(
    table: TableState,
    owner_state: OwnerState,
    known: ClaimantRecord,
    waits: list[tuple[Wait, int]],
) -> None:
    session, claim, key = owner_state.session, known.hold or known.wait, known.key
    _check_times(table, known, claim)
    if (session is table.key_session) != (key is not None and known.hold is not None):
        raise ValueError(f"the snapshot has a wrong key {known.lock!a}")
    if claim is None:
        if known.lost:
            session.losses[owner_state.key] = known.lost
        else:
            session.idle[owner_state.key] = known.idle_ms
        return
    count = len(known.locks) or 1
    charged = session.account
    if key is not None:
        charged = table.accounts.of(key.account)
    session.claims += count
    charged.claims += count
    table.claims += count
    if not 0 <= claim.span <= SPAN_MAX or (claim.span and known.locks):
        raise ValueError(f"the snapshot has a wrong span of {titled(known.lock)}")
    if known.locks and not _is_several(known):
        raise ValueError(f"the snapshot has wrong locks of {titled(known.lock)}")
    details = ClaimDetails(claim.label, known.locks, known.value, span=claim.span, key=key)
    if known.hold is not None:
        _fill_hold(table, owner_state, details, known.hold, charged)
    elif known.wait is not None:
        if session.deadline_ms == DEPARTED or known.wait.amount < 1:
            raise ValueError(f"the snapshot has a wrong wait for {titled(known.lock)}")
        wait = _restored_wait(owner_state, details, known.wait)
        waits.append((wait, known.wait.capacity))


def _fill_hold(
    table: TableState,
    owner_state: OwnerState,
    details: ClaimDetails,
    record: HoldRecord,
    charged: Account,
) -> None:
    details = PLAIN if details == PLAIN else details
    fields = owner_state, details, record.fence, record.since_ms, record.request
    counts = record.amount, record.granted_count, record.times
    table.holds_checksum += owner_state.mark() * record.fence
    lease = record.lease
    if details.key is not None:
        hold: TableHold = KeyHold(*fields, *counts, charged=charged)
    elif lease is None:
        hold = TableHold(*fields, *counts)
    else:
        hold = LeasedHold(
            *fields,
            *counts,
            replied=Durations(lease.replied_hold_ms, lease.replied_grace_ms),
            grace_ms=lease.grace_ms,
            lasts_ms=lease.lasts_ms,
            renewal=lease.renewal,
        )
    if lease is not None:
        assert isinstance(hold, DatedHold)
        hold.move(table, lease.deadline_ms, lease.watched_ms)
        if lease.watched_ms > lease.deadline_ms:
            raise ValueError(f"the snapshot has a wrong deadline of {titled(owner_state.lock)}")
    owner_state.hold = hold
    if hold.amount < 1 or not 1 <= hold.count <= SNAPSHOT_NUMBER_MAX:
        raise ValueError(f"the snapshot has a wrong hold of {titled(owner_state.lock)}")
    for fence, name in enumerate(hold.objects, hold.fence):
        resource = _resource(table, name, record.capacity)
        held = resource.capacity - resource.free + hold.amount
        # A semaphore may have been made smaller while more was held.
        if held > (PERMITS_MAX if kind_of(name) == SEMAPHORE else resource.capacity):
            raise ValueError(
                f"the snapshot has {held} of {resource.capacity} held of {titled(name)}"
            )
        if resource.held is None:
            table.held_names.recent[name] = None
        resource.add(hold, fence)
    if isinstance(hold, KeyHold):
        add_key(table, hold)
    last = hold.fence + (len(details.locks) or details.span or 1) - 1
    if not 1 <= hold.fence <= last <= table.fence:
        what = "span" if details.span else "fence"
        raise ValueError(f"the snapshot has a wrong {what} of {titled(owner_state.lock)}")
    if details.span:
        add_span(table, hold)


def _restored_wait(owner_state: OwnerState, details: ClaimDetails, record: WaitRecord) -> Wait:
    durations = Durations(record.hold_ms, record.grace_ms)
    if durations != NO_DURATIONS:
        details = replace(details, durations=durations)
    return Wait(
        owner_state,
        PLAIN if details == PLAIN else details,
        record.ticket,
        record.since_ms,
        record.due_ms,
        record.amount,
        record.granted_count,
    )


def _resource(table: TableState, name: str, capacity: int) -> Resource:
    resource = table.resources.get(name)
    if resource is None:
        resource = table.resources[name] = Resource(capacity, capacity)
    least, most = CAPACITIES.get(kind_of(name), (0, 0))
    if not most:
        raise ValueError(f"the snapshot has a claim to {titled(name)}, which nobody can hold")
    if not least <= capacity <= most or resource.capacity != capacity:
        raise ValueError(
            f"the snapshot has capacities {resource.capacity} and {capacity} of {titled(name)}"
        )
    return resource


def _fill_reply(session: Session | None, reply: KeptReply) -> None:
    known = None if session is None else session.owner_states.get((reply.owner, reply.lock))
    if known is None or (known.request, known.outcome) != (reply.request, None):
        raise ValueError(f"the snapshot has a reply without a request of owner {reply.owner!a}")
    known.outcome = reply


def _fill_objects(table: TableState, part: TablePart) -> None:
    for field, kind in OBJECT_RECORDS.items():
        for record in getattr(part, field):
            if record.lock in table.objects or kind_of(record.lock) != kind.KIND:
                raise ValueError(f"the snapshot has a wrong or second {titled(record.lock)}")
            kind.restore(table, record)


def _check_resources(table: TableState) -> None:
    """Order the holds of each resource by fence, note what others wait for, and who is next."""
    resources = table.resources
    for resource in resources.values():
        if isinstance(resource.held, dict):
            resource.held = dict(sorted(resource.held.items()))
        spans = resource.spans
        if spans is not None:
            spans.sort()
            if resource.queue:
                note_awaited(spans)
        head = resource.next_wait()
        if head is not None and all(resources[one].next_wait() is head for one in head.objects):
            table.unserved[head.ticket] = head


def _fill_queues(table: TableState, waits: list[tuple[Wait, int]]) -> None:
    ticket = 0
    for wait, capacity in sorted(waits, key=lambda one: one[0].ticket):
        if wait.ticket == ticket:
            raise ValueError(f"the snapshot has wait {ticket} twice")
        if wait.owner_state.lock not in table.objects:
            for name in wait.objects:
                _resource(table, name, capacity)
        ticket = wait.ticket
        if wait.details.key is not None:
            table.note_payer(wait, wait.details.key)
        table.enqueue(wait, capacity)


def _check_whole(parts: Sequence[TablePart]) -> None:
    if not parts:
        raise ValueError("a snapshot has at least one part")
    for index, part in enumerate(parts):
        if (part.index, part.count) != (index, len(parts)):
            raise ValueError(
                f"part {part.index} of {part.count} is in the place of {index} of {len(parts)}"
            )
        if part.head != parts[0].head:
            raise ValueError(f"part {index} belongs to another snapshot than part 0")


def _check_head(head: TableHead) -> None:
    counters = head.fence, head.tickets, head.opened, head.version
    if (
        not 0 <= head.extended_ms <= head.time_ms <= LOG_TIME_MS_MAX
        or not all(0 <= counter <= SNAPSHOT_NUMBER_MAX for counter in counters)
        or not (0 <= head.forgotten <= head.version and 0 <= head.origin <= head.version)
    ):
        raise ValueError(f"the snapshot has wrong counters: {head}")


def _check_times(
    table: TableState, known: ClaimantRecord, claim: HoldRecord | WaitRecord | None
) -> None:
    """Check that nothing is later than log time, and that no deadline is beyond all limits."""
    since_ms, due_ms, durations, ttl_ms = known.idle_ms, 0, (0, 0, 0, 0), 0
    if claim is not None:
        since_ms = claim.since_ms
    if known.hold is not None and (lease := known.hold.lease) is not None:
        due_ms = lease.deadline_ms
        durations = lease.lasts_ms, lease.grace_ms, lease.replied_hold_ms, lease.replied_grace_ms
    elif known.wait is not None:
        due_ms = known.wait.due_ms or 0
        durations = known.wait.hold_ms, known.wait.grace_ms, 0, 0
        ttl_ms = 0 if known.key is None else known.key.ttl_ms or 0
    if (
        not 0 <= since_ms <= table.time_ms
        or not 0 <= due_ms <= DUE_MS_MAX
        or not 0 <= min(durations) <= max(durations) <= DURATION_MS_MAX
        or not 0 <= ttl_ms <= KEY_TTL_MS_MAX
    ):
        raise ValueError(f"the snapshot has wrong times of {titled(known.lock)}")


def _is_several(known: ClaimantRecord) -> bool:
    waits_for_keys = known.key is not None and known.hold is None
    kind = REDIS_KEY if waits_for_keys else SEVERAL
    return kind_of(known.lock) == kind and len({*known.locks}) == len(known.locks)


def _check_fences(sessions: Iterable[Session]) -> None:
    """Check that each fence was given once (fences-rise)."""
    holds = [
        state.hold
        for session in sessions
        for state in session.owner_states.values()
        if state.hold is not None
    ]
    holds.sort(key=lambda hold: hold.fence)
    for hold, after in pairwise(holds):
        if hold.fence + (len(hold.details.locks) or hold.details.span or 1) > after.fence:
            raise ValueError(f"the snapshot has fence {after.fence} twice")


def _check_tickets(table: TableState, waits: list[tuple[Wait, int]], part: TablePart) -> None:
    """Check that each ticket was given once: what falls due is found by it."""
    tickets = [wait.ticket for wait, _ in waits]
    tickets += [ticket for one in table.objects.values() if (ticket := one.due_ticket)]
    tickets += [entry.ticket for entry in part.entries if entry.ticket]
    tickets.sort()
    if tickets and not 1 <= tickets[0] <= tickets[-1] <= table.tickets:
        raise ValueError(f"the snapshot has tickets that are not in 1 to {table.tickets}")
    for ticket, after in pairwise(tickets):
        if ticket == after:
            raise ValueError(f"the snapshot has ticket {ticket} twice")


def _fill_session(
    table: TableState, record: SessionRecord, numbered: Mapping[int, Session]
) -> Session:
    """Put the session of a record into ``table``, unless it has ended; return it."""
    if record.number == table.key_session.number:
        return table.key_session
    session = Session(
        number=record.number,
        id=f"{record.name}.{record.number}",
        name=record.name,
        label=record.label,
        ttl_ms=record.ttl_ms,
        deadline_ms=record.deadline_ms,
        account=table.accounts.of(account_of(record.name)),
        floor=record.floor,
        recalled=record.recalled,
    )
    if record.number in numbered or record.name in table.sessions.by_name:
        raise ValueError(f"the snapshot has session {session.id!a} twice")
    latest_ms = table.time_ms + record.ttl_ms
    if (
        not 1 <= record.number <= table.sessions.opened
        or not 1 <= record.ttl_ms <= SESSION_TTL_MS_MAX
        or not (record.deadline_ms == DEPARTED or 0 <= record.deadline_ms <= latest_ms)
    ):
        raise ValueError(f"the snapshot has a wrong session {session.id!a}")
    if record.deadline_ms == DEPARTED:
        session.account.sessions += 1
    else:
        table.sessions.add(session)
    return session


def _head(table: TableState) -> TableHead:
    sessions, histories = table.sessions, table.histories
    return TableHead(
        time_ms=table.time_ms,
        fence=table.fence,
        tickets=table.tickets,
        opened=sessions.opened,
        extended_ms=sessions.extended_ms,
        version=histories.version,
        forgotten=histories.forgotten,
        origin=histories.origin,
    )


def _note(table: TableState) -> list[Notes]:
    """Copy the mutable fields of all sessions and owner states, and no more, to be fast."""
    return [
        (
            _session_record(session),
            [
                _noted(one, capacity=_capacity_of(table, claim))
                for one in session.owner_states.values()
                if (claim := one.hold or one.wait) is not None
            ],
            [_noted(session.owner_states[key], lost=lost) for key, lost in session.losses.items()]
            + [_noted(session.owner_states[key], at) for key, at in session.idle.items()],
        )
        for session in sorted(
            (
                *((table.key_session,) if table.key_session.owner_states else ()),
                *table.sessions.by_id.values(),
                *(departed.session for departed in table.departed.values()),
            ),
            key=lambda session: session.number,
        )
    ]


def _capacity_of(table: TableState, claim: Claim) -> int:
    resource = table.resources.get(claim.objects[0])
    return 0 if resource is None else resource.capacity


def _noted(owner_state: OwnerState, idle_ms: int = 0, lost: int = 0, capacity: int = 0) -> Note:
    hold = owner_state.hold
    claim = hold or owner_state.wait
    return (
        owner_state,
        owner_state.request,
        owner_state.releasing,
        owner_state.outcome,
        lost,
        idle_ms,
        capacity,
        owner_state.wait,
        hold,
        PLAIN if claim is None else claim.details,
        0 if hold is None else hold.request,
        0 if hold is None else hold.count,
        0 if hold is None else hold.granted_count,
        0 if hold is None else hold.amount,
        hold.record() if isinstance(hold, DatedHold) else None,
    )


def _rest(table: TableState) -> list[Record]:
    return [
        *table.audit.values(),
        *(table.objects[name].record() for name in sorted(table.objects)),
        *(QuotaRecord(*one) for one in sorted(table.accounts.quotas.items())),
    ]


def _all_records(table: TableState) -> Iterator[Record | None]:
    """Copy all mutable fields at once, and return the records of the table in canonical order."""
    rest, noted = _rest(table), table.histories.noted()
    entries = table.maps.in_order()
    return chain(_records(_note(table), rest), records_of(noted), map(Entry.record, entries))


def _records(notes: list[Notes], rest: list[Record]) -> Iterator[Record | None]:
    """Yield the noted records in canonical order, and None after each other step of the work."""
    for session, busy, others in notes:
        yield session
        runs: list[list[Note]] = []
        for first in range(0, len(busy), SORTED_RECORDS):
            runs.append(sorted(busy[first : first + SORTED_RECORDS], key=_by_name))
            yield None
        for note in chain(merge(*runs, key=_by_name), others):
            yield _claimant_record(note)
            if isinstance(note[3], KeptReply):
                yield note[3]
    yield from rest


def _by_name(note: Note) -> tuple[str, str]:
    return note[0].owner, note[0].lock


def _session_record(session: Session) -> SessionRecord:
    return SessionRecord(
        number=session.number,
        name=session.name,
        label=session.label,
        ttl_ms=session.ttl_ms,
        deadline_ms=session.deadline_ms,
        floor=session.floor,
        recalled=session.recalled,
    )


def _claimant_record(note: Note) -> ClaimantRecord:
    owner_state, request, releasing, outcome, lost, idle_ms, capacity, wait, hold, details = note[
        :10
    ]
    denial = outcome if isinstance(outcome, Refused) else None
    owner, lock = owner_state.key
    return ClaimantRecord(
        session=owner_state.session.number,
        owner=owner,
        lock=lock,
        request=request,
        releasing=releasing,
        freed=outcome.count if isinstance(outcome, Released) else None,
        denial=denial.reason if denial else None,
        why=denial.why if denial else None,
        lost=lost,
        idle_ms=idle_ms,
        hold=None if hold is None else _hold_record(hold, details, capacity, *note[10:]),
        wait=None if wait is None else _wait_record(wait, capacity),
        locks=details.locks,
        value=details.value,
        key=details.key,
    )


def _hold_record(
    hold: TableHold,
    details: ClaimDetails,
    capacity: int,
    request: int,
    times: int,
    granted_count: int,
    amount: int,
    lease: LeaseRecord | None,
) -> HoldRecord:
    return HoldRecord(
        fence=hold.fence,
        label=details.label,
        since_ms=hold.since_ms,
        request=request,
        times=times,
        granted_count=granted_count,
        amount=amount,
        capacity=capacity,
        lease=lease,
        span=details.span,
    )


def _wait_record(wait: Wait, capacity: int) -> WaitRecord:
    hold_ms, grace_ms = wait.details.durations or NO_DURATIONS
    return WaitRecord(
        ticket=wait.ticket,
        label=wait.details.label,
        since_ms=wait.since_ms,
        due_ms=wait.due_ms,
        amount=wait.amount,
        granted_count=wait.granted_count,
        capacity=capacity,
        hold_ms=hold_ms,
        grace_ms=grace_ms,
        span=wait.details.span,
    )
