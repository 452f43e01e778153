"""What each command about a lock does to the table."""

from __future__ import annotations

from holdfast.actors.lock.command import AcquireLock, CancelWait, ForceRelease, ReleaseLock
from holdfast.actors.lock.holding import Hold, Lock
from holdfast.actors.lock.outcome import (
    Denial,
    Denied,
    Forced,
    Freed,
    Held,
    Lost,
    Outcome,
    Queued,
    WaitCancelled,
    denied,
)
from holdfast.actors.lock.session import SESSION_CLAIMS_MAX, Owner, Session
from holdfast.actors.lock.table_state import TableState
from holdfast.actors.lock.waiting import Wait

CLAIMS_MAX = 1_000_000
"""Holds and waits of the whole table, which must fit a member's memory several times."""

AUDIT_MAX = 1_000
"""How many forced releases are kept to be looked at, and to answer repetitions."""


def acquire(table: TableState, command: AcquireLock, out: list[Outcome]) -> None:
    """Grant, re-enter, queue or deny (rules 1-19, 32-37, 44-47)."""
    begun = _begin(table, command, out)
    if begun is None:
        return
    session, owner = begun
    owner.lost.pop(command.lock, None)
    hold = owner.holds.get(command.lock)
    if hold is not None:
        out.append(_enter_again(owner, hold, command))
        return
    lock = table.locks.get(command.lock)
    if lock is not None and command.wait_ms == 0:
        _deny(owner, denied(command, Denial.TIMED_OUT, lock.hold.wording()), out)
    elif (limit := _at_limit(table, session)) is not None:
        _deny(owner, denied(command, Denial.OVERLOADED, limit), out)
    else:
        _claim(table, session, owner, lock, command, out)
    session.sort(owner)


def release(table: TableState, command: ReleaseLock, out: list[Outcome]) -> None:
    """Give one hold back (rules 20-25, 48, 50). Owner and fence must both be right."""
    begun = _begin(table, command, out)
    if begun is None:
        return
    session, owner = begun
    hold = owner.holds.get(command.lock)
    if hold is None or hold.fence != command.fence:
        _deny(owner, _not_held(table, owner, command), out)
        session.sort(owner)
        return
    hold.count -= 1
    freed = Freed(
        session=command.session,
        owner=command.owner,
        request=command.request,
        lock=command.lock,
        count=hold.count,
    )
    owner.settle(freed)
    out.append(freed)
    if hold.count == 0:
        table.end_hold(hold, out)


def cancel(table: TableState, command: CancelWait, out: list[Outcome]) -> None:
    """Undo an acquire, whether it waits, was granted, or is still to come."""
    session = _hear(table, command, out)
    if session is None:
        return
    answer = WaitCancelled(
        session=command.session,
        owner=command.owner,
        request=command.request,
        lock=command.lock,
    )
    out.append(answer)
    owner = session.owners.get(command.owner)
    if owner is None:
        if command.request <= session.floor:
            return  # Whoever was forgotten neither waits nor holds.
        owner = session.enter(command.owner)
    wait, hold = owner.waits.get(command.lock), owner.holds.get(command.lock)
    if command.request > owner.request:
        if wait is not None:
            table.end_wait(wait, Denial.CANCELLED, out)
        owner.begin(command.request, command.lock, releasing=False)
        owner.settle(_cancelled(command))
    elif wait is not None and wait.request == command.request:
        table.end_wait(wait, Denial.CANCELLED, out)
    elif hold is not None and hold.request == command.request:
        owner.settle(_cancelled(command))
        hold.request = 0
        hold.count -= 1
        if hold.count == 0:
            table.end_hold(hold, out)
    session.sort(owner)


def force(table: TableState, command: ForceRelease, out: list[Outcome]) -> None:
    """Take a lock from whoever holds it under the fence that the operator saw.

    If the acquire that made the hold is asked again, the answer is not `Held` any more:
    safety goes before the letter of L5, or an owner would believe what is not so.
    """
    before = table.audit.get((command.operator, command.request))
    lock = table.locks.get(command.lock)
    if before is not None and (before.lock, before.fence) == (command.lock, command.fence):
        out.append(before)
    elif lock is None or lock.hold.fence != command.fence:
        text = "nobody holds it" if lock is None else lock.hold.wording()
        out.append(denied(command, Denial.NOT_HELD, text))
    else:
        _take(table, lock.hold, command, out)


def _hear(
    table: TableState, command: AcquireLock | ReleaseLock | CancelWait, out: list[Outcome]
) -> Session | None:
    """Count the command as a sign of life (rule 85), or deny it for want of a session."""
    session = table.sessions.by_id.get(command.session)
    if session is None:
        out.append(denied(command, Denial.SESSION_EXPIRED))
        return None
    table.sessions.keep(session, table.time_ms)
    return session


