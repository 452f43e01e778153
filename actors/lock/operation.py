"""What each command about a lock does to the table."""

from __future__ import annotations

from fencelock.actors.lock.command import (
    AcquireLock,
    CancelWait,
    ForceRelease,
    ReleaseLock,
    check_again,
    check_command,
)
from fencelock.actors.lock.holding import Hold
from fencelock.actors.lock.name import quoted
from fencelock.actors.lock.outcome import (
    Denial,
    Forced,
    Lost,
    Outcome,
    Queued,
    WaitCancelled,
    denied,
)
from fencelock.actors.lock.session import SESSION_CLAIMS_MAX, Claimant, Session
from fencelock.actors.lock.table_state import TableState
from fencelock.actors.lock.waiting import Wait

CLAIMS_MAX = 1_000_000
"""Holds and waits of the whole table, which must fit a member's memory several times."""

AUDIT_MAX = 1_000
"""How many forced releases are kept to be looked at, and to answer repetitions."""


def acquire(table: TableState, command: AcquireLock, out: list[Outcome]) -> None:
    """Grant, re-enter, queue or deny (rules 1-19, 32-37, 44-47).

    Raises:
        InvalidRequestError: see `check_command`; nothing was done.

    """
    claimant = _begin(table, command, out)
    if claimant is None:
        return
    claimant.lost, claimant.releasing, claimant.outcome = 0, False, None
    session, holder = claimant.session, table.locks.get(claimant.lock)
    if claimant.hold is not None:
        _enter_again(claimant, claimant.hold, command, out)
    elif holder is not None and command.wait_ms == 0:
        _deny(table, claimant, Denial.TIMED_OUT, holder.wording(), out)
    elif session.claims >= SESSION_CLAIMS_MAX or table.claims >= CLAIMS_MAX:
        _deny(table, claimant, Denial.OVERLOADED, _which_limit(table, session), out)
    else:
        session.claims += 1
        table.claims += 1
        if holder is None:
            table.grant(claimant, command.label, out)
        else:
            _wait(table, claimant, command, out)


def release(table: TableState, command: ReleaseLock, out: list[Outcome]) -> None:
    """Give one hold back (rules 20-25, 48, 50). Owner and fence must both be right.

    Raises:
        InvalidRequestError: see `check_command`; nothing was done.

    """
    claimant = _begin(table, command, out)
    if claimant is None:
        return
    claimant.releasing = True
    hold = claimant.hold
    if hold is None or hold.fence != command.fence:
        _deny_release(table, claimant, command, out)
        return
    hold.count -= 1
    freed = claimant.outcome = claimant.freed(hold.count)
    out.append(freed)
    if hold.count == 0:
        table.end_hold(hold, out)


def cancel(table: TableState, command: CancelWait, out: list[Outcome]) -> None:
    """Undo an acquire, whether it waits, was granted, or is still to come."""
    session = table.sessions.by_id.get(command.session)
    if session is None:
        out.append(denied(command, Denial.SESSION_EXPIRED))
        return
    table.sessions.keep(session, table.time_ms)  # A sign of life (rule 85).
    answer = WaitCancelled(
        session=command.session,
        owner=command.owner,
        request=command.request,
        lock=command.lock,
    )
    out.append(answer)
    key = command.owner, command.lock
    claimant = session.claimants.get(key)
    if claimant is None:
        if command.request <= session.floor:
            return  # Who is forgotten neither waits nor holds.
        claimant = session.enter(key)
        session.lay(claimant)
    wait, hold = claimant.wait, claimant.hold
    if command.request > claimant.request:
        if wait is not None:
            table.end_wait(wait, Denial.CANCELLED, out)
        claimant.request, claimant.releasing = command.request, False
        claimant.outcome = claimant.denied(Denial.CANCELLED)
        if hold is None:
            session.rouse(claimant)  # And quiet again, as the last of all.
            session.rest(claimant, table.time_ms)
    elif wait is not None and claimant.request == command.request:
        table.end_wait(wait, Denial.CANCELLED, out)
    elif hold is not None and hold.request == command.request:
        if claimant.request == command.request:
            claimant.settle(claimant.denied(Denial.CANCELLED))
        hold.request = 0
        hold.count -= 1
        if hold.count == 0:
            table.end_hold(hold, out)


def force(table: TableState, command: ForceRelease, out: list[Outcome]) -> None:
    """Take a lock from whoever holds it under the fence that the operator saw.

    If the acquire that made the hold is asked again, the answer is not `Held` any more:
    safety goes before the letter of L5, or an owner would believe what is not so.
    """
    before = table.audit.get((command.operator, command.request))
    hold = table.locks.get(command.lock)
    if before is not None and (before.lock, before.fence) == (command.lock, command.fence):
        out.append(before)
    elif hold is None or hold.fence != command.fence:
        text = "nobody holds it" if hold is None else hold.wording()
        out.append(denied(command, Denial.NOT_HELD, text))
    else:
        _take(table, hold, command, out)


