"""The table of locks as immutable messages, and back.

A snapshot is a run of parts, each small enough for a frame and a journal record. Order
is canonical (sessions by number, holds by fence, waits by ticket, quiet owners from the
quietest on), so that equal tables have equal snapshots, however they came about.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from holdfast.actors.lock.holding import Hold, Lock
from holdfast.actors.lock.outcome import Forced
from holdfast.actors.lock.session import Owner, Session
from holdfast.actors.lock.spelling import spell
from holdfast.actors.lock.table_record import (
    HoldRecord,
    LossRecord,
    OwnerRecord,
    Record,
    SessionRecord,
    TableHead,
    TablePart,
    TableSnapshot,
    WaitRecord,
)
from holdfast.actors.lock.waiting import Wait

if TYPE_CHECKING:
    from holdfast.actors.lock.table_state import TableState

PART_BYTES_MAX = 200 * 1024
"""Where a part is cut; with the last record and the frame around it, still below 256 KiB."""

STEP_RECORDS = 2_000
"""Records that `freeze` measures at a time: some milliseconds."""


def take(table: TableState) -> TableSnapshot:
    """Return the snapshot of ``table``; it shares nothing that can change."""
    return tuple(part for part in freeze(table) if part is not None)


def freeze(table: TableState) -> Iterator[TablePart | None]:
    """Note all of ``table`` now, and return its snapshot part by part.

    Each part is made when it is taken, whatever has become of the table; before the first
    comes None as often as it takes to find out where to cut, a bounded step each time.
    """
    return _develop(_head(table), list(_records(table)))


def _develop(head: TableHead, records: list[Record]) -> Iterator[TablePart | None]:
    cuts: list[list[Record]] = [[]]
    size = 0
    for start in range(0, len(records), STEP_RECORDS):
        for record in records[start : start + STEP_RECORDS]:
            size += len(spell(record))
            cuts[-1].append(record)
            if size > PART_BYTES_MAX:
                cuts.append([])
                size = 0
        yield None
    for index, cut in enumerate(cuts):
        yield _part(index, len(cuts), head, cut)


def digest_of(table: TableState) -> bytes:
    """Return the hash of what `take` would return, wherever it is cut."""
    digest = hashlib.blake2b(spell(_head(table)), digest_size=32)
    for record in _records(table):
        digest.update(spell(record))
    return digest.digest()


def fill(table: TableState, parts: Sequence[TablePart]) -> None:
    """Put a snapshot into ``table``, which must be new.

    Raises:
        ValueError: see `LockTable.restore`.

    """
    _check_whole(parts)
    head = parts[0].head
    table.time_ms, table.fence, table.tickets = head.time_ms, head.fence, head.tickets
    sessions = table.sessions
    sessions.opened, sessions.signs = head.opened, head.signs
    sessions.extended_ms, sessions.extended_version = head.extended_ms, head.extended_version
    numbered: dict[int, Session] = {}
    try:
        for part in parts:
            for seen in part.sessions:
                session = _session(seen)
                if seen.number in numbered or seen.name in sessions.by_name:
                    raise ValueError(f"the snapshot has session {session.id!r} twice")
                numbered[seen.number] = session
                sessions.add(session)
        _fill_claims(table, numbered, parts)
    except KeyError as error:
        raise ValueError(
            f"the snapshot speaks of {error}, which is in none of its parts"
        ) from error
    for session in numbered.values():
        for owner in list(session.owners.values()):
            session.sort(owner)


def _fill_claims(
    table: TableState, numbered: dict[int, Session], parts: Sequence[TablePart]
) -> None:
    for part in parts:
        for known in part.owners:
            session = numbered[known.session]
            if known.name in session.owners:
                raise ValueError(f"the snapshot has owner {known.name!r} twice")
            owner = session.enter(known.name)
            owner.request, owner.lock = known.request, known.lock
            owner.releasing, owner.outcome = known.releasing, known.outcome
    for part in parts:
        for loss in part.losses:
            numbered[loss.session].owners[loss.owner].lost[loss.lock] = loss.fence
        for held in part.holds:
            _fill_hold(table, numbered[held.session], held)
    ticket = 0
    for part in parts:
        for waiting in part.waits:
            if waiting.ticket <= ticket:
                raise ValueError(f"the snapshot has wait {waiting.ticket} after wait {ticket}")
            ticket = waiting.ticket
            _fill_wait(table, numbered[waiting.session], waiting)
        for forced in part.audit:
            table.audit[forced.operator, forced.request] = forced


def _fill_hold(table: TableState, session: Session, record: HoldRecord) -> None:
    hold = Hold(
        session=session.id,
        owner=record.owner,
        lock=record.lock,
        label=record.label,
        fence=record.fence,
        since_ms=record.since_ms,
        request=record.request,
        count=record.times,
        level=record.level,
    )
    if record.lock in table.locks:
        raise ValueError(f"the snapshot has two holders of lock {record.lock!r}")
    session.owners[record.owner].holds[record.lock] = hold
    table.locks[record.lock] = Lock(hold)
    session.claims += 1
    table.claims += 1


def _fill_wait(table: TableState, session: Session, record: WaitRecord) -> None:
    wait = Wait(
        ticket=record.ticket,
        session=session.id,
        owner=record.owner,
        request=record.request,
        lock=record.lock,
        label=record.label,
        since_ms=record.since_ms,
        due_ms=record.due_ms,
    )
    table.enqueue(session.owners[record.owner], wait)
    session.claims += 1
    table.claims += 1


def _session(record: SessionRecord) -> Session:
    return Session(
        number=record.number,
        id=f"{record.name}.{record.number}",
        name=record.name,
        label=record.label,
        ttl_ms=record.ttl_ms,
        version=record.version,
        deadline_ms=record.deadline_ms,
        floor=record.floor,
    )


def _check_whole(parts: Sequence[TablePart]) -> None:
    if not parts:
        raise ValueError("a snapshot has at least one part")
    for index, part in enumerate(parts):
        if (part.index, part.count) != (index, len(parts)):
            raise ValueError(
                f"part {part.index} of {part.count} stands where {index} of {len(parts)} should"
            )
        if part.head != parts[0].head:
            raise ValueError(f"part {index} belongs to another snapshot than part 0")


def _head(table: TableState) -> TableHead:
    sessions = table.sessions
    return TableHead(
        time_ms=table.time_ms,
        fence=table.fence,
        tickets=table.tickets,
        opened=sessions.opened,
        signs=sessions.signs,
        extended_ms=sessions.extended_ms,
        extended_version=sessions.extended_version,
    )


def _part(index: int, count: int, head: TableHead, records: Sequence[Record]) -> TablePart:
    return TablePart(
        index=index,
        count=count,
        head=head,
        sessions=tuple(r for r in records if isinstance(r, SessionRecord)),
        owners=tuple(r for r in records if isinstance(r, OwnerRecord)),
        losses=tuple(r for r in records if isinstance(r, LossRecord)),
        holds=tuple(r for r in records if isinstance(r, HoldRecord)),
        waits=tuple(r for r in records if isinstance(r, WaitRecord)),
        audit=tuple(r for r in records if isinstance(r, Forced)),
    )


def _records(table: TableState) -> Iterator[Record]:
    """Yield all of ``table`` but its head, in canonical order."""
    sessions = sorted(table.sessions.by_id.values(), key=lambda session: session.number)
    for session in sessions:
        yield SessionRecord(
            number=session.number,
            name=session.name,
            label=session.label,
            ttl_ms=session.ttl_ms,
            version=session.version,
            deadline_ms=session.deadline_ms,
            floor=session.floor,
        )
        yield from _owner_records(session)
    numbers = {session.id: session.number for session in sessions}
    locks = table.locks.values()
    for hold in sorted((lock.hold for lock in locks), key=lambda hold: hold.fence):
        yield _hold_record(hold, numbers[hold.session])
    waits = (wait for lock in locks for wait in lock.waits.values())
    for wait in sorted(waits, key=lambda wait: wait.ticket):
        yield _wait_record(wait, numbers[wait.session])
    yield from table.audit.values()


def _owner_records(session: Session) -> Iterator[Record]:
    busy = sorted(session.owners.keys() - session.idle.keys())
    for name in (*busy, *session.idle):
        owner = session.owners[name]
        yield OwnerRecord(
            session=session.number,
            name=name,
            request=owner.request,
            lock=owner.lock,
            releasing=owner.releasing,
            outcome=owner.outcome,
        )
        yield from _loss_records(session, owner)


def _loss_records(session: Session, owner: Owner) -> Iterator[Record]:
    for lock, fence in owner.lost.items():
        yield LossRecord(session=session.number, owner=owner.name, lock=lock, fence=fence)


def _hold_record(hold: Hold, number: int) -> HoldRecord:
    return HoldRecord(
        fence=hold.fence,
        session=number,
        owner=hold.owner,
        lock=hold.lock,
        label=hold.label,
        since_ms=hold.since_ms,
        request=hold.request,
        times=hold.count,
        level=hold.level,
    )


def _wait_record(wait: Wait, number: int) -> WaitRecord:
    return WaitRecord(
        ticket=wait.ticket,
        session=number,
        owner=wait.owner,
        request=wait.request,
        lock=wait.lock,
        label=wait.label,
        since_ms=wait.since_ms,
        due_ms=wait.due_ms,
    )