def _begin(
    table: TableState, command: AcquireLock | ReleaseLock, out: list[Outcome]
) -> tuple[Session, Owner] | None:
    """Make a new request its owner's last one; answer one that is not new, and return None."""
    session = _hear(table, command, out)
    if session is None:
        return None
    owner = session.owners.get(command.owner)
    if owner is None:
        if command.request <= session.floor:
            out.append(denied(command, Denial.FORGOTTEN))
            return None
        owner = session.enter(command.owner)
    elif command.request <= owner.request:
        out.append(_repeat(owner, command))
        return None
    abandoned = owner.waits.get(command.lock)
    if abandoned is not None:  # An owner is sequential: it gave that call up (rules 47, 48).
        table.end_wait(abandoned, Denial.CANCELLED, out)
    owner.begin(command.request, command.lock, releasing=isinstance(command, ReleaseLock))
    return session, owner


def _repeat(owner: Owner, command: AcquireLock | ReleaseLock) -> Outcome:
    """Return what came of a request that is not new (rules 44-46, 49-52)."""
    releasing = isinstance(command, ReleaseLock)
    if command.request == owner.request:
        if (owner.lock, owner.releasing) != (command.lock, releasing):
            return denied(command, Denial.SUPERSEDED)
        return owner.outcome if owner.outcome is not None else _queued(command)
    if not releasing:
        wait, hold = owner.waits.get(command.lock), owner.holds.get(command.lock)
        if wait is not None and wait.request == command.request:
            return _queued(command)
        if hold is not None and hold.request == command.request:
            return hold.answer()
    return denied(command, Denial.SUPERSEDED)


def _enter_again(owner: Owner, hold: Hold, command: AcquireLock) -> Outcome:
    """Count one more hold, or deny it at once: to wait for oneself would never end."""
    if command.limit and hold.count >= command.limit:
        text = f"held {hold.count} times under fence {hold.fence}, {command.limit} are allowed"
        answer = denied(command, Denial.LIMIT_REACHED, text)
        owner.settle(answer)
        return answer
    hold.count += 1
    hold.level = hold.count
    hold.request = command.request
    held = hold.answer()
    owner.settle(held)
    return held


def _claim(
    table: TableState,
    session: Session,
    owner: Owner,
    lock: Lock | None,
    command: AcquireLock,
    out: list[Outcome],
) -> None:
    """Enter a new claim: as a hold if the lock is free, else at the tail of its queue."""
    wait = Wait(
        ticket=table.tickets + 1,
        session=command.session,
        owner=command.owner,
        request=command.request,
        lock=command.lock,
        label=command.label,
        since_ms=table.time_ms,
        due_ms=None if command.wait_ms is None else table.time_ms + command.wait_ms,
    )
    session.claims += 1
    table.claims += 1
    if lock is None:
        table.locks[command.lock] = Lock(table.grant(wait, out))
        return
    table.tickets += 1
    table.enqueue(owner, wait)
    out.append(_queued(command))


def _at_limit(table: TableState, session: Session) -> str | None:
    if session.claims >= SESSION_CLAIMS_MAX:
        return f"{session.claims} holds and waits, a session may have {SESSION_CLAIMS_MAX}"
    if table.claims >= CLAIMS_MAX:
        return f"{table.claims} holds and waits in all, {CLAIMS_MAX} are allowed"
    return None


def _not_held(table: TableState, owner: Owner, command: ReleaseLock) -> Denied:
    lock = table.locks.get(command.lock)
    text = "nobody holds it" if lock is None else lock.hold.wording()
    if owner.lost.get(command.lock) == command.fence:
        del owner.lost[command.lock]
        return denied(command, Denial.OWNERSHIP_LOST, text)
    return denied(command, Denial.NOT_HELD, text)


def _take(table: TableState, hold: Hold, command: ForceRelease, out: list[Outcome]) -> None:
    owner = table.sessions.by_id[hold.session].owners[hold.owner]
    forced = Forced(
        operator=command.operator,
        request=command.request,
        lock=hold.lock,
        fence=hold.fence,
        session=hold.session,
        owner=hold.owner,
        label=hold.label,
        time_ms=table.time_ms,
    )
    key = (command.operator, command.request)
    table.audit.pop(key, None)
    table.audit[key] = forced
    if len(table.audit) > AUDIT_MAX:
        table.audit.popitem(last=False)
    lost = Lost(
        session=hold.session,
        owner=hold.owner,
        lock=hold.lock,
        fence=hold.fence,
        operator=command.operator,
    )
    out += [forced, lost]
    if isinstance(owner.outcome, Held) and owner.outcome.fence == hold.fence:
        owner.outcome = Denied(
            session=hold.session,
            owner=hold.owner,
            request=owner.request,
            lock=hold.lock,
            reason=Denial.OWNERSHIP_LOST,
            detail=f"taken by {command.operator!r}",
        )
    owner.lose(hold)
    table.end_hold(hold, out)


def _deny(owner: Owner, answer: Denied, out: list[Outcome]) -> None:
    owner.settle(answer)
    out.append(answer)


def _cancelled(command: CancelWait) -> Denied:
    return denied(command, Denial.CANCELLED)


def _queued(command: AcquireLock | ReleaseLock) -> Queued:
    return Queued(
        session=command.session,
        owner=command.owner,
        request=command.request,
        lock=command.lock,
    )
