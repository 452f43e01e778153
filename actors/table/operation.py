"""The effects of commands about locks on the table."""

from __future__ import annotations

from fencelock.actors.api.name import quoted
from fencelock.actors.table.command import (
    AcquireLock,
    CancelWait,
    ForceRelease,
    ReleaseLock,
    check_again,
    check_command,
)
from fencelock.actors.table.holding import Hold
from fencelock.actors.table.outcome import (
    Denial,
    Forced,
    Lost,
    Outcome,
    Queued,
    WaitCancelled,
    denied,
)
from fencelock.actors.table.session import SESSION_CLAIMS_MAX, OwnerState, Session
from fencelock.actors.table.table_state import TableState
from fencelock.actors.table.waiting import Wait

CLAIMS_MAX = 1_000_000
"""Maximum holds and waits of the whole table, which must fit a member's memory several times."""

AUDIT_MAX = 1_000
"""Maximum number of forced releases kept for inspection, and to answer repetitions."""


def acquire(table: TableState, command: AcquireLock, out: list[Outcome]) -> None:
    """Grant, acquire again, queue or deny (rules 1-19, 32-37, 44-47).

    Raises:
        InvalidRequestError: see `check_command`; nothing was done.

    """
    owner_state = _begin(table, command, out)
    if owner_state is None:
        return
    owner_state.lost, owner_state.releasing, owner_state.outcome = 0, False, None
    session, holder = owner_state.session, table.locks.get(owner_state.lock)
    if owner_state.hold is not None:
        _enter_again(owner_state, owner_state.hold, command, out)
    elif holder is not None and command.wait_ms == 0:
        _deny(table, owner_state, Denial.TIMED_OUT, holder.wording(), out)
    elif session.claims >= SESSION_CLAIMS_MAX or table.claims >= CLAIMS_MAX:
        _deny(table, owner_state, Denial.OVERLOADED, _which_limit(table, session), out)
    else:
        session.claims += 1
        table.claims += 1
        if holder is None:
            table.grant(owner_state, command.label, out)
        else:
            _wait(table, owner_state, command, out)


def release(table: TableState, command: ReleaseLock, out: list[Outcome]) -> None:
    """Release one hold (rules 20-25, 48, 50). Owner and fence must both be right.

    Raises:
        InvalidRequestError: see `check_command`; nothing was done.

    """
    owner_state = _begin(table, command, out)
    if owner_state is None:
        return
    owner_state.releasing = True
    hold = owner_state.hold
    if hold is None or hold.fence != command.fence:
        _deny_release(table, owner_state, command, out)
        return
    hold.count -= 1
    freed = owner_state.outcome = owner_state.freed(hold.count)
    out.append(freed)
    if hold.count == 0:
        table.end_hold(hold, out)


def cancel(table: TableState, command: CancelWait, out: list[Outcome]) -> None:
    """Undo an acquire that waits, was granted, or is still to come."""
    session = table.sessions.by_id.get(command.session)
    if session is None:
        out.append(denied(command, Denial.SESSION_EXPIRED))
        return
    table.sessions.keep(session, table.time_ms)  # It counts as a keep-alive (rule 85).
    answer = WaitCancelled(
        session=command.session,
        owner=command.owner,
        request=command.request,
        lock=command.lock,
    )
    out.append(answer)
    key = command.owner, command.lock
    owner_state = session.owner_states.get(key)
    if owner_state is None:
        if command.request <= session.floor:
            return  # A forgotten owner neither waits nor holds.
        owner_state = session.enter(key)
        session.lay(owner_state)
    wait, hold = owner_state.wait, owner_state.hold
    if command.request > owner_state.request:
        if wait is not None:
            table.end_wait(wait, Denial.CANCELLED, out)
        owner_state.request, owner_state.releasing = command.request, False
        owner_state.outcome = owner_state.denied(Denial.CANCELLED)
        if hold is None:
            session.rouse(owner_state)  # It is retired again below, as the last.
            session.rest(owner_state, table.time_ms)
    elif wait is not None and owner_state.request == command.request:
        table.end_wait(wait, Denial.CANCELLED, out)
    elif hold is not None and hold.request == command.request:
        if owner_state.request == command.request:
            owner_state.settle(owner_state.denied(Denial.CANCELLED))
        hold.request = 0
        hold.count -= 1
        if hold.count == 0:
            table.end_hold(hold, out)