def _begin(
    table: TableState, command: AcquireLock | ReleaseLock, out: list[Outcome]
) -> Claimant | None:
    """Make a new request its claimant's last one; answer one that is not new: None.

    Any but an invalid one counts as a sign of life (rule 85).
    """
    sessions = table.sessions
    session = sessions.by_id.get(command.session)
    if session is None:
        check_command(command)
        out.append(denied(command, Denial.SESSION_EXPIRED))
        return None
    key, request, claimants = (command.owner, command.lock), command.request, session.claimants
    claimant = claimants.get(key)
    if claimant is None:
        check_command(command)
    else:
        check_again(command)  # The key was within limits when it was entered.
    if sessions.keep(session, table.time_ms):
        claimant = claimants.get(key)
    if claimant is None:
        if request <= session.floor:
            out.append(denied(command, Denial.FORGOTTEN))
            return None
        claimant = session.enter(key)
    elif request <= claimant.request:
        out.append(_repeat(claimant, command))
        return None
    elif claimant.hold is None:
        if claimant.wait is not None:  # It is sequential: it gave that up (rules 47, 48).
            table.end_wait(claimant.wait, Denial.CANCELLED, out)
        session.rouse(claimant)
    claimant.request = request
    return claimant


def _repeat(claimant: Claimant, command: AcquireLock | ReleaseLock) -> Outcome:
    """Return what came of a request that is not new (rules 44-46, 49-52)."""
    releasing, hold = isinstance(command, ReleaseLock), claimant.hold
    last = command.request == claimant.request and releasing == claimant.releasing
    if last and claimant.outcome is not None:
        return claimant.outcome
    if last and claimant.wait is not None:
        return _queued(claimant)
    if hold is not None and hold.request == command.request and not releasing:
        return hold.answer()
    return denied(command, Denial.SUPERSEDED)


def _enter_again(claimant: Claimant, hold: Hold, command: AcquireLock, out: list[Outcome]) -> None:
    """Count one more hold, or deny it at once: to wait for oneself would never end."""
    if command.limit and hold.count >= command.limit:
        text = f"held {hold.count} times under fence {hold.fence}, {command.limit} are allowed"
        answer = claimant.denied(Denial.LIMIT_REACHED, text)
        claimant.settle(answer)
        out.append(answer)
        return
    hold.count += 1
    hold.level = hold.count
    hold.request = command.request
    out.append(hold.answer())


def _wait(table: TableState, claimant: Claimant, command: AcquireLock, out: list[Outcome]) -> None:
    """Enter a claim, which is counted, at the tail of its lock's queue."""
    table.tickets += 1
    due_ms = None if command.wait_ms is None else table.time_ms + command.wait_ms
    table.enqueue(Wait(claimant, table.tickets, command.label, table.time_ms, due_ms))
    out.append(_queued(claimant))


def _which_limit(table: TableState, session: Session) -> str:
    if session.claims >= SESSION_CLAIMS_MAX:
        return f"{session.claims} holds and waits, a session may have {SESSION_CLAIMS_MAX}"
    return f"{table.claims} holds and waits in all, {CLAIMS_MAX} are allowed"


def _take(table: TableState, hold: Hold, command: ForceRelease, out: list[Outcome]) -> None:
    claimant = hold.claimant
    forced = Forced(
        operator=command.operator,
        request=command.request,
        lock=claimant.lock,
        fence=hold.fence,
        session=claimant.session.id,
        owner=claimant.owner,
        label=claimant.labelled(hold.label),
        time_ms=table.time_ms,
    )
    key = (command.operator, command.request)
    table.audit.pop(key, None)
    table.audit[key] = forced
    if len(table.audit) > AUDIT_MAX:
        table.audit.popitem(last=False)
    lost = Lost(
        session=claimant.session.id,
        owner=claimant.owner,
        lock=claimant.lock,
        fence=hold.fence,
        operator=command.operator,
    )
    out += [forced, lost]
    if claimant.outcome is None:  # Or a repetition would hear that it holds.
        text = f"taken by {quoted(command.operator)}"
        claimant.settle(claimant.denied(Denial.OWNERSHIP_LOST, text))
    claimant.lost = hold.fence
    table.end_hold(hold, out)


def _deny_release(
    table: TableState, claimant: Claimant, command: ReleaseLock, out: list[Outcome]
) -> None:
    hold = table.locks.get(command.lock)
    text = "nobody holds it" if hold is None else hold.wording()
    if claimant.lost and claimant.lost == command.fence:
        claimant.lost = 0
        _deny(table, claimant, Denial.OWNERSHIP_LOST, text, out)
    else:
        _deny(table, claimant, Denial.NOT_HELD, text, out)


def _deny(
    table: TableState, claimant: Claimant, reason: Denial, text: str, out: list[Outcome]
) -> None:
    """Deny the last request of ``claimant``, which may be quiet then."""
    answer = claimant.denied(reason, text)
    claimant.settle(answer)
    if claimant.hold is None:
        claimant.session.rest(claimant, table.time_ms)
    out.append(answer)


def _queued(claimant: Claimant) -> Queued:
    return Queued(
        session=claimant.session.id,
        owner=claimant.owner,
        request=claimant.request,
        lock=claimant.lock,
    )