def force(table: TableState, command: ForceRelease, out: list[Outcome]) -> None:
    """End the hold of a lock under the fence that the operator saw.

    If the acquire of that hold is repeated, the outcome is not `Held` any more. Safety goes
    before the letter of L5: otherwise the owner would believe that it still holds.
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
) -> OwnerState | None:
    """Make a new request the last one of its owner; for a repeated one, send its outcome: None.

    Any request but an invalid one counts as a keep-alive (rule 85).
    """
    sessions = table.sessions
    session = sessions.by_id.get(command.session)
    if session is None:
        check_command(command)
        out.append(denied(command, Denial.SESSION_EXPIRED))
        return None
    key, request, owner_states = (
        (command.owner, command.lock),
        command.request,
        session.owner_states,
    )
    owner_state = owner_states.get(key)
    if owner_state is None:
        check_command(command)
    else:
        check_again(command)  # The key was within limits when it was entered.
    if sessions.keep(session, table.time_ms):
        owner_state = owner_states.get(key)
    if owner_state is None:
        if request <= session.floor:
            out.append(denied(command, Denial.FORGOTTEN))
            return None
        owner_state = session.enter(key)
    elif request <= owner_state.request:
        out.append(_repeat(owner_state, command))
        return None
    elif owner_state.hold is None:
        if owner_state.wait is not None:  # It is sequential: it gave that wait up (rules 47, 48).
            table.end_wait(owner_state.wait, Denial.CANCELLED, out)
        session.rouse(owner_state)
    owner_state.request = request
    return owner_state


def _repeat(owner_state: OwnerState, command: AcquireLock | ReleaseLock) -> Outcome:
    """Return the outcome of a request that is not new (rules 44-46, 49-52)."""
    releasing, hold = isinstance(command, ReleaseLock), owner_state.hold
    last = command.request == owner_state.request and releasing == owner_state.releasing
    if last and owner_state.outcome is not None:
        return owner_state.outcome
    if last and owner_state.wait is not None:
        return _queued(owner_state)
    if hold is not None and hold.request == command.request and not releasing:
        return hold.answer()
    return denied(command, Denial.SUPERSEDED)


def _enter_again(
    owner_state: OwnerState, hold: Hold, command: AcquireLock, out: list[Outcome]
) -> None:
    """Count one more hold, or deny it at once: an owner that waits for itself waits for ever."""
    if command.limit and hold.count >= command.limit:
        text = f"held {hold.count} times under fence {hold.fence}, {command.limit} are allowed"
        answer = owner_state.denied(Denial.LIMIT_REACHED, text)
        owner_state.settle(answer)
        out.append(answer)
        return
    hold.count += 1
    hold.level = hold.count
    hold.request = command.request
    out.append(hold.answer())


def _wait(
    table: TableState, owner_state: OwnerState, command: AcquireLock, out: list[Outcome]
) -> None:
    """Append a claim, which is already counted, to its lock's queue."""
    table.tickets += 1
    due_ms = None if command.wait_ms is None else table.time_ms + command.wait_ms
    table.enqueue(Wait(owner_state, table.tickets, command.label, table.time_ms, due_ms))
    out.append(_queued(owner_state))


def _which_limit(table: TableState, session: Session) -> str:
    if session.claims >= SESSION_CLAIMS_MAX:
        return f"{session.claims} holds and waits, a session may have {SESSION_CLAIMS_MAX}"
    return f"{table.claims} holds and waits in all, {CLAIMS_MAX} are allowed"


def _take(table: TableState, hold: Hold, command: ForceRelease, out: list[Outcome]) -> None:
    owner_state = hold.owner_state
    forced = Forced(
        operator=command.operator,
        request=command.request,
        lock=owner_state.lock,
        fence=hold.fence,
        session=owner_state.session.id,
        owner=owner_state.owner,
        label=owner_state.labelled(hold.label),
        time_ms=table.time_ms,
    )
    key = (command.operator, command.request)
    table.audit.pop(key, None)
    table.audit[key] = forced
    if len(table.audit) > AUDIT_MAX:
        table.audit.popitem(last=False)
    lost = Lost(
        session=owner_state.session.id,
        owner=owner_state.owner,
        lock=owner_state.lock,
        fence=hold.fence,
        operator=command.operator,
    )
    out += [forced, lost]
    if owner_state.outcome is None:  # Else a repetition would be told that it holds.
        text = f"taken by {quoted(command.operator)}"
        owner_state.settle(owner_state.denied(Denial.OWNERSHIP_LOST, text))
    owner_state.lost = hold.fence
    table.end_hold(hold, out)


def _deny_release(
    table: TableState, owner_state: OwnerState, command: ReleaseLock, out: list[Outcome]
) -> None:
    hold = table.locks.get(command.lock)
    text = "nobody holds it" if hold is None else hold.wording()
    if owner_state.lost and owner_state.lost == command.fence:
        owner_state.lost = 0
        _deny(table, owner_state, Denial.OWNERSHIP_LOST, text, out)
    else:
        _deny(table, owner_state, Denial.NOT_HELD, text, out)


def _deny(
    table: TableState, owner_state: OwnerState, reason: Denial, text: str, out: list[Outcome]
) -> None:
    """Deny the last request of ``owner_state``, which is retired if it does not hold."""
    answer = owner_state.denied(reason, text)
    owner_state.settle(answer)
    if owner_state.hold is None:
        owner_state.session.rest(owner_state, table.time_ms)
    out.append(answer)


def _queued(owner_state: OwnerState) -> Queued:
    return Queued(
        session=owner_state.session.id,
        owner=owner_state.owner,
        request=owner_state.request,
        lock=owner_state.lock,
    )
